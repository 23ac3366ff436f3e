//! Framewright for C. `crates/capi/install` makes `libframewright.so` and `.a` of this crate, with the header
//! `framewright.h`, which is generated from the comments and signatures here.
//!
//! # Rules of every function
//! - A handle that is `NULL`, that has been closed, that belongs to another thread or that is of another kind is
//!   an error, and nothing happens. A closed handle is known as closed until a later one of its kind gets its address.
//!   A pointer that never was a handle is undefined behaviour, as everywhere in C.
//! - A call that fails says why: [`fw_last_error`](status::fw_last_error), one per thread.
//! - No panic crosses into C. A panic here means that an invariant of the allocator is broken, so the process is
//!   aborted, after one line on standard error.
//! - In a child of `fork`, all handles count as closed.
//!
//! | module | what it holds |
//! |---|---|
//! | [`status`] | how calls end, and the explained error of a thread |
//! | `shell` | handles of any kind |
//! | [`balloon`] | what a reclaimer and a balloon are |
//! | [`handle`] | what a handle points to; exit of threads, `fork` |
//! | [`arena`] | making and ending arenas |
//! | [`cpu`] | attaching, allocating, freeing |
//! | [`ranges`] | given blocks, contiguous ranges, bulk calls; hwpoison, free page reporting, fault injection |
//! | [`stat`] | counters, snapshots, verification |
//! | [`hooks`] | setting the caller's reclaimer and balloon |
//! | [`processes`] | arenas that processes share |
//! | `twin` | the same in Rust, for comparison |
#![deny(unsafe_code)]
#![expect(non_camel_case_types, reason = "they are names of C")]

pub mod arena;
pub mod balloon;
pub mod cpu;
pub mod handle;
pub mod hooks;
pub mod processes;
pub mod ranges;
mod shell;
pub mod stat;
pub mod status;
#[cfg(feature = "twin")]
pub mod twin;
