//! How many large blocks are left after churn.
//!
//! Four regimes that ask for opposite policies. At 50 %, every survivor of a half-empty arena is replaced many times:
//! an allocator that packs new pages into partly used blocks lets others run empty, one that always takes the lowest
//! address, or the page freed last, does not. The same with a tenth of them replaced at a time, so that many frames are
//! free at once, is how LLFree's authors measure it. At 80 %, blocks of mixed orders and lifetimes: an allocator
//! that spreads them leaves a long-lived page in every large block. At 80 % with random victims nothing tells which
//! block will stay, and many sizes die at any time.
//!
//! What is left is found by allocating order-9 blocks until there is none, with nothing cached by a CPU.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::random::Rng;

use super::stress::{HUGE, huge_left};
use super::{Measurement, Metric, Scale};
use crate::target::{Mobility, Target, TargetCpu};

/// How often the memory in use is replaced.
const TURNOVERS: u64 = 16;

/// Rounds that each replace a tenth.
const SWAPS: u64 = 200;

/// Of 16 blocks of the mixed run, how many have order 0, 1, 2, 3, 4.
const ORDER_SHARES: [usize; 5] = [8, 4, 2, 1, 1];

/// Lifetimes of the mixed run: share in 8, and mean in frames that others allocate meanwhile, as a multiple of
/// all frames. Most die young, some outlive the run.
const LIFETIMES: [(usize, f64); 3] = [(5, 1.0 / 64.0), (2, 0.5), (1, 8.0)];

/// Measures fragmentation on allocators of `scale.fragmentation_frames`, one for each occupancy: see
/// [`Workload::Fragmentation`](super::Workload::Fragmentation).
///
/// # Errors
/// What `build(frames, cpus)` says.
pub fn fragmentation<T: Target>(
    build: &mut impl FnMut(u64, usize) -> Result<T, String>,
    scale: &Scale,
) -> Result<Measurement, String> {
    let frames = scale.fragmentation_frames;
    let mut measurement = Measurement { pinned: true, ..Measurement::default() };
    type Run<T> = fn(&T, u64, Rng, &mut Measurement) -> u64;
    let runs: [(&str, u64, Run<T>); 4] = [
        ("occupancy=50", 50, replaced_survivors),
        ("occupancy=50,swapped=10", 51, swapped_tenths),
        ("occupancy=80", 80, mixed_lifetimes),
        ("occupancy=80,victims=random", 81, random_victims),
    ];
    for (name, stream, run) in runs {
        let target = build(frames, 1)?;
        if target.frames().is_none() {
            return Ok(measurement);
        }
        let before = (measurement.allocations, measurement.failures);
        let rng = Rng::of_thread(scale.seed, stream, 0);
        let live_frames = run(&target, frames, rng, &mut measurement);
        let ideal = (frames - live_frames) >> HUGE;
        let left = huge_left(&mut target.attach(0));
        let asked = measurement.allocations - before.0;
        let failed = measurement.failures - before.1;
        measurement.metrics.extend([
            Metric::percent(format!("huge_left_percent[{name}]"), true, left, ideal),
            Metric::percent(format!("failed_percent[{name}]"), false, failed, asked),
        ]);
    }
    Ok(measurement)
}

/// Fills the memory with pages and frees a random half. Returns the others.
fn half_full(cpu: &mut impl TargetCpu, frames: u64, rng: &mut Rng) -> Vec<u64> {
    // An allocator may keep some frames for itself: what it has is full, but the half is of all frames.
    let mut pages: Vec<u64> = (0..frames).map_while(|_| cpu.alloc(0, Mobility::Movable)).collect();
    rng.shuffle(&mut pages);
    let half = usize::try_from(frames / 2).unwrap_or(usize::MAX).min(pages.len());
    pages.drain(half..).for_each(|page| cpu.free(page, 0));
    pages
}

/// Fills the memory with pages, frees a random half, then replaces each of the others [`TURNOVERS`] times, in a
/// new random order each time. Returns the frames in use.
fn replaced_survivors<T: Target>(
    target: &T,
    frames: u64,
    mut rng: Rng,
    measurement: &mut Measurement,
) -> u64 {
    let mut cpu = target.attach(0);
    let mut pages = half_full(&mut cpu, frames, &mut rng);
    for _ in 0..TURNOVERS {
        rng.shuffle(&mut pages);
        pages.retain_mut(|page| {
            cpu.free(*page, 0);
            measurement.operations += 2;
            measurement.allocations += 1;
            match cpu.alloc(0, Mobility::Movable) {
                Some(successor) => *page = successor,
                None => {
                    measurement.failures += 1;
                    return false;
                }
            }
            true
        });
    }
    pages.len() as u64
}

/// Fills the memory with pages, frees a random half; then, [`SWAPS`] times, frees a random tenth of the others and
/// allocates as many. Returns the frames in use.
fn swapped_tenths<T: Target>(target: &T, frames: u64, mut rng: Rng, measurement: &mut Measurement) -> u64 {
    let mut cpu = target.attach(0);
    let mut pages = half_full(&mut cpu, frames, &mut rng);
    for _ in 0..SWAPS {
        let tenth = pages.len() / 10;
        for _ in 0..tenth {
            let victim = rng.index(pages.len());
            cpu.free(pages.swap_remove(victim), 0);
        }
        let before = pages.len();
        pages.extend((0..tenth).filter_map(|_| cpu.alloc(0, Mobility::Movable)));
        measurement.operations += 2 * tenth as u64;
        measurement.allocations += tenth as u64;
        measurement.failures += (before + tenth - pages.len()) as u64;
    }
    pages.len() as u64
}

/// Keeps 80 % of the memory in use with blocks of mixed orders, each living as long as drawn when it was
/// allocated; those due next die whenever there is too much. Returns the frames in use.
fn mixed_lifetimes<T: Target>(target: &T, frames: u64, mut rng: Rng, measurement: &mut Measurement) -> u64 {
    let mut cpu = target.attach(0);
    let full = frames / 5 * 4;
    // Time is counted in frames allocated so far.
    let (mut now, mut used) = (0_u64, 0_u64);
    let mut deaths: BinaryHeap<Reverse<(u64, u64, u8)>> = BinaryHeap::new();
    while now < TURNOVERS * frames {
        let order = draw(&mut rng, &ORDER_SHARES) as u8;
        let size = 1_u64 << order;
        while used + size > full {
            let Some(Reverse((_, block, order))) = deaths.pop() else { break };
            cpu.free(block, order);
            used -= 1 << order;
            measurement.operations += 1;
        }
        let lifetime = draw_lifetime(&mut rng, frames);
        // Time passes for a failed allocation too, or a full allocator would keep the run from ending.
        now += size;
        measurement.operations += 1;
        measurement.allocations += 1;
        match cpu.alloc(order, Mobility::Movable) {
            Some(block) => {
                used += size;
                deaths.push(Reverse((now + lifetime, block, order)));
            }
            None => measurement.failures += 1,
        }
    }
    used
}

/// Keeps 80 % of the memory in use with blocks of mixed orders. Nine of ten belong to a set of which one dies 50 times
/// as often as one of the others; which block of a set dies is up to chance, however old it is. So the few that stay
/// long are everywhere among those that do not. Returns the frames in use.
fn random_victims<T: Target>(target: &T, frames: u64, mut rng: Rng, measurement: &mut Measurement) -> u64 {
    let mut cpu = target.attach(0);
    let full = frames / 5 * 4;
    let (mut now, mut used) = (0_u64, 0_u64);
    let mut sets: [Vec<(u64, u8)>; 2] = Default::default();
    while now < TURNOVERS * frames {
        let order = draw(&mut rng, &ORDER_SHARES) as u8;
        let size = 1_u64 << order;
        while used + size > full {
            let weights = [50 * sets[0].len(), sets[1].len()];
            let set = &mut sets[usize::from(rng.index(weights[0] + weights[1]) >= weights[0])];
            let victim = rng.index(set.len());
            let (block, order) = set.swap_remove(victim);
            cpu.free(block, order);
            used -= 1 << order;
            measurement.operations += 1;
        }
        now += size;
        measurement.operations += 1;
        measurement.allocations += 1;
        let set = usize::from(rng.index(10) == 9);
        match cpu.alloc(order, Mobility::Movable) {
            Some(block) => {
                used += size;
                sets[set].push((block, order));
            }
            None => measurement.failures += 1,
        }
    }
    used
}

/// A number of a share, drawn as often as the share is large.
fn draw(rng: &mut Rng, shares: &[usize]) -> usize {
    let mut ticket = rng.index(shares.iter().sum());
    let mut drawn = 0;
    while ticket >= shares[drawn] {
        ticket -= shares[drawn];
        drawn += 1;
    }
    drawn
}

fn draw_lifetime(rng: &mut Rng, frames: u64) -> u64 {
    let class = draw(rng, &LIFETIMES.map(|(share, _)| share));
    rng.exponential(LIFETIMES[class].1 * frames as f64) as u64
}
