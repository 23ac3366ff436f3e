//! What can be chosen. Every published change to the Linux allocator that this project studies is a field
//! here, so that configuration is the experiment.

pub use crate::policy::Generation;
pub use crate::policy::passes::Limits;
pub use crate::policy::pcp::PcpRule;
pub use crate::policy::reclaim::ZoneReclaimMode;
use crate::policy::watermark;
pub use crate::policy::zlc::Rule as ZonelistCache;

/// Where the zone lock lies relative to the free lists it guards.
///
/// Source: Linux v3.17 put the lock into the line of the order-0 lists; commit "mm: page_alloc: place zone
/// lock at the other end" (v4.0) moved it behind the free areas.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockPlace {
    /// In the cache line of the order-0 lists (Linux v3.17 to v3.19).
    WithOrder0Lists,
    /// Behind the order-10 lists, in their last line (Linux from v4.0).
    OtherEnd,
    /// In a line of its own.
    #[default]
    OwnLine,
}

/// How CPUs wait for the zone lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockKind {
    /// First come, first served; every waiter polls the same word (x86 Linux up to v4.1).
    Ticket,
    /// First come, first served; each waiter polls a line of its own, only the first in the queue polls the
    /// lock (x86 Linux from v4.2).
    Queued,
    /// Whoever comes when the lock is free gets it. Waiters poll for a short while, then sleep until it is released
    /// ([`Platform::park`](crate::platform::Platform::park)). For CPUs that are threads: a lock that is handed to one
    /// waiter stands still as long as that thread has no processor, and so does everybody behind it.
    Parking,
    /// Whichever the platform says ([`Platform::LOCK`](crate::platform::Platform::LOCK)): queued in a kernel and in the
    /// simulator, parking on a host.
    #[default]
    ByPlatform,
}

/// Where the blocks of a refill are checked, if the descriptor type has something to check
/// (see [`FrameUser`](crate::frame::FrameUser)).
///
/// Source: the `refill-check` change of 2023, and its follow-up that removed the check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RefillCheck {
    /// Each block as it is taken, with the zone lock held (Linux up to v6.2).
    UnderZoneLock,
    /// All new blocks in one walk after the zone lock was dropped.
    AfterUnlock,
    /// Never; the refilled list is not walked (Linux from v6.4 in its normal build).
    #[default]
    Off,
}

/// How a zone keeps free memory, and what the allocator keeps for each frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// As Linux does: blocks on a list for each order and type, linked through their descriptors, and moved one by one. The state of
    /// blocks of order 9 and 10 is in the descriptor of their first frame. Each allocation and each free counts what the per-CPU
    /// lists hold, and a free looks at each time which type and zone its pageblock has now.
    Linux,
    /// As bits: one for each free pageblock, and of others 512 to a cache line, and lists of *pageblocks*, by type, by how many of
    /// their frames are free and by the largest block among these. An allocation takes from the fullest pageblock that has what it
    /// needs, so that others empty. A free sets a bit; one that is set already is a double free. Neighbours that are drained together
    /// go back as one run.
    ///
    /// A frame has a word, and the user's slot beside it: 8.2 bytes with `M = ()`. The state of blocks of order 9 and 10 is in the
    /// descriptor of their first pageblock. An allocation that hits writes no metadata. A call counts only where a list is empty, or as
    /// long as it may become: the lists of several orders and types together may hold up to a batch, or a share of `high`, too many
    /// for each list but one. A block goes back to the list that it came from if it is the last one that was allocated there,
    /// although its pageblock may have another type by now. With [`PcpRule::V6_1`] and rules that
    /// [watch orders](PcpRule::watches_orders), whose drains depend on every call, each call counts all the same.
    #[default]
    Framewright,
    /// Like [`Framewright`](Self::Framewright), but with two bits a frame, and 16 bytes for a pageblock: 0.28 bytes a frame. They say
    /// which frames are free and which blocks callers have. Each allocation and each free changes them in one atomic step.
    ///
    /// A free is refused as with words: a wrong order, a frame inside a block, a block that is free or waits on a list, memory
    /// that was never added. Of two CPUs that free a block below order 9 at the same instant one is always refused; with words
    /// both may succeed.
    ///
    /// What needs a word is not there: user slots and their checks ([`FrameUser`](crate::frame::FrameUser)), `poison`, and
    /// [`Cpu::hwpoison`](crate::Cpu::hwpoison). Nothing says of a block below order 9 whether it was asked for as movable, so
    /// compaction and [`Cpu::alloc_contig_range`](crate::Cpu::alloc_contig_range) move none of them.
    Compact,
}

impl Engine {
    /// Whether free memory is kept as bits.
    pub(crate) const fn has_maps(self) -> bool {
        !matches!(self, Self::Linux)
    }

    /// Whether frames have words.
    pub(crate) const fn has_words(self) -> bool {
        !matches!(self, Self::Compact)
    }
}

/// Which orders have per-CPU lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PcpOrders {
    /// None: every call takes the zone lock.
    None,
    /// Order 0 (Linux up to v5.12).
    Zero,
    /// Orders 0 to 3 (later kernels without huge pages).
    UpToCostly,
    /// Orders 0 to 3, and the huge order 9 (later kernels with huge pages).
    UpToCostlyAndHuge,
    /// Orders 0 to 9.
    #[default]
    UpToHuge,
}

/// How nodes and zone types interleave.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ListOrder {
    /// Node by node: local memory first (v4.19).
    #[default]
    Node,
    /// Zone type by zone type: low zones last.
    Zone,
    /// Whichever v3.0 chooses for the machine.
    AsV3_0,
}

/// Choices that a user makes for an allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// How zones keep free memory, and what is kept for each frame.
    pub engine: Engine,
    /// Under [`PcpRule::Auto`], the lists of all CPUs of a zone's node together hold at most one in so many of its free pages,
    /// blocks of the pageblock order not counted (see
    /// [`share_of_free`](crate::policy::pcp::share_of_free)); at least 1, which is no bound. Besides, each CPU sets aside up to 128
    /// blocks and 512 pages of each zone, which go back to it together; and a list may hold one refill, if that is more.
    /// Fewer on lists leave more pageblocks whole. More spare the zone where a program gives back much at once: with 16
    /// instead of 64 the exit of a whole program takes two thirds of the time on one thread, half on two.
    pub pcp_free_part: u32,
    /// Whether freed memory is filled with a pattern that is verified when it is handed out again. Needs a
    /// direct map (see [`DirectMap`](crate::frame::DirectMap)).
    pub poison: bool,
    /// Whether freed memory is filled with zeroes (Linux `init_on_free`). Needs a direct map. With `poison`, the pattern
    /// takes its place.
    pub init_on_free: bool,
    /// Whether allocations can be made to fail on purpose (see [`fault`](crate::fault)). Then every allocation takes the slow
    /// path.
    pub fault_injection: bool,
    /// Whether pageblocks note that a hook has been told that they are free (see
    /// [`Cpu::report_free`](crate::Cpu::report_free)).
    pub free_reporting: bool,
    /// Whether the first memory that a zone is given is initialised only as it is needed: some pageblocks at a time, when the
    /// blocks before them are used up, or up to the place that a caller names. Adding a terabyte then writes a few KiB. Only
    /// with bits ([`Engine::Framewright`], [`Engine::Compact`]), and not with `poison`, which fills all memory.
    pub lazy_pageblocks: bool,
    /// KiB in a base page: 4, 8, 16, 32 or 64. What is reckoned in bytes follows: watermarks, and how much per-CPU lists move
    /// at once.
    pub page_kib: u32,
    /// Whether zones keep watermarks and a lowmem reserve. Off in all presets but `linux_v3_0`: an arena must
    /// be able to hand out its last page, and a reserve is for somebody, atomic requests or a reclaimer.
    pub keep_marks: bool,
    /// `vm.min_free_kbytes`; 0 for the rule's.
    pub min_free_kib: u64,
    /// `vm.watermark_scale_factor`: distance between the marks in 1/10,000 of the zone (v6.1).
    pub watermark_scale: u64,
    /// `vm.watermark_boost_factor`, in 1/10,000 of the high mark (v6.1); 0 for none.
    pub boost_factor: u64,
    /// `vm.zone_reclaim_mode`.
    pub zone_reclaim: ZoneReclaimMode,
    /// `vm.compaction_proactiveness`, 0 to 100: how much [`Cpu::compact_proactively`](crate::Cpu::compact_proactively) does. It
    /// compacts where more than so many percent short of 100 of the free memory lie outside free huge pages (see
    /// [`Marks`](crate::policy::compact::Marks)); 0 is never. Linux has 20 from v5.9 on: it begins at 90 % and stops at 80.
    ///
    /// The default, 98, begins and stops at 2 %: per-CPU lists keep up to 1.6 % of what is free
    /// ([`pcp_free_part`](Self::pcp_free_part)), which no round can win. Nothing is moved unless somebody calls.
    pub compaction_proactiveness: u8,
    /// Choices that are there for studies of single changes, and for what is as in one release of Linux.
    #[doc(hidden)]
    pub experiment: Experiment,
}

/// Choices of which each is there for a study of one change, and for what is as in one release of Linux. Not for users: a field may
/// go with its study.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Experiment {
    /// Rule for batch and high of the per-CPU lists.
    pub pcp_rule: PcpRule,
    /// `percpu_pagelist_high_fraction`: 0 for the rule's default, else each zone's lists may together hold
    /// `managed / fraction` pages.
    pub pcp_fraction: u32,
    /// Fixed batch and high in base pages, in place of the rule's.
    pub pcp_fixed: Option<PcpFixed>,
    /// Which orders have per-CPU lists.
    pub pcp_orders: PcpOrders,
    /// Upper bound for the slots of one per-CPU list; a power of two. Bounds metadata, not correctness: a full
    /// list drains.
    pub pcp_slots: u32,
    /// Fewest blocks in a refill of an order above 0. Linux: 2.
    pub pcp_min_refill: u32,
    /// Frames of a section of a zone ([`Engine::Framewright`], [`Engine::Compact`]), a power of two; 0 for as many as the zone and
    /// its CPUs call for. For tests of small worlds with several sections.
    pub section_pages: u64,
    /// Where the zone lock lies.
    pub lock_place: LockPlace,
    /// How CPUs wait for it.
    pub lock_kind: LockKind,
    /// Whether to measure how long the zone lock is waited for and held: two clock readings a hold.
    pub lock_timing: bool,
    /// Where refilled blocks are checked.
    pub refill_check: RefillCheck,
    /// Whether per-CPU lists are sized again when all memory is initialised (the *pcp-reset* change, v5.4), and not
    /// left as the part that boot initialises made them.
    pub pcp_reset: bool,
    /// How often a failing allocation looks whether other CPUs have answered its request to give pages back.
    pub remote_drain_spins: u32,
    /// Release whose watermarks zones keep, and how they are checked.
    pub marks: Generation,
    /// Release by whose rules a request takes from pageblocks of another type.
    pub fallback: Generation,
    /// Release whose passes a request makes that finds too little.
    pub passes: Generation,
    /// Release by whose rules memory is reclaimed and compacted.
    pub reclaim: Generation,
    /// `vm.lowmem_reserve_ratio` by zone type.
    pub reserve_ratios: [u64; 4],
    /// Whether a request takes from a lower zone of its node before it mixes types within pageblocks (Linux
    /// `ALLOC_NOFRAGMENT`, from v5.0 on). A refill then brings less where its own type has less. Only where the first zone
    /// is a Normal one, and its node has a DMA32 zone or is the only node.
    pub avoid_fragmentation: bool,
    /// How zonelists interleave nodes and zone types.
    pub zonelist_order: ListOrder,
    /// When the zonelist cache is set up.
    pub zonelist_cache: ZonelistCache,
    /// How often a request that reclaims goes round.
    pub limits: Limits,
    /// Whether the state of blocks of order 9 and 10 is in the descriptor of their first pageblock with [`Engine::Linux`], too: for
    /// simulated boots of more memory than the descriptors' first pages would leave room for.
    pub heads_in_pageblocks: bool,
}

impl Default for Experiment {
    fn default() -> Self {
        Self::framewright()
    }
}

impl Experiment {
    /// Those of [`Config::framewright`].
    #[must_use]
    pub const fn framewright() -> Self {
        Self {
            pcp_rule: PcpRule::Auto,
            pcp_fraction: 0,
            pcp_fixed: None,
            pcp_orders: PcpOrders::UpToHuge,
            pcp_slots: 1 << 15,
            pcp_min_refill: 8,
            section_pages: 0,
            lock_place: LockPlace::OwnLine,
            lock_kind: LockKind::ByPlatform,
            lock_timing: false,
            refill_check: RefillCheck::Off,
            pcp_reset: true,
            remote_drain_spins: 1000,
            marks: Generation::V6_1,
            fallback: Generation::V6_1,
            passes: Generation::V6_1,
            reclaim: Generation::V6_1,
            reserve_ratios: watermark::RESERVE_RATIOS,
            avoid_fragmentation: false,
            zonelist_order: ListOrder::Node,
            zonelist_cache: ZonelistCache::Off,
            limits: Limits::DEFAULT,
            heads_in_pageblocks: false,
        }
    }
}

/// A fixed size for per-CPU lists, in base pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcpFixed {
    /// Pages moved per refill or drain; at least 1.
    pub batch: u32,
    /// A free that brings the lists to this many pages drains.
    pub high: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self::framewright()
    }
}

impl Config {
    /// The allocator at its best: auto-tuned lists, queued lock in its own line, bulk moves in runs.
    #[must_use]
    pub const fn framewright() -> Self {
        Self {
            engine: Engine::Framewright,
            pcp_free_part: 64,
            poison: false,
            init_on_free: false,
            fault_injection: false,
            free_reporting: false,
            lazy_pageblocks: false,
            page_kib: 4,
            keep_marks: false,
            min_free_kib: 0,
            watermark_scale: watermark::SCALE,
            boost_factor: watermark::BOOST_FACTOR,
            zone_reclaim: ZoneReclaimMode::OFF,
            compaction_proactiveness: 98,
            experiment: Experiment::framewright(),
        }
    }

    /// Whether hits count: see [`Engine`].
    pub(crate) const fn counts_each_call(&self) -> bool {
        matches!((self.engine, self.experiment.pcp_rule), (Engine::Linux, _) | (_, PcpRule::V6_1))
            || self.experiment.pcp_rule.watches_orders()
    }

    /// The same, with watermarks: what an allocator with a reclaimer wants.
    #[must_use]
    pub const fn with_marks(mut self) -> Self {
        self.keep_marks = true;
        self
    }

    /// As Linux v3.0 did it, as far as memory pressure goes: marks, passes, zonelist order and cache of
    /// 2011. Per-CPU lists are those of v5.4, with v3.0's smaller batch.
    #[must_use]
    pub const fn linux_v3_0() -> Self {
        let old = Self::linux_v5_4();
        Self {
            keep_marks: true,
            experiment: Experiment {
                lock_kind: LockKind::Ticket,
                marks: Generation::V3_0,
                fallback: Generation::V3_0,
                passes: Generation::V3_0,
                reclaim: Generation::V3_0,
                avoid_fragmentation: false,
                zonelist_order: ListOrder::AsV3_0,
                zonelist_cache: ZonelistCache::AfterFirstZone,
                ..old.experiment
            },
            ..old
        }
    }

    /// As Linux v5.4 did it.
    #[must_use]
    pub const fn linux_v5_4() -> Self {
        Self {
            engine: Engine::Linux,
            compaction_proactiveness: 0,
            experiment: Experiment {
                pcp_rule: PcpRule::V5_4,
                pcp_orders: PcpOrders::Zero,
                pcp_min_refill: 2,
                lock_place: LockPlace::OtherEnd,
                lock_kind: LockKind::Queued,
                refill_check: RefillCheck::UnderZoneLock,
                avoid_fragmentation: true,
                ..Experiment::framewright()
            },
            ..Self::framewright()
        }
    }

    /// As Linux v6.1 does it.
    #[must_use]
    pub const fn linux_v6_1() -> Self {
        let old = Self::linux_v5_4();
        let experiment = Experiment {
            pcp_rule: PcpRule::V6_1,
            pcp_orders: PcpOrders::UpToCostlyAndHuge,
            ..old.experiment
        };
        Self { compaction_proactiveness: 20, experiment, ..old }
    }

    /// As Linux v6.7 to v6.15 do it.
    #[must_use]
    pub const fn linux_v6_7() -> Self {
        let old = Self::linux_v6_1();
        let experiment =
            Experiment { pcp_rule: PcpRule::V6_7, refill_check: RefillCheck::Off, ..old.experiment };
        Self { experiment, ..old }
    }

    /// As Linux v6.16 and later do it.
    #[must_use]
    pub const fn linux_v6_16() -> Self {
        let old = Self::linux_v6_7();
        Self { experiment: Experiment { pcp_rule: PcpRule::V6_16, ..old.experiment }, ..old }
    }
}
