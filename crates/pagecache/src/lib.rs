//! A file page cache over the page allocator, and the LRU reclaim that gives its pages back. `no_std` with
//! `alloc`, generic over the platform and the storage device: the same code runs on a host's files, in tests,
//! and on a modelled disk.
//!
//! # The rooms, each using only those above it
//! | room | what lives there |
//! |---|---|
//! | [`policy`] | which pages are freed, kept, activated, written; how many are looked at. Pure |
//! | [`slot`] | what a frame's descriptor says of a cached page. The only `unsafe` here |
//! | [`latency`] | a histogram of durations. Pure |
//! | [`device`] | what the cache asks of storage and of the pages' memory |
//! | [`state`] | lists, index and counts, behind the cache's lock |
//! | [`cache`] | read, write, map, flush, truncate, read ahead |
//! | [`shrink`] | reclaim: the LRU lists as the allocator's [`Reclaim`](framewright::Reclaim) |
//! | [`program`] | FS-Mark, Large DD and Streaming Mapped Writer, over files that somebody brings |
//!
//! # Who may do what with a page
//! A page in the cache belongs to it. Its slot is touched under the cache's lock only. Its memory is read by
//! those who count as its users and written by the one who has it alone; both are noted in the slot, so that
//! no lock is held while memory is copied or a device works. Reclaim takes pages that nobody uses.
//!
//! # What is not here
//! Anonymous pages and swap: the balance between file and anonymous lists is decided (see
//! [`policy::scan_counts`]) and only file lists exist to act on.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod cache;
pub mod device;
pub mod latency;
pub mod policy;
pub mod program;
pub mod shrink;
pub mod slot;
pub mod state;

pub use crate::cache::{Cache, CacheError};
pub use crate::device::{Completion, Device, IoError, Progress};
pub use crate::slot::{FileId, PageSlot};
