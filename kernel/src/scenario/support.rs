//! Random numbers, lists of blocks, and what must hold between scenarios.
#![expect(unsafe_code, reason = "blocks are written to")]

use core::cell::Cell;

use framewright::units::PAGEBLOCK_ORDER;
use framewright::verify::Account;
use framewright::{NodeId, Order, Pfn};

use crate::kernel::{Kernel, Page, memory};
use crate::paging::PAGE;
use crate::{log, smp};

/// A xorshift generator: small, and the same on every run.
pub(crate) struct Rng(u64);

impl Rng {
    /// Streams of different seeds differ.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

/// Places of all pages at one moment, with nothing on per-CPU lists.
pub(crate) struct Books(pub(crate) Account);

impl Books {
    /// Drains all lists, checks every invariant and adds up.
    ///
    /// # Panics
    /// The allocator is broken.
    pub(crate) fn read(kernel: &Kernel) -> Self {
        smp::everywhere(kernel, usize::MAX, &|_| kernel.with_cpu(|cpu| cpu.drain()));
        let account = kernel.pages.verify().unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!(account.on_pcp, 0, "drained lists hold pages");
        Self(account)
    }

    /// Nothing was lost since, and nothing is held that was not held before.
    ///
    /// # Panics
    /// Pages are missing, or the allocator is broken.
    pub(crate) fn must_balance(&self, kernel: &Kernel) {
        let now = Self::read(kernel);
        // Pages that were found bad during it are no longer free.
        let found_bad = now.0.quarantined.saturating_sub(self.0.quarantined);
        let due = Account { free: self.0.free - found_bad, quarantined: now.0.quarantined, ..self.0 };
        assert_eq!(now.0, due, "pages are missing, or have come from nowhere");
        log!("verify: {} pages free, {} allocated, {} reserved", now.0.free, now.0.allocated, now.0.reserved);
    }
}

/// Blocks in a list through their user slots. Blocks below a pageblock carry a mark at either end: larger ones are
/// not touched, for the emulator's host has less memory than its machine.
pub(crate) struct Chain {
    head: Cell<u64>,
    blocks: Cell<u64>,
}

// SAFETY: a chain is used by one CPU at a time; barriers are between two.
unsafe impl Sync for Chain {}

impl Chain {
    /// No blocks.
    pub(crate) const fn new() -> Self {
        Self { head: Cell::new(0), blocks: Cell::new(0) }
    }

    /// Number of blocks.
    pub(crate) const fn len(&self) -> u64 {
        self.blocks.get()
    }

    const fn mark(pfn: Pfn, order: Order) -> u64 {
        pfn.0.rotate_left(20) ^ order.get() as u64 ^ 0x005e_ed0f_b10c
    }

    /// First and last word of a block, if it is one that carries marks.
    fn ends(pfn: Pfn, order: Order) -> Option<(*mut u64, *mut u64)> {
        let start = memory(pfn).cast::<u64>();
        (order < PAGEBLOCK_ORDER).then(|| (start, start.wrapping_add((PAGE << order.get()) as usize / 8 - 1)))
    }

    /// The user slot of a block that the chain, or who fills it, owns.
    fn slot<R>(kernel: &Kernel, pfn: Pfn, f: impl FnOnce(&mut Page) -> R) -> R {
        // SAFETY: the block is ours.
        unsafe { kernel.pages.frames().with_user(pfn, f) }.expect("it was allocated")
    }

    /// Takes a block that the caller owns.
    pub(crate) fn push(&self, kernel: &Kernel, pfn: Pfn, order: Order) {
        let next = self.head.replace(pfn.0);
        Self::slot(kernel, pfn, |slot| (slot.next, slot.mark) = (next, u64::from(order.get())));
        if let Some((first, last)) = Self::ends(pfn, order) {
            // SAFETY: the block is ours.
            unsafe {
                first.write(Self::mark(pfn, order));
                last.write(Self::mark(pfn, order));
            }
        }
        self.blocks.set(self.blocks.get() + 1);
    }

    /// Gives back the last block, after looking whether anyone has written to it.
    ///
    /// # Panics
    /// Something has written to it.
    pub(crate) fn pop(&self, kernel: &Kernel) -> Option<(Pfn, Order)> {
        let pfn = Some(Pfn(self.head.get())).filter(|pfn| pfn.0 != 0)?;
        let (next, order) = Self::slot(kernel, pfn, |slot| (slot.next, slot.mark));
        let order = Order::new(order as u8).unwrap_or_else(|| panic!("the slot of {pfn:?} was overwritten"));
        if let Some((first, last)) = Self::ends(pfn, order) {
            // SAFETY: the block is ours.
            let marks = unsafe { (first.read(), last.read()) };
            let right = Self::mark(pfn, order);
            assert!(marks == (right, right), "the block at {pfn:?} ({order:?}) was overwritten");
        }
        self.head.set(next);
        self.blocks.set(self.blocks.get() - 1);
        Some((pfn, order))
    }
}

/// Owner of a frame's memory.
pub(crate) fn node_of(kernel: &Kernel, pfn: Pfn) -> NodeId {
    let zone = kernel.pages.frames().info(pfn).zone();
    kernel.pages.zones()[zone.index()].spec().node
}
