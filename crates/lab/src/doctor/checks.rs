//! A function for each finding. Thresholds are said where they are used; none of them is a matter of taste alone.

use framewright::config::PcpRule;
use framewright::policy::pcp::{BATCH_CAP, BATCH_CAP_V3_0, sharing_cpus, size};

use super::read::{Group, Kernel, State, Zone};
use super::{Finding, Severity};
use crate::profile;

/// All findings, the most severe first. Counters are judged by their growth since `earlier`.
pub(super) fn all(state: &State, earlier: Option<&State>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for zone in &state.zones {
        findings.extend(not_managed(state, zone));
        findings.extend(undersized(state, zone));
        findings.extend(boosted(zone));
        findings.extend(below_min(state, zone));
        findings.extend(fragmented(state, zone));
    }
    for check in [zone_reclaim, fraction, huge_defrag, huge_never] {
        findings.extend(check(state));
    }
    findings.extend(state.groups.iter().filter_map(full_group));
    let recent = earlier.map(|earlier| state.since(earlier));
    for check in [compaction, stalls, huge_faults, oom_kills, remote] {
        findings.extend(recent.as_ref().and_then(check).or_else(|| {
            let found = check(state)?;
            let Some(recent) = &recent else { return Some(found) };
            let read = format!("{}; not {}", found.read, recent.period);
            Some(Finding { severity: Severity::Info, read, ..found })
        }));
    }
    findings.sort_by_key(|finding| core::cmp::Reverse(finding.severity));
    findings
}

/// Findings for reading: a finding that several zones have in common is one, with the value of each zone.
pub fn joined(findings: &[Finding]) -> Vec<Finding> {
    let mut joined: Vec<Finding> = Vec::new();
    for finding in findings {
        let same = |known: &&mut Finding| {
            (known.id, known.severity, &known.why, &known.advice)
                == (finding.id, finding.severity, &finding.why, &finding.advice)
        };
        match (joined.iter_mut().find(same), &finding.zone) {
            (Some(known), Some(zone)) => {
                let zones = known.zone.get_or_insert_default();
                for (all, next) in
                    [(&mut known.read, &finding.read), (&mut known.expected, &finding.expected)]
                {
                    if all != next {
                        // The first zone's has no name yet.
                        let first = if zones.contains(", ") { String::new() } else { format!("{zones}: ") };
                        *all = format!("{first}{all}; {zone}: {next}");
                    }
                }
                *zones = format!("{zones}, {zone}");
            }
            _ => joined.push(finding.clone()),
        }
    }
    joined
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// Less than this share of a zone is managed, and more than these MiB are not: firmware, the kernel's image and the
/// memory map take a few percent, of a small machine some tens of MiB.
const LEAST_MANAGED: f64 = 90.0;
const MOST_RESERVED: u64 = 128;

fn not_managed(state: &State, zone: &Zone) -> Option<Finding> {
    let share = percent(zone.managed, zone.present);
    let missing = zone.present.saturating_sub(zone.managed);
    // Memory that the system counts as its own and no zone has yet comes with deferred initialisation.
    let managed: u64 = state.zones.iter().map(|zone| zone.managed).sum();
    let deferred = state.total.unwrap_or(0).saturating_sub(managed).min(missing);
    let is_deferred = percent(missing - deferred, zone.present) <= 100.0 - LEAST_MANAGED;
    (share < LEAST_MANAGED && state.mib(missing) > MOST_RESERVED).then(|| Finding {
        id: if is_deferred { "zone-being-initialised" } else { "zone-not-managed" },
        severity: if is_deferred { Severity::Info } else { Severity::Warning },
        zone: Some(zone.title()),
        read: format!("managed {} of {} present pages ({share:.0} %), /proc/zoneinfo", zone.managed, zone.present),
        expected: format!("at least {LEAST_MANAGED:.0} % managed"),
        why: if is_deferred {
            format!(
                "{} MiB of MemTotal are in no zone yet: deferred initialisation brings them, later or on demand. Until then \
                 list sizes and watermarks are those of a smaller machine.",
                state.mib(deferred)
            )
        } else {
            format!(
                "{} MiB exist that the allocator cannot hand out. List sizes and watermarks were computed from what was \
                 managed at the time.",
                state.mib(missing)
            )
        },
        advice: if is_deferred {
            "Measure when it has ended; if it never does, boot without deferred initialisation.".into()
        } else {
            "Look for a balloon or memory that is not yet plugged in (virtio-mem, virtio_balloon), and for hugetlb and \
             crash-kernel reservations on the kernel's command line."
                .to_owned()
        },
        shell: Some(if is_deferred { "dmesg | grep -i deferred" } else { "cat /proc/cmdline; dmesg | grep -iE 'balloon|virtio.mem|reserv'" }.to_owned()),
        study: Some("parallel-init"),
    })
}

/// The rule by which a kernel sizes its per-CPU lists.
pub(super) const fn rule(kernel: Kernel) -> PcpRule {
    kernel.preset().1.experiment.pcp_rule
}

/// Lists that are smaller than the zone's size asks for: they were sized while less was managed, and not again.
fn undersized(state: &State, zone: &Zone) -> Option<Finding> {
    let (Some(kernel), true) = (state.kernel(), zone.managed > 0) else { return None };
    let node_cpus = state.node_cpus.get(&zone.node).copied().unwrap_or(state.online);
    let (setting, fraction) = state.list_fraction();
    let cpus = sharing_cpus(node_cpus, state.online);
    let of_4_kib = if kernel < Kernel(4, 19) { BATCH_CAP_V3_0 } else { BATCH_CAP };
    let cap = of_4_kib * 4 / state.page_kib;
    let right = size(rule(kernel), zone.managed, zone.unboosted_low(), cpus, fraction, cap);
    let online = || zone.pagesets.iter().filter(|(_, set)| set.batch > 0);
    let is_small = |set: &super::Pageset| {
        // From v6.7 on `high` is tuned, and moves to new bounds gradually. Linux 6.18 shows the bounds, 6.12 does not.
        let high = match set.bounds {
            Some((_, most)) => Some(most),
            None => (kernel < Kernel(6, 7)).then_some(set.high),
        };
        // Half: a watermark that changed since by a few percent is no fault.
        set.batch < u64::from(right.batch) || high.is_some_and(|high| 2 * high < u64::from(right.high_max))
    };
    let small: Vec<_> = online().filter(|(_, set)| is_small(set)).collect();
    let (cpu, set) = small.first()?;
    let highs = |bounds: Option<(u64, u64)>, high: u64| match bounds {
        Some((least, most)) => format!("high_min {least}, high_max {most}"),
        None => format!("high {high}"),
    };
    let bounds = (right.high_min < right.high_max).then_some((right.high_min.into(), right.high_max.into()));
    Some(Finding {
        id: "pcp-undersized",
        severity: Severity::Error,
        zone: Some(zone.title()),
        read: format!(
            "batch {}, {} on CPU {cpu}, and too small on {} of {} CPUs, /proc/zoneinfo",
            set.batch,
            highs(set.bounds, set.high),
            small.len(),
            online().count()
        ),
        expected: format!(
            "batch {}, {}: the rule of Linux {}.{} for {} managed pages and {cpus} CPUs",
            right.batch,
            highs(bounds, right.high_max.into()),
            kernel.0,
            kernel.1,
            zone.managed
        ),
        why: "Each CPU refills and drains its lists more often, and takes the zone lock each time.".into(),
        advice: format!(
            "Set vm.{setting} to 8, then back to {fraction}: the lists are sized again. {}",
            again(kernel)
        ),
        shell: Some(format!("sysctl -w vm.{setting}=8; sysctl -w vm.{setting}={fraction}")),
        study: Some("pcp-reset"),
    })
}

/// Reason for which the lists were sized too early.
fn again(kernel: Kernel) -> &'static str {
    if kernel < Kernel(5, 4) {
        "If they are too small again after the next boot, the kernel lacks the change that sizes them after deferred \
         initialisation (v5.4)."
    } else {
        "Linux does not size them again when a balloon (virtio_balloon, Hyper-V, Xen) gives memory back."
    }
}

fn boosted(zone: &Zone) -> Option<Finding> {
    (zone.boost > 0).then(|| Finding {
        id: "watermark-boosted",
        severity: Severity::Info,
        zone: Some(zone.title()),
        read: format!("boost {} pages on top of low {}, /proc/zoneinfo", zone.boost, zone.unboosted_low()),
        expected: "boost 0".into(),
        why: "Allocations fell back to pageblocks of another type; until kswapd has freed as much again, it reclaims \
              that much more.".into(),
        advice: "Nothing, if it passes. If it stays, set vm.watermark_boost_factor to 0 and see whether huge pages become \
                 scarcer.".into(),
        shell: Some("sysctl -w vm.watermark_boost_factor=0".to_owned()),
        ..Finding::default()
    })
}

fn below_min(state: &State, zone: &Zone) -> Option<Finding> {
    (zone.min > 0 && zone.free < zone.low).then(|| Finding {
        id: "below-watermark",
        severity: if zone.free < zone.min { Severity::Warning } else { Severity::Info },
        zone: Some(zone.title()),
        read: format!("free {} pages; min {}, low {}, /proc/zoneinfo", zone.free, zone.min, zone.low),
        expected: "free above low".into(),
        why: "kswapd is awake; below min, allocating tasks reclaim themselves.".into(),
        advice: format!(
            "See whether allocstall_* in /proc/vmstat grows (`framewright doctor --watch`); a larger vm.{} wakes kswapd \
             earlier.",
            earlier_kswapd(state).0
        ),
        shell: Some(earlier_kswapd(state).1),
        study: Some("zone-reclaim"),
    })
}

/// Whether a kernel is known to be older than this release.
fn is_before(state: &State, release: Kernel) -> bool {
    state.kernel().is_some_and(|kernel| kernel < release)
}

/// The setting that wakes kswapd earlier, and the line that doubles it: the distance from the min watermark, or before
/// v4.6, where that cannot be set, all watermarks.
fn earlier_kswapd(state: &State) -> (&'static str, String) {
    let (name, usual, most) = match is_before(state, Kernel(4, 6)) {
        true => ("min_free_kbytes", 1 << 16, i64::from(i32::MAX)),
        false => ("watermark_scale_factor", 10, 3000),
    };
    let now = state.sysctl.get(name).copied().unwrap_or(usual);
    (name, format!("sysctl -w vm.{name}={}", now.saturating_mul(2).clamp(1, most)))
}

/// Nearly all free memory is in smaller blocks, and there is enough of it for hundreds of huge pages.
const MOST_SMALL: f64 = 90.0;
const WORTH_MIB: u64 = 512;

fn fragmented(state: &State, zone: &Zone) -> Option<Finding> {
    let (free, huge_order) = (zone.free_in_blocks(), zone.huge_order);
    let small = percent(free - zone.free_huge(), free);
    if zone.blocks.len() <= huge_order || state.mib(free) < WORTH_MIB || small < MOST_SMALL {
        return None;
    }
    let largest = zone.blocks.iter().rposition(|blocks| *blocks > 0).unwrap_or(0);
    let used = state.huge_pages.as_deref().is_some_and(|when| when != "never");
    Some(Finding {
        id: "fragmented",
        severity: if used { Severity::Warning } else { Severity::Info },
        zone: Some(zone.title()),
        read: format!(
            "{small:.0} % of {} MiB free are in blocks below order {huge_order}; the largest free block has order {largest}, \
             /proc/buddyinfo",
            state.mib(free)
        ),
        expected: format!("less than {MOST_SMALL:.0} %"),
        why: "A huge page must be compacted together first, which takes microseconds to milliseconds in the fault.".into(),
        advice: format!(
            "echo 1 > /proc/sys/vm/compact_memory once; for services that start late, reserve huge pages at boot{}.",
            if is_before(state, Kernel(5, 9)) { "" } else { ", or raise vm.compaction_proactiveness" }
        ),
        shell: Some("echo 1 > /proc/sys/vm/compact_memory".to_owned()),
        ..Finding::default()
    })
}

/// From this distance on, Linux itself turned zone reclaim on until v3.16.
const FAR: u32 = 30;

fn zone_reclaim(state: &State) -> Option<Finding> {
    let mode = *state.sysctl.get("zone_reclaim_mode").filter(|mode| **mode != 0)?;
    let farthest = state.distances.iter().flatten().copied().max().unwrap_or(10);
    Some(Finding {
        id: "zone-reclaim-on",
        severity: if farthest < FAR { Severity::Warning } else { Severity::Info },
        read: format!("vm.zone_reclaim_mode = {mode}; the farthest node is at distance {farthest}"),
        expected: format!("0, unless nodes are {FAR} or more apart and programs fit into one"),
        why: "An allocation reclaims in its own node before it takes a page of another: file-backed programs lose their \
              cache while other nodes have free memory.".into(),
        advice: "Turn it off.".into(),
        shell: Some("sysctl -w vm.zone_reclaim_mode=0".to_owned()),
        study: Some("zone-reclaim"),
        ..Finding::default()
    })
}

/// Fewer attempts than this say nothing.
const ATTEMPTS: u64 = 100;

fn compaction(state: &State) -> Option<Finding> {
    let (failed, done) = (state.counter("compact_fail"), state.counter("compact_success"));
    let share = percent(failed, failed + done);
    (failed + done >= ATTEMPTS && share > 50.0).then(|| Finding {
        id: "compaction-failing",
        severity: Severity::Warning,
        read: format!(
            "compact_fail {failed}, compact_success {done} ({share:.0} % failed) {}, /proc/vmstat",
            state.period
        ),
        expected: "at most half".into(),
        why: "Tasks that ask for large blocks wait for compaction and mostly get none.".into(),
        advice: format!(
            "Find unmovable pages in movable pageblocks (/proc/pagetypeinfo); set \
             /sys/kernel/mm/transparent_hugepage/defrag to {}.",
            if is_before(state, Kernel(4, 6)) { "`madvise`" } else { "`defer` or `madvise`" }
        ),
        shell: Some(format!(
            "echo {} > /sys/kernel/mm/transparent_hugepage/defrag",
            if is_before(state, Kernel(4, 6)) { "madvise" } else { "defer" }
        )),
        ..Finding::default()
    })
}

/// From one stall in this number of allocated pages on, a program feels it. Linux counts no allocations.
const STALLS_PER_PAGE: f64 = 1e-5;

fn stalls(state: &State) -> Option<Finding> {
    let (stalls, pages) = (state.counters("allocstall"), state.counters("pgalloc"));
    let share = stalls as f64 / pages.max(1) as f64;
    (stalls >= ATTEMPTS && share > STALLS_PER_PAGE).then(|| Finding {
        id: "allocation-stalls",
        severity: Severity::Warning,
        read: format!("allocstall {stalls} for {pages} allocated pages {}, /proc/vmstat", state.period),
        expected: "fewer than 1 for 100,000 pages".into(),
        why: "These allocations reclaimed memory themselves: milliseconds instead of nanoseconds.".into(),
        advice: format!(
            "Raise vm.{} so that kswapd begins earlier, or limit the memory of the program that grows.",
            earlier_kswapd(state).0
        ),
        shell: Some(earlier_kswapd(state).1),
        study: Some("zone-reclaim"),
        ..Finding::default()
    })
}

fn huge_faults(state: &State) -> Option<Finding> {
    let (done, fallback) = (state.counter("thp_fault_alloc"), state.counter("thp_fault_fallback"));
    let share = percent(fallback, done + fallback);
    (done + fallback >= ATTEMPTS && share > 30.0).then(|| Finding {
        id: "huge-faults-fail",
        severity: Severity::Warning,
        read: format!(
            "thp_fault_fallback {fallback}, thp_fault_alloc {done} ({share:.0} % fell back) {}, /proc/vmstat",
            state.period
        ),
        expected: "less than 30 %".into(),
        why: "Faults that could have mapped a huge page mapped a base page: more faults, more TLB misses."
            .into(),
        advice: "See `fragmented`; run programs that need huge pages early, or reserve them with hugetlb."
            .into(),
        shell: Some("echo 1 > /proc/sys/vm/compact_memory".to_owned()),
        study: Some("refill-check"),
        ..Finding::default()
    })
}

fn fraction(state: &State) -> Option<Finding> {
    let (setting, fraction) = state.list_fraction();
    (fraction > 0).then(|| Finding {
        id: "pcp-fraction-set",
        severity: Severity::Info,
        read: format!("vm.{setting} = {fraction}"),
        expected: "0, the kernel's own rule".into(),
        why: if setting == "percpu_pagelist_fraction" {
            "Each CPU's lists may hold that fraction of each zone.".into()
        } else {
            "The lists of all CPUs may hold that fraction of each zone; from v6.7 on they are no longer tuned.".into()
        },
        advice: "Keep it if it was measured; else return to the kernel's rule.".into(),
        shell: Some(format!("sysctl -w vm.{setting}=0")),
        study: Some("pcp-reset"),
        ..Finding::default()
    })
}

fn oom_kills(state: &State) -> Option<Finding> {
    let kills = state.counter("oom_kill");
    (kills > 0).then(|| Finding {
        id: "oom-kills",
        severity: Severity::Warning,
        read: format!("oom_kill {kills} {}, /proc/vmstat", state.period),
        expected: "0".into(),
        why: "Programs were killed because an allocation found no page: of the machine, or within the limit of a memory group.".into(),
        advice: "dmesg names them with the state of each zone; a request for a large block may fail with much memory free.".into(),
        shell: Some("dmesg | grep -iE -A30 'invoked oom-killer'".to_owned()),
        ..Finding::default()
    })
}

fn remote(state: &State) -> Option<Finding> {
    let (hit, miss) = (state.counter("numa_hit"), state.counter("numa_miss"));
    let share = percent(miss, hit + miss);
    (hit + miss >= ATTEMPTS && share > 5.0).then(|| Finding {
        id: "remote-allocations",
        severity: Severity::Info,
        read: format!(
            "numa_miss {miss} of {} allocations ({share:.0} %) {}, /proc/vmstat",
            hit + miss,
            state.period
        ),
        expected: "less than 5 %".into(),
        why: "Pages came from another node than was asked for: each access to them crosses the interconnect."
            .into(),
        advice: "See which node is full, and bind or interleave the programs that fill it.".into(),
        shell: Some("numastat -m".to_owned()),
        study: Some("zone-reclaim"),
        ..Finding::default()
    })
}

fn huge_defrag(state: &State) -> Option<Finding> {
    let always = state.huge_defrag.as_deref() == Some("always");
    (always && state.huge_pages.as_deref() != Some("never")).then(|| Finding {
        id: "huge-faults-compact",
        severity: Severity::Info,
        read: "always, /sys/kernel/mm/transparent_hugepage/defrag".into(),
        expected: if is_before(state, Kernel(4, 6)) { "madvise" } else { "madvise, the kernel's default" }.into(),
        why: "Each fault that wants a huge page and finds none free compacts memory itself, for up to milliseconds.".into(),
        advice: "Keep it if throughput matters and latency does not.".into(),
        shell: Some("echo madvise > /sys/kernel/mm/transparent_hugepage/defrag".to_owned()),
        ..Finding::default()
    })
}

/// Linux itself turns huge pages off on machines with less than 512 MiB.
const SMALL_MIB: u64 = 512;

fn huge_never(state: &State) -> Option<Finding> {
    let managed: u64 = state.zones.iter().map(|zone| zone.managed).sum();
    (state.mib(managed) >= SMALL_MIB && state.huge_pages.as_deref() == Some("never")).then(|| Finding {
        id: "huge-pages-off",
        severity: Severity::Info,
        read: "never, /sys/kernel/mm/transparent_hugepage/enabled".into(),
        expected: "madvise, so that programs that ask for them get some".into(),
        why: "Large arrays take 512 faults and TLB entries where one would do.".into(),
        advice: "See what it would change: `framewright try --set transparent_hugepage=madvise -- COMMAND`."
            .into(),
        shell: Some("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled".to_owned()),
        ..Finding::default()
    })
}

/// From this share of its limit on, a group's allocations reclaim.
const NEARLY_FULL: f64 = 95.0;

fn full_group(group: &Group) -> Option<Finding> {
    let share = percent(group.used, group.limit);
    let folder = format!("/sys/fs/cgroup/{}", group.path);
    let folder = folder.trim_end_matches('/');
    let name = if group.path.is_empty() { "/" } else { &group.path };
    (share >= NEARLY_FULL || group.killed > 0).then(|| Finding {
        id: "memory-group-full",
        severity: if share >= NEARLY_FULL { Severity::Warning } else { Severity::Info },
        read: format!(
            "{name}: {} of {} in use ({share:.0} %), processes killed since it was made: {}, {folder}",
            profile::size(group.used),
            profile::size(group.limit),
            group.killed
        ),
        expected: format!("less than {NEARLY_FULL:.0} %, and none killed"),
        why: "At its limit each allocation of the group reclaims the group's own pages, however much memory the machine has.".into(),
        advice: "Raise the group's memory.max (version 1: memory.limit_in_bytes), or find out which of its memory grows.".into(),
        shell: Some(format!("cat {folder}/memory.stat")),
        ..Finding::default()
    })
}
