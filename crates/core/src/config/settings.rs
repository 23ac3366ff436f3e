//! All settings of an allocator: without the feature `settings` only the crate itself sees them.

use super::{Engine, ListOrder, LockKind, LockPlace, PcpOrders, PcpRule, RefillCheck, ZonelistCache};
use crate::policy::Generation;
use crate::policy::compact::{LINUX_ROUND_MS, ROUND_MS};
use crate::policy::passes::Limits;
use crate::policy::reclaim::ZoneReclaimMode;
use crate::policy::watermark;

/// Settings of an allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// How zones keep free memory, and which metadata each frame has.
    pub engine: Engine,
    /// Part of a zone's free memory that per-CPU lists may hold, under [`PcpRule::Auto`]: the CPUs that use the zone
    /// divide 1 / `pcp_free_part` of its free pages, and each notices at its next slow call that others have come; if
    /// lists of idle CPUs cannot be drained, all CPUs of the zone's node divide it. Free blocks of the pageblock order
    /// are not counted (see [`share_of_free`](crate::policy::pcp::share_of_free)). At least 1, which is no bound.
    ///
    /// Two exceptions: a list may always hold one refill, and each CPU may set aside up to 128 blocks and 512 pages of
    /// each zone, which it gives back together.
    ///
    /// A larger value leaves more pageblocks whole. A smaller value saves zone-lock holds in a program that frees much
    /// memory together: with 16 instead of 64 the exit of a program takes two thirds of the time on one thread, half on
    /// two.
    pub pcp_free_part: u32,
    /// Whether freed memory is filled with a pattern, which is verified at the next allocation. Needs a direct map (see
    /// [`DirectMap`](crate::frame::DirectMap)).
    pub poison: bool,
    /// Whether freed memory is filled with zeroes (Linux `init_on_free`). Needs a direct map. With `poison`, memory is
    /// filled with the pattern instead.
    pub init_on_free: bool,
    /// Whether allocations can be made to fail on purpose (see [`fault`](crate::fault)). Every allocation then takes
    /// the slow path.
    pub fault_injection: bool,
    /// Whether a pageblock records that a hook was told that it is free (see
    /// [`Cpu::report_free`](crate::Cpu::report_free)).
    pub free_reporting: bool,
    /// Whether the first memory that a zone is given is initialised only when it is needed: some pageblocks at a time,
    /// when the blocks before them are used up, or up to the address that a caller names. Adding a terabyte then writes
    /// a few KiB. Only with bits ([`Engine::Framewright`], [`Engine::Compact`]), and not with `poison`, which fills all
    /// memory.
    pub lazy_pageblocks: bool,
    /// Size of a base page in KiB: 4, 8, 16, 32 or 64. Settings in bytes are converted with it: watermarks, and the
    /// batch of per-CPU lists.
    pub page_kib: u32,
    /// Whether zones keep watermarks and a lowmem reserve. Off in all presets but `linux_v3_0`: an arena must be able
    /// to hand out its last page, and a reserve is useful only with atomic requests or a reclaimer.
    pub keep_marks: bool,
    /// `vm.min_free_kbytes`; 0 for the value of the rule.
    pub min_free_kib: u64,
    /// `vm.watermark_scale_factor`: distance between the marks in 1/10,000 of the zone (v6.1).
    pub watermark_scale: u64,
    /// `vm.watermark_boost_factor`, in 1/10,000 of the high mark (v6.1); 0 for none. Where free memory
    /// is not on lists, only requests that bring [`Background`](crate::reclaim::Background) boost marks, because
    /// background reclaim ends the boost.
    pub boost_factor: u64,
    /// `vm.zone_reclaim_mode`.
    pub zone_reclaim: ZoneReclaimMode,
    /// `vm.compaction_proactiveness`, 0 to 100: how much memory
    /// [`Cpu::compact_proactively`](crate::Cpu::compact_proactively) compacts. It works while more than (100 −
    /// `compaction_proactiveness`) percent of the free memory is outside free huge pages (see
    /// [`Marks`](crate::policy::compact::Marks)); with 0 it never works. Linux from v5.9 has 20: it begins at 90 % and
    /// stops at 80 %.
    ///
    /// The default, 98, begins and stops at 2 %. Per-CPU lists keep up to 1.6 % of the free memory
    /// ([`pcp_free_part`](Self::pcp_free_part)), which no round can win. Nothing is moved unless the user calls
    /// `compact_proactively`.
    pub compaction_proactiveness: u8,
    /// Settings for studies of single changes, and for rules of one Linux release.
    #[doc(hidden)]
    pub experiment: Experiment,
}

/// Settings that each serve the study of one change, or follow one Linux release. Not for users: a field may go with
/// its study.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Experiment {
    /// Rule for batch and high of the per-CPU lists.
    pub pcp_rule: PcpRule,
    /// `percpu_pagelist_high_fraction`: 0 for the default of the rule; else the lists of each zone may together hold
    /// `managed / fraction` pages.
    pub pcp_fraction: u32,
    /// Fixed batch and high, in base pages, instead of the rule's.
    pub pcp_fixed: Option<PcpFixed>,
    /// Which orders have per-CPU lists.
    pub pcp_orders: PcpOrders,
    /// Upper bound for the slots of one per-CPU list; a power of two. Bounds the metadata. A full list drains.
    pub pcp_slots: u32,
    /// Fewest blocks in a refill of an order above 0, where hits count. Linux: 2.
    pub pcp_min_refill: u32,
    /// Frames of a section of a zone ([`Engine::Framewright`], [`Engine::Compact`]), a power of two; 0: computed from
    /// the zone's size and its CPUs. For tests of small worlds with several sections.
    pub section_pages: u64,
    /// Cache line of the zone lock.
    pub lock_place: LockPlace,
    /// How CPUs wait for the zone lock.
    pub lock_kind: LockKind,
    /// Whether the allocator measures how long CPUs wait for the zone lock and hold it. Costs two clock readings a
    /// hold.
    pub lock_timing: bool,
    /// Moment at which refilled blocks are checked.
    pub refill_check: RefillCheck,
    /// Whether per-CPU lists are sized again when all memory is initialised (the *pcp-reset* change, v5.4). If not,
    /// they keep the size for the part that boot initialises.
    pub pcp_reset: bool,
    /// How many times a failing allocation looks whether other CPUs have drained on its request.
    pub remote_drain_spins: u32,
    /// Release whose watermarks zones keep, and whose checks they use.
    pub marks: Generation,
    /// Release whose rules decide when a request takes from a pageblock of another type.
    pub fallback: Generation,
    /// Release whose passes a request makes after its first walk failed.
    pub passes: Generation,
    /// Release whose rules reclaim and compaction follow.
    pub reclaim: Generation,
    /// `vm.lowmem_reserve_ratio` by zone type.
    pub reserve_ratios: [u64; 4],
    /// Whether a request takes from a lower zone of its node before it mixes types within pageblocks (Linux
    /// `ALLOC_NOFRAGMENT`, from v5.0). A refill then brings fewer blocks if its own type has fewer. Applies only if the
    /// first zone is Normal, and its node has a DMA32 zone or is the only node.
    pub avoid_fragmentation: bool,
    /// Order of nodes and zone types in zonelists.
    pub zonelist_order: ListOrder,
    /// Moment at which a walk sets up the zonelist cache.
    pub zonelist_cache: ZonelistCache,
    /// Most rounds of a request that reclaims.
    pub limits: Limits,
    /// Whether the state of a block of order 9 or 10 is in the descriptor of its first pageblock with
    /// [`Engine::Linux`], too. For simulated boots, in which the host would otherwise keep one page of descriptors for
    /// each pageblock.
    pub heads_in_pageblocks: bool,
}

impl Default for Experiment {
    fn default() -> Self {
        Self::framewright()
    }
}

impl Experiment {
    /// Settings of [`Config::framewright`].
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

/// Fixed batch and high of per-CPU lists, in base pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcpFixed {
    /// Pages that a refill or drain moves; at least 1.
    pub batch: u32,
    /// Limit: a free that brings the lists to this many pages drains.
    pub high: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self::framewright()
    }
}

impl Config {
    /// The default: auto-tuned lists, the lock in its own line, free memory as bits.
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

    /// Whether hits count (see [`Engine`]).
    pub(crate) const fn counts_each_call(&self) -> bool {
        cfg!(feature = "settings")
            && (matches!((self.engine, self.experiment.pcp_rule), (Engine::Linux, _) | (_, PcpRule::V6_1))
                || self.experiment.pcp_rule.watches_orders())
    }

    /// Whether a zone may be tried without a look at fault injection and the zonelist cache.
    pub(crate) const fn tries_zones_plainly(&self) -> bool {
        matches!(self.experiment.zonelist_cache, ZonelistCache::Off) && !self.fault_injection
    }

    /// This configuration with watermarks, for an allocator that has a reclaimer.
    #[must_use]
    pub const fn with_marks(mut self) -> Self {
        self.keep_marks = true;
        self
    }

    /// Milliseconds between two rounds of background compaction: 50, and Linux' 500 with [`Engine::Linux`]. For the
    /// caller of [`Cpu::compact_proactively`](crate::Cpu::compact_proactively), which has the clock.
    #[must_use]
    pub const fn compaction_round_ms(&self) -> u32 {
        if self.engine.has_maps() { ROUND_MS } else { LINUX_ROUND_MS }
    }

    /// Linux v3.0 as far as memory pressure is concerned: watermarks, passes, zonelist order and cache of 2011. Per-CPU
    /// lists are those of v5.4, with v3.0's smaller batch.
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

    /// Linux v5.4.
    ///
    /// The zone lock of this preset, and of every other `linux_*`, goes to the CPU that has waited longest. A kernel
    /// never stops a CPU that waits. In a process that has more running threads than processors, that CPU's thread may
    /// be stopped, and all others wait for it. If the lock itself is not what you study, set
    /// [`lock_kind`](crate::config::Experiment::lock_kind) to [`LockKind::ByPlatform`] there.
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

    /// Linux v6.1.
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

    /// Linux v6.7 to v6.15.
    #[must_use]
    pub const fn linux_v6_7() -> Self {
        let old = Self::linux_v6_1();
        let experiment =
            Experiment { pcp_rule: PcpRule::V6_7, refill_check: RefillCheck::Off, ..old.experiment };
        Self { experiment, ..old }
    }

    /// Linux v6.16 and later.
    #[must_use]
    pub const fn linux_v6_16() -> Self {
        let old = Self::linux_v6_7();
        Self { experiment: Experiment { pcp_rule: PcpRule::V6_16, ..old.experiment }, ..old }
    }
}
