//! How much of the free memory stays in huge pages while a trace runs, and runs again.
//!
//! One thread does what all CPUs of the plan do, in the order of the trace, through an attachment for each CPU: what
//! comes out repeats exactly. Nothing is timed. An allocation that finds nothing is tried again when every other CPU
//! has given back its lists, as a kernel does before it fails a request.
//!
//! Every second of the trace's time each CPU does what a kernel does there about once a second, idle or not
//! ([`TargetCpu::tick`]). As often as the target says ([`Target::compaction_round_ms`]) it is asked for a round of
//! background compaction ([`TargetCpu::compact`]). Of a pause in the trace, or a leap of its clock, the last hour
//! counts: what an hour of rounds leaves as it is stays so. What moves is what the traced kernel asked for as movable,
//! pages of files among it, whatever the target was asked for; blocks from before the trace, and those that were freed
//! in part, do not. That a page of Linux may be pinned, or under writeback, no trace tells. Between two runs there is
//! no round.
//!
//! A run of the trace leaves blocks in use. Most of them are freed before the next run; one in so many stays for ever,
//! so that memory ages as it does on a machine that is not restarted.

use core::cmp::Reverse;
use core::iter;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::random::Rng;
use framewright_trace::trace::Trace;

use super::MAX_ORDER;
use super::plan::{Action, Op, Plan};
use crate::target::{Compaction, Counter, Mobility, Move, Target, TargetCpu};

/// Order of a huge page, and of a pageblock.
const HUGE: u8 = 9;

/// Nanoseconds from one tick of the CPUs to the next (Linux: `vm.stat_interval`).
const TICK_NS: u64 = 1_000_000_000;

/// The part of a pause between two events in which there are ticks and rounds: its last hour.
const PAUSE_NS: u64 = 3_600_000_000_000;

/// How a trace is run again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ageing {
    /// Runs of the trace, at least 1.
    pub runs: u32,
    /// Looks at the free memory during each run, at equal distances of the trace's time, at least 1.
    pub looks: u32,
    /// Of the blocks that a run leaves in use, one in so many stays; 0: none.
    pub one_stays_in: u32,
    /// Chooses those that stay.
    pub seed: u64,
}

impl Default for Ageing {
    /// 15 runs, 1000 looks at each, one leftover in 20 stays.
    fn default() -> Self {
        Self { runs: 15, looks: 1000, one_stays_in: 20, seed: 1 }
    }
}

/// The free memory at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Frames that the program does not have; those on the lists of a CPU are among them.
    pub free: u64,
    /// Order-9 blocks that could be allocated ([`Target::free_blocks`]): free ones, and those that wait as such on the
    /// list of a CPU.
    pub huge: u64,
    /// Pageblocks with an unmovable block.
    pub unmovable_pageblocks: u64,
}

impl Look {
    /// Share of the free frames that could be allocated as huge pages, from 0 to 1: 512 × free order-9 blocks ÷ free
    /// frames. 1 if none is free.
    #[must_use]
    pub fn available(&self) -> f64 {
        if self.free == 0 { 1.0 } else { ((self.huge << HUGE) as f64 / self.free as f64).min(1.0) }
    }

    /// The most that [`available`](Self::available) could be with so many free frames: whole huge pages are a part of
    /// them. 1 if none is free.
    #[must_use]
    pub fn possible(&self) -> f64 {
        if self.free == 0 { 1.0 } else { (self.free >> HUGE << HUGE) as f64 / self.free as f64 }
    }
}

/// One run of the trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Aged {
    /// The looks, at equal distances of the trace's time; the last is at its end.
    pub looks: Vec<Look>,
    /// Allocations that found no block.
    pub failures: u64,
    /// Frames that were allocated.
    pub allocated: u64,
    /// Rounds of background compaction; 0 if the target does without.
    pub rounds: u64,
    /// Sum of their work.
    pub compaction: Compaction,
    /// The target's counters, over this run.
    pub counters: Vec<Counter>,
    /// By order: the mean over the looks of the share of the free frames that a request of this order cannot use (the
    /// *unusable free space index*, M. Gorman and A. Whitcroft, 2006): 1 − 2^order × blocks of the order ÷ free frames.
    /// Of the first run only.
    pub unusable: [f64; MAX_ORDER as usize + 1],
}

impl Aged {
    /// Mean of [`Look::available`] over the run.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.looks.iter().map(Look::available).sum::<f64>() / self.looks.len().max(1) as f64
    }

    /// [`Look::available`] at the end of the run.
    #[must_use]
    pub fn end(&self) -> f64 {
        self.looks.last().map_or(1.0, Look::available)
    }

    /// Mean of [`Look::possible`] over the run, and its value at the end.
    #[must_use]
    pub fn possible(&self) -> (f64, f64) {
        let sum = self.looks.iter().map(Look::possible).sum::<f64>();
        (sum / self.looks.len().max(1) as f64, self.looks.last().map_or(1.0, Look::possible))
    }

    /// [`mean`](Self::mean) over those looks at which `from` to `from + 10` percent of `frames` were free; `None` if
    /// there was none.
    #[must_use]
    pub fn in_band(&self, from: u64, frames: u64) -> Option<f64> {
        let counts = |look: &&Look| {
            let tenth = (10 * look.free / frames.max(1)).min(9);
            tenth * 10 == from
        };
        let (sum, count) = self
            .looks
            .iter()
            .filter(counts)
            .fold((0.0, 0_u32), |(sum, n), look| (sum + look.available(), n + 1));
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Frames that background compaction moved for each one that was allocated.
    #[must_use]
    pub fn moved_per_allocated(&self) -> f64 {
        self.compaction.moved as f64 / self.allocated.max(1) as f64
    }

    /// Mean number of pageblocks with an unmovable block.
    #[must_use]
    pub fn unmovable_pageblocks(&self) -> f64 {
        let sum: u64 = self.looks.iter().map(|look| look.unmovable_pageblocks).sum();
        sum as f64 / self.looks.len().max(1) as f64
    }
}

/// Runs the trace that `plan` was compiled from again and again on one target, which should be fresh. All it handed out
/// is free again when this returns. `None` if the target does not manage a fixed range, or cannot tell its free blocks.
pub fn age<T: Target>(trace: &Trace, plan: &Plan, target: &T, ageing: &Ageing) -> Option<Vec<Aged>> {
    age_while(trace, plan, target, ageing, || true)
}

/// Like [`age`], but ends once `goes_on` is false, without the run that it was in, whose blocks may stay in use.
pub fn age_while<T: Target>(
    trace: &Trace,
    plan: &Plan,
    target: &T,
    ageing: &Ageing,
    goes_on: impl Fn() -> bool,
) -> Option<Vec<Aged>> {
    let frames = target.frames()?;
    target.free_blocks(HUGE)?;
    let cpus = (0..plan.threads()).map(|cpu| Some(target.attach(cpu))).collect();
    let mut driver = Driver {
        plan,
        target,
        cpus,
        frames,
        used: 0,
        unmovable: vec![0; (frames >> HUGE) as usize + 1],
        owners: Owners { blocks: Vec::new(), staying: Vec::new(), by_frame: vec![NO_BLOCK; frames as usize] },
        untaken: Vec::new(),
        failures: 0,
        allocated: 0,
    };
    let mut rng = Rng::of_thread(ageing.seed, 0, 0);
    let mut runs = Vec::new();
    for run in 0..ageing.runs.max(1) {
        if !goes_on() {
            break;
        }
        let before = target.counters();
        let mut aged = driver.run(trace, ageing.looks.max(1), run == 0, &goes_on);
        aged.counters = super::run::since(&before, target.counters());
        if goes_on() {
            runs.push(aged);
        }
        driver.release(ageing.one_stays_in, &mut rng);
    }
    for Held { frame, order, .. } in core::mem::take(&mut driver.owners.staying) {
        driver.cpu(0).free(frame, order);
    }
    Some(runs)
}

/// All operations of all CPUs, each with its CPU, in the order of the trace: an event belongs to one CPU.
fn in_order(threads: &[Vec<Op>]) -> impl Iterator<Item = (usize, &Op)> {
    let mut rest: Vec<_> = threads.iter().map(|ops| ops.iter().peekable()).collect();
    let head = |cpu: usize, op: Option<&&Op>| op.map(|op| Reverse((op.position, cpu)));
    let mut heads: BinaryHeap<_> =
        rest.iter_mut().enumerate().filter_map(|(cpu, ops)| head(cpu, ops.peek())).collect();
    iter::from_fn(move || {
        let mut first = heads.peek_mut()?;
        let Reverse((_, cpu)) = *first;
        let op = rest[cpu].next()?;
        match head(cpu, rest[cpu].peek()) {
            Some(next) => *first = next,
            None => drop(PeekMut::pop(first)),
        }
        Some((cpu, op))
    })
}

/// A block in use.
#[derive(Clone, Copy)]
struct Held {
    frame: u64,
    order: u8,
    is_unmovable: bool,
    moves: bool,
}

/// In [`Owners::by_frame`]: no block begins there.
const NO_BLOCK: u32 = u32::MAX;
/// In [`Owners::by_frame`]: a block that stays, by its number; else a lifetime. A plan has fewer than 2^31.
const STAYS: u32 = 1 << 31;

/// The blocks in use, and whose they are.
struct Owners {
    /// By lifetime.
    blocks: Vec<Option<Held>>,
    /// What earlier runs have left.
    staying: Vec<Held>,
    /// By first frame of a block.
    by_frame: Vec<u32>,
}

impl Owners {
    fn came(&mut self, lifetime: u32, held: Held) {
        self.blocks[lifetime as usize] = Some(held);
        self.by_frame[held.frame as usize] = lifetime;
    }

    fn goes(&mut self, lifetime: u32) -> Option<Held> {
        let held = self.blocks[lifetime as usize].take()?;
        self.by_frame[held.frame as usize] = NO_BLOCK;
        Some(held)
    }

    /// A block that is freed in part. What is left of it does not move, nor does what comes to lie where it began move
    /// it.
    fn parted(&mut self, lifetime: u32) -> Option<Held> {
        let held = self.blocks[lifetime as usize]?;
        let owner = &mut self.by_frame[held.frame as usize];
        if *owner == lifetime {
            *owner = NO_BLOCK;
        }
        Some(held)
    }

    fn stays(&mut self, lifetime: u32) {
        if let Some(held) = self.goes(lifetime) {
            self.by_frame[held.frame as usize] = STAYS | self.staying.len() as u32;
            self.staying.push(held);
        }
    }

    /// The block of this order at `frame`, if it can move. What is left of one that was freed in part has another
    /// order.
    fn movable(&mut self, frame: u64, order: u8) -> Option<&mut Held> {
        let held = match *self.by_frame.get(frame as usize)? {
            NO_BLOCK => None,
            owner if owner & STAYS != 0 => self.staying.get_mut((owner & !STAYS) as usize),
            lifetime => self.blocks.get_mut(lifetime as usize)?.as_mut(),
        };
        held.filter(|held| held.order == order && held.moves)
    }
}

impl Move for Owners {
    fn can_move(&mut self, frame: u64, order: u8) -> bool {
        self.movable(frame, order).is_some()
    }

    fn move_block(&mut self, from: u64, to: u64, order: u8) -> bool {
        let Some(held) = self.movable(from, order) else { return false };
        held.frame = to;
        self.by_frame[to as usize] = core::mem::replace(&mut self.by_frame[from as usize], NO_BLOCK);
        true
    }
}

struct Driver<'a, T: Target> {
    plan: &'a Plan,
    target: &'a T,
    /// By CPU; none only while it gives its lists back.
    cpus: Vec<Option<T::Cpu<'a>>>,
    frames: u64,
    /// Frames in use.
    used: u64,
    /// By pageblock: frames of unmovable blocks.
    unmovable: Vec<u32>,
    owners: Owners,
    /// By partial: frames of parts that the target did not take.
    untaken: Vec<u32>,
    failures: u64,
    /// Frames allocated in this run.
    allocated: u64,
}

impl<'a, T: Target> Driver<'a, T> {
    /// One run of the trace; the rest of it is left out once `goes_on` is false.
    fn run(&mut self, trace: &Trace, looks: u32, thorough: bool, goes_on: &impl Fn() -> bool) -> Aged {
        let plan = self.plan;
        self.owners.blocks = vec![None; self.plan.lifetimes];
        self.untaken = vec![0; self.plan.partials.len()];
        self.failures = 0;
        self.allocated = 0;
        for (cpu, ops) in plan.before.iter().enumerate() {
            ops.iter().for_each(|op| self.operate(cpu, op));
        }
        let start = trace.events.first().map_or(0, |event| event.time_ns);
        let lasts = trace.duration_ns().max(1);
        let due = |look: u32| start + (u128::from(lasts) * u128::from(look) / u128::from(looks)) as u64;
        let mut aged = Aged::default();
        let mut next = 1;
        let round_ns =
            self.target.compaction_round_ms().map_or(u64::MAX, |ms| u64::from(ms.max(1)) * 1_000_000);
        let (mut tick, mut round) = (start.saturating_add(TICK_NS), start.saturating_add(round_ns));
        'events: for (cpu, op) in in_order(&plan.threads) {
            let now = trace.events[op.position as usize].time_ns;
            while next < looks && now > due(next) {
                self.look(&mut aged, thorough);
                next += 1;
            }
            let counted = now.saturating_sub(PAUSE_NS);
            (tick, round) = (tick.max(counted), round.max(counted));
            while now > tick.min(round) {
                if !goes_on() {
                    break 'events;
                }
                if tick <= round {
                    self.cpus.iter_mut().flatten().for_each(TargetCpu::tick);
                    tick = tick.saturating_add(TICK_NS);
                } else {
                    self.compact(&mut aged);
                    round = round.saturating_add(round_ns);
                }
            }
            self.operate(cpu, op);
        }
        for _ in next..=looks {
            self.look(&mut aged, thorough);
        }
        aged.failures = self.failures;
        aged.allocated = self.allocated;
        for index in &mut aged.unusable {
            *index /= f64::from(looks);
        }
        aged
    }

    /// A round of background compaction, on the first CPU.
    fn compact(&mut self, aged: &mut Aged) {
        let target = self.target;
        let cpu = self.cpus[0].get_or_insert_with(|| target.attach(0));
        if let Some(done) = cpu.compact(&mut self.owners) {
            aged.rounds += 1;
            aged.compaction.moved += done.moved;
            aged.compaction.stayed += done.stayed;
        }
    }

    fn look(&self, aged: &mut Aged, thorough: bool) {
        let free = self.frames.saturating_sub(self.used);
        let blocks = |order| self.target.free_blocks(order).unwrap_or(0);
        aged.looks.push(Look {
            free,
            huge: blocks(HUGE),
            unmovable_pageblocks: self.unmovable.iter().filter(|&&frames| frames > 0).count() as u64,
        });
        if thorough && free > 0 {
            for (order, index) in (0..).zip(&mut aged.unusable) {
                *index += (1.0 - (blocks(order) << order) as f64 / free as f64).max(0.0);
            }
        }
    }

    fn cpu(&mut self, cpu: usize) -> &mut T::Cpu<'a> {
        let target = self.target;
        self.cpus[cpu].get_or_insert_with(|| target.attach(cpu))
    }

    fn operate(&mut self, cpu: usize, op: &Op) {
        match op.action {
            Action::Alloc { order, mobility, moves } => {
                let frame = self.cpu(cpu).alloc(order, mobility).or_else(|| {
                    // What the others keep to themselves comes back when they leave.
                    for idle in (0..self.cpus.len()).filter(|&idle| idle != cpu) {
                        self.cpus[idle] = None;
                    }
                    self.cpu(cpu).alloc(order, mobility)
                });
                self.failures += u64::from(frame.is_none());
                let is_unmovable = mobility == Mobility::Unmovable;
                if let Some(frame) = frame {
                    self.used += 1 << order;
                    self.allocated += 1 << order;
                    let held = Held { frame, order, is_unmovable, moves };
                    self.owners.came(op.slot, held);
                    self.note(held, true);
                }
            }
            Action::Free { .. } => {
                if let Some(held) = self.owners.goes(op.slot) {
                    self.cpu(cpu).free(held.frame, held.order);
                    self.used -= 1 << held.order;
                    self.note(held, false);
                }
            }
            Action::FreePart { offset, part } => self.free_part(cpu, op.slot, offset, part),
        }
    }

    fn free_part(&mut self, cpu: usize, index: u32, offset: u16, part: u8) {
        let partial = self.plan.partials[index as usize];
        let Some(whole) = self.owners.parted(partial.slot) else { return };
        let frame = whole.frame + u64::from(offset);
        let piece = Held { frame, order: part, ..whole };
        if self.cpu(cpu).free_part(frame, part, whole.order) {
            self.used -= 1 << part;
            self.note(piece, false);
            return;
        }
        let untaken = &mut self.untaken[index as usize];
        *untaken += 1 << part;
        if *untaken == 1 << whole.order {
            self.cpu(cpu).free(whole.frame, whole.order);
            self.used -= 1 << whole.order;
            self.note(whole, false);
        }
    }

    /// Takes note of an unmovable block that comes or goes.
    fn note(&mut self, held: Held, comes: bool) {
        if !held.is_unmovable {
            return;
        }
        let first = (held.frame >> HUGE) as usize;
        let each = 1_u32 << held.order.min(HUGE);
        for pageblock in first..first + (1 << held.order.saturating_sub(HUGE)) {
            if let Some(frames) = self.unmovable.get_mut(pageblock) {
                *frames = if comes { *frames + each } else { frames.saturating_sub(each) };
            }
        }
    }

    /// Frees what the trace left in use, but for one whole block in so many: those stay.
    fn release(&mut self, one_stays_in: u32, rng: &mut Rng) {
        for op in &self.plan.after {
            let is_held = match op.action {
                Action::Free { .. } => self.owners.blocks[op.slot as usize].is_some(),
                Action::FreePart { .. } | Action::Alloc { .. } => false,
            };
            if is_held && one_stays_in > 0 && rng.index(one_stays_in as usize) == 0 {
                self.owners.stays(op.slot);
            } else {
                self.operate(0, op);
            }
        }
    }
}
