//! Every setting: its name, what it takes, what it does and where that comes from. The checks of studies and command
//! lines, `framewright settings`, and the settings that a result records all read this table.

use framewright::config::{
    Config, Engine, Generation, ListOrder, LockKind, LockPlace, PcpFixed, PcpOrders, PcpRule, RefillCheck,
    ZonelistCache,
};
use framewright::policy::init::Split;
use framewright_workload::replay::PageCache;

use super::{Descriptor, Setup};
use crate::settings::{OF_GENERATION, Takes, Value};

/// A setting of the allocator.
#[derive(Debug)]
pub struct Setting {
    /// Its name, `snake_case`.
    pub name: &'static str,
    /// Values that it takes.
    pub takes: Takes,
    /// Description, in a sentence.
    pub about: &'static str,
    /// The kernel's name for it, or the change that it stands for.
    pub source: &'static str,
    /// Commands in which it makes a difference.
    pub acts: Acts,
    pub(super) get: fn(&Setup) -> String,
    pub(super) set: fn(&mut Setup, &Value) -> core::result::Result<(), String>,
}

/// Commands in which a setting makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acts {
    /// In every command.
    Always,
    /// In `boot` and in studies, which initialise a memory map late.
    AtBoot,
    /// In `boot`, in studies and in replays on a modelled machine, whose lists may have the size of before.
    AtBootOrModelled,
    /// In studies of reclaim, where memory is short or zones are several.
    UnderPressure,
    /// With descriptors that have something to check: `descriptor_bytes=64`.
    WithStruct64,
    /// In replays of traces.
    InReplays,
    /// In replays of traces on this machine's threads: on a modelled machine no page moves.
    InReplaysHere,
    /// Everywhere but in replays on a modelled machine, whose descriptors have 64 bytes.
    NotModelled,
}

/// Settings that a user decides. All others are there for a study of one change.
const OF_USERS: &[&str] = &[
    "preset",
    "engine",
    "pcp_free_part",
    "lazy_pageblocks",
    "descriptor_bytes",
    "deferred_init",
    "page_cache",
    "compaction_proactiveness",
    "keep_marks",
    "min_free_kib",
    "watermark_scale",
    "boost_factor",
    "zone_reclaim",
];

impl Setting {
    /// True if it is there for a study of one change only.
    pub fn is_experiment(&self) -> bool {
        !OF_USERS.contains(&self.name)
    }
}

/// The settings that `generation` sets together.
fn of_generation() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| OF_GENERATION.contains(&setting.name))
}

/// A setting that is one of several words.
macro_rules! choice {
    ($name:literal, $($field:ident).+, $acts:ident, [$($word:literal => $value:expr),+ $(,)?], $about:literal, $source:literal) => {
        Setting {
            name: $name,
            takes: Takes::Words(&[$($word),+]),
            about: $about,
            source: $source,
            acts: Acts::$acts,
            get: |setup| word(&[$(($word, $value)),+], &setup.$($field).+),
            set: |setup, value| {
                setup.$($field).+ = chosen(value, &[$(($word, $value)),+])?;
                Ok(())
            },
        }
    };
}

/// A setting that is a whole number.
macro_rules! whole {
    ($name:literal, $($field:tt).+, $least:expr, $most:expr, $acts:ident, $about:literal, $source:literal) => {
        Setting {
            name: $name,
            takes: Takes::Whole($least as i64, $most as i64),
            about: $about,
            source: $source,
            acts: Acts::$acts,
            get: |setup| setup.$($field).+.to_string(),
            set: |setup, value| {
                // It is within bounds.
                setup.$($field).+ = number(value)? as _;
                Ok(())
            },
        }
    };
}

/// A setting that is on or off.
macro_rules! flag {
    ($name:literal, $($field:ident).+, $acts:ident, $about:literal, $source:literal) => {
        Setting {
            name: $name,
            takes: Takes::Flag,
            about: $about,
            source: $source,
            acts: Acts::$acts,
            get: |setup| setup.$($field).+.to_string(),
            set: |setup, value| {
                setup.$($field).+ = flag(value)?;
                Ok(())
            },
        }
    };
}

/// Every setting, in the order in which they are listed.
pub const SETTINGS: &[Setting] = &[
    choice! { "preset", config, Always,
    ["framewright" => Config::framewright(), "linux_v3_0" => Config::linux_v3_0(), "linux_v5_4" => Config::linux_v5_4(),
     "linux_v6_1" => Config::linux_v6_1(), "linux_v6_7" => Config::linux_v6_7(), "linux_v6_16" => Config::linux_v6_16()],
    "Sets all other settings of the allocator at once; write it first.", "the generation of Linux in its name" },
    choice! { "pcp_rule", config.experiment.pcp_rule, Always,
    ["v5_4" => PcpRule::V5_4, "v6_1" => PcpRule::V6_1, "v6_7" => PcpRule::V6_7, "v6_16" => PcpRule::V6_16,
     "auto" => PcpRule::Auto],
    "Rule that sizes the per-CPU lists: batch and high.",
    "zone_batchsize and zone_highsize of v5.4 and v6.1, nr_pcp_high of v6.7 and v6.16; auto: near v6.7" },
    whole! { "pcp_fraction", config.experiment.pcp_fraction, 0, u32::MAX, Always,
    "All per-CPU lists together may hold 1/N of the zone; 0: the kernel's default.",
    "vm.percpu_pagelist_high_fraction" },
    Setting {
        name: "batch",
        takes: Takes::Whole(1, 1 << 20),
        about: "Pages moved by a refill or drain, instead of the rule's; without high, high is six times as much.",
        source: "pcp->batch",
        acts: Acts::Always,
        get: |setup| {
            setup.config.experiment.pcp_fixed.map_or("rule".to_owned(), |fixed| fixed.batch.to_string())
        },
        set: |setup, value| {
            let batch = number(value)?;
            let high = setup.config.experiment.pcp_fixed.map_or(batch.saturating_mul(6), |fixed| fixed.high);
            setup.config.experiment.pcp_fixed = Some(PcpFixed { batch, high });
            Ok(())
        },
    },
    Setting {
        name: "high",
        takes: Takes::Whole(0, 1 << 30),
        about: "Pages on a CPU's lists at which a free drains, instead of the rule's; without batch, batch is a sixth.",
        source: "pcp->high",
        acts: Acts::Always,
        get: |setup| {
            setup.config.experiment.pcp_fixed.map_or("rule".to_owned(), |fixed| fixed.high.to_string())
        },
        set: |setup, value| {
            let high = number(value)?;
            let batch = setup.config.experiment.pcp_fixed.map_or((high / 6).max(1), |fixed| fixed.batch);
            setup.config.experiment.pcp_fixed = Some(PcpFixed { batch, high });
            Ok(())
        },
    },
    choice! { "pcp_orders", config.experiment.pcp_orders, Always,
    ["none" => PcpOrders::None, "zero" => PcpOrders::Zero, "up_to_costly" => PcpOrders::UpToCostly,
     "up_to_costly_and_huge" => PcpOrders::UpToCostlyAndHuge, "up_to_huge" => PcpOrders::UpToHuge],
    "Orders that have per-CPU lists: none, 0, 0 to 3, 0 to 3 and 9, or 0 to 9.", "0 up to v5.12, 0 to 3 and 9 since" },
    whole! { "pcp_slots", config.experiment.pcp_slots, 2, 1 << 20, Always,
    "Most blocks on one per-CPU list, a power of two; a full list drains.", "no bound: its lists are linked" },
    whole! { "pcp_min_refill", config.experiment.pcp_min_refill, 1, 1 << 10, Always,
    "Fewest blocks in a refill of an order above 0.", "2 in Linux (nr_pcp_alloc)" },
    whole! { "pcp_free_part", config.pcp_free_part, 1, u32::MAX, Always,
    "With pcp_rule=auto, the per-CPU lists together hold at most 1/N of the free pages. A smaller N frees whole programs faster, a larger N keeps more huge pages.",
    "no such bound; high is at most an eighth of all memory" },
    flag! { "pcp_reset", config.experiment.pcp_reset, AtBootOrModelled,
    "Sizes the per-CPU lists again when deferred initialisation ends.", "the pcp-reset change, v5.4" },
    choice! { "deferred_init", split, AtBoot,
    ["one_thread_per_node" => Split::OneThread, "all_cpus" => Split::AllCpus,
     "all_cpus_by_section" => Split::AllCpusBySection],
    "How CPUs share the part of the memory map that is initialised after boot.",
    "deferred_init_memmap; the parallel-init change, v5.9" },
    choice! { "lock_place", config.experiment.lock_place, Always,
    ["with_order0_lists" => LockPlace::WithOrder0Lists, "other_end" => LockPlace::OtherEnd,
     "own_line" => LockPlace::OwnLine],
    "Place of the zone lock relative to the free lists: in their cache line, at their other end, or in a line of its own.", "v3.17 to v3.19: with_order0_lists; from v4.0: other_end" },
    choice! { "lock_kind", config.experiment.lock_kind, Always,
    ["ticket" => LockKind::Ticket, "queued" => LockKind::Queued, "parking" => LockKind::Parking,
     "by_platform" => LockKind::ByPlatform],
    "How CPUs wait for the zone lock; by_platform parks on a host and queues elsewhere.",
    "x86: ticket up to v4.1, queued since" },
    flag! { "lock_timing", config.experiment.lock_timing, Always,
    "Measures how long CPUs wait for the zone lock and hold it; each hold costs two clock readings.", "/proc/lock_stat measures it" },
    choice! { "refill_check", config.experiment.refill_check, WithStruct64,
    ["under_zone_lock" => RefillCheck::UnderZoneLock, "after_unlock" => RefillCheck::AfterUnlock,
     "off" => RefillCheck::Off],
    "When a refill checks its pages.",
    "the refill-check change; under_zone_lock up to v6.2, off from v6.4" },
    choice! { "engine", config.engine, Always,
    ["linux" => Engine::Linux, "framewright" => Engine::Framewright, "compact" => Engine::Compact],
    "How free memory is kept: linux, lists of blocks; framewright, bits; compact, bits and no descriptors (needs descriptor_bytes=8).",
    "free_area lists: engine=linux" },
    flag! { "lazy_pageblocks", config.lazy_pageblocks, Always,
    "Initialises descriptors only when their memory is first needed; not with engine=linux.",
    "none: deferred initialisation ends during boot" },
    whole! { "remote_drain_spins", config.experiment.remote_drain_spins, 0, 1 << 30, Always,
    "Times that a failing allocation polls for other CPUs to drain their lists.",
    "none: another CPU drains a list under its lock" },
    choice! { "descriptor_bytes", descriptor, NotModelled, ["8" => Descriptor::Compact, "64" => Descriptor::Struct64],
    "Bytes of a page descriptor: 8 hold the allocator's own state, 64 are as large as struct page.", "struct page: 64" },
    choice! { "page_cache", page_cache, InReplays,
    ["movable" => PageCache::AsTraced, "reclaimable" => PageCache::Reclaimable],
    "Migratetype that a replay asks for where the trace's GFP flags are those of the page cache; reclaimable keeps long-lived pages together.",
    "movable" },
    whole! { "compaction_proactiveness", config.compaction_proactiveness, 0, 100, InReplaysHere,
    "A replay compacts in rounds (every 50 ms; engine=linux: 500) while more than (100 - N) % of free memory is not in huge pages; 0: never.",
    "vm.compaction_proactiveness, v5.9: 20" },
    flag! { "keep_marks", config.keep_marks, Always,
    "Zones have watermarks and a lowmem reserve.", "always" },
    Setting {
        name: "generation",
        takes: Takes::Words(&["v3_0", "v6_1"]),
        about: "Sets marks, fallback, passes and reclaim together.",
        source: "mm/page_alloc.c of that version",
        acts: Acts::Always,
        get: |setup| {
            let mut parts = of_generation().map(|setting| (setting.get)(setup));
            let first = parts.next().unwrap_or_default();
            if parts.all(|part| part == first) { first } else { "mixed".to_owned() }
        },
        set: |setup, value| of_generation().try_for_each(|setting| (setting.set)(setup, value)),
    },
    choice! { "marks", config.experiment.marks, Always,
    ["v3_0" => Generation::V3_0, "v6_1" => Generation::V6_1],
    "Linux release whose watermark rules are used.", "mm/page_alloc.c of that version" },
    choice! { "fallback", config.experiment.fallback, Always,
    ["v3_0" => Generation::V3_0, "v6_1" => Generation::V6_1],
    "Linux release whose rules say when a request takes from pageblocks of another type.", "__rmqueue_fallback of that version" },
    choice! { "passes", config.experiment.passes, UnderPressure,
    ["v3_0" => Generation::V3_0, "v6_1" => Generation::V6_1],
    "Linux release whose slow path is used.", "__alloc_pages_slowpath of that version" },
    choice! { "reclaim", config.experiment.reclaim, UnderPressure,
    ["v3_0" => Generation::V3_0, "v6_1" => Generation::V6_1],
    "Linux release whose rules of reclaim and compaction are used.", "mm/vmscan.c of that version" },
    whole! { "min_free_kib", config.min_free_kib, 0, u32::MAX, Always,
    "Sum of the min watermarks in KiB; 0: as Linux computes it.", "vm.min_free_kbytes" },
    whole! { "watermark_scale", config.watermark_scale, 0, 3000, Always,
    "Distance between the watermarks, in 1/10,000 of the zone.", "vm.watermark_scale_factor" },
    whole! { "boost_factor", config.boost_factor, 0, 1 << 20, UnderPressure,
    "How far the watermarks rise when a pageblock of another type is taken, in 1/10,000 of high; 0: they stay.",
    "vm.watermark_boost_factor" },
    Setting {
        name: "reserve_ratios",
        takes: Takes::Form("DMA:DMA32:Normal:Movable, such as 256:256:32:0"),
        about: "Share of each zone type that requests may not use if a higher zone would do.",
        source: "vm.lowmem_reserve_ratio",
        acts: Acts::UnderPressure,
        get: |setup| setup.config.experiment.reserve_ratios.map(|ratio| ratio.to_string()).join(":"),
        set: |setup, value| {
            setup.config.experiment.reserve_ratios = ratios(value)?;
            Ok(())
        },
    },
    flag! { "avoid_fragmentation", config.experiment.avoid_fragmentation, Always,
    "Uses the node's DMA32 zone before migratetypes are mixed within pageblocks.", "ALLOC_NOFRAGMENT, v5.0" },
    choice! { "zonelist_order", config.experiment.zonelist_order, UnderPressure,
    ["node" => ListOrder::Node, "zone" => ListOrder::Zone, "as_v3_0" => ListOrder::AsV3_0],
    "Order of the zonelist: node by node, zone type by zone type, or as Linux 3.0 decides.", "numa_zonelist_order" },
    choice! { "zonelist_cache", config.experiment.zonelist_cache, Always,
    ["off" => ZonelistCache::Off, "after_first_zone" => ZonelistCache::AfterFirstZone,
     "before_first_zone" => ZonelistCache::BeforeFirstZone,
     "before_first_zone_and_clear" => ZonelistCache::BeforeFirstZoneAndClear],
    "When a request sets up the zonelist cache, which remembers full zones.", "the zone-reclaim change of 2011; gone since v4.4" },
    whole! { "zone_reclaim", config.zone_reclaim.0, 0, 7, UnderPressure,
    "Reclaims in the preferred node before another node is used: 1 on, 2 may write, 4 may unmap, or a sum of these.",
    "vm.zone_reclaim_mode" },
    whole! { "rounds", config.experiment.limits.rounds, 1, u32::MAX, UnderPressure,
    "Most rounds of reclaim and compaction of one request.", "the kernel's loop has no fixed bound" },
    whole! { "rounds_without_progress", config.experiment.limits.without_progress, 1, u32::MAX, UnderPressure,
    "Rounds without progress after which a request fails.", "MAX_RECLAIM_RETRIES" },
];

fn word<T: PartialEq>(choices: &[(&str, T)], set: &T) -> String {
    choices.iter().find(|(_, choice)| choice == set).map_or("none", |(word, _)| word).to_owned()
}

/// Ratios by zone type, lowest first, with colons between them: the comma separates settings.
fn ratios(value: &Value) -> core::result::Result<[u64; 4], String> {
    let text = value.to_string();
    let numbers: Option<Vec<u64>> = text.split(':').map(|part| part.parse().ok()).collect();
    numbers.and_then(|numbers| numbers.try_into().ok()).ok_or_else(|| {
        "expected four whole numbers (DMA:DMA32:Normal:Movable), such as 256:256:32:0".to_owned()
    })
}

fn chosen<T: Copy>(value: &Value, choices: &[(&str, T)]) -> core::result::Result<T, String> {
    let word = value.to_string();
    let found = choices.iter().find(|(name, _)| *name == word);
    found.map(|&(_, choice)| choice).ok_or_else(|| "expected another word".to_owned())
}

fn flag(value: &Value) -> core::result::Result<bool, String> {
    if let Value::Bool(flag) = value { Ok(*flag) } else { Err("expected true or false".to_owned()) }
}

fn number(value: &Value) -> core::result::Result<u32, String> {
    let number = if let Value::Integer(number) = value { u32::try_from(*number).ok() } else { None };
    number.ok_or_else(|| "expected a whole number".to_owned())
}
