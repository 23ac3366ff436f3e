//! What an allocation may ask for, and what is done when memory is short.

mod exhausted_zone;
mod explanations;
mod reclaimers;
mod requests;
mod wakeups;
mod zonelists;
