//! What allocators are made to do: traces of real runs, generated workloads, and the trait
//! [`Target`](target::Target) that any allocator can implement.
//!
//! | module | what it holds |
//! |---|---|
//! | [`target`] | `Target` and `TargetCpu`: what an allocator must offer to be driven |
//! | [`error`] | how reading, recording and importing fail |
//! | [`proc`] | what `/proc` says of the machine |
//! | [`output`] | files that results go to: opened before work begins, written whole or not at all |
//! | [`trace`] | traced events, their Parquet form |
//! | [`record`] | kmem events of a real run, from tracefs |
//! | [`import`] | `perf.data` and `perf script` text |
//! | [`replay`] | a trace driven through a target on real threads |
//! | [`mod@bench`] | generated workloads driven through a target |
//! | [`probe`] | what the parts of this machine cost |
//! | [`oracle`] | a target around any other that checks it |
//! | [`conformance`] | what every target must do, as a check |
#![deny(unsafe_code)]

pub mod bench;
pub mod conformance;
pub mod error;
pub mod import;
mod kmem;
pub mod oracle;
pub mod output;
pub mod probe;
pub mod proc;
pub mod record;
pub mod replay;
pub mod target;
pub mod trace;

#[cfg(test)]
mod testing;
