//! Arenas that boot as a machine does: from a firmware memory map, with most of their memory left for later.
//!
//! Their frames are described only. What is real is the work: zones, early allocation, descriptors, free lists.
#![expect(unsafe_code, reason = "the allocator borrows what is left for later from its neighbour field")]

use core::ops::Range;

use framewright::boot::BootError;
use framewright::boot::early::{Early, EarlyError};
use framewright::boot::late;
use framewright::boot::map::{Home, Kind, MapCounts, MemoryMap, Piece};
use framewright::boot::spans::Span;
use framewright::boot::zones::{Buffers, Division, NodePart, Part, Rules};
use framewright::defer::Deferred;
use framewright::frame::Zeroable;
use framewright::policy::init::Split;
use framewright::units::PAGEBLOCK_PAGES;
use framewright::{Allocator, Config, NodeId, Pfn, Plan, ZoneSpec, ZoneType};

use crate::arena::{Arena, Pages};
use crate::deferred::DeferredInit;
use crate::error::ArenaError;
use crate::platform::Host;
use crate::robust::OwnerLocks;
use crate::store::{DescriptorMemory, Store};

/// A machine's memory as firmware describes it: the ranges in any order, overlapping or not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FirmwareMap {
    /// First byte, bytes, and what they are.
    pub ranges: Vec<(u64, u64, Kind)>,
    /// First byte, bytes, and whose they are.
    pub nodes: Vec<(u64, u64, Home)>,
}

/// A machine's memory, divided into zones, and what early allocation left of it.
#[derive(Clone, Debug)]
pub struct BootMap {
    /// Spans of the zones; ascending by address.
    pub zones: Vec<ZoneSpec>,
    /// Parts of the zones: the pages of each, and the first that is deferred.
    pub parts: Vec<Part>,
    /// Nodes with memory, by number.
    pub nodes: Vec<NodePart>,
    /// The free ranges; each is in one zone. Ascending, without overlap.
    pub free: Vec<Range<Pfn>>,
    /// Kinds of the memory, in bytes: ascending, each byte once.
    pub kinds: Vec<Span<Kind>>,
    /// The memory in whole pages.
    pub memory: Vec<Piece>,
    /// Frames that early allocation has reserved.
    pub reserved: Vec<Span<()>>,
    /// Base pages of memory reserved.
    pub reserved_pages: u64,
    /// Base pages that share a max-order block with another zone.
    pub lost_pages: u64,
    /// Base pages that no node claims, though others are claimed.
    pub unclaimed_pages: u64,
    /// Usable bytes that make no whole page.
    pub trimmed_bytes: u64,
    /// Counts of corrections to the ranges.
    pub counts: MapCounts,
    /// The rules by which zones were made.
    pub rules: Rules,
}

/// Ranges that early allocation may reserve.
const RESERVED: usize = 4096;
/// Zones and nodes of an allocator.
const MOST: usize = 255;

impl FirmwareMap {
    /// Brings the ranges into order, lets `early` allocate and reserve, and divides what there is. O(ranges²) at
    /// worst.
    ///
    /// # Errors
    /// The refused range, and the reason.
    pub fn divide(
        &self,
        rules: Rules,
        early: impl FnOnce(&mut Early<'_>) -> Result<(), EarlyError>,
    ) -> Result<BootMap, BootError> {
        let mut kinds = vec![Span::default(); 2 * self.ranges.len() + 1];
        let mut homes = vec![Span::default(); 2 * self.nodes.len() + 1];
        let mut map = MemoryMap::new(&mut kinds, &mut homes);
        for &(start, bytes, kind) in &self.ranges {
            map.add(start, bytes, kind)?;
        }
        for &(start, bytes, home) in &self.nodes {
            map.add_node(start, bytes, home)?;
        }
        let none = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: 0 };
        let (mut specs, mut parts, mut nodes) =
            (vec![none; MOST], vec![Part::default(); MOST], vec![NodePart::default(); MOST]);
        let room = Buffers { specs: &mut specs, parts: &mut parts, nodes: &mut nodes };
        let division = Division::new(&map, rules, room)?;
        let mut reserved = vec![Span::default(); RESERVED];
        let mut before = Early::new(map, &mut reserved);
        early(&mut before)?;
        let map = before.map();
        Ok(BootMap {
            zones: division.specs.to_vec(),
            parts: division.parts.to_vec(),
            nodes: division.nodes.to_vec(),
            kinds: map.kinds().to_vec(),
            memory: map.memory().collect(),
            reserved: before.reserved().to_vec(),
            reserved_pages: before.reserved_pages(),
            lost_pages: division.lost,
            unclaimed_pages: map.unclaimed_pages(),
            trimmed_bytes: map.trimmed_bytes(),
            counts: *map.counts(),
            rules,
            free: division.free(&before).collect(),
        })
    }
}

/// Treatment of frame descriptors before their frame is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Descriptors {
    /// Nothing: they are memory that the system gave us as zeroes, and no thread has touched.
    #[default]
    AsTheyAre,
    /// They are cleared, as a kernel must whose memory held anything.
    Cleared,
}

/// How an arena boots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BootOptions {
    /// CPU `n`, which is slot `n` of the arena, is on node `cpu_nodes[n]`.
    pub cpu_nodes: Vec<NodeId>,
    /// The allocator's configuration.
    pub config: Config,
    /// How what is left for later is split.
    pub split: Split,
    /// Workers that may be at work at a time.
    pub workers: usize,
    /// Frame descriptors.
    pub descriptors: Descriptors,
}

impl BootMap {
    /// An arena that has no memory yet: [`begin`](Allocator::begin) its boot. O(zones × CPUs).
    ///
    /// # Errors
    /// As [`ArenaBuilder::build`](crate::ArenaBuilder::build); or the free ranges do not ascend.
    pub fn build<M: Zeroable>(&self, options: &BootOptions) -> Result<Arena<M>, ArenaError> {
        self.make(options, None)
    }

    /// Like [`build`](Self::build), with descriptors in memory that an arena before had ([`Arena::into_descriptors`]),
    /// if it is large enough; they are cleared with any options, for the memory holds anything. O(pages /
    /// 512).
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_in<M: Zeroable>(
        &self,
        options: &BootOptions,
        memory: DescriptorMemory,
    ) -> Result<Arena<M>, ArenaError> {
        let options = BootOptions { descriptors: Descriptors::Cleared, ..options.clone() };
        self.make(&options, Some(memory))
    }

    /// With memory that was used before, descriptors are cleared.
    fn make<M: Zeroable>(
        &self,
        options: &BootOptions,
        used: Option<DescriptorMemory>,
    ) -> Result<Arena<M>, ArenaError> {
        let cpu_nodes = &options.cpu_nodes;
        let plan = Plan::new(&self.zones, cpu_nodes, &options.config)?;
        // The ranges are anyone's to change, and a frame that is in two of them would have two owners.
        let mut end = Pfn(0);
        for range in &self.free {
            if range.start < end || range.end < range.start {
                return Err(framewright::SetupError::RangeInUse(range.start).into());
            }
            end = range.end;
        }
        // The map counts pages of 4 KiB.
        if options.config.page_kib != 4 {
            return Err(framewright::SetupError::page_kib(options.config.page_kib).into());
        }
        if options.config.poison || options.config.init_on_free {
            return Err(ArenaError::PoisonWithoutMemory);
        }
        // SAFETY: zeroes are a valid `M`; used memory is cleared before a descriptor is looked at.
        let (store, parts) = unsafe { Store::new::<M>(&plan, cpu_nodes, None, used) }?;
        let init = DeferredInit::new(self.zones.len(), options.workers, self.free.clone(), |memory, free| {
            let division = Division {
                specs: &self.zones,
                parts: &self.parts,
                nodes: &self.nodes,
                lost: self.lost_pages,
                rules: self.rules,
            };
            late::deferred(&division, free, &options.cpu_nodes, options.split, memory)
        });
        let mut allocator = Allocator::new(&self.zones, parts.cpu_nodes, options.config, parts.memory, None)?;
        // SAFETY: the arena keeps `init` until the allocator is gone, and lends neither for longer than itself.
        let deferred: &'static Deferred<'static, Host> = unsafe { &*init.deferred() };
        match options.descriptors {
            Descriptors::AsTheyAre => allocator.defer(deferred),
            Descriptors::Cleared => allocator.defer_and_clear(deferred),
        }
        let slots = cpu_nodes.len();
        let owners = OwnerLocks::new(slots)?;
        let end = plan.base.add(plan.pageblocks as u64 * PAGEBLOCK_PAGES);
        // SAFETY: all parts borrow from this store and from `init`, and no thread has used them.
        let arena = unsafe {
            // No background threads: their slots would begin behind the last.
            Arena::new(allocator, parts.pins, store, Pages::None, plan.base..end, owners, slots, slots)
        };
        Ok(arena.keeping(init))
    }
}
