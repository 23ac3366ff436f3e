//! Orders 0 to 9 mixed in memory that is mostly held, frees in any order, and blocks that another thread frees.
//!
//! What [`mixed`](super::mixed) leaves out: it holds a quarter of the memory, in blocks up to order 4, and each thread
//! frees its own. Here the first and last frame of each block are marked with its owner: a block with two owners ends
//! the run. After each timed stretch the huge blocks are counted that can still be had, because a free store that is
//! fast and breaks them up would look good in the time alone.

use core::sync::atomic::Ordering::AcqRel;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::random::Rng;

use super::stage::{Meeting as _, Stage};
use super::team::Agreed;
use super::{Case, Measurement, Metric, Scale, Tally, opaque};
use crate::target::{Mobility, TargetCpu};

/// Percent of the memory that the threads hold, all together.
const HELD: [u64; 3] = [50, 75, 90];

/// Order of the blocks that are counted: a huge page of 2 MiB. Also the largest that is asked for.
pub(super) const HUGE: u8 = 9;

/// Of so many frees, one leaves the block to the next thread.
const HANDED_OVER: usize = 8;

/// Blocks that a thread collects before it hands them over.
const PARCEL: usize = 32;

/// Of what a thread may hold, one part in so many may wait in the inbox of the next thread. When that thread does not
/// look, the others free their own blocks.
const WAITING: u64 = 16;

/// Operations between two looks at what others handed over.
const TURN: u64 = 64;

/// A frame that is free. Thread `n` marks its frames with `n + 1`.
const FREE: u32 = 0;
/// A frame that is in an inbox, or on its way there.
const HANDED: u32 = u32::MAX;

/// First frame and order, packed: a list element stays one word.
type Packed = u64;

const fn frame_and_order(block: Packed) -> (u64, u8) {
    (block >> 8, block as u8)
}

/// Blocks that the thread before left to a thread. In cache lines of its own: each operation of the thread before reads
/// `pages`.
#[derive(Default)]
#[repr(align(128))]
struct Inbox {
    blocks: Mutex<Vec<Packed>>,
    /// Frames of `blocks`. Written with the lock.
    pages: AtomicU64,
}

/// What all threads of a run share.
struct Shared {
    /// Owner of a frame, by its number modulo the frames that the allocator manages.
    owners: Vec<AtomicU32>,
    /// By thread.
    inboxes: Vec<Inbox>,
    /// Frames that are held where huge blocks are counted.
    held: [AtomicU64; HELD.len()],
}

impl Shared {
    fn new(frames: u64, cpus: usize) -> Self {
        Self {
            owners: (0..frames).map(|_| AtomicU32::new(FREE)).collect(),
            inboxes: (0..cpus).map(|_| Inbox::default()).collect(),
            held: Default::default(),
        }
    }

    /// A block passes from one owner to another, and its first and last frame say so. A block handed out twice is
    /// found, and so is a smaller one at either end of it; one in the middle is not: marking every frame would cost
    /// more than the allocator.
    fn pass(&self, block: Packed, from: u32, to: u32) {
        let (frame, order) = frame_and_order(block);
        // Allocators number their frames from zero, or from where their memory begins.
        let at = |frame: u64| &self.owners[(frame % self.owners.len() as u64) as usize];
        let last = frame + (1 << order) - 1;
        let ends = if order == 0 { &[frame][..] } else { &[frame, last][..] };
        for &frame in ends {
            let before = at(frame).swap(to, AcqRel);
            assert!(
                before == from,
                "frame {frame} of a block of order {order} is marked {before}, not {from}: two have it"
            );
        }
    }
}

/// See [`Workload::Stress`](super::Workload::Stress).
pub(super) fn stress<S: Stage>(stage: &S, case: &Case, scale: &Scale, round: u64) -> Measurement {
    let shared = Shared::new(scale.frames, case.cpus);
    let agreed = [(); HELD.len()].map(|()| Agreed::new());
    let done = stage.on_cpus(case.cpus, |index, gate, cpu| {
        let mut thread = Thread::new(&shared, index, Rng::of_thread(scale.seed, round, index));
        let mut stretches = [Stretch::default(); HELD.len()];
        for (at, (percent, stretch)) in HELD.into_iter().zip(&mut stretches).enumerate() {
            thread.most = scale.frames * percent / 100 / case.cpus as u64;
            thread.grow(cpu);
            gate.wait();
            let count = agreed[at].warm_up::<S>(gate, scale.operations, |step| thread.steps(cpu, step));
            (thread.asked, thread.refused) = (0, 0);
            let start = S::now();
            thread.steps(cpu, count);
            stretch.tally.add(S::since(start), count, 0);
            (stretch.asked, stretch.refused) = (thread.asked, thread.refused);
            gate.wait();
            shared.held[at].fetch_add(thread.held(), Ordering::Relaxed);
            if index == 0 {
                stretch.huge_left = huge_left(cpu);
            }
            gate.wait();
        }
        thread.leave();
        gate.wait();
        thread.take_inbox(cpu, true);
        thread.free_all(cpu);
        stretches
    });

    let mut measurement = Measurement { pinned: done.pinned, ..Measurement::default() };
    for (at, percent) in HELD.into_iter().enumerate() {
        let tally = Tally::sum(done.results.iter().map(|stretches| stretches[at].tally));
        let sum = |count: fn(&Stretch) -> u64| {
            done.results.iter().map(|stretches| count(&stretches[at])).sum::<u64>()
        };
        let ideal = scale.frames.saturating_sub(shared.held[at].load(Ordering::Relaxed)) >> HUGE;
        measurement.operations += tally.operations;
        measurement.metrics.push(tally.metric(case.key(&format!("stress_{percent}_ns"))));
        for (name, higher_is_better, part, whole) in [
            ("huge", true, sum(|stretch| stretch.huge_left), ideal),
            ("refused", false, sum(|stretch| stretch.refused), sum(|stretch| stretch.asked)),
        ] {
            let name = case.key(&format!("stress_{percent}_{name}_percent"));
            measurement.metrics.push(Metric::percent(name, higher_is_better, part, whole));
        }
    }
    measurement
}

/// What one thread did while so much was held.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    tally: Tally,
    asked: u64,
    refused: u64,
    /// Huge blocks that could be had behind it; counted by one thread.
    huge_left: u64,
}

/// Huge blocks that one CPU of a bounded allocator can have while the others rest.
pub(super) fn huge_left(cpu: &mut impl TargetCpu) -> u64 {
    let mut blocks = Vec::new();
    while let Some(block) = cpu.alloc(HUGE, Mobility::Movable) {
        blocks.push(block);
    }
    blocks.iter().for_each(|&block| cpu.free(block, HUGE));
    blocks.len() as u64
}

/// What one thread holds.
struct Thread<'r> {
    shared: &'r Shared,
    index: usize,
    blocks: Vec<Packed>,
    /// Blocks for the next thread, not yet in its inbox.
    parcel: Vec<Packed>,
    /// Frames of `blocks` and `parcel`.
    pages: u64,
    /// Frames that it may hold.
    most: u64,
    rng: Rng,
    /// Allocations in the timed stretch, and how many of them found no block.
    asked: u64,
    refused: u64,
    was_refused: bool,
}

impl<'r> Thread<'r> {
    fn new(shared: &'r Shared, index: usize, rng: Rng) -> Self {
        let (blocks, parcel) = (Vec::new(), Vec::new());
        Self {
            shared,
            index,
            blocks,
            parcel,
            pages: 0,
            most: 0,
            rng,
            asked: 0,
            refused: 0,
            was_refused: false,
        }
    }

    /// How its frames are marked.
    fn mark(&self) -> u32 {
        self.index as u32 + 1
    }

    /// The next thread's inbox.
    fn next_inbox(&self) -> &'r Inbox {
        let inboxes = &self.shared.inboxes;
        &inboxes[(self.index + 1) % inboxes.len()]
    }

    /// Frames that count as its own: what it left in the inbox, too, until the next thread takes it. So all threads
    /// together hold the percentage, however late one of them looks into its inbox.
    fn held(&self) -> u64 {
        self.pages + self.next_inbox().pages.load(Ordering::Relaxed)
    }

    /// Allocates until it holds what it may, or nothing fits any more.
    fn grow<C: TargetCpu>(&mut self, cpu: &mut C) {
        let mut refused_in_a_row = 0;
        while self.held() < self.most && refused_in_a_row < 64 {
            self.allocate(cpu);
            refused_in_a_row = if self.was_refused { refused_in_a_row + 1 } else { 0 };
        }
    }

    /// One operation each, by a coin: between fifteen sixteenths of what it may hold and all of it. After a refusal it
    /// frees.
    fn steps<C: TargetCpu>(&mut self, cpu: &mut C, count: u64) {
        for step in 0..count {
            if step % TURN == 0 {
                self.take_inbox(cpu, false);
            }
            let coin = self.rng.next() & 1 == 0;
            let held = self.held();
            let wants = held < self.most && (coin || held < self.most - self.most / 16);
            if wants && !self.was_refused || self.blocks.is_empty() {
                self.allocate(cpu);
            } else {
                self.free(cpu);
            }
        }
    }

    /// Each order half as often as the one below, and now and then any of them.
    fn order(&mut self) -> u8 {
        let random = self.rng.next();
        match random & 15 {
            0 => self.rng.index(usize::from(HUGE) + 1) as u8,
            _ => ((random >> 32) as u32).trailing_zeros().min(u32::from(HUGE)) as u8,
        }
    }

    fn allocate<C: TargetCpu>(&mut self, cpu: &mut C) {
        let order = self.order();
        let frame = cpu.alloc(order, Mobility::Movable);
        self.asked += 1;
        self.was_refused = frame.is_none();
        self.refused += u64::from(self.was_refused);
        if let Some(frame) = frame {
            let block = frame << 8 | u64::from(order);
            self.shared.pass(block, FREE, self.mark());
            self.blocks.push(block);
            self.pages += 1 << order;
        }
        opaque(cpu);
    }

    fn free<C: TargetCpu>(&mut self, cpu: &mut C) {
        self.was_refused = false;
        let block = self.blocks.swap_remove(self.rng.index(self.blocks.len()));
        let hands_over = self.shared.inboxes.len() > 1 && self.rng.index(HANDED_OVER) == 0;
        if hands_over && self.next_inbox().pages.load(Ordering::Relaxed) < self.most / WAITING {
            self.shared.pass(block, self.mark(), HANDED);
            self.parcel.push(block);
            if self.parcel.len() >= PARCEL {
                self.send();
            }
        } else {
            self.pages -= 1 << frame_and_order(block).1;
            self.release(cpu, block, self.mark());
        }
        opaque(cpu);
    }

    fn release<C: TargetCpu>(&self, cpu: &mut C, block: Packed, from: u32) {
        let (frame, order) = frame_and_order(block);
        self.shared.pass(block, from, FREE);
        cpu.free(frame, order);
    }

    /// Leaves the parcel to the next thread, unless that one looks into its inbox just now.
    fn send(&mut self) {
        if let Ok(blocks) = self.next_inbox().blocks.try_lock() {
            self.put_into(blocks);
        }
    }

    fn put_into(&mut self, mut blocks: MutexGuard<'_, Vec<Packed>>) {
        let pages = self.parcel.iter().map(|&block| 1_u64 << frame_and_order(block).1).sum::<u64>();
        self.next_inbox().pages.fetch_add(pages, Ordering::Relaxed);
        self.pages -= pages;
        blocks.append(&mut self.parcel);
    }

    /// Takes what the thread before left: keeps every other block while there is room, and frees the others.
    fn take_inbox<C: TargetCpu>(&mut self, cpu: &mut C, all: bool) {
        let inbox = &self.shared.inboxes[self.index];
        let Ok(mut waiting) = inbox.blocks.try_lock() else { return };
        let blocks = core::mem::take(&mut *waiting);
        inbox.pages.store(0, Ordering::Relaxed);
        drop(waiting);
        for (at, block) in blocks.into_iter().enumerate() {
            if at % 2 == 0 && self.held() < self.most && !all {
                self.shared.pass(block, HANDED, self.mark());
                self.pages += 1 << frame_and_order(block).1;
                self.blocks.push(block);
            } else {
                self.release(cpu, block, HANDED);
                opaque(cpu);
            }
        }
    }

    /// Leaves what is left of the parcel. Between two meetings of the threads: no inbox is looked into meanwhile.
    fn leave(&mut self) {
        self.put_into(self.next_inbox().blocks.lock().expect("no thread dies with it"));
    }

    fn free_all<C: TargetCpu>(&mut self, cpu: &mut C) {
        for block in core::mem::take(&mut self.blocks) {
            self.release(cpu, block, self.mark());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target as _;
    use crate::testing::Buddy;

    #[test]
    fn a_thread_holds_no_more_than_its_part_while_the_next_one_sleeps() {
        const FRAMES: u64 = 1 << 15;
        let (buddy, shared) = (Buddy::new(FRAMES).watched(), Shared::new(FRAMES, 2));
        let mut cpu = buddy.attach(0);
        let mut thread = Thread::new(&shared, 0, Rng::of_thread(1, 0, 0));
        thread.most = FRAMES * 45 / 100;
        thread.grow(&mut cpu);
        for _ in 0..100 {
            thread.steps(&mut cpu, 1000);
            let in_use = FRAMES - buddy.free_blocks(0).unwrap();
            assert_eq!(in_use, thread.held());
            assert!(in_use < thread.most + (1 << HUGE), "{in_use} frames of {}", thread.most);
        }
        assert!(thread.next_inbox().pages.load(Ordering::Relaxed) > 0, "it hands over");
        assert_eq!(thread.refused, 0);
    }

    #[test]
    fn one_operation_in_sixteen_hands_a_block_over() {
        const FRAMES: u64 = 1 << 15;
        const STEPS: u64 = 1 << 14;
        let (buddy, shared) = (Buddy::new(FRAMES).watched(), Shared::new(FRAMES, 2));
        let mut cpu = buddy.attach(0);
        let mut threads = [0, 1].map(|index| Thread::new(&shared, index, Rng::of_thread(1, 0, index)));
        for thread in &mut threads {
            thread.most = FRAMES * 45 / 100;
            thread.grow(&mut cpu);
            thread.asked = 0;
        }
        let mut received = 0;
        let before = buddy.inner().frees();
        for _ in 0..STEPS / TURN {
            threads[0].steps(&mut cpu, TURN);
            // What the next thread gets it frees here, all of it.
            let frees = buddy.inner().frees();
            threads[1].take_inbox(&mut cpu, true);
            received += buddy.inner().frees() - frees;
        }
        let freed = buddy.inner().frees() - before - received;
        let handed_over = STEPS - threads[0].asked - freed;
        let parts = STEPS as f64 / handed_over as f64;
        assert!((14.0..18.0).contains(&parts), "one of {parts}");
    }
}
