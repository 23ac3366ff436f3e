//! One boot, and what it has to say: as a kernel's log would, and as results.

use std::collections::BTreeSet;
use std::time::Instant;

use framewright::boot::zones::NodePart;
use framewright::{NodeId, Pfn, ZoneType};
use framewright_host::{BootMap, BootOptions, Descriptors};
use framewright_report::error::{Error, Result};
use framewright_report::result::{Better, Kind, Part};
use framewright_subject::Subject;
use framewright_subject::boot::{Lists, NodeTime};

use super::{Bootable, PAGE_SHIFT, Taken};
use crate::configure::Setup;

/// Options of a boot.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// The allocator, its descriptors, and how late initialisation is split.
    pub setup: Setup,
    /// Threads of this machine that initialise.
    pub threads: usize,
    /// Initialises nothing before it is needed.
    pub lazy: bool,
}

/// Outcome of a boot.
#[derive(Debug)]
pub struct Report {
    /// Name of the machine or map that was booted.
    name: String,
    map: BootMap,
    taken: Vec<Taken>,
    cpus: usize,
    how: How,
    phases: Vec<(&'static str, f64)>,
    nodes: Vec<NodeTime>,
    /// Managed pages by zone, and lists: when the early part is done, and in the end.
    before: (Vec<u64>, Lists),
    after: (Vec<u64>, Lists),
    /// The log: seconds since the beginning, and a line.
    log: Vec<(f64, String)>,
}

/// A clock that also writes the log.
struct Log {
    start: Instant,
    last: Instant,
    phases: Vec<(&'static str, f64)>,
    lines: Vec<(f64, String)>,
}

impl Log {
    fn say(&mut self, line: impl Into<String>) {
        self.lines.push((self.start.elapsed().as_secs_f64(), line.into()));
    }

    /// Ends a phase. Returns its milliseconds.
    fn phase(&mut self, name: &'static str) -> f64 {
        let now = Instant::now();
        let ms = (now - self.last).as_secs_f64() * 1e3;
        self.phases.push((name, ms));
        self.last = now;
        ms
    }

    /// Leaves out what the log itself took.
    fn resume(&mut self) {
        self.last = Instant::now();
    }
}

/// Boots, and keeps an account.
///
/// # Errors
/// A map that is refused, or no memory for the descriptors.
pub fn boot(name: &str, bootable: &Bootable, how: How) -> Result<Report> {
    let start = Instant::now();
    let mut log = Log { start, last: start, phases: Vec::new(), lines: Vec::new() };
    let cpu_nodes = &bootable.firmware.cpu_nodes;
    let descriptor = how.setup.descriptor as u64;
    log.say(format!("boot of {name}: {} CPUs, descriptors of {descriptor} bytes", cpu_nodes.len()));
    log.resume();
    let (map, taken) = bootable.divide()?;
    log.phase("map");
    if !how.lazy {
        let present = map.parts.iter().map(|part| part.present).sum();
        let cure = "set descriptor_bytes=8 or leave them for later with --lazy";
        enough_memory(present, descriptor, cure)?;
    }
    say_map(&mut log, &map, &taken);

    let node_ids: Vec<NodeId> = map.nodes.iter().map(|part| part.node).collect();
    let options = BootOptions {
        cpu_nodes: cpu_nodes.clone(),
        config: how.setup.config,
        split: how.setup.split,
        workers: how.threads.max(node_ids.len()),
        descriptors: if how.lazy { Descriptors::AsTheyAre } else { Descriptors::Cleared },
    };
    log.resume();
    let subject = Subject::of_map(&map, &options, how.setup.descriptor).map_err(Error::failed)?;
    log.phase("structures");
    let booting = subject.begin().ok_or_else(|| Error::failed("the arena has booted before"))?;
    let ms = log.phase("early");
    let before = state(&subject);
    log.say(format!("early part: {} pages managed after {ms:.3} ms", before.0.iter().sum::<u64>()));
    log.say(format!("per-CPU lists (batch/high): {}", in_words(&before.1)));

    log.resume();
    let nodes = if how.lazy {
        booting.stay_lazy();
        Vec::new()
    } else {
        let nodes = booting.initialise(&node_ids, how.setup.split, how.threads).ok_or_else(no_slots)?;
        log.phase("deferred");
        booting.finish().map_err(stay_behind)?;
        nodes
    };
    log.phase("finish");
    for node in &nodes {
        let NodeTime { node, threads, pages, ms } = node;
        log.say(format!(
            "{node:?} deferred pages initialised in {ms:.1} ms: {pages} pages, {threads} threads"
        ));
    }
    let after = state(&subject);
    say_end(&mut log, &map, &how, &after, subject.left());
    let Log { phases, lines, .. } = log;
    let (name, cpus) = (name.to_owned(), cpu_nodes.len());
    Ok(Report { name, map, taken, cpus, how, phases, nodes, before, after, log: lines })
}

/// Refuses to fill this machine's memory with descriptors of `pages`; `cure` says what to do instead.
///
/// # Errors
/// They would take more than three quarters of the memory that is available.
pub(crate) fn enough_memory(pages: u64, descriptor: u64, cure: &str) -> Result<()> {
    let needed = pages * descriptor;
    match framewright_report::host::available_bytes().filter(|&available| needed > available / 4 * 3) {
        None => Ok(()),
        Some(available) => Err(Error::failed(format_args!(
            "descriptors of {descriptor} bytes for {pages} pages take {} MiB, and {} MiB are available: {cure}",
            needed >> 20,
            available >> 20
        ))),
    }
}

/// Too few slots for workers.
pub(crate) fn no_slots() -> Error {
    Error::failed("the arena has too few slots for workers")
}

/// Pages that no worker has initialised.
pub(crate) fn stay_behind(pages: u64) -> Error {
    Error::failed(format_args!("{pages} pages stay behind"))
}

fn state(subject: &Subject) -> (Vec<u64>, Lists) {
    (subject.managed_pages(), subject.lists())
}

/// `256 of 1/0, 768 of 63/378`.
fn in_words(lists: &Lists) -> String {
    let words: Vec<String> =
        lists.iter().map(|((batch, high), count)| format!("{count} of {batch}/{high}")).collect();
    words.join(", ")
}

/// `[mem 0x0000000000001000-0x000000000009ffff]`, of frames.
fn frames(start: Pfn, end: Pfn) -> String {
    bytes(start.0 << PAGE_SHIFT, end.0 << PAGE_SHIFT)
}

fn bytes(start: u64, end: u64) -> String {
    format!("[mem {start:#018x}-{:#018x}]", end.saturating_sub(1))
}

const fn type_name(kind: ZoneType) -> &'static str {
    match kind {
        ZoneType::Dma => "DMA",
        ZoneType::Dma32 => "DMA32",
        ZoneType::Normal => "Normal",
        ZoneType::Movable => "Movable",
    }
}

/// Ranges of one kind in the log, at most; a generated map may have thousands.
const SHOWN: usize = 32;

fn say_map(log: &mut Log, map: &BootMap, taken: &[Taken]) {
    for span in map.kinds.iter().take(SHOWN) {
        log.say(format!("map: {} {}", bytes(span.start, span.end), span.tag));
    }
    more(log, "map", map.kinds.len());
    let counts = map.counts;
    if counts.empty
        + counts.cut
        + counts.overlapped
        + map.trimmed_bytes
        + map.lost_pages
        + map.unclaimed_pages
        > 0
    {
        log.say(format!(
            "map: {} ranges given, {} empty, {} cut; {} bytes said twice, {} in pages that are not whole; {} pages of \
             no node, {} between zones",
            counts.ranges,
            counts.empty,
            counts.cut,
            counts.overlapped,
            map.trimmed_bytes,
            map.unclaimed_pages,
            map.lost_pages
        ));
    }
    for piece in map.memory.iter().take(SHOWN) {
        let hot = if piece.home.hot_pluggable { ", hot-pluggable" } else { "" };
        log.say(format!("{:?}: {}{hot}", piece.home.node, frames(piece.range.start, piece.range.end)));
    }
    more(log, "nodes", map.memory.len());
    for Taken { range, what } in taken.iter().take(SHOWN) {
        let pages = range.end.0 - range.start.0;
        log.say(format!("early: {} {pages} pages: {what}", frames(range.start, range.end)));
    }
    more(log, "early", taken.len());
    for (spec, part) in map.zones.iter().zip(&map.parts) {
        let deferred = if part.deferred_from < spec.end() {
            format!(", deferred from {:#x}", part.deferred_from.0 << PAGE_SHIFT)
        } else {
            String::new()
        };
        log.say(format!(
            "zone: {:?} {:7} {} {} pages present{deferred}",
            spec.node,
            type_name(spec.kind),
            frames(spec.start, spec.end()),
            part.present
        ));
    }
}

fn more(log: &mut Log, what: &str, count: usize) {
    if count > SHOWN {
        log.say(format!("{what}: … and {} more", count - SHOWN));
    }
}

fn say_end(log: &mut Log, map: &BootMap, how: &How, after: &(Vec<u64>, Lists), left: u64) {
    if how.lazy {
        log.say(format!("{left} pages stay uninitialised until they are needed"));
    }
    let resized = if how.setup.config.experiment.pcp_reset { "resized" } else { "not resized" };
    log.say(format!("per-CPU lists {resized} (batch/high): {}", in_words(&after.1)));
    let present: u64 = map.parts.iter().map(|part| part.present).sum();
    let managed: u64 = after.0.iter().sum::<u64>() + left;
    let kib = |pages: u64| pages << (PAGE_SHIFT - 10);
    let reserved = kib(present - managed.min(present));
    log.say(format!("memory: {}K/{}K available, {reserved}K reserved", kib(managed), kib(present)));
    let phases: Vec<String> = log.phases.iter().map(|(name, ms)| format!("{name} {ms:.3}")).collect();
    log.say(format!("phases, ms: {}", phases.join(", ")));
}

impl Report {
    /// The log, a line for each thing.
    pub fn log(&self) -> String {
        self.log.iter().map(|(seconds, line)| format!("[{seconds:12.6}] {line}\n")).collect()
    }

    /// These figures as results: pages and lists before and after late initialisation, and times on this host.
    pub fn parts(&self) -> Vec<Part> {
        vec![self.zones(), self.lists(), self.times()]
    }

    fn empty(&self, part: &str) -> Part {
        let part = Part::new("boot", part, Kind::Derived, &self.name).baseline("before").variant("after");
        self.noted(part)
    }

    fn noted(&self, mut part: Part) -> Part {
        let node = |part: &NodePart| format!("{:?}: {} pages", part.node, part.present);
        let nodes: Vec<String> = self.map.nodes.iter().map(node).collect();
        let lazy = if self.how.lazy { ", initialised when needed" } else { "" };
        part.note(format!("{} CPUs; {}{lazy}.", self.cpus, nodes.join(", ")));
        part
    }

    fn zones(&self) -> Part {
        let mut part = self.empty("zones");
        for (n, (spec, zone)) in self.map.zones.iter().zip(&self.map.parts).enumerate() {
            let zone_key = format!("zone={n},node={},type={}", spec.node.0, type_name(spec.kind));
            let mut add = |name: &str, before: u64, after: u64| {
                part.metric(format!("{name}[{zone_key}]"), "pages", Better::None)
                    .sample("before", before as f64)
                    .sample("after", after as f64);
            };
            add("spanned_pages", spec.pages, spec.pages);
            add("present_pages", zone.present, zone.present);
            add("managed_pages", self.before.0[n], self.after.0[n]);
        }
        let taken: u64 = self.taken.iter().map(|block| block.range.end.0 - block.range.start.0).sum();
        part.note(format!(
            "Before: the early part is initialised; after: all is. {taken} pages taken early."
        ));
        part
    }

    fn lists(&self) -> Part {
        let mut part = self.empty("lists");
        let sizes: BTreeSet<(u32, u32)> = self.before.1.keys().chain(self.after.1.keys()).copied().collect();
        for (batch, high) in sizes {
            let count = |lists: &Lists| f64::from(lists.get(&(batch, high)).copied().unwrap_or(0));
            part.metric(format!("lists[batch={batch},high={high}]"), "1", Better::None)
                .sample("before", count(&self.before.1))
                .sample("after", count(&self.after.1));
        }
        part
    }

    fn times(&self) -> Part {
        let mut part = self.noted(Part::new("boot", "time", Kind::Measured, "host").baseline("boot"));
        for (phase, ms) in &self.phases {
            part.metric(format!("phase_ms[phase={phase}]"), "ms", Better::Lower).sample("boot", *ms);
        }
        for NodeTime { node, pages, ms, .. } in &self.nodes {
            let node_key = format!("node={}", node.0);
            part.metric(format!("deferred_init_ms[{node_key}]"), "ms", Better::Lower).sample("boot", *ms);
            part.metric(format!("deferred_init_pages[{node_key}]"), "pages", Better::None)
                .sample("boot", *pages as f64);
        }
        part.note(format!(
            "{}, on this host's memory and {} of its threads: not a prediction for that machine.",
            self.name, self.how.threads
        ));
        part
    }
}
