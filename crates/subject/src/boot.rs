//! Boot of a memory map, with threads as the CPUs that initialise. Frames are described only; zones, descriptors and
//! free lists are real.

use core::mem::MaybeUninit;
use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Instant;

use framewright::boot::late;
use framewright::policy::init::{Job, Split};
use framewright::units::SECTION_PAGES;
use framewright::{CpuId, NodeId, Pfn};
use framewright_host::{
    ArenaError, BootMap, BootOptions, DescriptorMemory, FrameUser, Host, Migratetype, Order,
};
use framewright_sim::world::StructPage;

use crate::{Bare, Descriptor, Subject, with};

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

/// Per-CPU lists by batch and high, over all zones and CPUs.
pub type Lists = BTreeMap<(u32, u32), u32>;

/// A boot that has begun.
#[derive(Debug)]
pub enum Booting<'a> {
    /// Of descriptors of 8 bytes.
    Compact(late::Booting<'a, 'a, Host>),
    /// Of descriptors of 64 bytes.
    Struct64(late::Booting<'a, 'a, Host, StructPage>),
}

/// Runs the same expression on a boot with either descriptor.
macro_rules! booting {
    ($booting:expr, $name:ident => $body:expr) => {
        match $booting {
            Booting::Compact($name) => $body,
            Booting::Struct64($name) => $body,
        }
    };
}

impl Subject {
    /// An arena that has no memory yet: see [`BootMap::build`].
    ///
    /// # Errors
    /// As [`BootMap::build`].
    pub fn of_map(map: &BootMap, options: &BootOptions, descriptor: Descriptor) -> Result<Self, ArenaError> {
        match descriptor {
            Descriptor::Compact => map.build(options).map(|arena| Self::Compact(Bare::new(arena))),
            Descriptor::Struct64 => map.build(options).map(|arena| Self::Struct64(Bare::new(arena))),
        }
    }

    /// Such an arena with descriptors of 64 bytes, in memory that an arena before had: see [`BootMap::build_in`].
    ///
    /// # Errors
    /// As [`BootMap::build_in`].
    pub fn of_map_in(
        map: &BootMap,
        options: &BootOptions,
        memory: DescriptorMemory,
    ) -> Result<Self, ArenaError> {
        map.build_in(options, memory).map(|arena| Self::Struct64(Bare::new(arena)))
    }

    /// Begins the boot of an arena of a map: the early part. `None` if it has begun before.
    pub fn begin(&self) -> Option<Booting<'_>> {
        match self {
            Self::Compact(arena) => arena.allocator().begin().map(Booting::Compact),
            Self::Struct64(arena) => arena.allocator().begin().map(Booting::Struct64),
        }
    }

    /// Allocates a page and frees it, as the first thread to come.
    ///
    /// # Errors
    /// There is no page, or no CPU.
    pub fn allocate_first(&self) -> Result<(), Box<dyn core::error::Error>> {
        with!(self, arena => {
            let cpu = arena.attach()?;
            cpu.alloc(Order::ZERO, Migratetype::Movable)?;
        });
        Ok(())
    }

    /// Pages that each zone manages now.
    pub fn managed_pages(&self) -> Vec<u64> {
        with!(self, arena => arena.allocator().zones().iter().map(|zone| zone.managed_pages()).collect())
    }

    /// Pages that each zone's memory has.
    pub fn present_pages(&self) -> Vec<u64> {
        with!(self, arena => arena.allocator().zones().iter().map(|zone| zone.present_pages()).collect())
    }

    /// Free pages.
    pub fn free_pages(&self) -> u64 {
        with!(self, arena => arena.allocator().free_pages())
    }

    /// Pages that are not initialised.
    pub fn left(&self) -> u64 {
        with!(self, arena => arena.allocator().deferred().map_or(0, |rest| rest.left()))
    }

    /// Counts of per-CPU lists by their size.
    pub fn lists(&self) -> Lists {
        let mut lists = Lists::new();
        with!(self, arena => {
            let allocator = arena.allocator();
            for zone in allocator.zones() {
                for cpu in 0..allocator.cpus() {
                    let size = allocator.pcp(zone.id(), CpuId(cpu as u16)).sizing();
                    *lists.entry((size.batch, size.high_min)).or_default() += 1;
                }
            }
        });
        lists
    }

    /// Ends the arena, and keeps the memory that its frame descriptors had.
    pub fn into_descriptors(self) -> DescriptorMemory {
        with!(self, arena => arena.0.into_descriptors())
    }
}

impl Booting<'_> {
    /// Initialises what was left for later, with `threads` threads: one node after another, or under
    /// [`Split::OneThread`] all nodes together with a thread each. `None` if the arena has fewer worker slots than that
    /// takes.
    pub fn initialise(&self, nodes: &[NodeId], split: Split, threads: usize) -> Option<Vec<NodeTime>> {
        booting!(self, booting => initialise(booting, nodes, split, threads))
    }

    /// Ends it.
    ///
    /// # Errors
    /// So many pages stay behind.
    pub fn finish(self) -> Result<(), u64> {
        booting!(self, booting => booting.finish().map(drop).map_err(|rest| rest.left()))
    }

    /// Ends it, and leaves the rest until it is needed.
    pub fn stay_lazy(self) {
        booting!(self, booting => drop(booting.stay_lazy()));
    }
}

fn initialise<M: FrameUser>(
    booting: &late::Booting<'_, '_, Host, M>,
    nodes: &[NodeId],
    split: Split,
    threads: usize,
) -> Option<Vec<NodeTime>> {
    let workers = |nodes: &[NodeId]| -> Option<Vec<_>> {
        let worker = |node: &NodeId| {
            let mut worker = booting.worker(*node)?;
            Some(move || worker.run())
        };
        nodes.iter().map(worker).collect()
    };
    if split == Split::OneThread {
        let done = nodes.iter().zip(together(workers(nodes)?));
        return Some(done.map(|(&node, (pages, ms))| NodeTime { node, threads: 1, pages, ms }).collect());
    }
    let initialise = |&node: &NodeId| {
        let done = together(workers(&vec![node; threads.max(1)])?);
        let pages = done.iter().map(|(pages, _)| pages).sum();
        let ms = done.iter().map(|(_, ms)| *ms).fold(0.0, f64::max);
        Some(NodeTime { node, threads: threads.max(1), pages, ms })
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

/// Fills `bytes` of this memory with zeroes, `threads` threads taking turns at chunks as they would of as many
/// descriptors of `descriptor_bytes`: what initialisation cannot be faster than. Returns milliseconds.
///
/// # Panics
/// If the memory has fewer bytes.
pub fn fill(
    memory: &mut DescriptorMemory,
    bytes: Range<usize>,
    threads: usize,
    descriptor_bytes: usize,
) -> f64 {
    let memory = &mut memory.as_uninit_mut()[bytes];
    let frames = (memory.len() / descriptor_bytes) as u64;
    let job = Job::new(Pfn(0)..Pfn(frames), SECTION_PAGES, threads as u64);
    let chunk = if threads == 1 { memory.len() } else { job.chunk as usize * descriptor_bytes };
    let chunks = Mutex::new(memory.chunks_mut(chunk.max(1)));
    let worker = || {
        let next = || chunks.lock().expect("no thread panics with it").next();
        while let Some(chunk) = next() {
            chunk.fill(MaybeUninit::new(0));
        }
    };
    let done = together(vec![worker; threads]);
    done.iter().map(|(_, ms)| *ms).fold(0.0, f64::max)
}
