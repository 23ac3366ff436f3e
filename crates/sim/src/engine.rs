//! Virtual CPUs, and what each access costs them.
//!
//! CPUs are coroutines of one host thread. The one whose clock is earliest runs; it runs ahead, past others' clocks,
//! for as long as it touches lines that no other CPU has ever touched, and lets the others catch up before it
//! touches a line that another CPU has.
//!
//! # What an access costs
//! * `access_ns` always: the instructions around it, and a first-level hit.
//! * What it takes to bring the line, if this CPU has no copy that will do: from the nearest level of cache whose
//!   recent past still holds it, from another CPU, or from memory. A line on its way to a CPU serves the next
//!   only afterwards: requests queue.
//! * A question goes out for a line that others have, and an answer comes back. Until the question arrives the line is
//!   where it was, and the CPU that has it goes on with it. Of several that wait for one line any is served next:
//!   nothing keeps them in the order in which they came.
//! * Stores go into a buffer: the CPU goes on, and what it stored becomes visible in order. An atomic
//!   read-modify-write waits until the buffer is empty; one whose result is not used waits in the buffer.
//! * A CPU that polls a line sleeps until another CPU writes it, then fetches it again.
#![expect(unsafe_code, reason = "coroutines reach their engine through a pointer of the thread's own")]

mod branches;
mod bulk;
mod cost;
mod distances;
mod line_queue;
mod run;
mod streams;
mod sums;
#[cfg(test)]
mod tests;

use core::cell::Cell;
use core::cmp::Reverse;
use core::ptr;
use std::collections::BinaryHeap;
use std::io;

use corosensei::Yielder;

use crate::bandwidth::Channel;
use crate::clock::{Ps, Rng, mix};
use crate::lines::Lines;
use crate::memory::Mapping;
use crate::model::{LINE, Location, Model};
use crate::trace::{Recorded, Recorder};
use branches::Branches;
pub use bulk::{overlapped, stream};
use cost::Costs;
pub use cost::{Moved, Traffic};
use distances::Distances;
pub use run::{Events, Report};
use streams::Streams;
use sums::Sum;

/// Kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An atomic read-modify-write.
    Exchange,
    /// One whose result is not used: it waits in the buffer with the stores, and asks for its line only when it is
    /// first there. That later reads do not wait for it is an assumption, made because measured frees look so: by x86's
    /// rules they do.
    Add,
}

/// A part of the simulated memory: where it is, and how much of it caches hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// First byte after it. Regions follow one another.
    pub end: usize,
    /// The memory node it is on.
    pub node: u16,
    /// Lines that a core finds of it in its own second level, in that of another core, and in a last-level cache, in
    /// all of their sets together. A run shorter than what it stands for sets these so that a line is as likely to be
    /// there still: what a core comes back to after as long in both runs stays with it; what it meets by chance is in
    /// another's cache less often.
    pub caches: Option<[u32; 3]>,
}

/// State of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Runs, or is in the queue.
    Ready,
    /// Waits for a line to be written.
    Polling(usize),
    /// Has nothing to do.
    Done,
}

/// How far a CPU may run ahead of the others while it meets none of them. The first CPU to touch a line does not know
/// that others will want it; this bounds how late they find it taken.
const RUN_AHEAD: Ps = Ps(1_000_000);

const NO_LINE: usize = usize::MAX;

/// Sets of a first-level cache: as many as there are lines in 4 KiB, because a page's offset chooses the set. A second
/// level has a multiple of them; those of its sets that fall into one of these count as one. A last level chooses by a
/// hash of the whole address, so that lines far apart do not meet there more often than others.
const SETS: usize = 64;

/// How many lines came in, by set.
type Sets = [u32; SETS];

/// The set that a line falls into.
#[inline]
const fn set_of(line: usize) -> usize {
    line % SETS
}

/// Lets `lines` lines come into each set.
fn age(sets: &mut Sets, lines: u32) {
    sets.iter_mut().for_each(|brought| *brought = brought.wrapping_add(lines));
}

/// Lines that others have, too, of which a core remembers when it read them: more than a first level holds.
const SEEN: usize = 1024;
/// Pages of which a core knows at a time where they are: what a second-level TLB holds.
const TRANSLATIONS: usize = 2048;
/// Lines of such a page. A kernel maps its descriptors with larger ones; what counts in a virtual machine is the
/// smaller of the guest's and the host's page, and what was fitted to was measured in one.
const TRANSLATED: usize = 4096 / LINE;
/// Pages of which one line of a page table says where they are: entries of eight bytes.
const TABLE_PAGES: u32 = LINE as u32 / 8;
/// Lines of page tables that a core's first level holds beside what they translate: a third of its 768 lines.
const NEAR_TABLES: usize = 256;

/// Lines of a long run of stores that are charged together.
const CLEARED_AT_ONCE: usize = 128;

#[derive(Debug)]
struct Cpu {
    clock: Ps,
    /// Time at which its stores so far are visible.
    drained: Ps,
    state: State,
    /// The line it read last, if it has done nothing since.
    last_read: usize,
    /// How long it waited for that line.
    last_wait: Ps,
    /// Time at which all that it has read is there: it goes on during the reads.
    read: Ps,
    /// Predictor of its program's next access, on a machine where wrong guesses take time.
    branches: Option<Box<Branches>>,
    accesses: u64,
    /// Those of them that missed or met another CPU, and guesses that were wrong.
    strays: u64,
    /// Whether its last access was an exchange: what comes next depends on other CPUs, and what that takes is part of a
    /// transfer.
    waited: bool,
    /// Whether it polls: it has done nothing but read since it paused.
    polls: bool,
    /// Whether it was woken because the line it polls was written: it waits for just that line.
    woken: bool,
    /// Whether it has asked for a line and lets others go on until the question arrives.
    asks: bool,
    /// How long that question is on its way.
    question: Ps,
    /// The line that its request waits for, which is on its way to another CPU.
    waits_for: usize,
    /// Whether that line is its now.
    served: bool,
    /// Lines that its core has brought in, by set.
    brought: Sets,
    /// Of each place of [`SEEN`], which of the lines that fall there it has read last of those that others have, too (+
    /// 1), and how many lines had been brought into its set by then. Empty until the CPU first runs, as the next two.
    seen: Vec<[u32; 2]>,
    streams: Streams,
    /// Pages + 1 of which it knows where they are.
    translated: Vec<u32>,
    /// Lines of page tables + 1 that are in its first level.
    tables: Vec<u32>,
    /// Until when its core's prefetcher is busy.
    prefetch: Ps,
    place: Location,
    sibling: Option<u16>,
    yielder: *const Yielder<(), ()>,
}

/// A machine with virtual CPUs.
#[derive(Debug)]
pub struct Simulator {
    engine: Box<Engine>,
    memory: Mapping,
}

#[derive(Debug)]
struct Engine {
    base: usize,
    bytes: usize,
    lines: Lines,
    distances: Distances,
    cpus: Vec<Cpu>,
    l3_brought: Vec<u32>,
    channels: Vec<Channel>,
    /// Time that runs took, each from its first start to its last end.
    ran: Ps,
    costs: Costs,
    model: Model,
    regions: Vec<Region>,
    /// The region that was looked up last: its first line, the first after it, its place in `regions`.
    last_region: Cell<(usize, usize, usize)>,
    /// Ranges of lines that have a name: first, behind, index into `traffic`.
    named: Vec<(usize, usize, usize)>,
    /// Ranges of lines of which each CPU has its own.
    apart: Vec<(usize, usize)>,
    /// Ranges of bytes in which each word has a meaning of its own.
    fixed: Vec<(usize, usize)>,
    /// Sums that each CPU counts towards on its own.
    sums: Vec<Sum>,
    /// Which word was stored to last, and by how much it changed.
    stored: (usize, i64),
    /// The sum that the running CPU's count has to be added to now, if there is one.
    due: Option<usize>,
    /// Pages of which a core knows where they are, and lines of page tables that are near: fewer where a run is shorter
    /// than what it stands for.
    translations: [usize; 2],
    /// The range that has a name and was found last, as far as no other name begins in it.
    last_named: (usize, usize, usize),
    traffic: Vec<Traffic>,
    ready: BinaryHeap<Reverse<(Ps, u64, u16)>>,
    /// The CPU that has just let others, which are in the queue, go first.
    gave_way: Option<Reverse<(Ps, u64, u16)>>,
    /// Time at which the next in `ready` is due.
    next: Ps,
    current: u16,
    rng: Rng,
    hash: u64,
    accesses: u64,
    shared_events: u64,
    switches: u64,
    additions: u64,
    surprises: u64,
    pollers: Vec<u16>,
    /// One of those who wait for the line that the running CPU was waiting for.
    waits_next: Option<u16>,
    recorder: Option<Recorder>,
    /// How often in a row sleepers were woken because no other CPU was left, and none of them stored anything.
    fruitless: u32,
}

thread_local! {
    /// The engine that runs on this thread; null outside a run.
    static CURRENT: Cell<*mut Engine> = const { Cell::new(ptr::null_mut()) };
}

/// Charges an access of the running CPU to `bytes` at a host address. Outside a run nothing happens.
#[inline]
pub fn touch(address: usize, bytes: usize, access: Access) {
    let engine = CURRENT.get();
    if !engine.is_null() {
        // SAFETY: `run` set the pointer to an engine that outlives the run, and borrows it only between resumes.
        unsafe { Engine::touch(engine, address, bytes, access) }
    }
}

/// Charges a store to a word that thereby changes by `change`.
#[inline]
pub(crate) fn store(address: usize, bytes: usize, change: i64) {
    let engine = CURRENT.get();
    if !engine.is_null() {
        // SAFETY: as above.
        unsafe {
            (*engine).stored = (address.wrapping_sub((*engine).base), change);
            Engine::touch(engine, address, bytes, Access::Write);
        }
    }
}

/// Lets the running CPU write zeroes to `bytes` bytes at a host address, line after line, as fast as its core and the
/// memory's node allow (see [`Platform::clear`](framewright::Platform::clear)). Outside a run nothing happens.
pub fn clear(address: usize, bytes: usize) {
    let engine = CURRENT.get();
    if !engine.is_null() {
        // SAFETY: as above.
        unsafe { Engine::clear(engine, address, bytes) }
    }
}

/// What `f` makes of the engine that runs; `None` outside a run. `f` does not leave the coroutine.
#[inline]
fn with_running<R>(f: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    // SAFETY: as above; the reference ends before the coroutine is left.
    ptr::NonNull::new(CURRENT.get()).map(|mut engine| f(unsafe { engine.as_mut() }))
}

/// Lets the running CPU pause.
pub(crate) fn relax() {
    if with_running(Engine::pause) == Some(true) {
        // SAFETY: as above.
        unsafe { Engine::leave(CURRENT.get()) }
    }
}

/// The running CPU's clock; 0 outside a run.
#[must_use]
pub fn now() -> Ps {
    with_running(|engine| engine.cpus[usize::from(engine.current)].clock).unwrap_or(Ps(0))
}

/// Like [`now`], and a recorder takes note of it.
pub(crate) fn look_at_clock() -> Ps {
    let at = now();
    with_running(|engine| {
        if let Some(recorder) = &mut engine.recorder {
            recorder.clock(engine.current, at);
        }
    });
    at
}

/// Lets the running CPU work on its own for so long. Outside a run nothing happens.
pub fn spend(time: Ps) {
    with_running(|engine| engine.work(time));
}

/// Lets the running CPU work on its own for about so long, a tenth more or less: what a CPU does never takes exactly as
/// long twice, and CPUs in exact lockstep would show what no machine does. Outside a run nothing happens.
pub fn spend_about(time: Ps) {
    with_running(|engine| {
        let jitter = Ps(engine.rng.below(time.0 / 5 + 1));
        engine.work(Ps(time.0 - time.0 / 10) + jitter);
    });
}

impl Simulator {
    /// A machine with `memory`, which the caller has planned. All memory is on node 0 until
    /// [`set_regions`](Self::set_regions).
    ///
    /// # Errors
    /// The system has no address space left.
    pub fn new(model: Model, memory: Mapping, seed: u64) -> io::Result<Self> {
        let shape = model.shape;
        let cpu = |n: u16| Cpu {
            clock: Ps(0),
            drained: Ps(0),
            state: State::Done,
            last_read: NO_LINE,
            last_wait: Ps(0),
            read: Ps(0),
            branches: model.guesses.then(Box::default),
            accesses: 0,
            strays: 0,
            waited: false,
            polls: false,
            woken: false,
            asks: false,
            question: Ps(0),
            waits_for: NO_LINE,
            served: false,
            brought: [0; SETS],
            seen: Vec::new(),
            streams: Streams::default(),
            translated: Vec::new(),
            tables: Vec::new(),
            prefetch: Ps(0),
            place: shape.location(n),
            sibling: (shape.threads_per_core == 2).then(|| (n + shape.cores()) % shape.cpus()),
            yielder: ptr::null(),
        };
        let engine = Engine {
            base: memory.start().addr().get(),
            bytes: memory.bytes(),
            lines: Lines::new(memory.bytes().div_ceil(LINE), shape.cpus())?,
            distances: Distances::new(shape),
            cpus: (0..shape.cpus()).map(cpu).collect(),
            l3_brought: vec![0; usize::from(shape.l3s())],
            channels: vec![Channel::default(); usize::from(shape.nodes)],
            ran: Ps(0),
            costs: Costs::new(&model),
            model,
            regions: Vec::new(),
            last_region: Cell::default(),
            named: Vec::new(),
            apart: Vec::new(),
            fixed: Vec::new(),
            sums: Vec::new(),
            stored: (NO_LINE, 0),
            due: None,
            translations: [TRANSLATIONS, NEAR_TABLES],
            last_named: (0, 0, 0),
            traffic: Vec::new(),
            ready: BinaryHeap::new(),
            gave_way: None,
            next: Ps::NEVER,
            current: 0,
            rng: Rng::new(mix(seed)),
            hash: mix(seed),
            accesses: 0,
            shared_events: 0,
            switches: 0,
            additions: 0,
            surprises: 0,
            pollers: Vec::new(),
            waits_next: None,
            recorder: None,
            fruitless: 0,
        };
        Ok(Self { engine: Box::new(engine), memory })
    }

    /// The simulated memory.
    #[must_use]
    pub const fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// The machine.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.engine.model
    }

    /// Sets the regions of the simulated memory, in ascending order.
    pub fn set_regions(&mut self, regions: Vec<Region>) {
        self.engine.regions = regions;
        self.engine.last_region.take();
    }

    /// Says on which node the bytes from `start` to a region's end are, behind all regions that there are. What is
    /// between is on node 0. Regions that are there stay as they are.
    pub fn add_region(&mut self, start: usize, region: Region) {
        let regions = &mut self.engine.regions;
        let last = regions.last().map_or(0, |last| last.end);
        if last < start {
            regions.push(Region { end: start, node: 0, caches: None });
        }
        if last < region.end {
            regions.push(region);
        }
        self.engine.last_region.take();
    }

    /// Lets a core know where that share of 2048 pages is, and have that share of 256 lines of page tables near, for a
    /// run that is as much shorter than what it stands for: an access to another page takes a walk through the page
    /// tables. This holds in regions of which caches hold less, too.
    pub fn limit_translations(&mut self, share: f64) {
        let limited = |all: usize| ((all as f64 * share) as usize).clamp(1, all);
        self.engine.translations = [limited(TRANSLATIONS), limited(NEAR_TABLES)];
    }

    /// Gives the bytes from `start` to `end` a name, under which their traffic is counted. Where names overlap, a line
    /// has the one that begins last; of those that begin together the last one given.
    pub fn name(&mut self, start: usize, end: usize, name: &str) {
        let traffic = &mut self.engine.traffic;
        let index = traffic.iter().position(|moved| moved.name == name).unwrap_or_else(|| {
            traffic.push(Traffic::new(name));
            traffic.len() - 1
        });
        let range = (start / LINE, end.div_ceil(LINE), index);
        let at = self.engine.named.partition_point(|known| known.0 <= range.0);
        self.engine.named.insert(at, range);
        self.engine.last_named = (0, 0, 0);
    }

    /// Lets each CPU have its own of the lines from `start` to `end`, as far as they cost time: what is kept there a
    /// kernel counts for each CPU.
    pub fn keep_apart(&mut self, start: usize, end: usize) {
        let lines = start / LINE..end.div_ceil(LINE);
        self.engine.apart.push((lines.start, lines.end));
        lines.for_each(|line| self.engine.lines.meet(line));
    }

    /// Traffic of memory and caches since the machine was made.
    #[must_use]
    pub fn moved(&self) -> Moved {
        let ran = self.engine.ran.as_ns().max(1e-3);
        let busy = self.engine.channels.iter().map(|channel| channel.busy().as_ns() / ran);
        Moved { lines: self.engine.traffic.clone(), bandwidth: busy.collect() }
    }

    /// Records what each CPU does from now on, at most `most` spans.
    pub fn record(&mut self, most: usize) {
        self.engine.recorder = Some(Recorder::new(self.engine.cpus.len(), most));
    }

    /// The recorded spans, if there are any.
    pub fn recorded(&mut self, title: &str) -> Option<Recorded> {
        let spans = self.engine.recorder.take()?.spans;
        let names = self.engine.traffic.iter().map(|traffic| traffic.name.clone()).collect();
        Some(Recorded { title: title.to_owned(), spans, names })
    }

    /// Empties all caches: what follows is far from what came before.
    pub fn forget_caches(&mut self) {
        const AGE: u32 = 1 << 24;
        for cpu in &mut self.engine.cpus {
            age(&mut cpu.brought, AGE);
        }
        for brought in &mut self.engine.l3_brought {
            *brought = brought.wrapping_add(AGE);
        }
    }
}

impl Engine {
    /// Charges an access, and lets others catch up first where they might meet.
    ///
    /// # Safety
    /// `this` is the engine of the run in progress, and no reference into it is held.
    #[inline]
    unsafe fn touch(this: *mut Self, address: usize, bytes: usize, access: Access) {
        // SAFETY: by the caller's promise. The reference ends before the coroutine is left.
        let engine = unsafe { &mut *this };
        let offset = address.wrapping_sub(engine.base);
        engine.accesses += 1;
        if offset >= engine.bytes {
            let access = engine.costs.access;
            return engine.work(access);
        }
        engine.guess(offset, access);
        let last = (offset + bytes.max(1) - 1) / LINE;
        for line in offset / LINE..=last {
            // SAFETY: as above.
            while !unsafe { &mut *this }.step(line, access) {
                // SAFETY: as above; the reference that `step` had is gone.
                unsafe { Self::leave(this) };
            }
        }
        if access == Access::Write {
            // SAFETY: as above.
            unsafe {
                // A CPU that only polls stores nothing.
                (*this).fruitless = 0;
                Self::add_up(this);
            }
        }
    }

    /// Charges a long run of stores that no cache can hold.
    ///
    /// # Safety
    /// As [`touch`](Self::touch).
    unsafe fn clear(this: *mut Self, address: usize, bytes: usize) {
        // SAFETY: by the caller's promise. No reference lives while the coroutine is left.
        let offset = address.wrapping_sub(unsafe { &*this }.base);
        // SAFETY: as above.
        if bytes == 0 || offset >= unsafe { &*this }.bytes {
            return;
        }
        let (first, behind) = (offset / LINE, (offset + bytes).div_ceil(LINE));
        for line in (first..behind).step_by(CLEARED_AT_ONCE) {
            // SAFETY: as above.
            while !unsafe { &mut *this }.may_run_ahead() {
                // SAFETY: as above.
                unsafe { Self::leave(this) };
            }
            // SAFETY: as above.
            unsafe { &mut *this }.clear_lines(line, (behind - line).min(CLEARED_AT_ONCE));
        }
    }

    /// Whether the running CPU is not too far ahead of the others; if it is, it has given way.
    fn may_run_ahead(&mut self) -> bool {
        let clock = self.cpus[usize::from(self.current)].clock;
        if clock.since(self.next) <= RUN_AHEAD {
            return true;
        }
        self.give_way(clock);
        false
    }

    /// Leaves the running coroutine until its CPU is resumed.
    ///
    /// # Safety
    /// As [`touch`](Self::touch), and the running CPU is in the queue or polls.
    unsafe fn leave(this: *mut Self) {
        // SAFETY: by the caller's promise. The reference ends with the call.
        let yielder = unsafe { &*this }.current_yielder();
        // SAFETY: the yielder lives on the coroutine's stack, which is the one that runs here.
        let yielder = unsafe { &*yielder };
        yielder.suspend(());
    }

    fn current_yielder(&self) -> *const Yielder<(), ()> {
        self.cpus[usize::from(self.current)].yielder
    }

    /// One access to one line. `false` if others must go first; the CPU is in the queue then.
    #[inline]
    fn step(&mut self, line: usize, access: Access) -> bool {
        let me = self.current;
        let cpu = &mut self.cpus[usize::from(me)];
        if core::mem::take(&mut cpu.served) {
            self.transact_in_turn(line, access);
            return true;
        }
        if core::mem::take(&mut cpu.asks) {
            // The question arrives now, and all others have gone on until now.
            return self.answered(line, access);
        }
        let entry = self.lines.get(line);
        if access == Access::Exchange {
            cpu.clock = cpu.clock.max(cpu.drained);
        }
        let clock = cpu.clock;
        // No other CPU has ever touched it.
        let sole = entry.is_sole(me) && !entry.has_met();
        let alone = (sole || entry.is_untouched()) && access != Access::Exchange;
        if alone && clock.since(self.next) <= RUN_AHEAD {
            if sole {
                self.hit_own(line, access);
            } else {
                self.transact(line, access);
            }
            return true;
        }
        if self.apart.iter().any(|&(first, behind)| (first..behind).contains(&line)) {
            let time = self.costs.access;
            self.work(time);
            if access == Access::Write {
                self.count_own();
            }
            return true;
        }
        let entry = *entry;
        if matches!(access, Access::Read | Access::Exchange)
            && let Some(question) = self.question(line, &entry, access)
        {
            // No other CPU's access would spare this one its question.
            self.work(self.costs.access);
            let cpu = &mut self.cpus[usize::from(me)];
            cpu.clock += question;
            cpu.question = question;
            let arrives = cpu.clock;
            if self.next < arrives {
                self.cpus[usize::from(me)].asks = true;
                self.give_way(arrives);
                return false;
            }
            return self.answered(line, access);
        }
        // Who waits for a line gets it as soon as it has arrived where it went.
        let others_due =
            self.next < clock || entry.is_waited_for() && entry.busy <= clock && self.next == clock;
        if others_due {
            self.give_way(clock);
            return false;
        }
        if entry.is_waited_for() && !entry.is_sole(me) && matches!(access, Access::Write | Access::Add) {
            self.line_up(line, entry.busy);
            return false;
        }
        self.transact(line, access);
        true
    }

    /// Lets the running CPU's clock advance by private work, slower while its sibling works, too.
    #[inline]
    fn work(&mut self, time: Ps) {
        let me = usize::from(self.current);
        let time = match self.cpus[me].sibling {
            Some(sibling) if self.cpus[usize::from(sibling)].state == State::Ready => {
                time.scaled(self.costs.sibling_slowdown)
            }
            _ => time,
        };
        self.cpus[me].clock += time;
    }
}
