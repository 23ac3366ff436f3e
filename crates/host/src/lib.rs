//! Framewright on a Linux host: a page-frame allocator over an arena of this process's memory, with its threads
//! as CPUs.
//!
//! | for | begin with |
//! |---|---|
//! | memory to allocate from | [`Arena`], made by [`ArenaBuilder`] |
//! | a thread that stays | [`Cpu`] ([`Arena::attach`]) and [`Block`] |
//! | threads that come and go | [`SharedArena`] and [`SharedBlock`] |
//! | a CPU beside its arena in one structure | [`OwnedCpu`] |
//! | processes that share memory | [`ProcessArena`] |
//! | files, and memory that swaps | [`FileCache`] |
//! | the `#[global_allocator]` of a program, or single collections | `Heap`, feature `global_allocator`; feature `allocator_api2` |
//! | frames of a machine that boots from a firmware map | [`FirmwareMap`] and [`BootMap`] |
//!
//! `docs/guide/embed.md` compares them, with the cost of each.
//!
//! # What safe code cannot do
//! A [`Block`] owns its frames, and `bytes_mut` rests on that. So a caller that names a frame by its number vouches for
//! it in an `unsafe` block, and code that hands the allocator something that it believes implements an `unsafe` trait.
//! Each of these once gave two `&mut` to the same bytes, and does not compile without `unsafe`:
//!
//! Freeing a frame from within a reclaimer, which may be another owner's [`Block`]:
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright_host::framewright::reclaim::Release;
//! use framewright_host::{Order, Pfn};
//!
//! fn evil(to: &dyn Release, of_somebody: Pfn) {
//!     let _ = to.free(of_somebody, Order::ZERO);
//! }
//! ```
//! Saying that a block has moved, upon which the allocator frees it:
//! ```compile_fail,E0200
//! #![forbid(unsafe_code)]
//! use framewright_host::framewright::reclaim::{Migrate, Migrated};
//! use framewright_host::{Order, Pfn};
//!
//! struct Liar;
//! impl Migrate for Liar {
//!     unsafe fn migrate(&self, _: Pfn, _: Pfn, _: Order) -> Migrated {
//!         Migrated::Moved
//!     }
//! }
//! ```
//! Having a page moved to a frame that a [`Block`] owns:
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright_host::{Block, FileCache, Order, PageSlot, Pfn};
//!
//! fn two_owners(cache: &FileCache<'_>, page: Pfn, mine: &Block<'_, PageSlot>) {
//!     cache.helpers().mover().unwrap().migrate(page, mine.pfn(), Order::ZERO);
//! }
//! ```
//! Splitting a block that its owner may free at the same time:
//! ```compile_fail,E0133
//! #![forbid(unsafe_code)]
//! use framewright_host::{Cpu, Order, Pfn};
//!
//! fn racing(cpu: &Cpu<'_>, of_somebody: Pfn, order: Order) {
//!     let _ = cpu.split(of_somebody, order, Order::ZERO);
//! }
//! ```
//! A platform whose cells point anywhere:
//! ```compile_fail,E0200
//! #![forbid(unsafe_code)]
//! use framewright_host::framewright::SharedCell;
//!
//! struct Bad;
//! impl<T> SharedCell<T> for Bad {
//!     fn new(_: T) -> Self {
//!         Self
//!     }
//!     fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
//!         f(core::ptr::without_provenance(8))
//!     }
//!     fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
//!         f(core::ptr::without_provenance_mut(8))
//!     }
//! }
//! ```
//! With `unsafe` in these places, and a promise beside it, the same lines compile:
//! ```no_run
//! use framewright_host::framewright::reclaim::{Migrate, Migrated, Release};
//! use framewright_host::framewright::SharedCell;
//! use framewright_host::{Cpu, Order, Pfn};
//!
//! unsafe fn free(to: &dyn Release, mine: Pfn) {
//!     let _ = unsafe { to.free(mine, Order::ZERO) };
//! }
//! struct Mover;
//! unsafe impl Migrate for Mover {
//!     unsafe fn migrate(&self, _: Pfn, _: Pfn, _: Order) -> Migrated {
//!         Migrated::Moved
//!     }
//! }
//! unsafe fn split(cpu: &Cpu<'_>, mine: Pfn, order: Order) {
//!     let _ = unsafe { cpu.split(mine, order, Order::ZERO) };
//! }
//! struct Cell;
//! unsafe impl<T> SharedCell<T> for Cell {
//!     fn new(_: T) -> Self {
//!         Self
//!     }
//!     fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
//!         f(core::ptr::without_provenance(8))
//!     }
//!     fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
//!         f(core::ptr::without_provenance_mut(8))
//!     }
//! }
//! ```
//! Two more panic: a [`FileCache`] used with a CPU of another arena, and one in an arena with more frames than
//! its links can name (16 TiB).
//!
//! # For those who change this crate: its modules, in the order to read them
//! | module | what it holds |
//! |---|---|
//! | `forks` | what a forked child finds of its parent's handles |
//! | `os` | memory and a clock. Raw system calls are here, and in `processes` |
//! | `robust` | locks that outlive their owner |
//! | `clear` | zeroes past the caches, for boot |
//! | [`platform`] | the core's platform on this machine |
//! | `event` | what listeners are told, with the feature `tracing` |
//! | `error` | why an arena could not be made, or a thread not attach |
//! | `store` | memory for the allocator's own structures |
//! | `annotate` | what Valgrind and AddressSanitizer are told, with the feature `annotations`, and when |
//! | `arena`, `builder` | an allocator and its memory; describing one |
//! | `deferred`, `idle_cpus`, `helpers` | initialisation that boot defers; CPUs whose threads are idle; reclaimer, mover and background threads |
//! | `boot` | arenas that boot from a firmware memory map |
//! | [`firmware`] | what firmware and Linux say of a machine's memory |
//! | `pressure` | who helps when memory runs short; background threads |
//! | `cpu` | threads that attach to CPUs |
//! | `ranges` | blocks of a given place, many together, bad frames, free memory that a hook is told of |
//! | `idle` | attached threads that do something else: their lists are within reach |
//! | `collections` | the allocator interface of `allocator-api2`, with the feature of that name |
//! | `numa` | where memory comes from, and what was got |
//! | `metrics` | counters for Prometheus |
//! | `trim` | free memory that goes back to the system |
//! | `writing` | pages on their way to storage |
//! | `device` | real files as the page cache's storage |
//! | `files` | a page cache on real files |
//! | `file_pressure` | its pages under memory pressure: reclaimed in the background, and moved |
//! | `anon` | anonymous pages beside the files |
//! | `faults` | faults and delays of a cache's storage, with the feature of that name |
//! | `block`, `shared` | blocks that free themselves; threads that do not want to attach |
//! | `heap` | a program's global allocator, with the feature `global_allocator` |
//! | [`processes`] | an arena in a file of memory that processes share, and that outlives any of them |
#![deny(unsafe_code)]

mod annotate;
mod anon;
mod arena;
mod block;
mod boot;
mod builder;
mod clear;
#[cfg(any(feature = "allocator_api2", feature = "allocator_api2_02"))]
mod collections;
mod cpu;
mod deferred;
mod device;
mod error;
mod event;
#[cfg(feature = "faults")]
mod faults;
mod file_pressure;
mod files;
pub mod firmware;
#[doc(hidden)]
pub mod forks;
#[cfg(feature = "global_allocator")]
mod heap;
mod helpers;
mod idle;
mod idle_cpus;
mod metrics;
mod numa;
mod os;
pub mod platform;
mod pressure;
pub mod processes;
mod ranges;
mod robust;
mod shared;
mod store;
mod trim;
mod writing;

pub use framewright::boot::BootError;
pub use framewright::config::Engine;
pub use framewright::cpu::{
    BulkFreeError, ContigError, HitWords, HwpoisonError, Hwpoisoned, PlaceError, PlaceFailure, Reported,
};
pub use framewright::error::{AllocFailure, FreeFailure, Shortfall};
pub use framewright::fault::{FaultCounts, FaultRule};
pub use framewright::frame::State;
pub use framewright::units::PAGEBLOCK_ORDER;
pub use framewright::{self, AllocError, Config, CpuId, FrameUser, FreeError, Migratetype, Order, Pfn};
pub use framewright::{Flags, Helpers, NodeId, NodeMask, Request};
pub use framewright_pagecache::{self as pagecache, CacheError, FileId, PageSlot, SpaceId, SwapUse};

pub use crate::arena::{Arena, PAGE_BYTES, PageCounts, Reaped};
pub use crate::block::{Block, SharedBlock};
pub use crate::boot::{BootMap, BootOptions, Descriptors, FirmwareMap};
pub use crate::builder::{ArenaBuilder, Backing};
pub use crate::cpu::{Cpu, OwnedCpu};
pub use crate::error::{ArenaError, AttachError, VerifyError};
pub use crate::files::{FileCache, Unflushed};
#[cfg(feature = "global_allocator")]
pub use crate::heap::Heap;
pub use crate::numa::{Placement, Resident};
pub use crate::platform::{Host, HostPin};
pub use crate::processes::{ProcessArena, ProcessError};
pub use crate::shared::SharedArena;
pub use crate::store::DescriptorMemory;
pub use crate::trim::{FreeAges, TrimPolicy, Trimmed};
pub use framewright::frame::Zeroable;

/// The core allocator on this platform.
pub type HostAllocator<'m, M = ()> = framewright::Allocator<'m, Host, M>;

/// The pages that a program's author reads: their code is run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../../docs/guide/embed.md")]
mod pages {}
