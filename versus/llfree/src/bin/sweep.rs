//! Random loads, on Framewright and on LLFree in turn: `cargo run --release --bin sweep [FIRST [LOADS]]`.
//!
//! The rows of `bench` are loads that its authors thought of; these are not. Of each load its seed and what it consists
//! of is printed, the processor time of an operation, the requests that failed, and how many huge pages the free memory
//! has in the end. About a second a load.
#![deny(unsafe_code)]

#[path = "../subject.rs"]
mod subject;

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;

use fastrand::Rng;
use framewright_host::{Arena, Backing};
use framewright_subject::Bare;
use framewright_workload::target::{Mobility, Target, TargetCpu};
use rustix::time::{ClockId, clock_gettime};

/// Frames of a huge page, and its order.
const HUGE_ORDER: u8 = 9;
const HUGE: u64 = 1 << HUGE_ORDER;
/// Operations of each thread, about, and rounds of both allocators.
const OPERATIONS: usize = 200_000;
const ROUNDS: usize = 3;

/// Which block is freed next: the one that was allocated last, the oldest, or any.
#[derive(Clone, Copy, Debug)]
enum Freed {
    Last,
    Oldest,
    Any,
}

/// Threads that allocate a burst of blocks, free as many, and again.
#[derive(Clone, Debug)]
struct Load {
    threads: usize,
    /// CPUs that the allocator is made for.
    cpus: usize,
    frames: u64,
    orders: RangeInclusive<u8>,
    /// Whether an order is half as frequent as the one below.
    falls: bool,
    /// Whether a third of the requests each is movable, unmovable and reclaimable; else all are movable.
    mixed: bool,
    /// Part of the memory that is held meanwhile, in blocks that came and went.
    held: f64,
    freed: Freed,
    burst: usize,
    /// Part of the bursts that another thread frees.
    handed: f64,
    seed: u64,
}

impl Load {
    fn random(seed: u64) -> Self {
        let random = &mut Rng::with_seed(seed);
        let threads = pick(random, &[1, 1, 2, 2, 4]);
        let frames = 1 << random.u64(15..22);
        let least = pick(random, &[0, 0, 0, 1, 2, 3, 4, 6, 8, 9]);
        let most = if random.bool() { least } else { random.u8(least..=10) };
        Self {
            threads,
            cpus: pick(random, &[threads, threads, 4, 16, 64]).max(threads),
            frames,
            orders: least..=most,
            falls: random.bool(),
            mixed: random.u8(..4) == 0,
            held: pick(random, &[0.0, 0.3, 0.6, 0.8, 0.9, 0.97]),
            freed: pick(random, &[Freed::Last, Freed::Oldest, Freed::Any]),
            burst: pick(random, &[1, 8, 64, 512]),
            handed: pick(random, &[0.0, 0.0, 0.1, 1.0]),
            seed,
        }
    }

    fn request(&self, random: &mut Rng) -> (u8, Mobility) {
        let order = if self.falls {
            self.orders.clone().find(|order| order == self.orders.end() || random.bool())
        } else {
            Some(random.u8(self.orders.clone()))
        };
        let mobilities = [Mobility::Movable, Mobility::Unmovable, Mobility::Reclaimable];
        let mobility = if self.mixed { pick(random, &mobilities) } else { Mobility::Movable };
        (order.unwrap_or(*self.orders.end()), mobility)
    }

    /// Blocks of a burst: no more than the memory that is not held has room for.
    fn blocks(&self) -> usize {
        let room = (1.0 - self.held) * 0.8 * self.frames as f64 / self.threads as f64;
        let order = (self.orders.start() + self.orders.end()).div_ceil(2);
        self.burst.min(room as usize >> order).max(1)
    }
}

/// One of some values.
fn pick<T: Copy>(random: &mut Rng, from: &[T]) -> T {
    from[random.usize(..from.len())]
}

/// A block: its first frame, and its order.
type Held = (u64, u8);

/// What a load shows.
#[derive(Clone, Copy, Debug)]
struct Shown {
    /// Processor time of an operation, in nanoseconds, that of the driver included.
    ns: f64,
    /// Requests that failed, of all operations.
    failed: f64,
    /// Free huge pages, of those that the free memory could give.
    huge: f64,
    /// Frees that LLFree refused.
    refused: u64,
}

/// Processor time of this thread, in nanoseconds: time in which other processes run does not count.
fn processor_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Blocks in use: filled up, half of them freed at random, and again, twice.
fn age(load: &Load, cpu: &mut impl TargetCpu, random: &mut Rng) -> Vec<Held> {
    let share = (load.frames as f64 * load.held / load.threads as f64) as u64;
    let (mut held, mut pages) = (Vec::<Held>::new(), 0);
    for round in 0..3 {
        while pages < share {
            let (order, mobility) = load.request(random);
            let Some(frame) = cpu.alloc(order, mobility) else { break };
            held.push((frame, order));
            pages += 1 << order;
        }
        for _ in 0..if round < 2 { held.len() / 2 } else { 0 } {
            let (frame, order) = held.swap_remove(random.usize(..held.len()));
            cpu.free(frame, order);
            pages -= 1 << order;
        }
    }
    held
}

/// One thread's part. Returns the processor time, the operations, the failed requests, and the pages that it still has.
fn run_thread<T: Target>(
    load: &Load,
    target: &T,
    n: usize,
    barrier: &Barrier,
    handed: &Mutex<Vec<Held>>,
) -> (f64, u64, u64, u64) {
    let mut cpu = target.attach(n);
    let random = &mut Rng::with_seed(load.seed * 64 + n as u64);
    let mut held = VecDeque::from(age(load, &mut cpu, random));
    let (mut operations, mut failed) = (0, 0);
    let (mut got, mut to_free) = (Vec::<Held>::new(), Vec::<Held>::new());
    let blocks = load.blocks();
    barrier.wait();
    let begin = processor_ns();
    for _ in 0..(OPERATIONS / 2 / blocks).clamp(20, OPERATIONS / 4) {
        for _ in 0..blocks {
            let (order, mobility) = load.request(random);
            match cpu.alloc(order, mobility) {
                Some(frame) => got.push((frame, order)),
                None => failed += 1,
            }
        }
        if load.handed > 0.0 && random.f64() < load.handed {
            let mut handed = handed.lock().unwrap_or_else(PoisonError::into_inner);
            if handed.len() < 4 * blocks {
                handed.append(&mut got);
            }
            if handed.len() >= blocks {
                to_free.extend(handed.drain(..blocks));
            }
        }
        let count = got.len();
        match load.freed {
            Freed::Last => to_free.append(&mut got),
            Freed::Oldest => {
                held.extend(got.drain(..));
                to_free.extend(held.drain(..count));
            }
            Freed::Any => {
                held.extend(got.drain(..));
                to_free.extend((0..count).filter_map(|_| held.swap_remove_back(random.usize(..held.len()))));
            }
        }
        operations += (blocks + to_free.len()) as u64;
        to_free.drain(..).for_each(|(frame, order)| cpu.free(frame, order));
    }
    let time = processor_ns() - begin;
    // All threads are attached until the last one is done.
    barrier.wait();
    (time, operations, failed, held.iter().map(|&(_, order)| 1 << order).sum())
}

fn run<T: Target>(load: &Load, target: &T) -> Shown {
    let free = |order| target.free_blocks(order).expect("both tell");
    let all = free(0);
    let (barrier, handed) = (Barrier::new(load.threads), Mutex::new(Vec::new()));
    let parts: Vec<_> = thread::scope(|scope| {
        let (barrier, handed) = (&barrier, &handed);
        let run = |n| scope.spawn(move || run_thread(load, target, n, barrier, handed));
        let threads: Vec<_> = (0..load.threads).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("a panic ends the process")).collect()
    });
    let handed = handed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let held =
        parts.iter().map(|part| part.3).sum::<u64>() + handed.iter().map(|block| 1 << block.1).sum::<u64>();
    let operations = parts.iter().map(|part| part.1).sum::<u64>() as f64;
    Shown {
        ns: parts.iter().map(|part| part.0).sum::<f64>() / operations,
        failed: parts.iter().map(|part| part.2).sum::<u64>() as f64 / operations,
        huge: free(HUGE_ORDER) as f64 / (all.saturating_sub(held) / HUGE).max(1) as f64,
        refused: target
            .counters()
            .iter()
            .filter(|counter| counter.name == "refused_frees")
            .map(|counter| counter.value)
            .sum(),
    }
}

fn framewright(load: &Load) -> Bare {
    let arena = Arena::builder().pages(load.frames).backing(Backing::Described).cpus(load.cpus).build();
    Bare::new(arena.expect("an arena without memory"))
}

/// The fastest of several rounds, and the worst of the rest.
fn best(old: Option<Shown>, now: Shown) -> Shown {
    old.map_or(now, |old| Shown {
        ns: old.ns.min(now.ns),
        failed: old.failed.max(now.failed),
        huge: old.huge.min(now.huge),
        refused: old.refused + now.refused,
    })
}

fn main() -> ExitCode {
    let numbers: Result<Vec<u64>, _> = std::env::args().skip(1).map(|word| word.parse()).collect();
    let (first, loads) = match numbers.as_deref() {
        Ok([]) => (0, 100),
        Ok([first]) => (*first, 100),
        Ok([first, loads]) => (*first, *loads),
        _ => {
            eprintln!(
                "usage: sweep [FIRST [LOADS]]: the seed of the first load, and how many; 0 and 100 without"
            );
            return ExitCode::from(2);
        }
    };
    // A thread that waits for one that has ended would wait for ever.
    std::panic::set_hook(Box::new(|what| {
        eprintln!("{what}");
        std::process::abort();
    }));
    let mut all: Vec<[Shown; 2]> = Vec::new();
    for seed in first..first + loads {
        let load = Load::random(seed);
        let mut shown = [None, None];
        let llfree = || subject::subject(load.frames, load.cpus).expect("LLFree takes any number of CPUs");
        for round in 0..ROUNDS {
            // Each is the first in every second round.
            for which in [round % 2, 1 - round % 2] {
                let now = if which == 0 { run(&load, &framewright(&load)) } else { run(&load, &llfree()) };
                shown[which] = Some(best(shown[which], now));
            }
        }
        let [ours, llfree] = shown.map(|shown| shown.expect("there are rounds"));
        println!(
            "{seed}: {:.2} times LLFree's time, {:.0} and {:.0} ns, failed {:.2} and {:.2} %, huge {:.0} and {:.0} %: {load:?}",
            ours.ns / llfree.ns,
            ours.ns,
            llfree.ns,
            100.0 * ours.failed,
            100.0 * llfree.failed,
            100.0 * ours.huge,
            100.0 * llfree.huge
        );
        all.push([ours, llfree]);
    }
    if all.is_empty() {
        return ExitCode::SUCCESS;
    }
    let mut ratios: Vec<f64> = all.iter().map(|[ours, llfree]| ours.ns / llfree.ns).collect();
    ratios.sort_by(f64::total_cmp);
    let quantile = |part: f64| ratios[(part * (ratios.len() - 1) as f64).round() as usize];
    let mean = |part: fn(&Shown) -> f64| {
        [0, 1]
            .map(|which| 100.0 * all.iter().map(|shown| part(&shown[which])).sum::<f64>() / all.len() as f64)
    };
    let [huge, llfrees_huge] = mean(|shown| shown.huge);
    let [failed, llfrees_failed] = mean(|shown| shown.failed);
    println!(
        "{} loads: {:.2} times LLFree's time in the median, {:.2} to {:.2} in the middle half, {:.2} to {:.2} in all; \
         not slower in {}; huge pages {huge:.0} and {llfrees_huge:.0} %; failed requests {failed:.2} and {llfrees_failed:.2} %; LLFree refused {} frees",
        all.len(),
        quantile(0.5),
        quantile(0.25),
        quantile(0.75),
        quantile(0.0),
        quantile(1.0),
        ratios.iter().filter(|&&ratio| ratio <= 1.0).count(),
        all.iter().map(|shown| shown[1].refused).sum::<u64>()
    );
    ExitCode::SUCCESS
}
