//! The simulator as a whole: the ablations that its model must survive, and the same events in every process.

mod ablations;
mod boot;
mod counts;
mod determinism;
mod lists;
mod machine;
mod socket;
mod trace;
