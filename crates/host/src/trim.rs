//! Free memory that goes back to the system: by call, by age, or when memory is short on the machine.
//!
//! A pageblock at a time: its free blocks are allocated, so that no other code has them, given back by
//! `madvise(MADV_DONTNEED)`, and freed. At no time are more than the free blocks of one pageblock out of use, and none
//! of a zone that is below its low watermark. Memory that was given back reads as zeroes, and is committed again when
//! it is touched.
#![expect(unsafe_code, reason = "owning a block is the right to forget what it holds")]

use core::ops::Range;
use core::sync::atomic::Ordering::Acquire;
use core::time::Duration;
use std::fs;
use std::thread;
use std::time::Instant;

use framewright::frame::{FrameUser, State};
use framewright::units::{MAX_ORDER, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};
use framewright::zone::Zone;
use framewright::{Order, Pfn};

use crate::arena::{Arena, Pages};
use crate::cpu::Cpu;
use crate::error::AttachError;
use crate::event::event;
use crate::os::system_page_bytes;
use crate::platform::Host;

/// The most blocks of a pageblock that are out of use at the same time: 2 MiB of single pages.
const AT_ONCE: usize = PAGEBLOCK_PAGES as usize;

/// Time between two calls of [`Arena::tick`], at least: Linux' `vm.stat_interval`.
const TICK: Duration = Duration::from_secs(1);

/// Memory that went back to the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trimmed {
    /// Base pages that were in memory, and are the system's now.
    pub pages: u64,
    /// Free blocks that were looked at.
    pub blocks: u64,
}

impl core::ops::AddAssign for Trimmed {
    fn add_assign(&mut self, more: Self) {
        self.pages += more.pages;
        self.blocks += more.blocks;
    }
}

/// Since when each pageblock has been free, as far as the calls of [`Cpu::trim_aged`] could see.
#[derive(Debug, Default)]
pub struct FreeAges {
    since: Vec<Option<Instant>>,
}

/// Policy of [`Arena::run_trimming`]: which memory goes back to the system, and how often it looks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TrimPolicy {
    /// How often it looks.
    pub interval: Duration,
    /// Pageblocks that have been free for so long go back.
    pub age: Duration,
    /// Above this share of time, in percent, that tasks of the machine waited for memory in the last ten seconds
    /// (`/proc/pressure/memory`), all free blocks of a pageblock's size go back. `None`: age alone counts.
    pub pressure: Option<f32>,
}

impl Default for TrimPolicy {
    /// Looks each second; gives back what has been free for ten, or everything above 10 % of pressure.
    fn default() -> Self {
        Self { interval: Duration::from_secs(1), age: Duration::from_secs(10), pressure: Some(10.0) }
    }
}

/// The share of time that some task waited for memory in the last ten seconds, in percent.
fn memory_pressure() -> Option<f32> {
    avg10(&fs::read_to_string("/proc/pressure/memory").ok()?)
}

fn avg10(text: &str) -> Option<f32> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

impl<M: FrameUser> Cpu<'_, M> {
    /// Gives the memory of free blocks of at least `order` back to the system, as much as is in memory of it, this
    /// CPU's lists included. Blocks on other CPUs' lists are not free: ask for them before ([`Arena::drain_all`]).
    ///
    /// Nothing goes back of an arena on memory of the caller's or without memory, nor with
    /// [`lock_memory`](crate::ArenaBuilder::lock_memory), where freed memory is filled (poisoning,
    /// [`init_on_free`](crate::Config::init_on_free)), or with pages of 1 GiB; with
    /// [`Backing::HugeTlb`](crate::Backing::HugeTlb), whole pages of 2 MiB, which the pool gets and keeps set aside for
    /// the arena. Linux before v6.9 may give these to another process, and then the next touch is a fault (`SIGBUS`).
    /// Nothing goes back while a node has fewer than 1,024 free base pages above its low mark, because a block is out
    /// of use while its memory goes.
    ///
    /// O(pages of the arena / 512), and two system calls for each free block that is large enough.
    pub fn trim(&self, order: Order) -> Trimmed {
        self.trim_where(order, |_| true)
    }

    /// Gives the memory of whole pageblocks back that were free at each look, for at least `age`: each call
    /// looks, and notes in `ages` what it has seen. What was allocated and freed between two calls counts as free.
    pub fn trim_aged(&self, ages: &mut FreeAges, age: Duration) -> Trimmed {
        let (frames, now) = (self.arena().frames(), Instant::now());
        let blocks = (frames.end.0 - frames.start.0).div_ceil(PAGEBLOCK_PAGES) as usize;
        ages.since.resize(blocks, None);
        let map = self.arena().allocator().frames();
        for (n, since) in ages.since.iter_mut().enumerate() {
            let start = frames.start.add(n as u64 * PAGEBLOCK_PAGES);
            let free = map.info(start).is_present()
                && matches!(map.find(start).1, State::Free { order, .. } if order >= PAGEBLOCK_ORDER);
            *since = free.then(|| since.unwrap_or(now));
        }
        let number = |block: Pfn| ((block.0 - frames.start.0) / PAGEBLOCK_PAGES) as usize;
        let old = |n: usize| ages.since[n].is_some_and(|since| now.duration_since(since) >= age);
        self.trim_where(PAGEBLOCK_ORDER, |block| old(number(block)))
    }

    fn trim_where(&self, order: Order, wanted: impl Fn(Pfn) -> bool) -> Trimmed {
        let mut trimmed = Trimmed::default();
        if self.arena().is_forked() {
            return trimmed;
        }
        let (Some(least), Pages::Own(mapping)) = (self.arena().trims, &self.arena().pages) else {
            return trimmed;
        };
        let least = least.max(order);
        self.drain();
        let first = self.arena().frames().start;
        let map = self.arena().allocator().frames();
        let page = self.arena().page_bytes();
        let bytes = |pages: u64| pages as usize * page;
        for zone in self.arena().allocator().zones() {
            let spec = zone.spec();
            let pageblocks =
                |range: Range<Pfn>| (range.start.0..range.end.0).step_by(PAGEBLOCK_PAGES as usize).map(Pfn);
            let is_due = |at: Pfn| {
                let within = bytes(PAGEBLOCK_PAGES.min(spec.end().0 - at.0));
                wanted(at) && mapping.resident(bytes(at.0 - first.0), within) > 0
            };
            for start in pageblocks(spec.start..spec.end()) {
                if !map.info(start).is_present() || is_low(zone) {
                    continue;
                }
                // A block of order 10 is taken where it begins.
                let pages = match map.find(start) {
                    (head, State::Free { .. }) if head < start => continue,
                    (_, State::Free { order, .. }) => order.pages().max(PAGEBLOCK_PAGES),
                    _ => PAGEBLOCK_PAGES,
                };
                if !pageblocks(start..spec.end().min(start.add(pages))).any(is_due) {
                    continue;
                }
                let mut taken = [(Pfn(0), Order::ZERO); AT_ONCE];
                let count = self.core().take_free(start, least, &mut taken);
                for &(pfn, order) in &taken[..count] {
                    for part in pageblocks(pfn..pfn.add(order.pages())).filter(|&part| wanted(part)) {
                        let (offset, len) =
                            (bytes(part.0 - first.0), bytes(order.pages().min(PAGEBLOCK_PAGES)));
                        // The system's pages, which may be smaller than ours.
                        let resident =
                            (mapping.resident(offset, len) * system_page_bytes()).div_ceil(page) as u64;
                        // SAFETY: the block was allocated just now, and no other code knows of it.
                        if resident > 0 && unsafe { mapping.give_back(offset, len) } {
                            trimmed.pages += resident;
                        }
                    }
                    let freed = self.core().free(pfn, order);
                    debug_assert!(freed.is_ok(), "a block of our own was freed by another owner");
                }
                trimmed.blocks += count as u64;
            }
        }
        // The large blocks are on this CPU's lists now. Drain these, so that every thread can have them.
        self.drain();
        event!(
            self.arena().silent,
            DEBUG,
            pages = trimmed.pages,
            blocks = trimmed.blocks,
            "memory given back to the system"
        );
        trimmed
    }
}

/// Whether a zone is so short of memory that a request could fail while one of its pageblocks is out of use.
fn is_low(zone: &Zone<Host>) -> bool {
    zone.free_pages() < zone.marks().low + MAX_ORDER.pages()
}

impl<M: FrameUser> Arena<M> {
    /// Gives free memory back to the system on this thread, as `policy` says, until
    /// [`stop_background`](Self::stop_background). It takes a CPU each time that it looks, if one is free. Once a
    /// second at most it also lets per-CPU lists shrink ([`tick`](Self::tick)).
    ///
    /// # Errors
    /// This process is a child of the one that made the arena.
    pub fn run_trimming(&self, policy: &TrimPolicy) -> Result<Trimmed, AttachError> {
        let mut ages = FreeAges::default();
        let mut all = Trimmed::default();
        let mut ticked = Instant::now();
        while !self.pressure.is_stopping(Acquire) {
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.tick();
            }
            match self.attach() {
                Ok(cpu) => {
                    let short = policy
                        .pressure
                        .is_some_and(|most| memory_pressure().is_some_and(|share| share > most));
                    all +=
                        if short { cpu.trim(PAGEBLOCK_ORDER) } else { cpu.trim_aged(&mut ages, policy.age) };
                }
                Err(AttachError::Forked) => return Err(AttachError::Forked),
                // Every CPU is in use: the next look may find one.
                Err(_) => {}
            }
            let looked = Instant::now();
            while looked.elapsed() < policy.interval && !self.pressure.is_stopping(Acquire) {
                thread::sleep(policy.interval.min(Duration::from_millis(50)));
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read() {
        let text = "some avg10=12.50 avg60=1.00 avg300=0.10 total=1\nfull avg10=3.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(avg10(text), Some(12.5));
        assert_eq!(avg10("full avg10=3.00\n"), None);
        assert_eq!(avg10("some avg60=3.00\n"), None);
    }
}
