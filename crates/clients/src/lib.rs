//! Adapters that put crates of other authors on Framewright's frames, each in at most sixty lines, and each run by
//! a test. They are what a user would write, and they show where the interface is awkward.
//!
//! | module | whose crate | on our frames |
//! |---|---|---|
//! | [`heap`] | `dlmalloc` | a heap that grows by blocks and gives them back |
//! | [`guest`] | `vm-memory` | a virtual machine's memory |
//! | [`tables`] | `x86_64` | page tables |
//! | none | `allocator-api2`, `hashbrown` | vectors, boxes and maps in an arena |
//! | none | `talc` | a heap that grows by blocks and gives them back |
//!
//! The last two need no adapter: with the features `allocator_api2` and `allocator_api2_02` of the host crate, an arena
//! is their allocator. Two more run in a kernel, on real page tables and a real device: `kernel/src/clients`.
//!
//! # What was awkward
//! - Collections needed an adapter of thirty lines that every user would have written again: now they need none.
//! - Every adapter needed the smallest order that holds a number of bytes: now
//!   [`Arena::order_for`](framewright_host::Arena::order_for).
//! - A global allocator on an arena needed a lock that was never held while the arena allocates, a flag per thread, and
//!   no events of the arena's: now the host crate has one (`framewright_host::Heap`, feature `global_allocator`).
//! - The largest block has 4 MiB: a heap on an arena needs another source for what is larger.
//! - Frames have numbers and users have addresses: `address` and `frame_at` are checked, and their `Option`s have to be
//!   unwrapped where the frame is known to be the arena's.
#![deny(unsafe_code)]

pub mod guest;
pub mod heap;
pub mod tables;
