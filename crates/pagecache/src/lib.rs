//! A page cache over the page allocator, of files and of anonymous pages, and the LRU reclaim that gives its pages
//! back. `no_std` with `alloc`, generic over the platform and the storage device: the same code runs on a host's
//! files, in tests, and on a modelled disk.
//!
//! # The modules, each using only those above it
//! | module | what it holds |
//! |---|---|
//! | [`policy`] | which pages are freed, kept, activated, written; how many are looked at. Pure |
//! | [`slot`] | what a frame's descriptor says of a cached page. The only `unsafe` here |
//! | [`latency`] | a histogram of durations. Pure |
//! | [`swap`] | which slots of the swap area hold which pages. Pure |
//! | [`slab`] | caches of small objects, shrunk along with the LRU lists |
//! | [`device`] | what the cache asks of storage and of the pages' memory |
//! | `file` | what the cache knows of a file: pages on their way, pages not yet durable, errors. Pure |
//! | [`state`] | lists, index and counts, behind the cache's lock |
//! | [`cache`] | pages are brought, used, dropped, and written, whosever they are |
//! | [`writeback`] | what is dirty is flushed, written in the background, and by those who have made too much |
//! | [`files`] | read, write, map, truncate, read ahead |
//! | [`anon`] | anonymous pages: store, load, drop |
//! | [`shrink`] | reclaim: the LRU lists as the allocator's [`Reclaim`](framewright::Reclaim) |
//! | [`program`] | FS-Mark, Large DD and Streaming Mapped Writer, over files that somebody brings |
//!
//! # Who may do what with a page
//! A page in the cache belongs to it. Its slot is touched under the cache's lock only. Its memory is read by
//! those who count as its users and written by the one who has it alone; both are noted in the slot, so that
//! no lock is held while memory is copied or a device works. Reclaim takes pages that nobody uses.
//!
//! # Anonymous pages
//! They belong to a space, are made on the first store, and are mapped as long as they live: a use shows when
//! reclaim asks. Reclaim writes them to the swap area ([`swap`]) and frees them when that is done; the next use
//! brings them back. The slot stays a page's own until it is stored to again, so that who only loads need not be
//! written twice. Nothing that fails loses a page: one that cannot be written stays in memory, one that cannot
//! be read stays in its slot.
//!
//! # What a flush promises
//! When [`flush`](Cache::flush) returns `Ok`, the device holds every page of the file that was written to before the
//! call, and has said that it will last ([`Device::sync`]). The module [`writeback`] says what is kept for that.
//!
//! # What is not here
//! Anonymous pages belong to one space: none are shared or copied on write. They come back from the swap area one
//! at a time, without their neighbours.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod anon;
pub mod cache;
pub mod device;
mod file;
pub mod files;
pub mod latency;
pub mod policy;
pub mod program;
pub mod shrink;
pub mod slab;
pub mod slot;
pub mod state;
pub mod swap;
pub mod writeback;

pub use crate::cache::{Cache, CacheError};
pub use crate::device::{Completion, Device, IoError, Progress};
pub use crate::slot::{FileId, PageSlot, SpaceId};
pub use crate::swap::{Swap, SwapUse};
pub use crate::writeback::Opener;
