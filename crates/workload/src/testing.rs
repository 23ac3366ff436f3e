//! A small allocator that is right, for the tests of everything that drives one, and what it may be told to do
//! otherwise.
//!
//! All tests drive an [`Oracle`] of it, also where nothing is asked of the oracle: drivers are generic, and are
//! compiled once for all of them.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::oracle::Oracle;
use crate::target::{Counter, Mobility, Target, TargetCpu};

/// Largest order.
const MAX: u8 = 10;

/// What it may be told to do otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Quirk {
    /// Forgets every hundredth free.
    Forgets,
    /// Hands its first block out again and again.
    Repeats,
    /// Cannot tell how many blocks are free.
    CannotTell,
}

/// A buddy allocator of ordered sets behind a lock.
pub(crate) struct Buddy {
    frames: u64,
    takes_parts: bool,
    quirk: Option<Quirk>,
    free: Mutex<Vec<BTreeSet<u64>>>,
    frees: AtomicU64,
    /// Requests by mobility.
    asked: [AtomicU64; 3],
}

impl Buddy {
    /// All frames free; takes no parts.
    pub(crate) fn new(frames: u64) -> Self {
        let buddy = Self {
            frames,
            takes_parts: false,
            quirk: None,
            free: Mutex::new(vec![BTreeSet::new(); usize::from(MAX) + 1]),
            frees: AtomicU64::new(0),
            asked: Default::default(),
        };
        (0..frames).for_each(|frame| buddy.release(frame, 0));
        buddy
    }

    /// Takes blocks back in parts.
    pub(crate) fn with_parts(self) -> Self {
        Self { takes_parts: true, ..self }
    }

    /// Does something otherwise.
    pub(crate) fn with(self, quirk: Quirk) -> Self {
        Self { quirk: Some(quirk), ..self }
    }

    /// Watched.
    pub(crate) fn watched(self) -> Oracle<Self> {
        Oracle::new(self)
    }

    /// Requests by mobility, in the order of [`Mobility`].
    pub(crate) fn asked(&self) -> [u64; 3] {
        self.asked.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Frees of whole blocks and of parts.
    pub(crate) fn frees(&self) -> u64 {
        self.frees.load(Ordering::Relaxed)
    }

    fn release(&self, mut block: u64, mut order: u8) {
        let mut free = self.free.lock().unwrap();
        while order < MAX && free[usize::from(order)].remove(&(block ^ (1 << order))) {
            block &= !(1 << order);
            order += 1;
        }
        assert!(free[usize::from(order)].insert(block), "frame {block} freed twice");
    }

    fn take(&self, order: u8) -> Option<u64> {
        let mut free = self.free.lock().unwrap();
        let from = (order..=MAX).find(|&from| !free[usize::from(from)].is_empty())?;
        let block = free[usize::from(from)].pop_first()?;
        for order in order..from {
            free[usize::from(order)].insert(block + (1 << order));
        }
        Some(block)
    }
}

impl Target for Buddy {
    type Cpu<'a> = &'a Self;

    fn attach(&self, _cpu: usize) -> &Self {
        self
    }

    fn frames(&self) -> Option<u64> {
        Some(self.frames)
    }

    fn free_blocks(&self, order: u8) -> Option<u64> {
        if self.quirk == Some(Quirk::CannotTell) {
            return None;
        }
        let free = self.free.lock().unwrap();
        Some((order..=MAX).map(|from| (free[usize::from(from)].len() as u64) << (from - order)).sum())
    }

    fn counters(&self) -> Vec<Counter> {
        vec![Counter { name: "frees", value: self.frees() }]
    }
}

impl TargetCpu for &Buddy {
    fn alloc(&mut self, order: u8, mobility: Mobility) -> Option<u64> {
        self.asked[mobility as usize].fetch_add(1, Ordering::Relaxed);
        match self.quirk {
            Some(Quirk::Repeats) => Some(0),
            _ => self.take(order),
        }
    }

    fn free(&mut self, frame: u64, order: u8) {
        let frees = self.frees.fetch_add(1, Ordering::Relaxed) + 1;
        match self.quirk {
            Some(Quirk::Repeats) => {}
            Some(Quirk::Forgets) if frees.is_multiple_of(100) => {}
            _ => self.release(frame, order),
        }
    }

    fn free_part(&mut self, frame: u64, part: u8, _whole: u8) -> bool {
        if self.takes_parts {
            self.free(frame, part);
        }
        self.takes_parts
    }
}
