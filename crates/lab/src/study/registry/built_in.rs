//! What each workload of this crate is: its keys, its metrics, and a function for each way to run it.

use super::BuiltIn;
use crate::result::{Better, Kind};
use crate::study::workload::{Declaration, Key, Need, Opt, Quantity, Role, Takes};
use crate::study::{
    bulk, disk, fidelity, first_touch, initialise, kernbench, page_test, parallel_init, pressure, ready,
    replay, simulated, structure, validation,
};

use Better::{Higher, Lower, None as Neither};
use Kind::{Derived, Measured, Simulated};
use Opt::{Machine, Memory, Quick, Samples, Scale, Trace};
use Role::{Cause, Main, Share};

const fn key(name: &'static str, takes: Takes, default: Option<&'static str>, about: &'static str) -> Key {
    Key { name, takes, default, about }
}

const fn metric(
    name: &'static str,
    unit: &'static str,
    better: Better,
    role: Role,
    about: &'static str,
) -> Quantity {
    Quantity { name, unit, better, about, role }
}

const ORDER: Key = key("order", Takes::Whole(0, 10), Some("0"), "Order of the blocks.");
const HUGE_PAGES: Key =
    key("huge_pages", Takes::Whole(1, 1 << 20), None, "Order-9 blocks that each CPU allocates and clears.");

const ALLOC_NS: Quantity = metric("alloc_ns", "ns", Lower, Main, "Time of one allocation on its CPU.");
const FREE_NS: Quantity = metric("free_ns", "ns", Lower, Main, "Time of one free on its CPU.");
const LOCK_WAIT: Quantity =
    metric("zone_lock_wait_ns", "ns", Lower, Main, "Time waited for the zone lock, per acquisition.");
const LOCK_HOLD: Quantity =
    metric("zone_lock_hold_ns", "ns", Lower, Main, "Time the zone lock is held, per acquisition.");
const HUGE_ALLOC: Quantity = metric("huge_alloc_ns", "ns", Lower, Main, "Time of one order-9 allocation.");
const BANDWIDTH: Quantity =
    metric("memory_bandwidth", "%", Neither, Cause, "Share of a node's memory bandwidth that is used.");
const TRANSFERS: Quantity = metric(
    "line_transfers",
    "1",
    Lower,
    Cause,
    "Moves of a cache line between CPUs, per page or acquisition.",
);
const LINE_WAIT: Quantity = metric(
    "line_wait_ns",
    "ns",
    Lower,
    Cause,
    "Time that CPUs wait for a cache line that another CPU has, per page or acquisition.",
);
const TASK_CAUSES: [Quantity; 10] = [
    metric(
        "zone_lock_acquisitions_per_page",
        "1",
        Lower,
        Cause,
        "Acquisitions of a zone's lock per allocated page.",
    ),
    Quantity { role: Cause, ..LOCK_WAIT },
    Quantity { role: Cause, ..LOCK_HOLD },
    metric("migrations_per_page", "1", Lower, Cause, "Tasks that moved to another CPU, per allocated page."),
    metric(
        "lru_lock_acquisitions_per_page",
        "1",
        Lower,
        Cause,
        "Acquisitions of the LRU lock per allocated page.",
    ),
    metric("lru_lock_wait_ns", "ns", Lower, Cause, "Time waited for the LRU lock, per acquisition."),
    metric("lru_lock_hold_ns", "ns", Lower, Cause, "Time the LRU lock is held, per acquisition."),
    BANDWIDTH,
    TRANSFERS,
    LINE_WAIT,
];

/// Options that every simulated part heeds.
const SIMULATED: [(Opt, Kind); 3] = [(Machine, Simulated), (Samples, Simulated), (Quick, Simulated)];

pub(super) static BUILT_IN: &[BuiltIn] = &[
    BuiltIn {
        declaration: Declaration {
            name: "lists",
            about: "Boots a machine's memory map and counts its per-CPU lists by size.",
            kinds: &[Derived],
            keys: &[],
            metrics: &[metric(
                "lists",
                "1",
                Neither,
                Share,
                "Per-CPU lists with this batch and high, over all zones.",
            )],
            options: &[(Machine, Derived)],
            needs: &[],
            is_bound: false,
        },
        runners: &[(Derived, structure::run)],
    },
    BuiltIn {
        declaration: Declaration {
            name: "bulk",
            about: "Every thread allocates as many blocks as fit, then frees them, all at once.",
            kinds: &[Measured, Simulated],
            keys: &[
                ORDER,
                key(
                    "threads",
                    Takes::Whole(1, 1024),
                    Some("1, 2, 4, … and all CPUs"),
                    "Threads, where it is measured.",
                ),
            ],
            metrics: &[ALLOC_NS, FREE_NS, LOCK_WAIT, LOCK_HOLD, BANDWIDTH, TRANSFERS, LINE_WAIT],
            options: &[
                (Samples, Measured),
                (Quick, Measured),
                SIMULATED[0],
                SIMULATED[1],
                SIMULATED[2],
                (Trace, Simulated),
            ],
            needs: &[Need::Model],
            is_bound: false,
        },
        runners: &[(Measured, bulk::run), (Simulated, simulated::bulk)],
    },
    BuiltIn {
        declaration: Declaration {
            name: "bad_block",
            about: "Plants a bad page in a CMA pageblock, lets a refill find it, and checks the counter of free CMA pages.",
            kinds: &[Measured],
            keys: &[],
            metrics: &[metric(
                "free_cma_drift_pages",
                "pages",
                Lower,
                Main,
                "The counter of free CMA pages less those that are free; 0 is right.",
            )],
            options: &[],
            needs: &[],
            is_bound: false,
        },
        runners: &[(Measured, |plan, part, _| bulk::bad_block(plan, part))],
    },
    BuiltIn {
        declaration: Declaration {
            name: "replay",
            about: "Replays a recorded trace on this machine's threads.",
            kinds: &[Measured],
            keys: &[key(
                "trace",
                Takes::FileOr("compile"),
                Some("compile"),
                "The trace; compile is the one that is built in.",
            )],
            metrics: &[
                metric(
                    "zone_lock_acquisitions_per_page",
                    "1",
                    Lower,
                    Main,
                    "Acquisitions of the zone lock per allocated page.",
                ),
                metric(
                    "pages_moved_per_page",
                    "1",
                    Lower,
                    Main,
                    "Pages moved to or from the buddy lists per allocated page.",
                ),
                metric(
                    "zone_lock_waits",
                    "1",
                    Lower,
                    Main,
                    "Acquisitions of the zone lock that had to wait.",
                ),
                metric("refills", "1", Lower, Main, "Refills of per-CPU lists."),
                metric("drains", "1", Lower, Main, "Drains of per-CPU lists."),
                metric(
                    "fallbacks",
                    "1",
                    Lower,
                    Main,
                    "Allocations served from pageblocks of another migratetype.",
                ),
                metric("steals", "1", Lower, Main, "Pageblocks taken over by another migratetype."),
                metric("wall_ms", "ms", Lower, Main, "Wall time of the replay."),
                metric("cpu_ms", "ms", Lower, Main, "CPU time of all threads."),
                metric(
                    "ns_per_operation",
                    "ns",
                    Lower,
                    Main,
                    "Time of one allocation or free on its thread, waits excluded.",
                ),
                metric("cpu_ns_per_operation", "ns", Lower, Main, "CPU time of one allocation or free."),
                Quantity { about: "Quantile of the sampled allocations' times.", ..ALLOC_NS },
                Quantity { about: "Quantile of the sampled frees' times.", ..FREE_NS },
                metric("failed_allocations", "1", Lower, Main, "Allocations that found no block."),
                metric(
                    "free_huge_blocks",
                    "1",
                    Higher,
                    Main,
                    "Order-9 blocks that are free after the last event.",
                ),
            ],
            options: &[(Machine, Measured), (Samples, Measured), (Quick, Measured)],
            needs: &[],
            is_bound: false,
        },
        runners: &[(Measured, replay::run)],
    },
    BuiltIn {
        declaration: Declaration {
            name: "fidelity",
            about: "Counts what a recorded kernel's per-CPU lists did (the baseline) and what a preset's do with the same trace.",
            kinds: &[Measured],
            keys: &[key(
                "trace",
                Takes::FileOr("inside"),
                Some("inside"),
                "A trace of record -a; inside is the one that is built in.",
            )],
            metrics: &[
                metric("refills", "1", Neither, Main, "Refills of per-CPU lists."),
                metric("refilled_pages", "pages", Neither, Main, "Pages that they brought."),
                metric("drains", "1", Neither, Main, "Drains of per-CPU lists."),
                metric("drained_pages", "pages", Neither, Main, "Pages that they gave back."),
                metric(
                    "fallbacks",
                    "1",
                    Neither,
                    Main,
                    "Allocations served from pageblocks of another migratetype.",
                ),
                metric(
                    "moved_pages_per_page",
                    "1",
                    Neither,
                    Main,
                    "Pages that refills and drains moved, per allocated page.",
                ),
                metric("pages_per_refill", "pages", Neither, Main, "Pages of each refill."),
                metric("pages_per_drain", "pages", Neither, Main, "Pages of each drain."),
            ],
            options: &[],
            needs: &[],
            is_bound: false,
        },
        runners: &[(Measured, fidelity::run)],
    },
    BuiltIn {
        declaration: Declaration {
            name: "initialise",
            about: "Initialises 64-byte page descriptors, and fills the same bytes with a plain memset.",
            kinds: &[Measured],
            keys: &[key(
                "fragmented",
                Takes::Flag,
                Some("false"),
                "Whether memory lies in thousands of ranges with holes.",
            )],
            metrics: &[
                metric("init_gbps", "GB/s", Higher, Main, "Descriptors initialised, with their free lists."),
                metric(
                    "memset_gbps",
                    "GB/s",
                    Neither,
                    Main,
                    "The same bytes filled by as many threads: the limit.",
                ),
                metric(
                    "init_of_memset_percent",
                    "%",
                    Higher,
                    Main,
                    "Initialisation as a share of the memset's speed.",
                ),
                metric(
                    "first_touch_init_gbps",
                    "GB/s",
                    Higher,
                    Cause,
                    "init_gbps in memory that pays its page faults.",
                ),
                metric("first_touch_memset_gbps", "GB/s", Neither, Cause, "memset_gbps in such memory."),
                metric("first_touch_init_of_memset_percent", "%", Higher, Cause, "The ratio of these two."),
            ],
            options: &[(Samples, Measured), (Quick, Measured), (Memory, Measured)],
            needs: &[],
            is_bound: false,
        },
        runners: &[(Measured, initialise::run)],
    },
    BuiltIn {
        declaration: Declaration {
            name: "ready",
            about: "Time from nothing to the first allocation, with all descriptors initialised first and with compact ones.",
            kinds: &[Measured],
            keys: &[],
            metrics: &[metric("ready_ms", "ms", Lower, Main, "Until the first page can be allocated.")],
            options: &[(Samples, Measured), (Quick, Measured), (Memory, Measured)],
            needs: &[],
            is_bound: false,
        },
        runners: &[(Measured, ready::run)],
    },
    BuiltIn {
        declaration: Declaration {
            name: "files",
            about: "Programs that write more than there is memory, through a page cache, to real files or a modelled disk.",
            kinds: &[Measured, Simulated],
            keys: &[
                key(
                    "program",
                    Takes::Words(&["fs_mark", "large_dd", "mapped_writer"]),
                    None,
                    "Which program.",
                ),
                key("memory_mib", Takes::Whole(4, 1 << 20), Some("24"), "Memory, where it is measured."),
                key("simulated_mib", Takes::Whole(4, 1 << 20), Some("192"), "Memory, where it is simulated."),
                key("tasks", Takes::Whole(1, 1024), Some("1"), "Tasks; measured, at most two for each CPU."),
                key("loops", Takes::Whole(1, 1000), Some("4"), "Rounds of fs_mark."),
                key(
                    "tenths",
                    Takes::Whole(1, 1000),
                    Some("100"),
                    "What mapped_writer writes, in tenths of memory.",
                ),
                key(
                    "storage_mbps",
                    Takes::Whole(0, 1 << 20),
                    Some("0"),
                    "Limit on storage where it is measured; 0 for none.",
                ),
                key(
                    "node1_share",
                    Takes::Whole(1, 64),
                    Some("5"),
                    "Memory of node 1 as a multiple of node 0's.",
                ),
            ],
            metrics: &[
                metric("files_per_second", "1/s", Higher, Main, "Files written per second, by loop."),
                metric(
                    "overhead_us",
                    "us",
                    Lower,
                    Main,
                    "Time of a loop outside its calls to write, all tasks together.",
                ),
                metric("step_seconds", "s", Lower, Main, "Wall time of one step of the program."),
                metric(
                    "zone_reclaim_scans_per_allocation",
                    "1",
                    Lower,
                    Main,
                    "Scans of a zone before another is tried, per allocation.",
                ),
                metric(
                    "allocation_us",
                    "us",
                    Lower,
                    Main,
                    "Quantile of the times that page cache allocations took.",
                ),
                metric(
                    "without_direct_reclaim",
                    "%",
                    Higher,
                    Main,
                    "Allocations that did not have to reclaim themselves.",
                ),
                metric(
                    "remote_percent",
                    "%",
                    Neither,
                    Main,
                    "Pages that came from another node than preferred.",
                ),
                metric("page_allocations", "1", Neither, Main, "Pages allocated for the cache."),
                metric("duration_user_seconds", "s", Lower, Main, "User CPU time of the whole test."),
                metric("duration_system_seconds", "s", Lower, Main, "System CPU time of the whole test."),
                metric("duration_elapsed_seconds", "s", Lower, Main, "Wall time of the whole test."),
                metric("page_ins_kib", "KiB", Neither, Main, "Read from storage."),
                metric("page_outs_kib", "KiB", Neither, Main, "Written to storage."),
                metric("swap_ins_pages", "pages", Neither, Main, "Read from swap."),
                metric("swap_outs_pages", "pages", Neither, Main, "Written to swap."),
                metric(
                    "direct_pages_scanned",
                    "pages",
                    Neither,
                    Main,
                    "Pages that allocating tasks scanned.",
                ),
                metric(
                    "direct_pages_reclaimed",
                    "pages",
                    Neither,
                    Main,
                    "Pages that allocating tasks reclaimed.",
                ),
                metric(
                    "kswapd_pages_scanned",
                    "pages",
                    Neither,
                    Main,
                    "Pages that background reclaim scanned.",
                ),
                metric(
                    "kswapd_pages_reclaimed",
                    "pages",
                    Neither,
                    Main,
                    "Pages that background reclaim reclaimed.",
                ),
                metric(
                    "page_writes_by_reclaim",
                    "pages",
                    Neither,
                    Main,
                    "Dirty pages that reclaim itself wrote.",
                ),
                metric("slabs_scanned", "1", Neither, Main, "Slab objects scanned."),
                metric(
                    "direct_inode_steals",
                    "pages",
                    Neither,
                    Main,
                    "Pages of inodes dropped by allocating tasks; none here.",
                ),
                metric(
                    "kswapd_inode_steals",
                    "pages",
                    Neither,
                    Main,
                    "Pages of inodes dropped by background reclaim; none here.",
                ),
                metric("disk_moves", "1", Lower, Cause, "Times that the modelled disk moved its head."),
                BANDWIDTH,
                TRANSFERS,
                LINE_WAIT,
            ],
            options: &[
                (Samples, Measured),
                (Quick, Measured),
                (Scale, Measured),
                SIMULATED[0],
                SIMULATED[1],
                SIMULATED[2],
                (Scale, Simulated),
            ],
            needs: &[Need::Model, Need::Disk],
            is_bound: false,
        },
        runners: &[(Measured, pressure::run), (Simulated, disk::run)],
    },
    BuiltIn {
        declaration: Declaration {
            name: "boot",
            about: "The deferred initialisation of the memory map, on the machines that the metrics name or on --machine.",
            kinds: &[Simulated],
            keys: &[key(
                "threads",
                Takes::Flag,
                Some("false"),
                "Whether 1, 2, 4, … CPUs of each node take part, or all.",
            )],
            metrics: &[
                metric(
                    "deferred_init_ms",
                    "ms",
                    Lower,
                    Main,
                    "The deferred part of initialising the memory map.",
                ),
                metric("boot_ms", "ms", Lower, Main, "The published boot with its deferred part replaced."),
            ],
            options: &[SIMULATED[0], SIMULATED[1], (Trace, Simulated)],
            needs: &[Need::Model],
            is_bound: false,
        },
        runners: &[(Simulated, parallel_init::run)],
    },
    BuiltIn {
        declaration: Declaration {
            name: "first_touch",
            about: "1, 2, 4, … and all CPUs allocate and clear order-9 blocks.",
            kinds: &[Simulated],
            keys: &[HUGE_PAGES],
            metrics: &[
                metric(
                    "first_touch_gbps",
                    "GB/s",
                    Higher,
                    Main,
                    "Memory cleared per second, all CPUs together.",
                ),
                HUGE_ALLOC,
                LOCK_WAIT,
                LOCK_HOLD,
                metric("warm_ms", "ms", Lower, Main, "Until every order-9 block is cleared."),
                metric("warming_alloc_ns", "ns", Lower, Main, "Base-page allocation meanwhile."),
                metric("steady_alloc_ns", "ns", Lower, Main, "Base-page allocation afterwards."),
            ],
            options: &SIMULATED,
            needs: &[Need::Model, Need::Kernel],
            is_bound: false,
        },
        runners: &[(Simulated, first_touch::control)],
    },
    BuiltIn {
        declaration: Declaration {
            name: "warm_up",
            about: "Some CPUs allocate and clear order-9 blocks while the others fault base pages.",
            kinds: &[Simulated],
            keys: &[
                HUGE_PAGES,
                key("huge_cpus_percent", Takes::Number(0.0, 100.0), None, "CPUs that take order-9 blocks."),
            ],
            metrics: &[
                metric("warm_ms", "ms", Lower, Main, "Until every order-9 block is cleared."),
                HUGE_ALLOC,
                metric("warming_alloc_ns", "ns", Lower, Main, "Base-page allocation meanwhile."),
                metric("steady_alloc_ns", "ns", Lower, Main, "Base-page allocation afterwards."),
                LOCK_WAIT,
                LOCK_HOLD,
                metric(
                    "first_touch_gbps",
                    "GB/s",
                    Higher,
                    Main,
                    "Memory cleared per second, all CPUs together.",
                ),
                BANDWIDTH,
                TRANSFERS,
                LINE_WAIT,
            ],
            options: &SIMULATED,
            needs: &[Need::Model, Need::Kernel],
            is_bound: false,
        },
        runners: &[(Simulated, first_touch::warm_up)],
    },
    BuiltIn {
        declaration: Declaration {
            name: "page_test",
            about: "A stand-in for aim7's page_test: jobs that shrink and grow a heap and dirty each page.",
            kinds: &[Simulated],
            keys: &[
                key("jobs", Takes::Whole(1, i64::MAX), None, "Jobs of the published run."),
                key("busy_cpus", Takes::Whole(1, 65536), None, "CPUs that were busy."),
                key("users_per_cpu", Takes::Whole(1, 1024), None, "Users that each CPU serves."),
            ],
            metrics: &[
                metric("jobs_per_minute", "jobs/min", Higher, Main, "Throughput."),
                metric("elapsed_time", "s", Lower, Main, "Wall time."),
                metric("system_time", "s", Lower, Main, "System CPU time."),
                metric("user_time", "s", Neither, Main, "User CPU time."),
                metric("voluntary_context_switches", "1", Neither, Main, "Tasks that slept."),
                metric("involuntary_context_switches", "1", Neither, Main, "Tasks that lost their CPU."),
                TASK_CAUSES[0],
                TASK_CAUSES[1],
                TASK_CAUSES[2],
                TASK_CAUSES[3],
                TASK_CAUSES[4],
                TASK_CAUSES[5],
                TASK_CAUSES[6],
                BANDWIDTH,
                TRANSFERS,
                LINE_WAIT,
            ],
            options: &[SIMULATED[1], SIMULATED[2]],
            needs: &[Need::Model, Need::Kernel],
            is_bound: true,
        },
        runners: &[(Simulated, page_test::run)],
    },
    BuiltIn {
        declaration: Declaration {
            name: "kernbench",
            about: "A kernel compile with a job for each CPU, made of the recorded compiler runs.",
            kinds: &[Simulated],
            keys: &[
                key("iterations", Takes::Whole(1, 1000), None, "Compiles in the published durations."),
                key("objects", Takes::Whole(1, 10_000_000), None, "Objects that are compiled."),
                key(
                    "serial_idle_percent",
                    Takes::Number(0.0, 100.0),
                    None,
                    "Idle time in which one task runs alone.",
                ),
            ],
            metrics: &[
                metric("user_seconds", "s", Lower, Main, "User CPU time of a compile."),
                metric("syst_seconds", "s", Lower, Main, "System CPU time of a compile."),
                metric("elsp_seconds", "s", Lower, Main, "Wall time of a compile."),
                metric("duration_user_seconds", "s", Lower, Main, "User CPU time of the whole test."),
                metric("duration_system_seconds", "s", Lower, Main, "System CPU time of the whole test."),
                metric("duration_elapsed_seconds", "s", Lower, Main, "Wall time of the whole test."),
                TASK_CAUSES[0],
                TASK_CAUSES[1],
                TASK_CAUSES[2],
                TASK_CAUSES[3],
                TASK_CAUSES[4],
                TASK_CAUSES[5],
                TASK_CAUSES[6],
                BANDWIDTH,
                TRANSFERS,
                LINE_WAIT,
            ],
            options: &[SIMULATED[1], SIMULATED[2]],
            needs: &[Need::Model, Need::Kernel],
            is_bound: true,
        },
        runners: &[(Simulated, kernbench::run)],
    },
    BuiltIn {
        declaration: Declaration {
            name: "calibration",
            about: "What the model makes of the measurements that its parameters were fitted to.",
            kinds: &[Simulated],
            keys: &[],
            metrics: &[
                metric("median_error", "%", Lower, Main, "Median of the errors' sizes."),
                metric("linux_bulk_get_error", "%", Neither, Cause, "Signed error of an allocation's time."),
                metric("linux_bulk_put_error", "%", Neither, Cause, "Signed error of a free's time."),
                metric(
                    "linux_rand_put_error",
                    "%",
                    Neither,
                    Cause,
                    "Signed error of a free's time, in random order.",
                ),
                metric("linux_repeat_pair_error", "%", Neither, Cause, "Signed error of a pair's time."),
                metric("linux_repeat_get_error", "%", Neither, Cause, "Signed error of a pair's time."),
                metric("list_bulk_get_error", "%", Neither, Cause, "The same for a locked list."),
                metric("list_bulk_put_error", "%", Neither, Cause, "The same for a locked list."),
                metric("list_rand_put_error", "%", Neither, Cause, "The same for a locked list."),
                metric("list_repeat_pair_error", "%", Neither, Cause, "The same for a locked list."),
                metric("list_repeat_get_error", "%", Neither, Cause, "The same for a locked list."),
            ],
            options: &[(Machine, Simulated)],
            needs: &[Need::Model],
            is_bound: false,
        },
        runners: &[(Simulated, validation::calibration)],
    },
    BuiltIn {
        declaration: Declaration {
            name: "curves",
            about: "Bulk, random and repeated allocation at every order and number of cores.",
            kinds: &[Simulated],
            keys: &[],
            metrics: &[
                metric("bulk_get_ns", "ns", Lower, Main, "Time of one allocation."),
                metric("bulk_put_ns", "ns", Lower, Main, "Time of one free."),
                metric("rand_put_ns", "ns", Lower, Main, "Time of one free in random order."),
                metric("repeat_pair_ns", "ns", Lower, Main, "Time of an allocation and its free."),
            ],
            options: &[SIMULATED[0], SIMULATED[1]],
            needs: &[Need::Model],
            is_bound: false,
        },
        runners: &[(Simulated, validation::curves)],
    },
];
