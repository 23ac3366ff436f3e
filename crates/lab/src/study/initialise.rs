//! Parts `host` and `fragmented` of `parallel-init`: how fast this machine's threads initialise 64-byte descriptors,
//! beside what it takes them to fill the same bytes.

use framewright::boot::map::Kind as Memory;
use framewright::boot::zones::Rules;
use framewright::units::PAGEBLOCK_PAGES;
use framewright::{NodeId, Pfn};
use framewright_host::{BootMap, BootOptions, DescriptorMemory, Descriptors, FirmwareMap};
use framewright_subject::boot::fill;
use framewright_subject::{Descriptor, Subject};
use framewright_workload::random::Rng;

use crate::booting::PAGE_SHIFT;
use crate::booting::report::{self, no_slots, stay_behind};
use crate::progress::Progress;
use crate::study::declare::*;

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "initialise",
        about: "Initialises 64-byte page descriptors, and fills the same bytes with a plain memset.",
        kinds: &[Kind::Measured],
        keys: &[key(
            "fragmented",
            Takes::Flag,
            Some("false"),
            "Whether memory is in thousands of ranges with holes.",
        )],
        metrics: &quantities! {
            init_gbps "GB/s" Higher Main "Descriptors initialised, with their free lists."
            memset_gbps "GB/s" None Main "The same bytes filled by as many threads: the limit."
            init_of_memset_percent "%" Higher Main "Initialisation as a share of the memset's speed."
            first_touch_init_gbps "GB/s" Higher Cause "init_gbps in memory that pays its page faults."
            first_touch_memset_gbps "GB/s" None Cause "memset_gbps in such memory."
            first_touch_init_of_memset_percent "%" Higher Cause "The ratio of these two."
        },
        options: joined!((Opt, Kind); &MEASURED, &[(Opt::Memory, Kind::Measured)]),
        ..Declaration::NONE
    },
    runners: &[(Kind::Measured, run)],
};

/// Bytes of a descriptor of [`Descriptor::Struct64`].
pub(crate) const DESCRIPTOR: usize = 64;
/// Samples of memory that is touched for the first time: each costs its page faults.
const FRESH_SAMPLES: u32 = 2;
/// Described memory begins here, above what is scarce, so that it is one zone.
const BASE: u64 = 4 << 30;

/// A node of `gib` GiB in one range, or in ranges of 0.5 to 4 MiB with holes of up to 256 KiB between them.
pub(crate) fn memory(gib: u64, fragmented: bool) -> Result<BootMap> {
    let end = BASE + (gib << 30);
    let mut map = FirmwareMap::default();
    if fragmented {
        // The same ranges in every run: samples of different runs compare.
        let mut rng = Rng::new(1);
        let mut pages = |least: u64, most: u64| (least + rng.below(most - least + 1)) << PAGE_SHIFT;
        let mut at = BASE;
        while at < end {
            let bytes = pages(128, 1024).min(end - at);
            map.ranges.push((at, bytes, Memory::Usable));
            at += bytes + pages(1, 64);
        }
    } else {
        map.ranges.push((BASE, gib << 30, Memory::Usable));
    }
    map.divide(Rules::default(), |_| Ok(())).map_err(Error::failed)
}

/// One node's memory, and descriptors that go from boot to boot.
struct Rig {
    map: BootMap,
    descriptors: Option<DescriptorMemory>,
    /// The bytes of the descriptors that are initialised late.
    bytes: usize,
    /// Where they begin.
    from: usize,
}

impl Rig {
    /// Touches all its memory once.
    fn new(map: BootMap) -> Result<Self> {
        let subject = Subject::of_map(&map, &options(&Setup::default(), 1), Descriptor::Struct64);
        let mut descriptors = subject.map_err(Error::failed)?.into_descriptors();
        descriptors.fill(0xff);
        let first = map.nodes[0].first_deferred.unwrap_or(map.zones[0].start);
        let from = (first.0 - map.zones[0].start.0) as usize * DESCRIPTOR;
        let bytes = pageblocks(&map, first) as usize * PAGEBLOCK_PAGES as usize * DESCRIPTOR;
        Ok(Self { map, descriptors: Some(descriptors), bytes, from })
    }

    fn take(&mut self) -> Result<DescriptorMemory> {
        self.descriptors.take().ok_or_else(|| Error::failed("a boot before this one failed"))
    }

    /// GB/s at which the deferred part is initialised.
    fn init(&mut self, setup: &Setup, threads: usize, fresh: bool) -> Result<f64> {
        let mut descriptors = self.take()?;
        if fresh {
            descriptors.forget();
        }
        let subject = Subject::of_map_in(&self.map, &options(setup, threads), descriptors);
        let subject = subject.map_err(Error::failed)?;
        let again = || Error::failed("the arena has booted before");
        let booting = subject.begin().ok_or_else(again)?;
        let times = booting.initialise(&[NodeId(0)], setup.split, threads).ok_or_else(no_slots)?;
        booting.finish().map_err(stay_behind)?;
        let free: u64 = self.map.free.iter().map(|range| range.end.0 - range.start.0).sum();
        if subject.free_pages() != free {
            return Err(Error::failed("initialised pages are missing"));
        }
        self.descriptors = Some(subject.into_descriptors());
        Ok(self.gbps(times.iter().map(|time| time.ms).sum()))
    }

    /// GB/s at which as many threads fill the same bytes.
    fn memset(&mut self, threads: usize, fresh: bool) -> Result<f64> {
        let mut descriptors = self.take()?;
        if fresh {
            descriptors.forget();
        }
        let ms = fill(&mut descriptors, self.from..self.from + self.bytes, threads, DESCRIPTOR);
        self.descriptors = Some(descriptors);
        Ok(self.gbps(ms))
    }

    fn gbps(&self, ms: f64) -> f64 {
        self.bytes as f64 / (ms * 1e6)
    }
}

/// Pageblocks from `first` on that hold memory: those whose descriptors are written.
fn pageblocks(map: &BootMap, first: Pfn) -> u64 {
    let mut counted = first.0 / PAGEBLOCK_PAGES;
    let mut blocks = 0;
    for range in map.free.iter().filter(|range| range.end > first) {
        let from = (range.start.max(first).0 / PAGEBLOCK_PAGES).max(counted);
        let to = range.end.0.div_ceil(PAGEBLOCK_PAGES);
        blocks += to.saturating_sub(from);
        counted = counted.max(to);
    }
    blocks
}

pub(crate) fn options(setup: &Setup, cpus: usize) -> BootOptions {
    BootOptions {
        cpu_nodes: vec![NodeId(0); cpus],
        config: setup.config,
        split: setup.split,
        workers: cpus,
        descriptors: Descriptors::Cleared,
    }
}

/// Runs `host` or `fragmented`, whichever the part's workload says.
///
/// # Errors
/// A setting that does not exist, or no memory for the descriptors.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let fragmented = WORKLOAD.value(part, "fragmented");
    // Fragmented memory costs more than its bytes; an eighth shows as much.
    let gib = if fragmented { run.memory_gib.div_ceil(8) } else { run.memory_gib };
    enough_memory(gib)?;
    let variants = configured(plan, &Settings::default())?;
    let mut rig = Rig::new(memory(gib, fragmented)?)?;
    let mut result = result_part(plan, part, Kind::Measured, "host", run.seed);
    let most = cpus_here();
    let counts: Vec<usize> = doubled(most as u16).map(usize::from).collect();
    let fresh = if fragmented { 0 } else { run.samples.min(FRESH_SAMPLES) };
    let steps = variants.len() * (run.samples as usize * counts.len() + fresh as usize);
    let progress = progress(plan, part, steps);
    let mut measure = Measure { rig: &mut rig, result: &mut result, progress: &progress };
    for round in 0..run.samples as usize {
        for &threads in &counts {
            for turn in 0..variants.len() {
                measure.sample(&variants[(round + turn) % variants.len()], threads, round % 2 == 1, false)?;
            }
        }
    }
    for (round, variant) in in_turn(fresh, &variants) {
        measure.sample(variant, most, round % 2 == 1, true)?;
    }
    let ranges = rig.map.free.len();
    result.note(format!(
        "{gib} GiB described in {}, one node; {} MiB of descriptors of {DESCRIPTOR} bytes, which every figure is about.",
        if fragmented { format!("{ranges} ranges") } else { "one range".to_owned() },
        rig.bytes >> 20
    ));
    result.note(
        "init: the deferred part, descriptors and free lists; memset: as many threads fill the same bytes.",
    );
    result.note("one_thread_per_node has one thread, however many the memset has.");
    if !fragmented {
        result.note(
            "The memory was touched before, for both; first_touch: it was not, and both pay its page faults.",
        );
    }
    Ok(result)
}

/// Where samples go.
struct Measure<'a> {
    rig: &'a mut Rig,
    result: &'a mut ResultPart,
    progress: &'a Progress,
}

impl Measure<'_> {
    /// An initialisation and a memset, one right after the other.
    fn sample(
        &mut self,
        configured: &Configured,
        threads: usize,
        memset_first: bool,
        fresh: bool,
    ) -> Result<()> {
        let mut memset = if memset_first { Some(self.rig.memset(threads, fresh)?) } else { None };
        let init = self.rig.init(&configured.setup, threads, fresh)?;
        if memset.is_none() {
            memset = Some(self.rig.memset(threads, fresh)?);
        }
        let memset = memset.expect("measured before or after");
        let touch = if fresh { "first_touch_" } else { "" };
        let mut add = |name: &str, value: f64| {
            let name = format!("{touch}{name}[threads={threads}]");
            self.result.figure(name).sample(&configured.variant, value);
        };
        add("init_gbps", init);
        add("memset_gbps", memset);
        add("init_of_memset_percent", 100.0 * init / memset);
        self.progress.step(&format!("{} on {threads} threads", configured.variant));
        Ok(())
    }
}

/// Refuses what this machine has no memory for.
///
/// # Errors
/// As [`report::enough_memory`].
pub(crate) fn enough_memory(gib: u64) -> Result<()> {
    let pages = gib << (30 - PAGE_SHIFT);
    report::enough_memory(pages, DESCRIPTOR as u64, "choose a smaller --memory")
}
