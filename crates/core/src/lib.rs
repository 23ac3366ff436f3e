//! A page-frame allocator modelled on the Linux page allocator: zones, buddy lists by migratetype, and
//! per-CPU page lists. `no_std`, no heap, no dependencies.
//!
//! # The way of one allocation
//! [`Cpu::alloc`] takes the block at the head of this CPU's list ([`pcp`]). If the list is empty it is
//! refilled from the [`zone`] under its lock ([`sync`]): the [`buddy`] lists split a larger block, or take
//! one from another migratetype ([`policy::fallback`]). If the zone has nothing, the next one in the zonelist
//! is tried ([`zonelist`]); if none has, background reclaim is woken, memory is compacted and reclaimed with
//! whoever helps ([`reclaim`]), and lists are drained everywhere, step by step as [`policy::passes`] decides;
//! then [`AllocError`] explains ([`cpu`]). [`Cpu::free`] checks the block against its descriptor ([`frame`]), puts it at the
//! head of this CPU's list and drains the list's cold end when it has grown too long ([`policy::pcp`]).
//!
//! # The modules, each using only those above it
//! | module | what it holds |
//! |---|---|
//! | [`units`] | frame numbers, orders, CPUs, migratetypes. Pure |
//! | [`policy`] | list sizes, watermarks, fallback tables, boot arithmetic. Pure functions |
//! | [`config`] | what can be chosen |
//! | [`platform`] | what a platform is: words, cells, pins; two that are ready |
//! | [`events`] | counters with the kernel's names |
//! | [`request`] | what an allocation may ask for |
//! | [`sync`] | ticket and queued locks |
//! | [`frame`] | frame and pageblock descriptors, the user's slot |
//! | [`error`] | how a failure explains itself |
//! | [`buddy`] | split and merge on free lists |
//! | [`zone`] | buddy lists, lock and counters, and where each lies |
//! | [`zonelist`] | in which order zones are tried, and what is noted about full ones |
//! | [`pcp`] | per-CPU lists: refill, drain, checks |
//! | [`reclaim`] | who helps when memory is short, and what nodes keep about it |
//! | [`setup`] | what an allocator's own structures need |
//! | [`defer`] | memory left for later, and who has claimed which part of it |
//! | [`fault`] | allocations that fail on purpose |
//! | [`alloc`] | the allocator in the caller's memory; adding memory, sizes, pageblocks |
//! | [`boot`] | from a firmware memory map to zones; early allocation |
//! | [`cpu`] | the passes of an allocation and of a free |
//! | [`owned`] | values that own frames and free them when dropped |
//! | [`hotplug`] | pageblocks taken online and offline |
//! | [`stat`], [`verify`] | counters and snapshots; whole-allocator invariants |
//!
//! # Example
//! One CPU and 64 MiB of page frames from 1 GiB on, described and not touched. [`platform`] has another ready [`Platform`] for kernels
//! with several CPUs, `framewright-host` one with memory behind the frames; the repository's `docs/porting.md` leads through a kernel's.
//! ```
//! use core::ptr::NonNull;
//!
//! use framewright::platform::OneCpu;
//! use framewright::{Allocator, Config, Memory, Migratetype, NodeId, Order, Pfn, Plan, ZoneSpec, ZoneType};
//!
//! let zones = [ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(1 << 18), pages: 16 << 10 }];
//! let plan = Plan::new(&zones, &[NodeId(0)], &Config::default())?;
//! let layout = plan.layout::<OneCpu, ()>()?;
//! // SAFETY: the layout is not empty; zeroed memory that nothing else uses, and that is never given back.
//! let memory = unsafe { Memory::carve(&plan, NonNull::new(std::alloc::alloc_zeroed(layout)).unwrap()) };
//! let allocator = Allocator::<OneCpu>::new(&zones, &[NodeId(0)], Config::default(), memory, None)?;
//! allocator.add_memory(zones[0].start, zones[0].pages)?;
//! allocator.resize_pcps();
//!
//! let cpu = allocator.cpu(&OneCpu);
//! let page = cpu.alloc(Order::ZERO, Migratetype::Movable)?;
//! cpu.free(page, Order::ZERO)?;
//! assert!(cpu.free(page, Order::ZERO).is_err(), "a double free is refused");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![deny(unsafe_code)]

pub mod alloc;
pub mod boot;
pub mod buddy;
pub mod config;
pub mod cpu;
pub mod defer;
pub mod error;
pub mod events;
pub mod fault;
pub mod frame;
pub mod hotplug;
pub mod owned;
pub mod pcp;
pub mod platform;
pub mod policy;
pub mod reclaim;
pub mod request;
pub mod setup;
pub mod stat;
pub mod sync;
pub mod units;
pub mod verify;
pub mod zone;
pub mod zonelist;

pub use crate::alloc::Allocator;
pub use crate::config::Config;
pub use crate::cpu::Cpu;
pub use crate::error::{AllocError, FreeError, SetupError};
pub use crate::frame::{Frame, FrameUser};
pub use crate::owned::{OwnedBlock, OwnedFrames};
pub use crate::platform::{PinnedCpu, Platform, SharedCell, Word};
pub use crate::reclaim::{Helpers, Migrate, Reclaim};
pub use crate::request::{Flags, Request};
pub use crate::setup::{Memory, Plan};
pub use crate::units::{CpuId, Migratetype, NodeId, NodeMask, Order, Pfn, ZoneId, ZoneType};
pub use crate::zone::ZoneSpec;
