//! The simulator as a whole: the ablations that its model must survive, and the same events in every process.

mod ablations;
mod boot;
mod counts;
mod determinism;
mod first_touch;
mod lists;
mod machine;
mod page_fault;
mod programs;
mod replay;
mod socket;
mod task;
// The machine with round numbers that unit tests have. All that runs an allocator is here, and links the library's:
// unit tests would compile one of their own.
#[path = "../../src/model/testing.rs"]
mod testing;
mod trace;

use framewright_sim::model;
