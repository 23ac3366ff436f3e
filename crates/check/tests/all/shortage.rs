//! Requests of every kind, and the work when memory is short.

mod asks;
mod exhausted_zone;
mod explanations;
mod reclaimers;
mod requests;
mod wakeups;
mod zonelists;
