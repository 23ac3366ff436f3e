//! The parts of `zone-reclaim`: programs that write more than there is memory, on real files, through a page cache in
//! an arena of two virtual nodes.

use std::collections::BTreeMap;
use std::path::Path;

use framewright::events::ZoneEvents;
use framewright_host::{CacheError, Config, PAGE_BYTES};
use framewright_report::table::{DURATION_ELAPSED, DURATION_SYSTEM, DURATION_USER};
use framewright_subject::programs::{Facts, Failure, Place, Program, Stretch, measure};

use crate::study::declare::*;

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "files",
        about: "Programs that write more than the memory's size to real files, through a page cache.",
        kinds: &[Kind::Measured],
        keys: &[
            key("program", Takes::Words(&["fs_mark", "large_dd", "mapped_writer"]), None, "Which program."),
            key("memory_mib", Takes::Whole(4, 1 << 20), Some("24"), "Memory."),
            key("tasks", Takes::Whole(1, 1024), Some("1"), "Tasks, at most two for each CPU."),
            key("loops", Takes::Whole(1, 1000), Some("4"), "Rounds of fs_mark."),
            key(
                "tenths",
                Takes::Whole(1, 1000),
                Some("100"),
                "What mapped_writer writes, in tenths of memory.",
            ),
            key("storage_mbps", Takes::Whole(0, 1 << 20), Some("0"), "Limit on storage; 0 for none."),
            // Requests prefer the first zone of node 0, which had 2 of 12 GiB on the study's machine.
            key("node1_share", Takes::Whole(1, 64), Some("5"), "Memory of node 1 as a multiple of node 0's."),
        ],
        metrics: &quantities! {
            files_per_second "1/s" Higher Main "Files written per second, by loop."
            overhead_us "us" Lower Main "Time of a loop outside its calls to write, all tasks together."
            step_seconds "s" Lower Main "Wall time of one step of the program."
            zone_reclaim_scans_per_allocation "1" Lower Main "Scans of a zone before another is tried, per allocation."
            allocation_us "us" Lower Main "Quantile of the times that page cache allocations took."
            without_direct_reclaim "%" Higher Main "Allocations that did not have to reclaim themselves."
            remote_percent "%" None Main "Pages that came from another node than preferred."
            page_allocations "1" None Main "Pages allocated for the cache."
            duration_user_seconds "s" Lower Main "User CPU time of the whole test."
            duration_system_seconds "s" Lower Main "System CPU time of the whole test."
            duration_elapsed_seconds "s" Lower Main "Wall time of the whole test."
            page_ins_kib "KiB" None Main "Read from storage."
            page_outs_kib "KiB" None Main "Written to storage."
            swap_ins_pages "pages" None Main "Read from swap."
            swap_outs_pages "pages" None Main "Written to swap."
            direct_pages_scanned "pages" None Main "Pages that allocating tasks scanned."
            direct_pages_reclaimed "pages" None Main "Pages that allocating tasks reclaimed."
            kswapd_pages_scanned "pages" None Main "Pages that background reclaim scanned."
            kswapd_pages_reclaimed "pages" None Main "Pages that background reclaim reclaimed."
            page_writes_by_reclaim "pages" None Main "Dirty pages that reclaim itself wrote."
            slabs_scanned "1" None Main "Slab objects scanned."
            direct_inode_steals "pages" None Main "Pages of inodes dropped by allocating tasks; none here."
            kswapd_inode_steals "pages" None Main "Pages of inodes dropped by background reclaim; none here."
        },
        options: joined!((Opt, Kind); &MEASURED, &[(Opt::Scale, Kind::Measured)]),
        ..Declaration::NONE
    },
    runners: &[(Kind::Measured, run)],
};

/// The least memory of node 0: a largest block.
const LEAST_MIB: u32 = 4;

/// Runs a part: every variant interleaved, each time in an arena of its own.
///
/// # Errors
/// A setting that does not exist, no folder to write in, or what a program ran into.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let mut result = result_part(plan, part, Kind::Measured, "host", run.seed);
    let variants = configured(plan, &Settings::default())?;
    let work = Work::of(part, run);
    let progress = progress(plan, part, variants.len() * run.costly_samples as usize);
    let mut is_direct = true;
    for (_, variant) in in_turn(run.costly_samples, &variants) {
        progress.doing(&variant.variant);
        let facts = work.measure(variant.setup.config)?;
        is_direct &= facts.is_direct;
        Figures { result: &mut result, variant: &variant.variant }.add(&facts);
        progress.step(&variant.variant);
    }
    add_published(&mut result, part);
    result.note(work.describe());
    result.note(
        "Durations include reading every file back past the cache to compare it. The programs have files only, and no \
         swap is configured; no slabs, no inodes: their rows are 0. The zonelist cache forgets after one second, whatever the scale.",
    );
    if !is_direct {
        result.note(format!(
            "{} has no direct access to files (O_DIRECT): I/O went through the system's own cache. Set TMPDIR to a \
             folder on a disk.",
            std::env::temp_dir().display()
        ));
    }
    Ok(result)
}

/// Adds the published figures of the baseline.
fn add_published(result: &mut ResultPart, part: &Part) {
    for metric in &part.metrics {
        if let Some(published) = metric.published {
            result.figure(&metric.name).published(published);
        }
    }
}

/// The program of a part over `memory` bytes; a quarter of it for a first look.
fn program_of(part: &Part, run: &Run<'_>, memory: u64, tasks: u32) -> Program {
    let whole = match &*WORKLOAD.text(part, "program") {
        "fs_mark" => Program::fs_mark(memory, tasks, WORKLOAD.value(part, "loops")),
        "large_dd" => Program::large_dd(memory),
        _ => Program::mapped_writer(memory, tasks, WORKLOAD.value(part, "tenths")),
    };
    if run.quick { whole.quartered() } else { whole }
}

/// What a program does, in words.
fn describe(program: &Program) -> String {
    let what = match *program {
        Program::FsMark { loops, files, file_bytes, .. } => {
            format!("{loops} times {files} files of {} KiB", file_bytes >> 10)
        }
        Program::LargeDd { bytes, copies, .. } => format!("{copies} copies of {} KiB", bytes >> 10),
        Program::MappedWriter { pages, .. } => format!("a file of {} MiB", pages >> 8),
    };
    match program.tasks() {
        1 => format!("one task with {what}"),
        tasks => format!("{tasks} tasks, each with {what}"),
    }
}

/// A program, and the memory it is to outgrow.
struct Work {
    program: Program,
    memory: u64,
    /// Bandwidth that storage is held to; 0 for what it can.
    storage_mbps: u32,
    /// How often node 0's memory goes into node 1's.
    node1_share: u32,
}

impl Work {
    fn of(part: &Part, run: &Run<'_>) -> Self {
        let node1_share: u32 = WORKLOAD.value(part, "node1_share");
        let least = f64::from(LEAST_MIB * (1 + node1_share));
        let mib = (WORKLOAD.value::<f64>(part, "memory_mib") * run.scale).max(least);
        let memory = (mib * f64::from(1 << 20)) as u64 / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        // Enough tasks that the disk is busy while some of them compute; more would only wait for a CPU.
        let cpus = cpus_here() as u32;
        let tasks = WORKLOAD.value::<u32>(part, "tasks").clamp(1, 2 * cpus);
        let program = program_of(part, run, memory, tasks);
        Self { program, memory, storage_mbps: WORKLOAD.value(part, "storage_mbps"), node1_share }
    }

    fn describe(&self) -> String {
        let (mib, what) = (self.memory >> 20, describe(&self.program));
        let storage = match self.storage_mbps {
            0 => String::new(),
            mbps => {
                format!(
                    " Storage is held to {mbps} MB/s, so that programs outrun it as they did the study's disk."
                )
            }
        };
        let parts = self.node1_share + 1;
        format!(
            "{mib} MiB on two virtual nodes, 1/{parts} of it on node 0; {what}, on node 0's CPUs.{storage}"
        )
    }

    /// Runs the program once.
    fn measure(&self, config: Config) -> Result<Facts> {
        let within = std::env::temp_dir();
        let &Self { memory, node1_share, storage_mbps, .. } = self;
        let place = Place { memory, node1_share, storage_mbps, folder: &within };
        measure(&self.program, &place, config).map_err(|failure| match failure {
            Failure::Cache(CacheError::Io(error)) => cannot_write(&within, &error),
            Failure::File(error) => cannot_write(&within, &error),
            failure => Error::failed(failure),
        })
    }
}

fn cannot_write(folder: &Path, error: &dyn core::error::Error) -> Error {
    Error::failed(format_args!(
        "cannot write in {}: {error}; set TMPDIR to a folder on a disk",
        folder.display()
    ))
}

/// Where the figures of a variant go.
struct Figures<'a> {
    result: &'a mut ResultPart,
    variant: &'a str,
}

impl Figures<'_> {
    /// What one run of a program showed.
    fn add(&mut self, facts: &Facts) {
        self.times(&facts.stretches);
        self.allocations(facts);
        for (name, ns) in
            [DURATION_USER, DURATION_SYSTEM, DURATION_ELAPSED].into_iter().zip(facts.durations_ns)
        {
            self.one(name, ns as f64 / 1e9);
        }
        self.counters(facts);
    }

    fn one(&mut self, name: impl Into<String>, value: f64) {
        self.result.figure(name).sample(self.variant, value);
    }

    /// Files per second and overhead of each loop, or seconds of each step.
    fn times(&mut self, tasks: &[Vec<Stretch>]) {
        let mut turns: BTreeMap<(u64, &str, u32), Vec<&Stretch>> = BTreeMap::new();
        for stretches in tasks {
            for (n, stretch) in (0..).zip(stretches) {
                turns.entry((n, stretch.step, stretch.turn)).or_default().push(stretch);
            }
        }
        let (mut files, mut overhead) = (Vec::new(), Vec::new());
        for ((_, step, _), all) in turns {
            let begun = all.iter().map(|stretch| stretch.begun_ns).min().unwrap_or(0);
            let ended = all.iter().map(|stretch| stretch.ended_ns).max().unwrap_or(0);
            let seconds = (ended - begun) as f64 / 1e9;
            if step == "loop" {
                files.push(all.iter().map(|stretch| f64::from(stretch.files)).sum::<f64>() / seconds);
                let inside = |stretch: &&Stretch| {
                    (stretch.ended_ns - stretch.begun_ns - stretch.called_ns) as f64 / 1e3
                };
                overhead.push(all.iter().map(inside).sum::<f64>());
            } else {
                self.one(format!("step_seconds[step={step}]"), seconds);
            }
        }
        if !files.is_empty() {
            let loops = files.len();
            self.result.figure("files_per_second").samples(self.variant, files).per_round(loops);
            self.result.figure("overhead_us").samples(self.variant, overhead).per_round(loops);
        }
    }

    /// How allocations fared: how many, how long, where, and who had to reclaim for them.
    fn allocations(&mut self, facts: &Facts) {
        let (times, totals) = (&facts.allocation_times, &facts.nodes);
        let of_all = |count: u64| count as f64 / times.count().max(1) as f64;
        self.one("zone_reclaim_scans_per_allocation", of_all(totals.zone_reclaim_scans));
        for (at, ns) in [
            ("p50", times.per_mille(500)),
            ("p99", times.per_mille(990)),
            ("p99.9", times.per_mille(999)),
            ("max", times.max()),
        ] {
            self.one(format!("allocation_us[at={at}]"), ns as f64 / 1e3);
        }
        let direct = of_all(totals.allocstall).min(1.0);
        self.one("without_direct_reclaim", 100.0 * (1.0 - direct));
        let taken = (totals.numa_hit + totals.numa_miss).max(1);
        self.one("remote_percent", 100.0 * totals.numa_miss as f64 / taken as f64);
        self.one("page_allocations", times.count() as f64);
    }

    /// The reclaim block, with the kernel's counters behind it.
    fn counters(&mut self, facts: &Facts) {
        let events = &facts.cache;
        let kib = |pages: u64| (pages * (PAGE_BYTES as u64 >> 10)) as f64;
        let sum = |counter: fn(&ZoneEvents) -> u64| facts.zones.iter().map(counter).sum::<u64>() as f64;
        for (name, value) in [
            ("page_ins_kib", kib(events.pgpgin)),
            ("page_outs_kib", kib(events.pgpgout)),
            ("swap_ins_pages", events.pswpin as f64),
            ("swap_outs_pages", events.pswpout as f64),
            ("direct_pages_scanned", sum(|zone| zone.pgscan_direct)),
            ("kswapd_pages_scanned", sum(|zone| zone.pgscan_kswapd)),
            ("kswapd_pages_reclaimed", sum(|zone| zone.pgsteal_kswapd)),
            ("direct_pages_reclaimed", sum(|zone| zone.pgsteal_direct)),
            ("page_writes_by_reclaim", events.nr_vmscan_write as f64),
            ("slabs_scanned", facts.nodes.slabs_scanned as f64),
            ("direct_inode_steals", 0.0),
            ("kswapd_inode_steals", 0.0),
        ] {
            self.one(name, value);
        }
    }
}
