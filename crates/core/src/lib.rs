//! A page-frame allocator modelled on the Linux page allocator: nodes, zones, migratetypes, per-CPU page lists,
//! zonelists, watermarks, reclaim, deferred initialisation. `no_std`, no heap, no dependencies.
//!
//! # How it works
//! 1. **Memory.** A *frame* is a base page, named by its pfn. A *block* is 2^order frames, aligned to its size. A
//!    *pageblock* is 512 frames that share a migratetype. A *zone* is a range of frames of one node and [`ZoneType`];
//!    its free store is cut into *sections*, each with a lock of its own ([`zone`]).
//! 2. **State.** Each block has one *head word* that states what the block is: free, allocated, on a CPU's list, or out
//!    of use. The head word is at the block's first frame, for orders 9 and 10 at its pageblock ([`frame`]). It is
//!    written by the owner of the block: the section's lock holder for a free block, the CPU that frees or lists it for
//!    any other. Any CPU may read it, to explain a wrong free.
//! 3. **Free memory** is a bit a frame. A pageblock that is partly free is *open*: it is in the *bin* of its type, its
//!    fullness and its largest free block. A pageblock that is free as a whole has one bit in a bitmap of its type
//!    ([`buddy`]).
//! 4. **Placement.** An allocation takes from the bin whose largest block is as small as suffices, and of those from
//!    the fullest. So small blocks do not break large ones, and pageblocks that are nearly free become whole again. A
//!    whole pageblock is opened only when no bin has the block. If the type has none either, another type gives up a
//!    pageblock that is mostly free, or else a part of its smallest block that suffices ([`policy::fallback`]). A CPU
//!    compares the bins of up to sixteen sections, its last one first, without a lock, and then locks one section.
//! 5. **Per-CPU lists** ([`pcp`]). Each CPU has a stack of blocks for each order up to 9 and each type, in each zone.
//!    [`Cpu::alloc`] pops the top and [`Cpu::free`] pushes: a *hit* has no lock, no atomic read-modify-write and no
//!    count. An allocation reads no descriptor; a free compares the block's head word with the one word that it must
//!    have, which is the whole check against wrong frees.
//! 6. **Refill and drain.** Each list in use has a share of what the CPU's lists may hold together, at most a 64th of
//!    what is free. An empty list is refilled with half of its share, in one hold of a section's lock; a list at its
//!    share gives half of it back ([`policy::pcp`]). A list may hold one block at any fullness; calls of
//!    orders 4 to 8 go past a list whose share is less than one.
//! 7. **A free that is no hit** takes one of five ways, by a table (`cpu/free.rs`): onto the list; onto the list, which
//!    drains; back to the zone with others, if its pageblock is sparser than the one that the CPU refills from; claimed
//!    first by a compare-and-swap, if another CPU handed the block out; or all checks, and a refusal.
//! 8. **An allocation that finds nothing** goes on in passes, decided by a pure function ([`policy::passes`]): the
//!    next zone of the node's zonelist ([`zonelist`]), background reclaim, lower watermarks, compaction, direct reclaim
//!    with what the request brings ([`reclaim`]), the lists of other CPUs. Then [`AllocError`] states what each zone
//!    lacked.
//! 9. **Other CPUs' lists.** A CPU in need drains the lists of every CPU that is in no call. A hit sets and clears its
//!    `inside` word by plain stores; the draining CPU shuts the lists' bounds, issues one heavy barrier, and skips CPUs
//!    that are inside (`pcp/turn.rs`).
//! 10. **Watermarks** are opt-in. One function answers how many pages may leave a zone for a request, however it is
//!     made ([`policy::watermark`]).
//! 11. **Lock order.** A CPU's own lists (`turn`), then one section's lock. No CPU holds two section locks, and no lock
//!     is held while a helper runs.
//! 12. **Linux' rules.** The `linux_*` presets of [`Config`] keep free lists instead of bits, and count each hit, so
//!     that every decision comes at the operation at which Linux makes it. They use the same lists, zones and passes.
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
//! | [`buddy`] | the free store: bins and bitmaps, or the free lists of Linux |
//! | [`zone`] | sections with their locks, counters, and the cache line of each |
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
//! | [`kernel`] | the allocator in a `static` of a kernel |
//! | [`hotplug`] | pageblocks taken online and offline |
//! | [`stat`], [`verify`] | counters and snapshots; whole-allocator invariants |
//!
//! # Example
//! One CPU and 64 MiB of page frames from 1 GiB on, described and not touched. [`platform`] has another ready
//! [`Platform`] for kernels with several CPUs, `framewright-host` one with memory behind the frames; the repository's
//! `docs/porting.md` leads through a kernel's.
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
pub mod kernel;
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
pub use crate::owned::OwnedFrames;
pub use crate::platform::{PinnedCpu, Platform, SharedCell, Word};
pub use crate::reclaim::{Helpers, Migrate, Reclaim};
pub use crate::request::{Flags, Request};
pub use crate::setup::{Memory, Plan};
pub use crate::units::{CpuId, Migratetype, NodeId, NodeMask, Order, Pfn, ZoneId, ZoneType};
pub use crate::zone::ZoneSpec;
