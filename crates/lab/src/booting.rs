//! Boot for real, with threads as the CPUs that initialise: of a machine that is described, or of a map that was
//! read. Its frames are described only; zones, descriptors and free lists are real.

pub mod report;

use core::ops::Range;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Instant;

use framewright::boot::early::{Early, EarlyError, EarlyRequest, Side, Where};
use framewright::boot::late::Booting;
use framewright::boot::map::{Home, Kind};
use framewright::boot::zones::Rules;
use framewright::policy::init::{self, Job, Split};
use framewright::units::SECTION_PAGES;
use framewright::{NodeId, Pfn};
use framewright_host::firmware::{Claimed, Firmware};
use framewright_host::{BootMap, FirmwareMap, FrameUser, Host};
use framewright_report::error::{Error, Result};

use crate::machine::{Machine, Zone};

/// Frames have 4 KiB.
pub const PAGE_SHIFT: u32 = 12;

/// Input of a boot.
#[derive(Clone, Debug)]
pub struct Bootable {
    /// As firmware would describe it.
    pub firmware: Firmware,
    /// Rules by which memory is divided.
    pub rules: Rules,
    /// Memory that early allocation takes, beyond what is claimed from the beginning.
    pub wants: Vec<Want>,
}

/// An early allocation.
#[derive(Clone, Debug)]
pub struct Want {
    /// Request to the early allocator.
    pub request: EarlyRequest,
    /// Purpose of the memory.
    pub what: String,
}

/// An early allocation or reservation that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Frames that were taken.
    pub range: Range<Pfn>,
    /// Purpose of the memory.
    pub what: String,
}

impl Bootable {
    /// The memory of a described machine: a range for each zone, of which early allocation takes what the zone does
    /// not manage in the end.
    ///
    /// # Errors
    /// The machine has pages of another size than 4 KiB.
    pub fn of_machine(machine: &Machine) -> Result<Self> {
        if machine.page_kib != 4 {
            let (name, page) = (&machine.name, machine.page_kib);
            return Err(Error::failed(format_args!(
                "{name} has pages of {page} KiB; only machines with pages of 4 KiB can be booted"
            )));
        }
        let mut map = FirmwareMap::default();
        for zone in &machine.zones {
            let (start, bytes) = (zone.start_pfn << PAGE_SHIFT, zone.present_pages << PAGE_SHIFT);
            map.ranges.push((start, bytes, Kind::Usable));
            map.nodes.push((start, bytes, Home { node: NodeId(zone.node as u16), hot_pluggable: false }));
        }
        let per_node = machine.cores_per_node * machine.threads_per_core;
        let cpu_nodes = (0..machine.nodes).flat_map(|node| (0..per_node).map(move |_| NodeId(node as u16)));
        let defer = machine.zones.iter().any(|zone| zone.early_managed_pages < zone.managed_pages);
        Ok(Self {
            firmware: Firmware { map, cpu_nodes: cpu_nodes.collect(), claimed: Vec::new() },
            rules: Rules { defer, ..Rules::default() },
            wants: machine.zones.iter().flat_map(wants).collect(),
        })
    }

    /// A map that was read. Early allocation takes what its frame descriptors need, `descriptor_bytes` each, on the
    /// node that they describe. CPUs that nothing is said of are spread over the nodes.
    #[must_use]
    pub fn of_firmware(mut firmware: Firmware, descriptor_bytes: u64, cpus: usize) -> Self {
        if firmware.cpu_nodes.is_empty() {
            let mut nodes: Vec<NodeId> = firmware.map.nodes.iter().map(|(_, _, home)| home.node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            let nodes = if nodes.is_empty() { vec![NodeId(0)] } else { nodes };
            firmware.cpu_nodes = (0..cpus.max(1)).map(|cpu| nodes[cpu % nodes.len()]).collect();
        }
        let mut wants = Vec::new();
        if let Ok(map) = firmware.map.divide(Rules::default(), |_| Ok(())) {
            for node in &map.nodes {
                let pages = (node.present * descriptor_bytes).div_ceil(1 << PAGE_SHIFT);
                let request =
                    EarlyRequest { place: Where::Preferably(node.node), ..EarlyRequest::new(pages.max(1)) };
                wants.push(Want { request, what: format!("descriptors of {:?}", node.node) });
            }
        }
        Self { firmware, rules: Rules::default(), wants }
    }

    /// Brings the map into order, allocates early, and divides what there is.
    ///
    /// # Errors
    /// A range or an early allocation that is refused.
    pub fn divide(&self) -> Result<(BootMap, Vec<Taken>)> {
        let mut taken = Vec::new();
        let map = self.firmware.map.divide(self.rules, |early| self.allocate(early, &mut taken));
        Ok((map.map_err(Error::failed)?, taken))
    }

    fn allocate(
        &self,
        early: &mut Early<'_>,
        taken: &mut Vec<Taken>,
    ) -> core::result::Result<(), EarlyError> {
        for Claimed { start, bytes, what } in &self.firmware.claimed {
            let range = early.map().touched(*start, *bytes);
            early.reserve(range.clone())?;
            taken.push(Taken { range, what: what.clone() });
        }
        for Want { request, what } in &self.wants {
            let first = early.alloc(request)?;
            taken.push(Taken { range: first..first.add(request.pages), what: what.clone() });
        }
        Ok(())
    }
}

/// Requests for the frames that a zone does not manage: at the bottom of the part that is initialised early, at the top
/// of the rest.
fn wants(zone: &Zone) -> Vec<Want> {
    let (start, end) = (Pfn(zone.start_pfn), Pfn(zone.start_pfn + zone.present_pages));
    let defers = zone.early_managed_pages < zone.managed_pages;
    let whole = start..end;
    let first_deferred =
        init::first_deferred(core::slice::from_ref(&whole), SECTION_PAGES).filter(|_| defers).unwrap_or(end);
    let early = (first_deferred.0 - start.0).saturating_sub(zone.early_managed_pages);
    let all = zone.present_pages - zone.managed_pages;
    let early = early.min(all);
    let want = |pages: u64, within: Range<Pfn>, from: Side| Want {
        request: EarlyRequest { within, from, hot_pluggable: true, ..EarlyRequest::new(pages) },
        what: format!("descriptors, kernel of node {} {}", zone.node, zone.kind),
    };
    let mut wants = Vec::new();
    // Without a deferred part, everything comes from the top.
    if first_deferred == end {
        wants.push(want(all, whole, Side::Top));
    } else {
        wants.push(want(early, start..first_deferred, Side::Bottom));
        wants.push(want(all - early, first_deferred..end, Side::Top));
    }
    wants.retain(|want| want.request.pages > 0);
    wants
}

/// Time of the deferred initialisation of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeTime {
    /// Number of the node.
    pub node: NodeId,
    /// Threads that worked on it.
    pub threads: usize,
    /// Free base pages initialised.
    pub pages: u64,
    /// Milliseconds until the last of them was done.
    pub ms: f64,
}

/// Initialises what was left for later, with `threads` threads: one node after another, or under
/// [`Split::OneThread`] all nodes together with a thread each.
///
/// # Errors
/// The arena has fewer worker slots than that takes.
pub fn initialise<M: FrameUser>(
    booting: &Booting<'_, '_, Host, M>,
    nodes: &[NodeId],
    split: Split,
    threads: usize,
) -> Result<Vec<NodeTime>> {
    let workers = |nodes: &[NodeId]| {
        let made: Option<Vec<_>> = nodes.iter().map(|&node| booting.worker(node)).collect();
        made.ok_or_else(|| Error::failed("the arena has too few slots for workers"))
    };
    if split == Split::OneThread {
        let jobs = workers(nodes)?.into_iter().map(|mut worker| move || worker.run()).collect();
        let done = nodes.iter().zip(together(jobs));
        return Ok(done.map(|(&node, (pages, ms))| NodeTime { node, threads: 1, pages, ms }).collect());
    }
    let initialise = |&node: &NodeId| {
        let workers = workers(&vec![node; threads.max(1)])?;
        let done = together(workers.into_iter().map(|mut worker| move || worker.run()).collect());
        let pages = done.iter().map(|(pages, _)| pages).sum();
        let ms = done.iter().map(|(_, ms)| *ms).fold(0.0, f64::max);
        Ok(NodeTime { node, threads: threads.max(1), pages, ms })
    };
    nodes.iter().map(initialise).collect()
}

/// Runs every job on a thread of its own, all from one moment on. The results, each with the milliseconds from that
/// moment to its end.
fn together<R: Send>(jobs: Vec<impl FnOnce() -> R + Send>) -> Vec<(R, f64)> {
    let gate = Barrier::new(jobs.len());
    let done: Vec<(R, Instant, Instant)> = thread::scope(|scope| {
        let run = |job: _| {
            let gate = &gate;
            scope.spawn(move || run_timed(gate, job))
        };
        let threads: Vec<_> = jobs.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("a job does not panic")).collect()
    });
    let start = done.iter().map(|(_, start, _)| *start).min();
    let since = |end: Instant| start.map_or(0.0, |start| (end - start).as_secs_f64() * 1e3);
    done.into_iter().map(|(result, _, end)| (result, since(end))).collect()
}

fn run_timed<R>(gate: &Barrier, job: impl FnOnce() -> R) -> (R, Instant, Instant) {
    gate.wait();
    let start = Instant::now();
    let result = job();
    (result, start, Instant::now())
}

/// Fills `memory`, which is bytes, with `zero`, `threads` threads taking turns at chunks as they would of as many
/// descriptors of `descriptor_bytes`: what initialisation cannot be faster than. Returns milliseconds.
#[must_use]
pub fn fill<B: Copy + Send + Sync>(
    memory: &mut [B],
    zero: B,
    threads: usize,
    descriptor_bytes: usize,
) -> f64 {
    let frames = (memory.len() / descriptor_bytes) as u64;
    let job = Job::new(Pfn(0)..Pfn(frames), SECTION_PAGES, SECTION_PAGES, threads as u64);
    let chunk = if threads == 1 { memory.len() } else { job.chunk as usize * descriptor_bytes };
    let chunks = Mutex::new(memory.chunks_mut(chunk.max(1)));
    let worker = || {
        let next = || chunks.lock().expect("no thread panics with it").next();
        while let Some(chunk) = next() {
            chunk.fill(zero);
        }
    };
    let done = together(vec![worker; threads]);
    done.iter().map(|(_, ms)| *ms).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use framewright_host::{Arena, BootOptions, Config, Descriptors};

    use super::*;

    #[test]
    fn every_machine_boots_to_the_zones_of_its_description() {
        for machine in Machine::all().expect("all are valid") {
            let bootable = Bootable::of_machine(&machine).expect("pages of 4 KiB");
            assert_eq!(bootable.firmware.cpu_nodes.len(), machine.cpus() as usize);
            let (map, _) = bootable.divide().expect("it is sound");
            let options = BootOptions {
                cpu_nodes: bootable.firmware.cpu_nodes,
                config: Config::default(),
                split: Split::default(),
                workers: 4,
                descriptors: Descriptors::AsTheyAre,
            };
            let arena: Arena = map.build(&options).expect("it is sound");
            let booting = arena.allocator().begin().expect("it is the first time");
            let managed = || -> Vec<u64> {
                arena.allocator().zones().iter().map(|zone| zone.managed_pages()).collect()
            };
            let early = managed();
            let nodes: Vec<_> = map.nodes.iter().map(|part| part.node).collect();
            let times = initialise(&booting, &nodes, Split::OneThread, 2).expect("there are slots");
            assert_eq!(times.len(), nodes.len());
            booting.finish().expect("nothing is left");
            let zones = arena.allocator().zones();
            assert_eq!(zones.len(), machine.zones.len(), "{}", machine.name);
            for (n, zone) in machine.zones.iter().enumerate() {
                let found = (zones[n].present_pages(), early[n], managed()[n]);
                let said = (zone.present_pages, zone.early_managed_pages, zone.managed_pages);
                assert_eq!(found, said, "zone {n} of {}", machine.name);
            }
        }
    }

    #[test]
    fn all_of_a_memory_is_filled_by_any_number_of_threads() {
        for threads in 1..4 {
            let mut memory = vec![1_u8; (5 * SECTION_PAGES as usize + 77) * 64];
            assert!(fill(&mut memory, 0, threads, 64) > 0.0);
            assert!(memory.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn cpus_that_no_table_names_are_spread_over_the_nodes() {
        let mut firmware = Firmware::default();
        firmware.map.ranges.push((0, 8 << 30, Kind::Usable));
        for node in [0, 2] {
            let home = Home { node: NodeId(node), hot_pluggable: false };
            firmware.map.nodes.push((u64::from(node) << 31, 1 << 31, home));
        }
        let bootable = Bootable::of_firmware(firmware, 64, 3);
        assert_eq!(bootable.firmware.cpu_nodes, [0, 2, 0].map(NodeId));
        let (map, taken) = bootable.divide().expect("it is sound");
        assert_eq!(
            map.reserved_pages,
            taken.iter().map(|block| block.range.end.0 - block.range.start.0).sum::<u64>()
        );
        assert_eq!(map.reserved_pages, (8 << 18) / 64);
    }
}
