//! What the parts of this machine cost: a few seconds of chases, ping-pong and streams.
//!
//! Each figure is measured in short bursts. Whatever else runs here only makes a burst longer, so the lower quartile
//! stands for the figure, between the shortest burst and the median. Two CPUs that cannot run at the same time measure
//! nothing: see [`PATIENCE`].

use core::hint::{black_box, spin_loop};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::random::Rng;

/// Bytes of a cache line, and of a page.
const LINE: usize = 64;
const PAGE: usize = 4096;
/// Words of a line.
const WORDS: usize = LINE / 8;
/// Bursts of each figure.
const BURSTS: usize = 32;
/// One figure takes no longer than this; with fewer than `FEWEST` bursts by then there is none.
pub const PATIENCE: Duration = Duration::from_millis(400);
const FEWEST: usize = 5;

/// A figure, with the range that it was found in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The lower quartile of all bursts.
    pub value: f64,
    /// The shortest burst.
    pub low: f64,
    /// The median.
    pub high: f64,
}

impl Figure {
    /// From bursts; none if there are too few.
    fn of(mut bursts: Vec<f64>) -> Option<Self> {
        if bursts.len() < FEWEST {
            return None;
        }
        bursts.sort_by(f64::total_cmp);
        let at = |share: usize| bursts[(bursts.len() - 1) * share / 4];
        Some(Self { value: at(1), low: at(0), high: at(2) })
    }

    /// Itself in another unit, which may turn it over.
    #[must_use]
    pub fn map(self, with: impl Fn(f64) -> f64) -> Self {
        let ends = [with(self.low), with(self.high)];
        Self { value: with(self.value), low: ends[0].min(ends[1]), high: ends[0].max(ends[1]) }
    }
}

/// Times bursts of `steps` steps, in ns for each step.
fn bursts(steps: u64, mut burst: impl FnMut(u64)) -> Option<Figure> {
    let begin = Instant::now();
    let mut times = Vec::with_capacity(BURSTS);
    burst(steps);
    while times.len() < BURSTS && begin.elapsed() < PATIENCE {
        let start = Instant::now();
        burst(steps);
        times.push(start.elapsed().as_nanos() as f64 / steps as f64);
    }
    Figure::of(times)
}

/// The CPUs that this process may run on; empty if the system does not say.
#[must_use]
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect()
}

/// The system's base page, in KiB.
#[must_use]
pub fn page_kib() -> u32 {
    (rustix::param::page_size() >> 10) as u32
}

/// Moves the calling thread to a CPU. Says whether it did.
pub fn pin_to(cpu: usize) -> bool {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return false;
    }
    set.set(cpu);
    sched_setaffinity(None, &set).is_ok()
}

/// Runs `work` on a thread of its own on that CPU.
pub fn on_cpu<R: Send>(cpu: usize, work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin_to(cpu);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// ns of one core cycle: steps of an exclusive or and a multiplication, each of which waits for the one before. These
/// take one and three cycles on x86 since 2008 and on 64-bit Arm cores of servers.
#[must_use]
pub fn cycle() -> Option<Figure> {
    const CYCLES: f64 = 4.0;
    let mut value = black_box(1_u64);
    let figure = bursts(1 << 18, |steps| {
        for _ in 0..steps {
            value = (value ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        black_box(value);
    })?;
    Some(figure.map(|ns| ns / CYCLES))
}

/// ns of a step of code that is bound by what a core can do at a time: twelve operations in six chains, three to four
/// cycles on a core with four units. More, up to twice as much, while another hardware thread of the core works, of
/// which a guest is not told; [`cycle`] then stays as it is.
#[must_use]
pub fn wide() -> Option<Figure> {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut chains = black_box([1_u64, 2, 3, 4, 5, 6]);
    bursts(1 << 13, |steps| {
        let mut all = chains;
        for _ in 0..steps {
            // No vector unit rotates words, so that each chain stays in a register of its own.
            all = all.map(|chain| chain.rotate_left(9).wrapping_add(STEP));
        }
        chains = black_box(all);
    })
}

/// Time of a [`wide`] step on each of these CPUs, in ns: medians, all measured together. None where it took too long.
#[must_use]
pub fn wide_on(cpus: &[usize]) -> Vec<Option<f64>> {
    thread::scope(|scope| {
        let threads: Vec<_> = cpus.iter().map(|&cpu| scope.spawn(move || on_cpu(cpu, wide))).collect();
        threads.into_iter().map(|thread| Some(thread.join().ok()??.high)).collect()
    })
}

/// ns of a pause instruction.
#[must_use]
pub fn pause() -> Option<Figure> {
    bursts(1 << 12, |steps| (0..steps).for_each(|_| spin_loop()))
}

/// ns of an atomic addition to a word in the first level, one after the other.
#[must_use]
pub fn exchange() -> Option<Figure> {
    let word = AtomicU64::new(0);
    bursts(1 << 14, |steps| {
        for _ in 0..steps {
            black_box(&word).fetch_add(1, Ordering::AcqRel);
        }
    })
}

/// ns of an access in code like an allocator's, all of it in the first level: a number is popped off a stack, the word
/// that it names is read, changed and stored, and the number is pushed. From steps that do not wait for one another, to
/// steps each of which pops what the one before has pushed.
#[must_use]
pub fn access() -> Option<Figure> {
    const NUMBERS: usize = 512;
    const ACCESSES: f64 = 4.0;
    let mut stack: Vec<u64> = (0..NUMBERS as u64).rev().collect();
    let mut words = vec![0_u64; NUMBERS];
    let mut run = |stride: usize| {
        bursts(1 << 14, |steps| {
            let mut top = 0;
            for _ in 0..steps {
                let (stack, words) = (black_box(&mut stack[..]), black_box(&mut words[..]));
                let number = stack[top % NUMBERS] as usize % NUMBERS;
                words[number] ^= 1;
                stack[top % NUMBERS] = ((number as u64) + (words[number] & 1)) % NUMBERS as u64;
                top += stride;
            }
        })
    };
    let (free, waits) = (run(1)?, run(0)?);
    let [low, high] = [free.value.min(waits.value), free.value.max(waits.value)];
    Some(Figure { value: (low * high).sqrt(), low, high }.map(|ns| ns / ACCESSES))
}

/// A way through all lines of a buffer, `together` of them in each page before the next page. Pages and lines follow at
/// random.
fn way(bytes: usize, together: usize) -> Vec<u64> {
    let (pages, lines) = (bytes / PAGE, PAGE / LINE);
    let mut rng = Rng::of_thread(1, 0, 0);
    let mut order: Vec<usize> = (0..pages).collect();
    let mut within: Vec<usize> = (0..lines).collect();
    rng.shuffle(&mut within);
    let mut buffer = vec![0_u64; bytes / 8];
    let mut last = None;
    let mut first = 0;
    for pass in within.chunks(together) {
        rng.shuffle(&mut order);
        for page in &order {
            // Another page has its lines in another order.
            for line in pass {
                let at = (page * lines + (line + page * 37) % lines) * WORDS;
                match last {
                    Some(before) => buffer[before] = at as u64,
                    None => first = at,
                }
                last = Some(at);
            }
        }
    }
    if let Some(last) = last {
        buffer[last] = first as u64;
    }
    buffer
}

/// ns of a read in a chain of reads through so many bytes, `together` of them in each page at a time.
#[must_use]
pub fn chase(bytes: usize, together: usize) -> Option<Figure> {
    let buffer = way(bytes.next_multiple_of(PAGE), together);
    follow(&buffer)
}

/// Like [`chase`], through memory that a thread on another CPU has touched first.
#[must_use]
pub fn chase_from(bytes: usize, together: usize, home: usize) -> Option<Figure> {
    let buffer = on_cpu(home, || way(bytes.next_multiple_of(PAGE), together));
    follow(&buffer)
}

fn follow(buffer: &[u64]) -> Option<Figure> {
    let mut at = 0;
    // A first time through what the caches can hold.
    for _ in 0..(buffer.len() / WORDS).min(1 << 19) {
        at = buffer[at] as usize;
    }
    bursts(1 << 13, |steps| {
        for _ in 0..steps {
            at = buffer[at] as usize;
        }
        black_box(at);
    })
}

/// A word in lines that nothing else shares, nor the neighbour that hardware fetches with them.
#[derive(Debug, Default)]
#[repr(align(256))]
struct Apart<T>(T);

/// When two threads give up waiting for one another.
struct Patience {
    begin: Instant,
    over: AtomicBool,
}

impl Patience {
    fn new() -> Self {
        Self { begin: Instant::now(), over: AtomicBool::new(false) }
    }

    /// Whether it is over. Looks at the clock now and then only.
    fn now(&self, tried: &mut u32) -> bool {
        *tried += 1;
        if tried.is_multiple_of(1 << 12) && self.begin.elapsed() > PATIENCE {
            self.end();
        }
        self.over.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// ns that a line takes from one of two CPUs to the other, where both change it by compare-and-swap in turn.
#[must_use]
pub fn ping_pong(first: usize, second: usize) -> Option<Figure> {
    const TURNS: u64 = 1000;
    let (turn, stop) = (Apart(AtomicU64::new(0)), Patience::new());
    let swap = |from: u64| {
        let mut tried = 0;
        while turn.0.compare_exchange(from, from + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            if stop.now(&mut tried) {
                return false;
            }
        }
        true
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            pin_to(second);
            let mut next = 1;
            while swap(next) {
                next += 2;
            }
        });
        let measured = scope.spawn(|| {
            pin_to(first);
            let mut next = 0;
            let mut times = Vec::new();
            while times.len() < 2 * BURSTS {
                let start = Instant::now();
                let all = (0..TURNS).all(|turn| swap(next + 2 * turn));
                if !all {
                    break;
                }
                next += 2 * TURNS;
                times.push(start.elapsed().as_nanos() as f64 / (2 * TURNS) as f64);
            }
            stop.end();
            Figure::of(times)
        });
        measured.join().unwrap_or_default()
    })
}

/// ns of a read of a line that another CPU has just changed, in a chain of such reads.
#[must_use]
pub fn read_modified(reader: usize, writer: usize) -> Option<Figure> {
    const LINES: usize = 256;
    let mut next = vec![0_usize; LINES];
    let mut order: Vec<usize> = (0..LINES).collect();
    Rng::of_thread(1, 0, 0).shuffle(&mut order);
    for pair in 0..LINES {
        next[order[pair]] = order[(pair + 1) % LINES];
    }
    let lines: Vec<Apart<AtomicUsize>> = next.iter().map(|at| Apart(AtomicUsize::new(*at))).collect();
    let (turn, stop) = (Apart(AtomicU64::new(0)), Patience::new());
    // Even: the writer's turn.
    let wait = |odd: u64| {
        let mut tried = 0;
        while turn.0.load(Ordering::Acquire) % 2 != odd {
            if stop.now(&mut tried) {
                return false;
            }
            spin_loop();
        }
        true
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            pin_to(writer);
            while wait(0) {
                for (line, at) in lines.iter().zip(&next) {
                    line.0.store(*at, Ordering::Relaxed);
                }
                turn.0.fetch_add(1, Ordering::AcqRel);
            }
        });
        let measured = scope.spawn(|| {
            pin_to(reader);
            let mut times = Vec::new();
            while times.len() < 4 * BURSTS && wait(1) {
                let start = Instant::now();
                let mut at = 0;
                for _ in 0..LINES {
                    at = lines[at].0.load(Ordering::Relaxed);
                }
                black_box(at);
                times.push(start.elapsed().as_nanos() as f64 / LINES as f64);
                turn.0.fetch_add(1, Ordering::AcqRel);
            }
            stop.end();
            Figure::of(times)
        });
        measured.join().unwrap_or_default()
    })
}

/// Work of a stream on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Reads.
    Read,
    /// Reads and writes back, one to one.
    Change,
}

/// GB/s (10⁹ bytes) that pass when these CPUs stream at once through `bytes` of memory, each through its own part.
#[must_use]
pub fn stream(cpus: &[usize], bytes: usize, how: Stream) -> Option<Figure> {
    const ROUNDS: usize = 12;
    let words = bytes / 8 / cpus.len().max(1);
    let together = Barrier::new(cpus.len());
    let slowdown = |cpu: usize| {
        pin_to(cpu);
        let mut part = vec![1_u64; words];
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            together.wait();
            let start = Instant::now();
            match how {
                Stream::Read => _ = black_box(part.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word))),
                Stream::Change => black_box(&mut part[..]).iter_mut().for_each(|word| *word ^= 1),
            }
            times.push(start.elapsed().as_nanos() as f64);
        }
        times
    };
    let all: Vec<Vec<f64>> = thread::scope(|scope| {
        let threads: Vec<_> = cpus.iter().map(|&cpu| scope.spawn(move || slowdown(cpu))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    // The slowest thread ends a round. The first touched its memory.
    let slowest = (1..ROUNDS).map(|round| {
        all.iter().map(|times| times.get(round).copied().unwrap_or(f64::INFINITY)).fold(0.0, f64::max)
    });
    let moved = match how {
        Stream::Read => 1.0,
        Stream::Change => 2.0,
    } * (words * 8 * cpus.len()) as f64;
    Some(Figure::of(slowest.collect())?.map(|ns| moved / ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_leads_through_every_line_once() {
        for together in [1, 8] {
            let buffer = way(16 * PAGE, together);
            let (mut at, mut seen) = (0, vec![false; buffer.len() / WORDS]);
            for _ in 0..seen.len() {
                assert!(at % WORDS == 0 && !core::mem::replace(&mut seen[at / WORDS], true));
                at = buffer[at] as usize;
            }
            assert_eq!(at, 0, "it comes back");
        }
    }

    #[test]
    fn a_figure_lies_within_its_range_and_turns_over() {
        let figure = Figure::of(vec![4.0, 1.0, 2.0, 8.0, 3.0]).expect("enough bursts");
        assert_eq!(figure, Figure { value: 2.0, low: 1.0, high: 3.0 });
        assert_eq!(figure.map(|ns| 6.0 / ns), Figure { value: 3.0, low: 2.0, high: 6.0 });
        assert!(Figure::of(vec![1.0; FEWEST - 1]).is_none());
    }

    #[test]
    fn every_probe_ends_and_is_positive() {
        let cpus = allowed_cpus();
        let first = cpus.first().copied().unwrap_or(0);
        let all = [
            cycle(),
            pause(),
            exchange(),
            access(),
            chase(1 << 14, 8),
            chase_from(1 << 20, 1, first),
            stream(&[first], 1 << 22, Stream::Read),
            stream(&[first], 1 << 22, Stream::Change),
        ];
        for figure in all {
            // A machine that is very busy may have too few bursts; what there is makes sense.
            let figure = figure.unwrap_or(Figure { value: 1.0, low: 1.0, high: 1.0 });
            assert!(
                figure.low > 0.0 && figure.low <= figure.value && figure.value <= figure.high,
                "{figure:?}"
            );
        }
        // Two threads on one CPU take turns by the scheduler: too slow to count, but it ends.
        assert!(!pin_to(CpuSet::MAX_CPU), "no such CPU");
        let begin = Instant::now();
        let _ = ping_pong(first, first);
        let _ = read_modified(first, first);
        assert!(begin.elapsed() < 20 * PATIENCE, "patience ends");
    }
}
