//! Framewright on a Linux host: a page-frame allocator over an arena of this process's memory, with its threads
//! as CPUs.
//!
//! # The rooms, in the order to read them
//! | room | what lives there |
//! |---|---|
//! | `os` | memory, a clock, locks that outlive their owner. The only room with raw system calls |
//! | `clear` | zeroes past the caches, for boot |
//! | [`platform`] | the core's seam on this machine |
//! | `error` | why an arena could not be made, or a thread not attach |
//! | `store` | memory for the allocator's own structures |
//! | `arena`, `builder` | an allocator and its memory; describing one |
//! | `boot` | arenas that boot from a firmware memory map |
//! | [`firmware`] | what firmware and Linux say of a machine's memory |
//! | `pressure` | who helps when memory runs short; background threads |
//! | `cpu` | threads that attach to CPU slots |
//! | `writing` | pages on their way to storage |
//! | `files` | a page cache on real files |
//! | `spaces` | anonymous pages beside the files |
//! | [`program`] | programs of the page cache in a folder, each task a thread |
//! | `block`, `shared` | blocks that free themselves; threads that do not want to attach |
#![deny(unsafe_code)]

mod arena;
mod block;
mod boot;
mod builder;
mod clear;
mod cpu;
mod error;
mod files;
pub mod firmware;
mod os;
pub mod platform;
mod pressure;
pub mod program;
mod shared;
mod spaces;
mod store;
mod writing;

pub use framewright::{self, AllocError, Config, CpuId, FrameUser, FreeError, Migratetype, Order, Pfn};
pub use framewright::{Flags, Helpers, NodeId, NodeMask, Request};
pub use framewright_pagecache::{self as pagecache, CacheError, FileId, PageSlot, SpaceId, SwapUse};

pub use crate::arena::{Arena, PAGE_BYTES, Reaped};
pub use crate::block::{Block, SharedBlock};
pub use crate::boot::{BootError, BootMap, BootOptions, Descriptors, FirmwareMap};
pub use crate::builder::{ArenaBuilder, Backing};
pub use crate::cpu::Attached;
pub use crate::error::{ArenaError, AttachError};
pub use crate::files::FileCache;
pub use crate::platform::{Host, HostPin};
pub use crate::shared::SharedArena;
pub use crate::store::DescriptorMemory;
pub use framewright::frame::Zeroable;

/// The core allocator on this platform.
pub type HostAllocator<'m, M = ()> = framewright::Allocator<'m, Host, M>;
