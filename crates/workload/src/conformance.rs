//! What every [`Target`] must do, as a check that any implementation can run in its tests.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::thread;

use crate::random::Rng;

use crate::oracle::{Findings, Oracle};
use crate::target::{Mobility, Target, TargetCpu};

/// Orders that are tried.
const ORDERS: [u8; 5] = [0, 1, 3, 4, 9];

/// Blocks that wait for one CPU to free them, at most: at 16 frames each, half of the least memory for two.
const BAG: usize = 64;

/// Checks an allocator that `build(frames, cpus)` creates: blocks are aligned, in range and never overlap; it
/// gives nearly all of its memory, then `None`, and all of it again once that is freed; blocks may be freed by
/// another CPU than allocated them, at the same time as others; a CPU that leaves keeps nothing back.
///
/// `frames` should be at least 4096. Returns in seconds.
///
/// # Errors
/// What was broken, one line each.
pub fn check<T: Target>(build: impl Fn(u64, usize) -> T, frames: u64) -> Result<(), String> {
    let mut errors = Vec::new();
    for order in ORDERS {
        errors.extend(exhaust(Oracle::new(build(frames, 1)), frames, order));
    }
    errors.extend(history(Oracle::new(build(frames, 1)), frames));
    errors.extend(exchange(Oracle::new(build(frames, 2))));
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

/// Takes blocks of one order until there is none, gives all back, and does so again.
fn exhaust<T: Target>(target: Oracle<T>, frames: u64, order: u8) -> Vec<String> {
    let mut errors = Vec::new();
    let most = frames >> order;
    let mut counts = Vec::new();
    for _ in 0..2 {
        let mut cpu = target.attach(0);
        let mut blocks = Vec::new();
        while let Some(block) = cpu.alloc(order, Mobility::Movable) {
            blocks.push(block);
            if blocks.len() as u64 > most {
                errors.push(format!("order {order}: more than {most} blocks in {frames} frames"));
                break;
            }
        }
        if cpu.alloc(order, Mobility::Movable).is_some() {
            errors.push(format!("order {order}: a block although there was none left"));
        }
        blocks.iter().for_each(|&block| cpu.free(block, order));
        counts.push(blocks.len() as u64);
    }
    // Its own records may take a little of the memory, and spoil one block of each order.
    if counts[0] < most - most / 16 - 1 {
        errors.push(format!("order {order}: only {} blocks of {most}", counts[0]));
    }
    if counts[1] != counts[0] {
        errors.push(format!("order {order}: {} blocks, then {}", counts[0], counts[1]));
    }
    errors.extend(verdict(&target.findings(), &format!("exhausting order {order}")));
    errors
}

/// A long random history of all orders on one CPU, around a full memory.
fn history<T: Target>(target: Oracle<T>, frames: u64) -> Vec<String> {
    let mut rng = Rng::of_thread(7, 0, 0);
    let mut cpu = target.attach(0);
    let mut held: Vec<(u64, u8)> = Vec::new();
    for step in 0..8 * frames {
        // Mostly growing for a while, then mostly shrinking.
        let growing = (step / frames).is_multiple_of(2);
        if held.is_empty() || (rng.index(4) > 0) == growing {
            let order = ORDERS[rng.index(ORDERS.len())];
            let mobility = [Mobility::Unmovable, Mobility::Movable, Mobility::Reclaimable][rng.index(3)];
            held.extend(cpu.alloc(order, mobility).map(|block| (block, order)));
        } else {
            let (block, order) = held.swap_remove(rng.index(held.len()));
            cpu.free(block, order);
        }
    }
    held.into_iter().for_each(|(block, order)| cpu.free(block, order));
    drop(cpu);
    verdict(&target.findings(), "a random history")
}

/// Two CPUs that free one another's blocks.
fn exchange<T: Target>(target: Oracle<T>) -> Vec<String> {
    let bags = [Mutex::new(Vec::new()), Mutex::new(Vec::new())];
    let running = AtomicUsize::new(2);
    thread::scope(|scope| {
        for index in 0..2 {
            let (target, bags, running) = (&target, &bags, &running);
            scope.spawn(move || {
                let mut rng = Rng::of_thread(8, 0, index);
                let mut cpu = target.attach(index);
                let bag = |index: usize| bags[index].lock().expect("no thread panics with a bag");
                let take = || bag(index).pop();
                for _ in 0..20_000 {
                    let order = ORDERS[rng.index(4)];
                    if let Some(block) = cpu.alloc(order, Mobility::Movable) {
                        let mut bag = bag(rng.index(2));
                        if bag.len() < BAG {
                            bag.push((block, order));
                        } else {
                            cpu.free(block, order);
                        }
                    }
                    if let Some((block, order)) = take() {
                        cpu.free(block, order);
                    }
                }
                // No thread adds to a bag once both are done.
                running.fetch_sub(1, Ordering::AcqRel);
                while running.load(Ordering::Acquire) > 0 {
                    thread::yield_now();
                }
                while let Some((block, order)) = take() {
                    cpu.free(block, order);
                }
            });
        }
    });
    let mut errors = verdict(&target.findings(), "an exchange of two CPUs");
    let findings = target.findings();
    // The blocks in the bags fill half of the memory at most, so others can be had.
    if findings.failures > findings.allocations / 8 {
        errors.push(format!("an exchange of two CPUs: {} allocations failed", findings.failures));
    }
    errors
}

fn verdict(findings: &Findings, what: &str) -> Vec<String> {
    let mut errors: Vec<String> =
        findings.violations.iter().map(|violation| format!("{what}: {violation}")).collect();
    if findings.live_frames > 0 {
        errors.push(format!("{what}: {} frames still in use", findings.live_frames));
    }
    errors
}
