//! Programs that write files, simulated: the page cache, unchanged, on a [disk](crate::disk).
//!
//! Each task has a CPU of its own, all of them on node 0; a node's background reclaim has one, and so has whoever writes
//! dirty pages out. That are more CPUs than the machine has where it has fewer than tasks: these wait for the disk most of
//! the time. Pages hold what programs write, and so does the disk: programs check it, as they do on real files.
//!
//! The cache lies in simulated memory. Its lock and the descriptors of its pages are charged; its index and its counts
//! are not.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use framewright::events::{NodeEvents, ZoneEvents};
use framewright::reclaim::{Background, Helpers};
use framewright::{Config, Cpu, NodeId, Pfn, ZoneSpec};
use framewright_pagecache::latency::Histogram;
use framewright_pagecache::program::{Failure, Files, Program, Stretch};
use framewright_pagecache::state::CacheEvents;
use framewright_pagecache::{Cache, CacheError, Completion, Device, FileId, IoError, PageSlot, Progress};

use crate::clock::Ps;
use crate::disk::{Disk, Position};
use crate::engine::{self, Access, Events, Moved};
use crate::model::{Model, Shape, Storage};
use crate::platform::{Haste, Sim};
use crate::world::{Beside, Line, Placed, World, WorldError};

/// Bytes of a page.
const PAGE: usize = 4096;
/// CPUs start within this of one another.
const JITTER: Ps = Ps(2_000_000);
/// Longest sleep of somebody who waits for the disk, and of whoever writes out when there is nothing to write.
const NAP: Ps = Ps(2_000_000_000);
/// How long a writer is held back first, and at most (v3.0's `balance_dirty_pages` on a kernel of 1000 Hz).
const PAUSE: Ps = Ps(1_000_000_000);
const LONGEST_PAUSE: Ps = Ps(100_000_000_000);
/// How long somebody looks away who waits for a page that another one uses.
const MOMENT: Ps = Ps(1_000_000);

/// A program, and the memory that it is to outgrow.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// What runs.
    pub program: &'a Program,
    /// The zones, each on a node of the machine.
    pub zones: &'a [ZoneSpec],
    /// Distances between the nodes, row by row.
    pub distances: &'a [u8],
    /// The share of a machine's memory that the zones are: all that takes time but bytes takes that share of it.
    pub share: f64,
}

/// What came of a program.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// By task: when its time was spent on what.
    pub stretches: Vec<Vec<Stretch>>,
    /// Time from the first task's beginning to the last one's end.
    pub elapsed: Ps,
    /// Time that tasks worked for themselves, all together.
    pub user: Ps,
    /// Time that CPUs worked for the kernel.
    pub system: Ps,
    /// How long allocations of the cache's pages took.
    pub allocation_times: Histogram,
    /// What the cache has been through.
    pub cache: CacheEvents,
    /// What all nodes have been through.
    pub nodes: NodeEvents,
    /// What each zone has been through.
    pub zones: Vec<ZoneEvents>,
    /// Times that the disk's arm moved.
    pub moves: u64,
    /// What happened.
    pub events: Events,
    /// What memory and caches moved.
    pub moved: Moved,
}

/// Why a program cannot be simulated, or ended early.
#[derive(Debug)]
pub enum Error {
    /// Its world cannot be made.
    World(WorldError),
    /// What a task ran into.
    Failure(Failure),
    /// The cache's books are wrong.
    Books(&'static str),
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::World(error) => error.fmt(f),
            Self::Failure(failure) => failure.fmt(f),
            Self::Books(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for Error {}

/// What a page holds: the bytes between zeroes.
#[derive(Clone, Debug, Default)]
struct Content {
    first: usize,
    bytes: Vec<u8>,
}

impl Content {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if self.bytes.is_empty() {
            self.first = offset;
        }
        if offset < self.first {
            self.bytes.splice(0..0, core::iter::repeat_n(0, self.first - offset));
            self.first = offset;
        }
        let at = offset - self.first;
        self.bytes.resize(self.bytes.len().max(at + bytes.len()), 0);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) {
        for (byte, at) in bytes.iter_mut().zip(offset..) {
            *byte = at.checked_sub(self.first).and_then(|at| self.bytes.get(at)).copied().unwrap_or(0);
        }
    }
}

/// What all CPUs share of the disk and of the program, beside simulated memory. Whoever uses it has touched one of
/// [`Lines`] before, so that uses are in the order of time; nothing is simulated while it is held.
#[derive(Debug)]
struct Shared {
    disk: Disk,
    /// Pages on their way to the disk.
    writing: BTreeMap<Position, (FileId, u64, Pfn)>,
    memory: BTreeMap<Pfn, Content>,
    stored: BTreeMap<(FileId, u64), Content>,
    files: u32,
    /// Time that CPUs had nothing to do, and that tasks worked for themselves.
    idle: Ps,
    user: Ps,
    /// Tasks at the meeting point, and how often all have met.
    met: u32,
    meetings: u32,
    /// Tasks that have ended.
    ended: u32,
    /// By node: whether background reclaim was woken.
    woken: Vec<bool>,
}

/// Addresses of lines in simulated memory.
#[derive(Clone, Copy, Debug)]
struct Lines {
    disk: usize,
    meeting: usize,
    background: usize,
}

/// The disk, as a cache's device; and what wakes background reclaim.
#[derive(Debug)]
struct DiskDevice {
    shared: Mutex<Shared>,
    lines: Lines,
    storage: Storage,
    /// Which frames are on which node.
    nodes: Vec<(Range<Pfn>, u16)>,
    tasks: u32,
    share: f64,
}

impl DiskDevice {
    /// What is shared. Nothing that takes virtual time may happen while it is held: another CPU could not have it.
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the disk's queue, in the order of time.
    fn queue(&self) -> (MutexGuard<'_, Shared>, Ps) {
        engine::touch(self.lines.disk, size_of::<u64>(), Access::Exchange);
        (self.shared(), engine::now())
    }

    /// Runs `sleeps`, during which this CPU has nothing to do.
    fn idle(&self, sleeps: impl FnOnce()) {
        let begun = engine::now();
        sleeps();
        let slept = engine::now().since(begun);
        let shared = &mut *self.shared();
        shared.idle += slept;
    }

    fn idle_until(&self, at: Ps) {
        self.idle(|| engine::idle_until(at));
    }

    /// Waits until a page is written, but not for long.
    fn wait_for_disk(&self, most: Ps) {
        let (mut shared, now) = self.queue();
        let next = shared.disk.next_written(now);
        drop(shared);
        if let Some(next) = next {
            self.idle_until(next.min(now + most));
        }
    }

    fn node_of(&self, pfn: Pfn) -> u16 {
        self.nodes.iter().find(|(range, _)| range.contains(&pfn)).map_or(0, |&(_, node)| node)
    }

    /// Waits until `is` holds, which somebody makes true who then writes to a line.
    fn watch(&self, line: usize, is: impl Fn(&mut Shared) -> bool) {
        self.idle(|| {
            loop {
                engine::touch(line, size_of::<u64>(), Access::Read);
                if is(&mut self.shared()) {
                    break;
                }
                engine::relax();
            }
        });
    }

    fn all_ended(&self) -> bool {
        self.shared().ended == self.tasks
    }
}

impl Device for &DiskDevice {
    fn page_bytes(&self) -> usize {
        PAGE
    }

    fn may_hold(&self, file: FileId, index: u64) -> bool {
        self.shared().stored.contains_key(&(file, index))
    }

    fn read(&self, file: FileId, index: u64, pfn: Pfn) -> Result<(), IoError> {
        let (mut shared, now) = self.queue();
        let place = shared.disk.place(file.0, index);
        let there = shared.disk.read(now, place);
        let content = shared.stored.get(&(file, index)).cloned().unwrap_or_default();
        shared.memory.insert(pfn, content);
        drop(shared);
        self.idle_until(there);
        Ok(())
    }

    fn write(&self, file: FileId, index: u64, pfn: Pfn) -> Result<Progress, IoError> {
        loop {
            let (mut shared, now) = self.queue();
            if shared.disk.is_full(now) {
                drop(shared);
                self.wait_for_disk(NAP.scaled(self.share));
                continue;
            }
            let place = shared.disk.place(file.0, index);
            shared.disk.write(now, place);
            shared.writing.insert(place, (file, index, pfn));
            // It does not change until it is written.
            let content = shared.memory.get(&pfn).cloned().unwrap_or_default();
            shared.stored.insert((file, index), content);
            return Ok(Progress::Begun);
        }
    }

    fn completed(&self) -> Option<Completion> {
        let (mut shared, now) = self.queue();
        let place = shared.disk.written(now)?;
        let (file, index, pfn) = shared.writing.remove(&place)?;
        Some(Completion { file, index, pfn, result: Ok(()) })
    }

    fn wait_for_completion(&self) {
        self.wait_for_disk(NAP.scaled(self.share));
    }

    fn hold_back(&self, turn: u32) {
        self.idle_until(engine::now() + Ps(PAUSE.0 << turn.min(7)).min(LONGEST_PAUSE).scaled(self.share));
    }

    fn pass_time(&self, _: u32) {
        self.idle_until(engine::now() + MOMENT);
    }

    fn truncate(&self, file: FileId, index: u64) -> Result<(), IoError> {
        let (mut shared, _) = self.queue();
        let gone = shared.stored.split_off(&(file, index));
        shared.stored.extend(gone.into_iter().filter(|((of, _), _)| *of != file));
        if index == 0 {
            shared.disk.forget(file.0);
        }
        Ok(())
    }

    fn is_congested(&self) -> bool {
        let (mut shared, now) = self.queue();
        shared.disk.is_congested(now)
    }

    fn wait_if_congested(&self, ms: u32) {
        let until = engine::now() + Ps(u64::from(ms) * 1_000_000_000).scaled(self.share);
        while self.is_congested() && engine::now() < until {
            self.wait_for_disk(until.since(engine::now()));
        }
    }

    fn copy_in(&self, pfn: Pfn, offset: usize, bytes: &[u8]) {
        self.shared().memory.entry(pfn).or_default().write(offset, bytes);
        engine::stream(self.node_of(pfn), bytes.len() as u64);
    }

    fn copy_out(&self, pfn: Pfn, offset: usize, bytes: &mut [u8]) {
        match self.shared().memory.get(&pfn) {
            Some(content) => content.read(offset, bytes),
            None => bytes.fill(0),
        }
        engine::stream(self.node_of(pfn), bytes.len() as u64);
    }

    fn clear(&self, pfn: Pfn) {
        self.shared().memory.remove(&pfn);
        engine::stream(self.node_of(pfn), PAGE as u64);
    }
}

impl Background for DiskDevice {
    fn wake(&self, node: NodeId) {
        if let Some(woken) = self.shared().woken.get_mut(usize::from(node.0)) {
            *woken = true;
        }
        engine::touch(self.lines.background, size_of::<u64>(), Access::Write);
    }
}

/// The cache of a machine.
type DiskCache<'w> = Cache<'w, Sim, &'w DiskDevice>;

/// Those who help with an allocation.
fn helpers<'h>(cache: &'h DiskCache<'_>, device: &'h DiskDevice) -> Helpers<'h> {
    cache.helpers().with_background(device)
}

/// A task, on its CPU.
struct Task<'t, 'w, 'b, 'm> {
    device: &'t DiskDevice,
    cache: &'t DiskCache<'w>,
    cpu: &'t Cpu<'b, 'm, Sim, PageSlot>,
}

impl Task<'_, '_, '_, '_> {
    /// Runs `does` on each piece of a range that lies in one page.
    fn each_page(
        offset: u64,
        len: usize,
        mut does: impl FnMut(u64, usize, Range<usize>) -> Result<(), CacheError>,
    ) -> Result<(), CacheError> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = (at % PAGE as u64) as usize;
            let piece = (len - done).min(PAGE - within);
            does(at / PAGE as u64, within, done..done + piece)?;
            done += piece;
        }
        Ok(())
    }
}

impl Files for Task<'_, '_, '_, '_> {
    fn create(&self, _: u32) -> Result<FileId, CacheError> {
        engine::spend(Ps::from_ns(self.device.storage.call));
        let (mut shared, _) = self.device.queue();
        shared.files += 1;
        Ok(FileId(shared.files))
    }

    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), CacheError> {
        engine::spend(Ps::from_ns(self.device.storage.call));
        Self::each_page(offset, bytes.len(), |index, within, piece| {
            engine::spend(Ps::from_ns(self.device.storage.page));
            let helpers = helpers(self.cache, self.device);
            self.cache.write(self.cpu, &helpers, (file, index, within), &bytes[piece])
        })
    }

    fn store(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), CacheError> {
        Self::each_page(offset, bytes.len(), |index, within, piece| {
            engine::spend(Ps::from_ns(self.device.storage.fault));
            let helpers = helpers(self.cache, self.device);
            self.cache.store_mapped(self.cpu, &helpers, (file, index, within), &bytes[piece])
        })
    }

    fn read(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), CacheError> {
        engine::spend(Ps::from_ns(self.device.storage.call));
        Self::each_page(offset, bytes.len(), |index, within, piece| {
            engine::spend(Ps::from_ns(self.device.storage.page));
            let helpers = helpers(self.cache, self.device);
            self.cache.read(self.cpu, &helpers, (file, index, within), &mut bytes[piece])
        })
    }

    fn settle(&self) -> Result<(), CacheError> {
        self.cache.write_all()
    }

    fn stored(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), CacheError> {
        let shared = self.device.shared();
        Self::each_page(offset, bytes.len(), |index, within, piece| {
            match shared.stored.get(&(file, index)) {
                Some(content) => content.read(within, &mut bytes[piece]),
                None => bytes[piece].fill(0),
            }
            Ok(())
        })
    }

    fn remove(&self, file: FileId) -> Result<(), CacheError> {
        engine::spend(Ps::from_ns(self.device.storage.call));
        self.cache.truncate(self.cpu, file, 0)
    }

    fn meet(&self) {
        engine::touch(self.device.lines.meeting, size_of::<u64>(), Access::Exchange);
        let (meeting, all) = {
            let shared = &mut *self.device.shared();
            shared.met += 1;
            let all = shared.met == self.device.tasks;
            if all {
                shared.met = 0;
                shared.meetings += 1;
            }
            (shared.meetings, all)
        };
        if all {
            engine::touch(self.device.lines.meeting, size_of::<u64>(), Access::Write);
        } else {
            self.device.watch(self.device.lines.meeting, |shared| shared.meetings > meeting);
        }
    }

    fn now_ns(&self) -> u64 {
        engine::now().0 / 1000
    }

    fn page_bytes(&self) -> u64 {
        PAGE as u64
    }

    /// At the bandwidth of a core: programs fill their buffers.
    fn compute(&self, bytes: u64) {
        let begun = engine::now();
        engine::stream(0, bytes);
        let took = engine::now().since(begun);
        self.device.shared().user += took;
    }
}

/// What a CPU is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Task(u32),
    Background(u16),
    Writes,
}

/// A machine with CPUs enough, and which are for what.
fn cast(model: &Model, tasks: u32) -> (Model, BTreeMap<u16, Role>) {
    let mut model = model.clone();
    // Of node 0's CPUs, two do not run tasks; of any other's, one.
    let threads = model.shape.threads_per_core;
    let needed = (tasks as u16 + 2).div_ceil(threads);
    let cores_per_l3 = model.shape.cores_per_l3.max(needed);
    model.shape =
        Shape { cores_per_node: model.shape.cores_per_node.max(needed), cores_per_l3, ..model.shape };
    let shape = model.shape;
    let of_node = |node: u16| (0..shape.cpus()).filter(move |&cpu| shape.node_of(cpu) == node);
    let jobs = (0..tasks).map(Role::Task).chain([Role::Background(0), Role::Writes]);
    let mut roles: BTreeMap<u16, Role> = of_node(0).zip(jobs).collect();
    for node in 1..shape.nodes {
        roles.extend(of_node(node).zip([Role::Background(node)]));
    }
    (model, roles)
}

/// Runs a program on a machine until all of its tasks have ended.
///
/// # Errors
/// The world cannot be made, or a task ran into something.
///
/// # Panics
/// If the model says nothing of storage.
pub fn run(model: &Model, config: Config, load: &Load<'_>, seed: u64) -> Result<Outcome, Error> {
    let storage = model.storage.expect("a machine with files says what they cost");
    let tasks = load.program.tasks();
    let (model, roles) = cast(model, tasks);
    let lines = size_of::<DiskCache<'_>>().div_ceil(size_of::<Line>()) + 3;
    let beside = Beside { lines, distances: Some(load.distances) };
    let mut world = World::<PageSlot>::with_beside(&model, load.zones, config, None, seed, beside)
        .map_err(Error::World)?;
    let (allocator, mut machine) = world.split();
    let spots = ["disk queue", "meeting point", "background reclaim"].map(|name| machine.place(name, 0_u64));
    let [disk, meeting, background] = spots.each_ref().map(Placed::address);
    let device = DiskDevice {
        shared: Mutex::new(Shared {
            disk: Disk::scaled(&storage, load.share),
            writing: BTreeMap::new(),
            memory: BTreeMap::new(),
            stored: BTreeMap::new(),
            files: 0,
            idle: Ps(0),
            user: Ps(0),
            met: 0,
            meetings: 0,
            ended: 0,
            woken: vec![false; usize::from(model.shape.nodes)],
        }),
        lines: Lines { disk, meeting, background },
        storage,
        nodes: load.zones.iter().map(|zone| (zone.start..zone.end(), zone.node.0)).collect(),
        tasks,
        share: load.share,
    };
    // What is known of zones is forgotten after a second of the whole machine's.
    let _haste = Haste::new((1.0 / load.share).round() as u64);
    let cache = machine.place("page cache lock", Cache::new(allocator, &device));
    let results: Mutex<BTreeMap<u32, Result<Vec<Stretch>, Failure>>> = Mutex::default();
    let report = machine.run(model.shape.cpus(), JITTER, |n, cpu| match roles.get(&(n as u16)) {
        None => {}
        Some(&Role::Background(node)) => run_background(&device, &cache, cpu, NodeId(node)),
        Some(Role::Writes) => {
            while !device.all_ended() {
                if cache.write_in_background() == 0 {
                    device.idle_until(engine::now() + NAP.scaled(device.share));
                    cache.poll();
                }
            }
        }
        Some(&Role::Task(task)) => {
            let result = load.program.run(task, &Task { device: &device, cache: &cache, cpu });
            results.lock().unwrap_or_else(PoisonError::into_inner).insert(task, result);
            engine::touch(device.lines.meeting, size_of::<u64>(), Access::Exchange);
            device.shared().ended += 1;
            engine::touch(device.lines.background, size_of::<u64>(), Access::Write);
        }
    });
    cache.verify().map_err(Error::Books)?;
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let stretches = results.into_values().collect::<Result<_, _>>().map_err(Error::Failure)?;
    let spans = |wanted: fn(&Role) -> bool| {
        let cpus = roles.iter().filter(move |(_, role)| wanted(role));
        cpus.map(|(&cpu, _)| (report.starts[usize::from(cpu)], report.ends[usize::from(cpu)]))
    };
    let is_task = |role: &Role| matches!(role, Role::Task(_));
    let first = spans(is_task).map(|(start, _)| start).min().unwrap_or_default();
    let last = spans(is_task).map(|(_, end)| end).max().unwrap_or_default();
    let busy = spans(|_| true).fold(Ps(0), |sum, (start, end)| sum + end.since(start));
    let shared = device.shared();
    Ok(Outcome {
        stretches,
        elapsed: last.since(first),
        user: shared.user,
        system: busy.since(shared.idle).since(shared.user),
        allocation_times: cache.allocation_times(),
        cache: cache.events(),
        nodes: allocator.node_totals(),
        zones: allocator.zones().iter().map(framewright::zone::Zone::events).collect(),
        moves: shared.disk.moves(),
        events: machine.simulator().events(),
        moved: machine.simulator().moved(),
    })
}

/// Reclaims for a node whenever it is woken, until all tasks have ended.
fn run_background(
    device: &DiskDevice,
    cache: &DiskCache<'_>,
    cpu: &Cpu<'_, '_, Sim, PageSlot>,
    node: NodeId,
) {
    while !device.all_ended() {
        match cpu.allocator().background_sleep(node) {
            Some(asked) => {
                let rest = cpu.background(node, asked, &helpers(cache, device));
                if !rest.balanced && rest.total.freed > 0 {
                    // There is more to do, and only this CPU takes wishes: nobody needs to be woken.
                    let _ = cpu.allocator().background_wake(node, asked);
                }
            }
            None => device.watch(device.lines.background, |shared| {
                let woken = core::mem::take(&mut shared.woken[usize::from(node.0)]);
                woken || shared.ended == device.tasks
            }),
        }
    }
}

#[cfg(test)]
mod tests;
