//! A page cache over the page allocator, of files and of anonymous pages, and the LRU reclaim that gives its pages
//! back. `no_std` with `alloc`, generic over the platform and the storage device: the same code runs on a host's
//! files and in tests.
//!
//! # The modules, each using only those above it
//! | module | what it holds |
//! |---|---|
//! | [`policy`] | which pages are freed, kept, activated or written; how many are scanned. Pure |
//! | [`slot`] | the part of a frame's descriptor that belongs to a cached page. Here is the `unsafe` that reaches it |
//! | [`latency`] | a histogram of durations. Pure |
//! | [`swap`] | which slots of the swap area hold which pages. Pure |
//! | [`slab`] | caches of small objects, shrunk along with the LRU lists |
//! | [`device`] | the trait of storage and of the pages' memory |
//! | `file` | the state of a file: pages being written, pages not yet durable, errors. Pure |
//! | [`state`] | lists, index and counts, behind the cache's lock |
//! | [`cache`] | reads pages in, lends them to users, drops and writes them, of files and anonymous ones alike |
//! | [`writeback`] | flush, background writing, and writers that are slowed down |
//! | [`files`] | read, write, map, truncate, read ahead |
//! | [`anon`] | anonymous pages: store, load, drop |
//! | [`shrink`] | reclaim: the LRU lists as the allocator's [`Reclaim`](framewright::Reclaim) |
//! | `moving` | compaction: pages move to other frames, as the allocator's [`Migrate`](framewright::reclaim::Migrate) |
//!
//! # Who may do what with a page
//! A page in the cache belongs to the cache. Its slot is read and changed under the cache's lock only. A thread that
//! reads the page's memory is counted in the slot as a user; a thread that writes it has the page for itself, which the
//! slot says too. So no lock is held while memory is copied or a device works. Reclaim takes pages without users.
//!
//! # Pages that move
//! The cache asks for movable blocks and moves them: direct and background compaction, and a caller that wants a given
//! range of frames, get the frame of any page that no thread uses and that is not being written. A page that moves is
//! had alone while it is copied; then its entry in the index names the new frame. So only a caller that uses the page
//! keeps the number of its frame across calls.
//!
//! # Anonymous pages
//! An anonymous page belongs to a space. The first store creates it. It is mapped as long as it lives, and reclaim sees
//! from its mark `YOUNG` (the accessed bit of Linux) whether it was used. Reclaim writes pages to the swap area
//! ([`swap`]) and frees them when the write has ended; the next use reads them back. A page that was read back keeps
//! its swap slot until the next store, so that a page that is only loaded is not written twice. No failure loses a
//! page: a page that cannot be written stays in memory, and one that cannot be read stays in its swap slot.
//!
//! # What a flush promises
//! When [`flush`](Cache::flush) returns `Ok`, the device holds every page of the file that was written to before the
//! call, and has said that they are durable ([`Device::sync`]). The module [`writeback`] describes how.
//!
//! # What is not here
//! Anonymous pages belong to one space: none is shared or copied on write. They are read from the swap area one at a
//! time: there is no read-ahead.
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
mod moving;
pub mod policy;
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
