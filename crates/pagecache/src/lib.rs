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
//!
//! # Example
//! A disk in memory under the cache. `framewright_host::FileCache` is the same over real files.
//! ```
//! use std::collections::HashMap;
//! use std::sync::Mutex;
//!
//! use framewright::Pfn;
//! use framewright_pagecache::{Cache, Device, FileId, IoError, PageSlot, Progress};
//! # use framewright_check::{fixture::Spec, platform::plain::Plain};
//!
//! type Pages<K> = Mutex<HashMap<K, Vec<u8>>>;
//!
//! /// What page frames hold, and what is stored of files.
//! #[derive(Default)]
//! struct Disk {
//!     memory: Pages<Pfn>,
//!     stored: Pages<(FileId, u64)>,
//! }
//!
//! impl Device for Disk {
//!     fn page_bytes(&self) -> usize {
//!         4096
//!     }
//!     fn read(&self, file: FileId, index: u64, pfn: Pfn) -> Result<(), IoError> {
//!         let page = self.stored.lock().unwrap().get(&(file, index)).cloned();
//!         self.memory.lock().unwrap().insert(pfn, page.unwrap_or_else(|| vec![0; 4096]));
//!         Ok(())
//!     }
//!     fn write(&self, file: FileId, index: u64, pfn: Pfn) -> Result<Progress, IoError> {
//!         let page = self.memory.lock().unwrap()[&pfn].clone();
//!         self.stored.lock().unwrap().insert((file, index), page);
//!         Ok(Progress::Done)
//!     }
//!     fn truncate(&self, file: FileId, index: u64) -> Result<(), IoError> {
//!         self.stored.lock().unwrap().retain(|&(of, at), _| of != file || at < index);
//!         Ok(())
//!     }
//!     fn copy_in(&self, pfn: Pfn, offset: usize, bytes: &[u8]) {
//!         let mut memory = self.memory.lock().unwrap();
//!         let page = memory.entry(pfn).or_insert_with(|| vec![0; 4096]);
//!         page[offset..offset + bytes.len()].copy_from_slice(bytes);
//!     }
//!     fn copy_out(&self, pfn: Pfn, offset: usize, bytes: &mut [u8]) {
//!         bytes.copy_from_slice(&self.memory.lock().unwrap()[&pfn][offset..offset + bytes.len()]);
//!     }
//!     fn clear(&self, pfn: Pfn) {
//!         self.memory.lock().unwrap().insert(pfn, vec![0; 4096]);
//!     }
//! }
//!
//! // An allocator of 1,024 page frames, each with a `PageSlot`, and the view of it that one CPU has.
//! # let world = Spec::one_zone(1024, 1).build_with::<Plain, _>(|_| PageSlot::default());
//! # let pin = world.pin(0);
//! # let (allocator, cpu) = (world.allocator(), world.cpu(&pin));
//! let cache = Cache::new(allocator, Disk::default());
//! let (file, helpers) = (FileId(1), cache.helpers());
//! cache.write(&cpu, &helpers, (file, 0, 10), b"hello")?;
//! cache.flush(file)?;
//! assert_eq!(&cache.device().stored.lock().unwrap()[&(file, 0)][10..15], b"hello");
//!
//! let mut bytes = [0; 5];
//! cache.read(&cpu, &helpers, (file, 0, 10), &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok::<(), framewright_pagecache::CacheError>(())
//! ```
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
