//! The threads that replay a plan.
//!
//! # No deadlock
//! Positions order all operations of all threads, and each thread does its own in ascending order. A thread waits
//! for two things only. A free at position p waits for the allocation of its lifetime, whose position is below
//! p (compiling sees the allocation first; blocks from before the start are there before any thread starts).
//! And an operation at p waits until no thread's published position is below p - window. Allocations wait for no
//! allocation. Suppose some operations are never done, and let p be the least position among them. Its thread has
//! done all of its own below p, so it is at p. If p is a free, its allocation lies below p and is done. All other
//! threads are done or stuck at a position not below p; each has published where it is before it waited, and
//! the end of time when done, so no published position is below p. So p can go on: a contradiction.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::thread;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use super::latency::{Latency, clock_ns, elapsed_ns};
use super::plan::{Action, Op, Plan};
use super::{Options, Report};
use crate::bench::stage::{Backoff, Meeting as _};
use crate::bench::team::{Gate, on_cpus};
use crate::target::{Counter, Target, TargetCpu};

/// In a slot: not allocated yet.
const EMPTY: u64 = u64::MAX;

/// In a slot: the allocation failed.
const FAILED: u64 = u64::MAX - 1;

/// A thread that has waited for so long sleeps between its looks, so that the one it waits for gets the processor.
const AWAKE: Duration = Duration::from_millis(1);
const NAP: Duration = Duration::from_micros(50);

/// Order of the blocks that are counted at the end: a huge page of 2 MiB.
const HUGE: u8 = 9;

/// A position that others read now and then, on a cache line (and the one fetched with it) of its own.
#[repr(align(128))]
struct Progress(AtomicU64);

/// What the threads share.
struct Shared<'a> {
    plan: &'a Plan,
    options: &'a Options,
    clock_ns: u64,
    /// By lifetime: the block, [`EMPTY`] or [`FAILED`].
    slots: Vec<AtomicU64>,
    /// By partial: frames of parts that the target did not take.
    untaken: Vec<AtomicU32>,
    /// By thread: the position that it is at; `u64::MAX` when done.
    progress: Vec<Progress>,
}

/// What one thread did.
#[derive(Debug, Default)]
struct Done {
    report: Report,
    start_ns: u64,
    end_ns: u64,
    allocs: Vec<u32>,
    frees: Vec<u32>,
}

/// Replays a plan once. The target should be fresh, for as many CPUs as the plan has threads; all it handed out is
/// free again when this returns.
pub fn replay<T: Target>(plan: &Plan, target: &T, options: &Options) -> Report {
    let shared = Shared {
        plan,
        options,
        clock_ns: clock_ns(),
        slots: (0..plan.lifetimes).map(|_| AtomicU64::new(EMPTY)).collect(),
        untaken: plan.partials.iter().map(|_| AtomicU32::new(0)).collect(),
        progress: plan.threads.iter().map(|_| Progress(AtomicU64::new(0))).collect(),
    };
    let origin = Instant::now();
    let team = on_cpus(target, plan.threads(), |index, gate, cpu| {
        let mut worker = Worker::new(&shared, gate, index, cpu);
        worker.prepare();
        gate.wait();
        let counters = if index == 0 { target.counters() } else { Vec::new() };
        gate.wait();
        worker.work(origin);
        gate.wait();
        let mut done = worker.done;
        if index == 0 {
            done.report.counters = since(&counters, target.counters());
        }
        done
    });
    let mut report = total(&shared, team.results);
    report.pinned = team.pinned;
    report.free_huge_blocks = target.free_blocks(HUGE);
    release(&shared, target);
    report
}

/// Adds up what the threads did.
fn total(shared: &Shared<'_>, mut threads: Vec<Done>) -> Report {
    let mut sum = Report {
        threads: threads.len(),
        clock_ns: shared.clock_ns,
        live_frames: live_frames(shared),
        counters: threads
            .first_mut()
            .map(|first| core::mem::take(&mut first.report.counters))
            .unwrap_or_default(),
        ..Report::default()
    };
    for Done { report, start_ns, end_ns, .. } in &threads {
        sum.allocations += report.allocations;
        sum.allocated_frames += report.allocated_frames;
        sum.failures += report.failures;
        sum.frees += report.frees;
        sum.part_frees += report.part_frees;
        sum.skipped_frees += report.skipped_frees;
        sum.deferred_parts += report.deferred_parts;
        sum.prepare_failures += report.prepare_failures;
        sum.cpu_ns += report.cpu_ns;
        sum.waited_cpu_ns += report.waited_cpu_ns;
        sum.waited_ns += report.waited_ns;
        sum.waits += report.waits;
        sum.busy_ns += (end_ns - start_ns).saturating_sub(report.waited_ns);
    }
    let first = threads.iter().map(|done| done.start_ns).min().unwrap_or(0);
    let last = threads.iter().map(|done| done.end_ns).max().unwrap_or(0);
    sum.wall_ns = last - first;
    sum.alloc_latency = Latency::new(threads.iter_mut().map(|done| core::mem::take(&mut done.allocs)));
    sum.free_latency = Latency::new(threads.iter_mut().map(|done| core::mem::take(&mut done.frees)));
    sum
}

/// Counters that moved from `before` to `after`, by how much.
pub(super) fn since(before: &[Counter], after: Vec<Counter>) -> Vec<Counter> {
    let earlier =
        |name| before.iter().find(|counter| counter.name == name).map_or(0, |counter| counter.value);
    let moved = |counter: Counter| Counter {
        name: counter.name,
        value: counter.value.saturating_sub(earlier(counter.name)),
    };
    after.into_iter().map(moved).collect()
}

/// Frames that the trace leaves in use and that were really allocated.
fn live_frames(shared: &Shared<'_>) -> u64 {
    let frames = |op: &Op| {
        let (slot, order) = match op.action {
            Action::FreePart { part, .. } => (shared.plan.partials[op.slot as usize].slot, part),
            Action::Free { order } | Action::Alloc { order, .. } => (op.slot, order),
        };
        let got = shared.slots[slot as usize].load(Ordering::Relaxed) != FAILED;
        if got { 1 << order } else { 0 }
    };
    shared.plan.after.iter().map(frames).sum()
}

/// Frees what the trace leaves in use.
fn release<T: Target>(shared: &Shared<'_>, target: &T) {
    let gate = Gate::new(1);
    let mut cpu = target.attach(0);
    let mut worker = Worker::new(shared, &gate, 0, &mut cpu);
    for op in &shared.plan.after {
        worker.operate(op, false);
    }
}

/// One thread of a replay.
struct Worker<'a, C> {
    shared: &'a Shared<'a>,
    gate: &'a Gate,
    index: usize,
    cpu: &'a mut C,
    /// The first position that is too far ahead.
    limit: u64,
    done: Done,
}

impl<'a, C: TargetCpu> Worker<'a, C> {
    fn new(shared: &'a Shared<'a>, gate: &'a Gate, index: usize, cpu: &'a mut C) -> Self {
        Self { shared, gate, index, cpu, limit: 0, done: Done::default() }
    }

    /// Allocates the blocks that must be there before the start.
    fn prepare(&mut self) {
        for op in &self.shared.plan.before[self.index] {
            self.operate(op, false);
        }
        let report = core::mem::take(&mut self.done.report);
        self.done.report.prepare_failures = report.failures;
        // Samples do not grow their lists while others are timed.
        let every = self.shared.options.sample_every.max(1) as usize;
        let samples = self.shared.plan.threads[self.index].len() / every + 1;
        self.done.allocs.reserve_exact(samples);
        self.done.frees.reserve_exact(samples);
    }

    /// Does this thread's part of the trace.
    fn work(&mut self, origin: Instant) {
        let progress = &self.shared.progress[self.index].0;
        let every = self.shared.options.sample_every;
        let mut until_sample = every;
        let cpu_start = thread_cpu_ns();
        self.done.start_ns = elapsed_ns(origin);
        for op in &self.shared.plan.threads[self.index] {
            let position = u64::from(op.position);
            progress.store(position, Ordering::Relaxed);
            if position >= self.limit {
                self.await_others(position);
            }
            // At 0 from the start: never.
            until_sample = until_sample.wrapping_sub(1);
            if until_sample == 0 {
                until_sample = every;
                self.operate(op, true);
            } else {
                self.operate(op, false);
            }
        }
        self.done.end_ns = elapsed_ns(origin);
        self.done.report.cpu_ns = thread_cpu_ns() - cpu_start;
        progress.store(u64::MAX, Ordering::Relaxed);
    }

    #[inline(always)]
    fn operate(&mut self, op: &Op, sample: bool) {
        match op.action {
            Action::Alloc { order, mobility, .. } => {
                let start = sample.then(Instant::now);
                let block = self.cpu.alloc(order, mobility);
                if let Some(start) = start {
                    self.done.allocs.push(sampled(start, self.shared.clock_ns));
                }
                match block {
                    Some(_) => {
                        self.done.report.allocations += 1;
                        self.done.report.allocated_frames += 1 << order;
                    }
                    None => self.done.report.failures += 1,
                }
                // The thread that frees it sees all that the allocation did.
                self.shared.slots[op.slot as usize].store(block.unwrap_or(FAILED), Ordering::Release);
            }
            Action::Free { order } => {
                let block = self.block(op.slot);
                if block == FAILED {
                    self.done.report.skipped_frees += 1;
                    return;
                }
                let start = sample.then(Instant::now);
                self.cpu.free(block, order);
                if let Some(start) = start {
                    self.done.frees.push(sampled(start, self.shared.clock_ns));
                }
                self.done.report.frees += 1;
            }
            Action::FreePart { offset, part } => self.free_part(op.slot, offset, part, sample),
        }
    }

    /// Frees one part; if the target takes none, the whole once all its parts are due.
    fn free_part(&mut self, index: u32, offset: u16, part: u8, sample: bool) {
        let partial = self.shared.plan.partials[index as usize];
        let block = self.block(partial.slot);
        if block == FAILED {
            self.done.report.skipped_frees += 1;
            return;
        }
        let start = sample.then(Instant::now);
        if self.cpu.free_part(block + u64::from(offset), part, partial.order) {
            self.done.report.part_frees += 1;
        } else {
            self.done.report.deferred_parts += 1;
            // Parts may come on different threads: the last one sees what the others did with the block.
            let frames = 1 << part;
            let untaken = self.shared.untaken[index as usize].fetch_add(frames, Ordering::AcqRel) + frames;
            if untaken < 1 << partial.order {
                return;
            }
            self.cpu.free(block, partial.order);
            self.done.report.frees += 1;
        }
        if let Some(start) = start {
            self.done.frees.push(sampled(start, self.shared.clock_ns));
        }
    }

    /// The block of a lifetime, as soon as there is one.
    #[inline]
    fn block(&mut self, slot: u32) -> u64 {
        let block = self.shared.slots[slot as usize].load(Ordering::Acquire);
        if block == EMPTY { self.await_block(slot) } else { block }
    }

    #[cold]
    fn await_block(&mut self, slot: u32) -> u64 {
        let slot = &self.shared.slots[slot as usize];
        self.wait(|| Some(slot.load(Ordering::Acquire)).filter(|&block| block != EMPTY))
    }

    /// Waits until no thread is further behind than the window, and sets the new limit.
    #[cold]
    fn await_others(&mut self, position: u64) {
        let (shared, index) = (self.shared, self.index);
        let limit = || {
            let others = shared.progress.iter().enumerate().filter(|&(thread, _)| thread != index);
            let slowest = others.map(|(_, progress)| progress.0.load(Ordering::Relaxed)).min();
            slowest.unwrap_or(u64::MAX).saturating_add(u64::from(shared.options.window.max(1)))
        };
        self.limit = limit();
        if position >= self.limit {
            self.limit = self.wait(|| Some(limit()).filter(|&limit| position < limit));
        }
    }

    fn wait<R>(&mut self, mut ready: impl FnMut() -> Option<R>) -> R {
        let (start, cpu_start) = (Instant::now(), thread_cpu_ns());
        let mut backoff = Backoff::default();
        let result = loop {
            if let Some(result) = ready() {
                break result;
            }
            self.gate.check();
            if start.elapsed() < AWAKE {
                backoff.wait();
            } else {
                thread::sleep(NAP);
            }
        };
        self.done.report.waited_ns += elapsed_ns(start);
        self.done.report.waited_cpu_ns += thread_cpu_ns() - cpu_start;
        self.done.report.waits += 1;
        result
    }
}

/// What a sample shows, without the clock's own time.
fn sampled(start: Instant, clock_ns: u64) -> u32 {
    u32::try_from(elapsed_ns(start).saturating_sub(clock_ns)).unwrap_or(u32::MAX)
}

/// CPU time of the calling thread.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
