//! Errors, each with its reason. The state is unchanged when one of these is returned.
//!
//! Errors are small, because every caller's `Result` has room for them. [`Cpu::explain`](crate::Cpu::explain) and
//! [`FrameMap::find`](crate::frame::FrameMap::find) look up the details on demand: the lack of each zone, the state of
//! a frame.

use core::fmt;

use crate::units::{Migratetype, NodeId, Order, Pfn, ZoneId, ZoneType};

/// The lack of one zone for a request. A zone has at most 2^28 pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortfall {
    /// The zone.
    pub zone: ZoneId,
    /// Node of the zone.
    pub node: NodeId,
    /// Type of the zone.
    pub kind: ZoneType,
    /// Order of the zone's largest free block that the request may use; `None` if there is none.
    pub largest: Option<Order>,
    /// Free base pages, on all buddy lists.
    pub free: u32,
    /// Base pages on other CPUs' lists.
    pub on_other_cpus: u32,
    /// Free pages that the zone keeps: min mark and lowmem reserve; 0 without watermarks.
    pub kept: u32,
    /// Pages that its reclaimer could still free, by the reclaimer's own count: all pages of the zone if it does not
    /// count; 0 without a reclaimer.
    pub reclaimable: u32,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} {}: ", self.node.0, self.kind)?;
        let on_lists = (self.on_other_cpus, "on other CPUs' lists");
        write_lack(
            f,
            self.free,
            self.largest,
            [(self.kept, "kept"), (self.reclaimable, "reclaimable"), on_lists],
        )
    }
}

/// Writes the lack of one zone, or of several together: of the other counts those that are not 0.
fn write_lack(
    f: &mut fmt::Formatter<'_>,
    free: u32,
    largest: Option<Order>,
    others: [(u32, &str); 3],
) -> fmt::Result {
    write!(f, "{free} pages free, largest usable block ")?;
    match largest {
        Some(order) => write!(f, "{order:?}")?,
        None => f.write_str("none")?,
    }
    let mut others = others.into_iter().filter(|&(pages, _)| pages > 0);
    others.try_for_each(|(pages, what)| write!(f, ", {pages} pages {what}"))
}

/// Reason of a failed allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocFailure {
    /// Every allowed zone was tried and has no block of the order.
    NoMemory,
    /// Some zone has a block of the order and keeps it, because of its watermark or lowmem reserve.
    BelowMark,
    /// No zone of the allowed types has any memory.
    NoSuchZone,
    /// The request names a type that is not ordinary. Only unmovable, movable and reclaimable can be requested; the
    /// other types are those of pageblocks.
    NotAllowed,
    /// The request needs zeroes, and the allocator has no direct map to reach the memory through.
    NoDirectMap,
    /// Fault injection let it fail (see [`fault`](crate::fault)).
    Injected,
    /// The allocator belongs to a parent of this process. Only a host returns this.
    Forked,
}

/// A failed allocation: the request, and the lack of all zones tried, together. 24 bytes.
/// [`Cpu::explain`](crate::Cpu::explain) gives the lack of each zone. Counts are base pages, at most `u32::MAX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocError {
    /// Reason.
    pub why: AllocFailure,
    /// Order requested.
    pub order: Order,
    /// Type requested.
    pub migratetype: Migratetype,
    /// Whether the request drained other CPUs' lists, or requested that. A request that cannot wait does not.
    pub asked_back: bool,
    /// Number of zones tried.
    pub tried: u8,
    /// Order of the largest free block that the request may use; `None` if there is none.
    pub largest: Option<Order>,
    /// Free pages, on all buddy lists.
    pub free: u32,
    /// Pages on other CPUs' lists. With `asked_back`, their owners were requested to drain and have not done so.
    pub on_other_cpus: u32,
    /// Free pages that the zones keep: min marks and lowmem reserves; 0 without watermarks.
    pub kept: u32,
    /// Pages that reclaimers could still free, by their own counts: all pages of a zone whose reclaimer does not count;
    /// 0 without one.
    pub reclaimable: u32,
}

const _: () = {
    assert!(size_of::<AllocError>() == 24, "a caller's Result has room for it");
    assert!(size_of::<Result<Pfn, AllocError>>() <= 32);
    assert!(size_of::<FreeError>() <= 16 && size_of::<Result<(), FreeError>>() == size_of::<FreeError>());
};

impl AllocError {
    /// A request that was refused before any zone was tried.
    #[must_use]
    pub const fn new(why: AllocFailure, order: Order, migratetype: Migratetype) -> Self {
        Self {
            why,
            order,
            migratetype,
            asked_back: false,
            tried: 0,
            largest: None,
            free: 0,
            on_other_cpus: 0,
            kept: 0,
            reclaimable: 0,
        }
    }

    /// Adds the lack of one more zone. The rule of v3.0 keeps pages even where the mark is 0.
    pub(crate) fn add(&mut self, zone: &Shortfall, keeps_marks: bool) {
        if keeps_marks && zone.largest >= Some(self.order) {
            self.why = AllocFailure::BelowMark;
        } else if self.why == AllocFailure::NoSuchZone {
            self.why = AllocFailure::NoMemory;
        }
        self.tried = self.tried.saturating_add(1);
        self.largest = self.largest.max(zone.largest);
        self.free = self.free.saturating_add(zone.free);
        self.on_other_cpus = self.on_other_cpus.saturating_add(zone.on_other_cpus);
        self.kept = self.kept.saturating_add(zone.kept);
        self.reclaimable = self.reclaimable.saturating_add(zone.reclaimable);
    }

    /// Whether memory ran short, or fault injection let it seem so: a later or smaller request may succeed. Otherwise
    /// this allocator never grants such a request.
    #[must_use]
    pub const fn is_out_of_memory(&self) -> bool {
        matches!(self.why, AllocFailure::NoMemory | AllocFailure::BelowMark | AllocFailure::Injected)
    }
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {} block of order {}: ", self.migratetype, self.order)?;
        let zones = if self.tried == 1 { "zone" } else { "zones" };
        match self.why {
            AllocFailure::NoSuchZone => return f.write_str("no zone that the request may use has memory"),
            AllocFailure::NotAllowed => return f.write_str("a request is unmovable, movable or reclaimable"),
            AllocFailure::NoDirectMap => {
                return f.write_str("it shall hold zeroes, and there is no direct map");
            }
            AllocFailure::Injected => return f.write_str("it was made to fail"),
            AllocFailure::Forked => {
                return f.write_str("the memory belongs to the process that this one was forked from");
            }
            AllocFailure::NoMemory => write!(f, "{} {zones} tried; ", self.tried)?,
            AllocFailure::BelowMark => write!(f, "{} {zones} tried, held by watermarks; ", self.tried)?,
        }
        let lists = if self.asked_back { "on other CPUs' lists asked back" } else { "on other CPUs' lists" };
        let others = [(self.kept, "kept"), (self.reclaimable, "reclaimable"), (self.on_other_cpus, lists)];
        write_lack(f, self.free, self.largest, others)
    }
}

impl core::error::Error for AllocError {}

/// Reason of a refused free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeFailure {
    /// The frame belongs to no zone of this allocator.
    Foreign,
    /// A block of this order cannot start at this frame.
    Misaligned,
    /// The block is free already: on a buddy list, or on a per-CPU list.
    NotAllocated,
    /// The block is allocated, with another order.
    WrongOrder {
        /// The order it was allocated with.
        allocated: Order,
    },
    /// The frame is inside an allocated block that starts at another frame, [`FreeError::block_start`].
    Inside {
        /// Order of that block.
        order: Order,
    },
    /// The block was taken out of use because it is bad.
    Quarantined,
    /// The frame is reserved, or was never given to the allocator.
    Reserved,
}

/// A free, or another operation on an allocated block, that was refused. 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeError {
    /// Reason.
    pub why: FreeFailure,
    /// The frame of the call.
    pub pfn: Pfn,
    /// The order of the call.
    pub order: Order,
}

impl FreeError {
    /// First frame of the allocated block that holds the frame: a block starts at a multiple of its size. `None` if the
    /// free was refused for another reason.
    #[must_use]
    pub const fn block_start(&self) -> Option<Pfn> {
        match self.why {
            FreeFailure::Inside { order } => Some(Pfn(self.pfn.0 & !(order.pages() - 1))),
            _ => None,
        }
    }
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot free order {} at {:?}: ", self.order, self.pfn)?;
        match self.why {
            FreeFailure::Foreign => f.write_str("the frame is not this allocator's"),
            FreeFailure::Misaligned => {
                write!(f, "a block of this order starts at a multiple of {} frames", self.order.pages())
            }
            FreeFailure::NotAllocated => f.write_str("it is free already (freed twice?)"),
            FreeFailure::WrongOrder { allocated } => write!(f, "it was allocated with order {allocated}"),
            FreeFailure::Inside { order } => {
                let start = self.block_start().unwrap_or(self.pfn);
                write!(f, "it lies inside the order {order} block at {start:?}")
            }
            FreeFailure::Quarantined => f.write_str("it was found bad and is out of use"),
            FreeFailure::Reserved => f.write_str("it was never handed out"),
        }
    }
}

impl core::error::Error for FreeError {}

/// Reason why an allocator could not be made, or memory not be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetupError {
    /// There must be at least one zone, and at most 255.
    ZoneCount(usize),
    /// There must be at least one CPU, and at most 65535.
    CpuCount(usize),
    /// There may be at most [`MAX_NODES`](crate::units::MAX_NODES) nodes.
    NodeCount(usize),
    /// A distance table has a row and a column for each node, 10 from a node to itself and at least 10 elsewhere.
    Distances {
        /// Number of nodes.
        nodes: usize,
        /// Entries given.
        entries: usize,
    },
    /// A zone must start at a multiple of the largest block, be neither empty nor larger than
    /// [`MAX_ZONE_PAGES`](crate::frame::MAX_ZONE_PAGES), and not wrap around.
    BadZone(ZoneId),
    /// Two zones overlap, or share a pageblock.
    ZonesOverlap(ZoneId, ZoneId),
    /// A buffer's length differs from the plan's.
    WrongBuffer(&'static str),
    /// The range is empty, outside every zone, or crosses a zone's border.
    RangeOutsideZones(Pfn),
    /// The range holds memory that was added before.
    RangeInUse(Pfn),
    /// The pageblock holds memory that boot has left for later, and that is not initialised yet.
    NotInitialised(Pfn),
    /// A setting of the configuration has a value that is not allowed.
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// Its value.
        value: u32,
        /// The allowed values.
        allowed: &'static str,
    },
    /// [`Engine::Compact`](crate::config::Engine::Compact) needs something that the configuration, or the type of the
    /// frames' user slots, does not have.
    CompactNeeds(&'static str),
    /// The structures are larger than the address space, or than every range of memory that may hold them.
    TooLarge,
    /// The configuration needs a feature that this crate was compiled without.
    NeedsFeature(&'static str),
    /// Poisoning, or zeroes in freed memory, needs a direct map to reach the memory through.
    PoisonNeedsDirectMap,
}

impl SetupError {
    /// A size of base pages that is not allowed, or not where a firmware map or other processes determine it.
    #[must_use]
    pub const fn page_kib(value: u32) -> Self {
        let allowed = "4, 8, 16, 32 or 64, and 4 in arenas that boot, or that processes share";
        Self::Setting { name: "page_kib", value, allowed }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZoneCount(n) => write!(f, "{n} zones: an allocator has 1 to 255"),
            Self::CpuCount(n) => write!(f, "{n} CPUs: an allocator has 1 to 65535"),
            Self::NodeCount(n) => write!(f, "{n} nodes: an allocator has at most 64"),
            Self::Distances { nodes, entries } => write!(
                f,
                "{entries} node distances: {nodes} nodes need {}, 10 from each to itself and no less elsewhere",
                nodes * nodes
            ),
            Self::BadZone(zone) => write!(
                f,
                "{zone:?}: a zone starts at a multiple of 1024 frames below 2^52 and spans 1 to {} frames",
                crate::frame::MAX_ZONE_PAGES
            ),
            Self::ZonesOverlap(a, b) => write!(f, "{a:?} and {b:?} overlap or share a pageblock"),
            Self::WrongBuffer(which) => write!(f, "the buffer for {which} is not as long as the plan says"),
            Self::RangeOutsideZones(pfn) => write!(f, "the range at {pfn:?} does not lie inside one zone"),
            Self::RangeInUse(pfn) => write!(f, "the range at {pfn:?} holds memory that was added before"),
            Self::NotInitialised(pfn) => {
                write!(f, "the pageblock at {pfn:?} holds memory that is not initialised yet")
            }
            Self::Setting { name, value, allowed } => write!(f, "{name} is {value}; it has to be {allowed}"),
            Self::CompactNeeds(what) => {
                write!(f, "compact metadata has no word for each frame: it needs {what}")
            }
            Self::TooLarge => {
                f.write_str("the allocator's own structures are larger than the memory that may hold them")
            }
            Self::NeedsFeature(feature) => {
                write!(f, "the configuration needs feature `{feature}` of framewright, which is left out")
            }
            Self::PoisonNeedsDirectMap => {
                f.write_str("poison and init_on_free need a direct map of the memory")
            }
        }
    }
}

impl core::error::Error for SetupError {}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn what_was_lacking_is_said_and_nothing_else() {
        let mut error = AllocError::new(AllocFailure::NoMemory, Order::ZERO, Migratetype::Movable);
        error.tried = 1;
        let begin = "no Movable block of order 0: 1 zone tried; 0 pages free, largest usable block none";
        assert_eq!(error.to_string(), begin);
        let only = |kept, reclaimable, on_other_cpus| {
            let error = AllocError { kept, reclaimable, on_other_cpus, ..error };
            error.to_string().strip_prefix(begin).expect("it begins the same").to_string()
        };
        assert_eq!(only(7, 0, 0), ", 7 pages kept");
        assert_eq!(only(0, 7, 0), ", 7 pages reclaimable");
        assert_eq!(only(0, 0, 7), ", 7 pages on other CPUs' lists");
    }

    #[test]
    fn memory_that_ran_short_may_be_had_another_time() {
        use AllocFailure::{BelowMark, Injected, NoDirectMap, NoMemory, NoSuchZone, NotAllowed};
        for (why, out_of_memory) in [
            (NoMemory, true),
            (BelowMark, true),
            (Injected, true),
            (NoSuchZone, false),
            (NotAllowed, false),
            (NoDirectMap, false),
        ] {
            assert_eq!(
                AllocError::new(why, Order::ZERO, Migratetype::Movable).is_out_of_memory(),
                out_of_memory,
                "{why:?}"
            );
        }
    }

    #[test]
    fn the_block_that_a_frame_lies_in_is_named() {
        for order in Order::all() {
            let why = FreeFailure::Inside { order };
            let last = FreeError { why, pfn: Pfn(0x1000 + order.pages() - 1), order: Order::ZERO };
            assert_eq!(last.block_start(), Some(Pfn(0x1000)));
            assert_eq!(FreeError { why: FreeFailure::Reserved, ..last }.block_start(), None);
        }
    }
}
