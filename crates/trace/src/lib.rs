//! Page allocations of a Linux kernel, as data: recorded from its tracepoints, imported from perf, kept as Parquet.
//! Needs none of Framewright's allocators.
//!
//! | module | what it holds |
//! |---|---|
//! | [`error`] | how reading, recording and importing fail |
//! | [`proc`] | what `/proc` says of the machine |
//! | [`input`] | files that are read: refused after their first bytes if they are of another kind |
//! | [`output`] | files that results go to: opened before work begins, written whole or not at all |
//! | [`trace`] | traced events, their Parquet form |
//! | [`kernel_time`] | share of a run's CPU time that the kernel's page allocator took, by samples |
//! | [`record`] | kmem events of a real run, from tracefs |
//! | [`import`] | `perf script` text, and `perf.data` by way of it |
//!
//! # Example
//! Text of `perf script` becomes a trace; the trace becomes a Parquet file, and is read back.
//! ```
//! use framewright_trace::import;
//! use framewright_trace::trace::{EventKind, Trace};
//!
//! let text = "cc 7 [000] 1.000000001: kmem:mm_page_alloc: page=0x0 pfn=0x28 order=3 migratetype=1 \
//!     gfp_flags=GFP_KERNEL\n";
//! let trace = import::from_bytes(text.as_bytes(), "example.txt")?;
//! assert_eq!((trace.count(EventKind::PageAlloc), trace.events[0].order), (1, 3));
//!
//! let file = trace.to_bytes()?;
//! assert_eq!(Trace::read_bytes(&file, "example.parquet")?.events, trace.events);
//! # Ok::<(), framewright_trace::error::Error>(())
//! ```
#![deny(unsafe_code)]

pub mod error;
pub mod import;
pub mod input;
pub mod kernel_time;
mod kmem;
pub mod output;
pub mod proc;
pub mod record;
pub mod trace;

/// Its code is run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
