//! An allocator in simulated memory, with names for its lines.
#![expect(unsafe_code, reason = "the allocator's memory is carved out of the simulated memory")]

mod counts;
mod lockless_reads;
mod programs;

use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::{Deref, Range};
use core::ptr::{self, NonNull};
use std::io;

use framewright::boot::late::Booting;
use framewright::boot::zones::Part;
use framewright::config::{Engine, Experiment};
use framewright::defer::{Deferred, DeferredMemory, DeferredZone, How, ZoneCursor};
use framewright::frame::{FrameUser, PageMap, Pageblock, Zeroable};
use framewright::pcp::{MoreLists, Pcp};
use framewright::policy::init::Split;
use framewright::policy::pcp::Sizing;
use framewright::reclaim::Node;
use framewright::sync::QueueNode;
use framewright::zone::{Section, Zone};
use framewright::{
    Allocator, Config, Cpu, CpuId, Frame, Memory, NodeId, Pfn, Plan, SetupError, ZoneId, ZoneSpec, ZoneType,
};

pub use self::lockless_reads::LocklessReads;
pub use self::programs::{Meet, OwnCpu, Programs, pause};

use crate::clock::Ps;
use crate::engine::{Region, Report, Simulator};
use crate::memory::{Mapping, Place, Room};
use crate::model::Model;
use crate::platform::{Sim, SimPin, SimWord};

/// Fields of Linux' page beyond what the allocator itself needs: 56 bytes, so that a descriptor is a line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct StructPage {
    /// References held; 0 if free.
    pub refcount: u64,
    /// Everything else that must be clear in a free page.
    pub state: [u64; 6],
}

const _: () = assert!(size_of::<Frame<Sim, StructPage>>() == 64, "the descriptor is a cache line");

// SAFETY: integers.
unsafe impl Zeroable for StructPage {}

impl FrameUser for StructPage {
    const CHECKED: bool = true;

    fn check(&self) -> Option<&'static str> {
        if self.refcount != 0 {
            Some("has references")
        } else if self.state != [0; 6] {
            Some("is in use")
        } else {
            None
        }
    }
}

/// Sets the count of references that a kernel keeps in a block's first descriptor: for a caller that has just got the
/// block, or is about to free it.
pub(crate) fn refer(cpu: &Cpu<'_, '_, Sim, StructPage>, pfn: Pfn, references: u64) {
    // SAFETY: the block is the caller's, as above, and the closure reaches its slot once.
    unsafe { cpu.allocator().frames().with_user(pfn, |page| page.refcount = references) };
}

/// A zone of `pages` pages on each node.
#[must_use]
pub fn zones(nodes: u16, pages: u64) -> Vec<ZoneSpec> {
    let zone = |node: u16| ZoneSpec {
        node: NodeId(node),
        kind: ZoneType::Normal,
        start: Pfn(u64::from(node) * pages),
        pages,
    };
    (0..nodes).map(zone).collect()
}

/// Why a world cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// No address space for what it describes.
    #[error(
        "no address space for the machine's memory ({0}): simulate a smaller machine, or allow it: `ulimit -v \
         unlimited`, `sysctl vm.overcommit_memory=0`"
    )]
    Memory(io::Error),
    /// The allocator refuses its description.
    #[error("{0}")]
    Setup(SetupError),
}

/// Memory that boot leaves for later, and the structures that this borrows.
struct Later {
    // A box, so that it stays where it is.
    deferred: Box<Deferred<'static, Sim>>,
    _free: Box<[Range<Pfn>]>,
}

/// Memory that is to be booted: see [`framewright::boot::zones::Division`].
#[derive(Clone, Copy, Debug)]
pub struct BootMemory<'a> {
    /// Specification of each zone; ascending.
    pub zones: &'a [ZoneSpec],
    /// Memory of each zone, and from where on it is left for later.
    pub parts: &'a [Part],
    /// The free ranges; each is in one zone.
    pub free: &'a [Range<Pfn>],
    /// Base pages in a section.
    pub section: u64,
    /// How what is left for later is split.
    pub split: Split,
    /// Workers of each node.
    pub workers: u16,
}

/// Places of the allocator's structures in the simulated memory.
struct Places<M: 'static> {
    frames: Place<Frame<Sim, M>>,
    pageblocks: Place<Pageblock<Sim>>,
    maps: Place<PageMap<Sim>>,
    slots: Place<SimWord>,
    pcps: Place<MaybeUninit<Pcp<'static, Sim>>>,
    more_lists: Place<MaybeUninit<MoreLists<'static, Sim>>>,
    zones: Place<MaybeUninit<Zone<'static, Sim>>>,
    sections: Place<MaybeUninit<Section<Sim>>>,
    section_words: Place<SimWord>,
    queue: Place<QueueNode<Sim>>,
    zonelist: Place<ZoneId>,
    cpu_nodes: Place<NodeId>,
    nodes: Place<MaybeUninit<Node<Sim>>>,
    contexts: Place<SimWord>,
    rests: Place<MaybeUninit<ZoneCursor<'static, Sim>>>,
    workers: Place<SimWord>,
    /// Words in which a kernel adds up what its CPUs have counted: for each zone, and for all of them.
    totals: Place<Line>,
    /// Lines of programs that run here: two each, so that neighbours are not fetched together.
    others: Place<Line>,
}

/// Two cache lines, aligned.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub struct Line([u64; 16]);

/// Room beside the allocator's own.
#[derive(Clone, Copy, Default)]
struct Extra {
    /// Workers that initialise memory at a time.
    workers: usize,
    /// Lines of memory for what programs share (see [`Machine::place`]).
    lines: usize,
}

/// A machine with an allocator on it.
pub struct World<M: FrameUser = ()> {
    // Dropped before what it borrows and the memory that it is in.
    allocator: Allocator<'static, Sim, M>,
    _later: Option<Later>,
    simulator: Simulator,
    places: Places<M>,
}

/// With debug assertions, the allocator that a simulation leaves behind is verified.
impl<M: FrameUser> Drop for World<M> {
    fn drop(&mut self) {
        if cfg!(debug_assertions)
            && !std::thread::panicking()
            && let Err(violation) = self.allocator.verify()
        {
            panic!("{violation}");
        }
    }
}

impl<M: FrameUser> fmt::Debug for World<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("allocator", &self.allocator).finish_non_exhaustive()
    }
}

impl<M: Zeroable> World<M> {
    /// A machine on which an allocator manages all of `zones`, with per-CPU lists sized for them, or as `sizing`
    /// says. O(memory / 4 MiB).
    ///
    /// # Errors
    /// The zones or the configuration are wrong, or there is no address space.
    pub fn new(
        model: &Model,
        zones: &[ZoneSpec],
        config: Config,
        sizing: Option<Sizing>,
        seed: u64,
    ) -> Result<Self, WorldError> {
        Self::with_lines(model, zones, config, sizing, seed, 0)
    }

    /// Like [`new`](Self::new), with `lines` lines of memory beside the allocator's, for what programs share
    /// (see [`Machine::place`]).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_lines(
        model: &Model,
        zones: &[ZoneSpec],
        config: Config,
        sizing: Option<Sizing>,
        seed: u64,
        lines: usize,
    ) -> Result<Self, WorldError> {
        let world = Self::bare(model, zones, config, Extra { workers: 0, lines }, seed)?;
        for zone in zones {
            world.allocator.add_memory(zone.start, zone.pages).map_err(WorldError::Setup)?;
        }
        world.allocator.resize_pcps();
        if let Some(sizing) = sizing {
            (0..zones.len()).for_each(|zone| world.allocator.resize_pcps_of(ZoneId(zone as u8), sizing));
        }
        Ok(world)
    }

    /// A machine on which an allocator has no memory yet, because all of it is still to be initialised:
    /// [`begin`](Allocator::begin) its boot. Descriptors are cleared as a kernel must clear them. O(zones × CPUs).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn booting(
        model: &Model,
        memory: &BootMemory<'_>,
        config: Config,
        seed: u64,
    ) -> Result<Self, WorldError> {
        let slots = usize::from(memory.workers) * usize::from(model.shape.nodes);
        // The host would have to keep a page of every pageblock's descriptors for its head.
        let experiment = Experiment { heads_in_pageblocks: true, ..config.experiment };
        let config = Config { experiment, ..config };
        let mut world =
            Self::bare(model, memory.zones, config, Extra { workers: slots, ..Extra::default() }, seed)?;
        let free: Box<[Range<Pfn>]> = memory.free.into();
        let mapping = world.simulator.memory();
        // SAFETY: each has room of its own in zeroed memory, and zeroes are words that hold 0. The mapping and the box
        // of ranges are dropped after the deferral, by the order of fields, and neither moves what it holds.
        let (zones, slots, ranges) = unsafe {
            let ranges = core::slice::from_raw_parts(free.as_ptr(), free.len());
            (world.places.rests.slice_mut(mapping), world.places.workers.slice(mapping), ranges)
        };
        let how = How { split: memory.split, section: memory.section };
        let deferred = Deferred::new(how, DeferredMemory { zones, slots }, |zone| {
            let (spec, part) = (memory.zones[zone.index()], memory.parts[zone.index()]);
            DeferredZone {
                spec,
                present: part.present,
                free: ranges,
                deferred_from: part.deferred_from,
                cpus: u64::from(memory.workers),
            }
        });
        let later = Later { deferred: Box::new(deferred), _free: free };
        // SAFETY: the box is dropped after the allocator, and what is in it stays where it is.
        let deferred: &'static Deferred<'static, Sim> = unsafe { &*ptr::from_ref(&*later.deferred) };
        world.allocator.defer_and_clear(deferred);
        world._later = Some(later);
        Ok(world)
    }

    /// A machine on which an allocator has no memory, with room for what else there is.
    fn bare(
        model: &Model,
        zones: &[ZoneSpec],
        config: Config,
        extra: Extra,
        seed: u64,
    ) -> Result<Self, WorldError> {
        let shape = model.shape;
        let nodes: Vec<NodeId> = (0..shape.cpus()).map(|cpu| NodeId(shape.node_of(cpu))).collect();
        let plan = Plan::new(zones, &nodes, &config).map_err(WorldError::Setup)?;
        let mut room = Room::default();
        let places = Places {
            zones: room.add(plan.zones),
            pcps: room.add(plan.pcps),
            more_lists: room.add(plan.more_lists),
            queue: room.add(plan.queue),
            slots: room.add(plan.slots),
            zonelist: room.add(plan.zonelist),
            cpu_nodes: room.add(nodes.len()),
            nodes: room.add(plan.nodes),
            contexts: room.add(plan.contexts),
            totals: room.add(zones.len() + 1),
            sections: room.add(plan.sections),
            section_words: room.add(plan.section_words),
            pageblocks: room.add(plan.pageblocks),
            maps: room.add(plan.maps),
            frames: {
                if extra.workers > 0 {
                    // Descriptors are cleared in whole pages.
                    room.align_to_page();
                }
                room.add(plan.frames)
            },
            rests: room.add(if extra.workers > 0 { zones.len() } else { 0 }),
            workers: room.add(extra.workers),
            others: room.add(extra.lines),
        };
        let mapping = Mapping::new(room.bytes()).map_err(WorldError::Memory)?;
        // SAFETY: each slice has room of its own in zeroed memory. Zeroes are what `new` makes of words, pageblocks
        // and queue nodes on this platform, and of frames by the promise of `Zeroable`; a `ZoneId` and a `NodeId`
        // are numbers. The mapping is dropped after the allocator that borrows from it, by the order of fields.
        let (memory, cpu_nodes) = unsafe {
            let cpu_nodes: &'static mut [NodeId] = places.cpu_nodes.slice_mut(&mapping);
            cpu_nodes.copy_from_slice(&nodes);
            let memory = Memory {
                frames: places.frames.slice(&mapping),
                pageblocks: places.pageblocks.slice(&mapping),
                maps: places.maps.slice(&mapping),
                slots: places.slots.slice(&mapping),
                pcps: places.pcps.slice_mut(&mapping),
                more_lists: places.more_lists.slice_mut(&mapping),
                zones: places.zones.slice_mut(&mapping),
                sections: places.sections.slice_mut(&mapping),
                section_words: places.section_words.slice(&mapping),
                queue: places.queue.slice(&mapping),
                zonelist: places.zonelist.slice_mut(&mapping),
                nodes: places.nodes.slice_mut(&mapping),
                contexts: places.contexts.slice(&mapping),
            };
            (memory, &*cpu_nodes)
        };
        let allocator = Allocator::new(zones, cpu_nodes, config, memory, None).map_err(WorldError::Setup)?;
        let simulator = Simulator::new(model.clone(), mapping, seed).map_err(WorldError::Memory)?;
        let mut world = Self { allocator, _later: None, simulator, places };
        world.name_lines(zones, config);
        if config.engine == Engine::Linux {
            world.count_apart(zones.len());
        }
        world.set_frame_caches(zones, plan.base.0, None);
        Ok(world)
    }

    fn name_lines(&mut self, zones: &[ZoneSpec], config: Config) {
        let layout = Zone::<Sim>::layout();
        let area = (layout.order10_lists - layout.order0_lists) / 10;
        let places = &self.places;
        let simulator = &mut self.simulator;
        let [before, after, apart] = layout.locks;
        let lock = match config.experiment.lock_place {
            framewright::config::LockPlace::WithOrder0Lists => before,
            framewright::config::LockPlace::OtherEnd => after,
            framewright::config::LockPlace::OwnLine => apart,
        };
        for n in 0..zones.len() {
            let zone = places.zones.offset() + n * size_of::<Zone<Sim>>();
            // Lines, not fields, move: a line has the name of the field that begins first in it.
            let mut last = usize::MAX;
            let mut name = |from: usize, bytes: usize, name: &str| {
                for offset in (from..from + bytes).step_by(64) {
                    if offset / 64 != last {
                        last = offset / 64;
                        simulator.name(zone + last * 64, zone + last * 64 + 64, name);
                    }
                }
            };
            for line in 0..layout.cold.div_ceil(64) {
                let offset = line * 64;
                if lock / 64 == line {
                    name(offset, 1, "zone lock");
                } else if offset < layout.order10_lists + area {
                    let order = offset.saturating_sub(layout.order0_lists) / area;
                    name(offset, 1, &format!("free lists order {order}"));
                }
            }
            name(layout.counters, 24, "zone counters");
        }
        for (start, end, name) in [
            (places.pcps.offset(), places.pcps.end(), "per-CPU lists"),
            (places.more_lists.offset(), places.more_lists.end(), "per-CPU lists"),
            (places.queue.offset(), places.queue.end(), "queue nodes"),
            (places.sections.offset(), places.sections.end(), "sections"),
            (places.section_words.offset(), places.section_words.end(), "what sections show"),
            (places.slots.offset(), places.slots.end(), "per-CPU slots"),
            (places.nodes.offset(), places.nodes.end(), "node counters"),
            (places.contexts.offset(), places.contexts.end(), "reclaim contexts"),
            (places.totals.offset(), places.totals.end(), "sums of counters"),
            (places.pageblocks.offset(), places.pageblocks.end(), "pageblocks"),
            (places.maps.offset(), places.maps.end(), "maps of free frames"),
            (places.frames.offset(), places.frames.end(), "frame descriptors"),
            (places.rests.offset(), places.rests.end(), "cursors"),
            (places.workers.offset(), places.workers.end(), "claims"),
        ] {
            simulator.name(start, end, name);
        }
        for (start, end) in [
            (places.pcps.offset(), places.pcps.end()),
            (places.more_lists.offset(), places.more_lists.end()),
            (places.zones.offset(), places.zones.end()),
            (places.sections.offset(), places.sections.end()),
            (places.nodes.offset(), places.nodes.end()),
        ] {
            simulator.fix(start, end);
        }
    }

    /// Puts each zone, its descriptors and each CPU's place in queues on a node, as a kernel does;
    /// and how many lines of descriptors caches hold (see [`Region`]).
    fn set_frame_caches(&mut self, zones: &[ZoneSpec], base: u64, caches: Option<[u32; 3]>) {
        let start = self.places.frames.offset();
        let shape = self.simulator.model().shape;
        let places = &self.places;
        let zone_at = |n: usize| places.zones.offset() + n * size_of::<Zone<Sim>>();
        let queue_at = |cpu: usize| places.queue.offset() + cpu * size_of::<QueueNode<Sim>>();
        // Where each begins, in order; what ends where another begins is before it.
        let zone_nodes =
            self.allocator.zones().iter().enumerate().map(|(n, zone)| (zone_at(n), zone.spec().node.0));
        let queue_nodes = (0..shape.cpus()).map(|cpu| (queue_at(usize::from(cpu)), shape.node_of(cpu)));
        let totals =
            self.allocator.zones().iter().enumerate().map(|(n, zone)| (self.total_at(n), zone.spec().node.0));
        let first_section = |n: usize| {
            let before = self.allocator.zones()[..n].iter().map(|zone| zone.sections() - 1);
            places.sections.offset() + before.sum::<usize>() * size_of::<Section<Sim>>()
        };
        let several = self.allocator.zones().iter().enumerate().filter(|(_, zone)| zone.sections() > 1);
        let section_nodes = several.map(|(n, zone)| (first_section(n), zone.spec().node.0));
        let ends = [
            (places.sections.end(), 0),
            (places.zones.end(), 0),
            (places.queue.end(), 0),
            (self.total_at(zones.len()), 0),
            (start, 0),
        ];
        let mut begins: Vec<(usize, u16)> =
            zone_nodes.chain(section_nodes).chain(queue_nodes).chain(totals).chain(ends).collect();
        begins.sort_unstable();
        let regions = begins.windows(2).filter(|two| two[0].1 != two[1].1);
        let mut regions: Vec<Region> =
            regions.map(|two| Region { end: two[1].0, node: two[0].1, caches: None }).collect();
        regions.push(Region { end: start, node: 0, caches: None });
        let mut sorted: Vec<&ZoneSpec> = zones.iter().collect();
        sorted.sort_by_key(|zone| zone.start);
        for zone in sorted {
            let end = start + (zone.end().0 - base) as usize * size_of::<Frame<Sim, M>>();
            regions.push(Region { end, node: zone.node.0, caches });
        }
        self.simulator.set_regions(regions);
    }

    /// Lets caches hold only this many lines of frame descriptors: a core's own second level, another core's, a last
    /// level (see [`Region`]). For runs that are shorter than what they stand for.
    pub fn limit_frame_caches(&mut self, caches: [u32; 3]) {
        let zones: Vec<ZoneSpec> = self.allocator.zones().iter().map(|zone| *zone.spec()).collect();
        let base = zones.iter().map(|zone| zone.start.0).min().unwrap_or_default();
        self.set_frame_caches(&zones, base, Some(caches));
    }
}

impl<M: FrameUser> World<M> {
    /// The allocator.
    #[must_use]
    pub const fn allocator(&self) -> &Allocator<'_, Sim, M> {
        &self.allocator
    }

    /// Address of the descriptor of the `n`-th frame in host memory: for programs that touch more of them than the
    /// allocator does (see [`engine::touch`](crate::engine::touch)).
    #[must_use]
    pub fn descriptor_address(&self, n: u64) -> usize {
        let frames = self.places.frames.offset() + n as usize * size_of::<Frame<Sim, M>>();
        self.simulator.memory().start().addr().get() + frames
    }

    /// The machine.
    #[must_use]
    pub const fn simulator(&self) -> &Simulator {
        &self.simulator
    }

    /// The machine, for what is recorded of it and what its caches forget.
    pub const fn simulator_mut(&mut self) -> &mut Simulator {
        &mut self.simulator
    }

    /// Runs `program` on each of the first `cpus` CPUs until all have ended; they start within `jitter` of one
    /// another.
    ///
    /// # Panics
    /// If the machine has fewer CPUs; on a deadlock; if the program does.
    pub fn run(&mut self, cpus: u16, jitter: Ps, program: impl Fn(usize, &Cpu<'_, '_, Sim, M>)) -> Report {
        self.split().1.run(cpus, jitter, program)
    }

    /// The allocator, and the machine that it is on: for what borrows from the one while programs run on the other.
    pub fn split(&mut self) -> (&Allocator<'_, Sim, M>, Machine<'_, M>) {
        let machine = Machine {
            allocator: &self.allocator,
            simulator: &mut self.simulator,
            queue: self.places.queue,
            lines: self.places.others,
            taken: 0,
        };
        (&self.allocator, machine)
    }

    /// Begins boot outside of virtual time, runs `program` on every CPU until all have ended, and ends boot. Returns
    /// the free base pages that were left for later, and those that still are.
    ///
    /// # Panics
    /// If nothing was deferred, or boot has begun before.
    pub fn boot(
        &mut self,
        jitter: Ps,
        program: impl Fn(&Booting<'_, 'static, Sim, M>, u16),
    ) -> (Report, u64, u64) {
        let cpus = self.simulator.model().shape.cpus();
        let booting = self.allocator.begin().expect("a world that has not booted yet");
        let deferred = booting.left();
        let (lent, program) = (&booting, &program);
        let programs =
            (0..cpus).map(|cpu| -> Box<dyn FnOnce() + '_> { Box::new(move || program(lent, cpu)) });
        let report = self.simulator.run(programs.collect(), jitter);
        let left = booting.left();
        if left == 0 {
            // It cannot refuse: nothing is left.
            drop(booting.finish());
        }
        (report, deferred, left)
    }

    /// Has each of the first CPUs make a call, at no charge: lists get their size at a CPU's next call.
    pub fn answer_all(&mut self, cpus: u16) {
        (0..cpus).for_each(|cpu| self.prepare(cpu, |cpu| cpu.answer()));
    }

    /// Runs `program` as one CPU at no cost and outside of virtual time: to prepare what a run begins with.
    pub fn prepare<R>(&mut self, cpu: u16, program: impl FnOnce(&Cpu<'_, '_, Sim, M>) -> R) -> R {
        // SAFETY: the world is borrowed mutably, so no other caller has a pin.
        let pin = unsafe { SimPin::new(CpuId(cpu)) };
        program(&self.allocator.cpu(&pin))
    }
}

/// A machine, while its allocator is lent to others (see [`World::split`]).
#[derive(Debug)]
pub struct Machine<'w, M: FrameUser> {
    allocator: &'w Allocator<'w, Sim, M>,
    simulator: &'w mut Simulator,
    queue: Place<QueueNode<Sim>>,
    lines: Place<Line>,
    /// Lines that something was placed in.
    taken: usize,
}

/// A value in the simulated memory, so that the accesses to it that go through the platform are charged.
#[derive(Debug)]
pub struct Placed<'w, T> {
    at: NonNull<T>,
    value: PhantomData<(&'w (), T)>,
}

// SAFETY: sharing it shares a reference to what was placed, and no more.
unsafe impl<T: Sync> Sync for Placed<'_, T> {}

impl<T> Placed<'_, T> {
    /// Its address in host memory.
    #[must_use]
    pub fn address(&self) -> usize {
        self.at.addr().get()
    }
}

impl<T> Deref for Placed<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `place` wrote it there, and it lives until it is dropped.
        unsafe { self.at.as_ref() }
    }
}

impl<T> Drop for Placed<'_, T> {
    fn drop(&mut self) {
        // SAFETY: as above, and it can no longer be reached.
        unsafe { self.at.drop_in_place() }
    }
}

impl<'w, M: FrameUser> Machine<'w, M> {
    /// Like [`place`](Self::place), on a node of the machine's.
    ///
    /// # Panics
    /// As [`place`](Self::place).
    pub fn place_on<T>(&mut self, node: u16, name: &str, value: T) -> Placed<'w, T> {
        let line = size_of::<Line>();
        let start = self.lines.offset() + self.taken * line;
        let placed = self.place(name, value);
        self.simulator
            .add_region(start, Region { end: self.lines.offset() + self.taken * line, node, caches: None });
        placed
    }

    /// Puts something into lines of its own, under a name for its traffic.
    ///
    /// # Panics
    /// If the world was made with too few lines.
    pub fn place<T>(&mut self, name: &str, value: T) -> Placed<'w, T> {
        const { assert!(align_of::<T>() <= align_of::<Line>()) };
        let first = self.taken;
        self.taken += size_of::<T>().div_ceil(size_of::<Line>()).max(1);
        let from = self.lines.offset() + first * size_of::<Line>();
        assert!(from + size_of::<T>() <= self.lines.end(), "no lines left for {name}");
        self.simulator.name(from, from + size_of::<T>(), name);
        // SAFETY: inside the mapping, which outlives `'w`, aligned, and no two are placed in one line: a machine hands
        // each line out once, and of a world there is one machine at a time. What an earlier one placed is gone.
        let at = unsafe { self.simulator.memory().start().add(from).cast::<T>() };
        // SAFETY: as above.
        unsafe { at.write(value) };
        Placed { at, value: PhantomData }
    }

    /// Place in which each CPU waits for queued locks: those of a kernel use the places of the zones', as a CPU waits
    /// for one lock at a time.
    #[must_use]
    pub fn queue(&self) -> &'w [QueueNode<Sim>] {
        // SAFETY: the allocator has made them and shares them, too; they are words, in a mapping that outlives `'w`.
        unsafe { self.queue.slice(self.simulator.memory()) }
    }

    /// The machine's model, and what has happened on it.
    #[must_use]
    pub const fn simulator(&self) -> &Simulator {
        self.simulator
    }

    /// As [`World::run`].
    ///
    /// # Panics
    /// As [`World::run`].
    pub fn run(&mut self, cpus: u16, jitter: Ps, program: impl Fn(usize, &Cpu<'_, '_, Sim, M>)) -> Report {
        let (allocator, program) = (self.allocator, &program);
        let programs = (0..cpus).map(|cpu| -> Box<dyn FnOnce() + '_> {
            Box::new(move || {
                // SAFETY: one pin per CPU and run, and the machine is borrowed mutably for the run.
                let pin = unsafe { SimPin::new(CpuId(cpu)) };
                program(usize::from(cpu), &allocator.cpu(&pin));
            })
        });
        self.simulator.run(programs.collect(), jitter)
    }
}
