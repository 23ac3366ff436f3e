//! Blocks that are set aside: this CPU gives them back to the zone and does not hand them out again.
//!
//! A list hands out first the block that was freed last. In memory that is used at random, a freed page would be
//! allocated again next, and its pageblock, most of which may be free, would never become whole. So a freed block of a
//! sparse pageblock is set aside, and the next allocation takes one of a pageblock that is nearly full. Not if the CPU
//! allocates from a pageblock that is as sparse: the block would be taken again.
//!
//! Only with free memory as bits, whose words record how many frames of a pageblock are free. Linux has no such thing,
//! and its presets keep lists.
//!
//! # The head word of a block here
//! No CPU may free the block: it is free already, but only the zone may have it. From the free that sets it aside until
//! the zone has it, its head word is in turn
//! 1. the mark of the freeing CPU, which is the owner here (see [`Cpu::claim`](crate::cpu::Cpu)), until the block is in
//!    its place: another CPU that frees the block waits for the next state. A block that last was on a list of the
//!    freeing CPU needs no mark: its head word stays, as in a hit;
//! 2. [`State::Taken`](crate::frame::State::Taken), requested as [`ASKED`], with the owner and the place here as its
//!    list place: every free is refused. Only [`Local`](super::Local) writes such a word, for a block that it has just
//!    set aside. A block leaves only to the zone, which overwrites the word, and a later owner gives the block a head
//!    of an ordinary type. So such a word alone proves that the block is here: a CPU that frees it need not look here,
//!    nothing can change between two looks, and it claims nothing. A CPU that has seen the head word before 1 finds
//!    another one when it tries to write its mark;
//! 3. [`State::Body`](crate::frame::State::Body), as of every free block below the pageblock order. It is written
//!    before the zone lock is taken, so before the bits are set and before the block is removed from here.
//!
//! The owner's own free that hits compares the whole upper half of the word with that of a list: the type differs, so
//! it takes the slow path, and is refused there.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::config::{Config, PcpOrders};
use crate::frame::PlaceTag;
use crate::platform::{Platform, Word};
use crate::policy::pcp::MOST_ASIDE;
use crate::units::{CpuId, Migratetype, Order, Pfn};

/// Most base pages set aside: 2 MiB of 4 KiB pages, 32 of 64 KiB. An order-8 block fits.
const MOST_PAGES: u64 = 512;
/// Requested type in the head word of a block that is set aside. No block that is, or last was, on a list has this
/// type.
pub(super) const ASKED: Migratetype = Migratetype::HighAtomic;
/// First bit of the block's order in an entry.
const ORDER: u32 = 56;
/// Bits of the block's first frame in an entry.
const PFN: u64 = (1 << ORDER) - 1;
/// First bit of the base pages in `filled`.
const PAGES: u32 = 32;

/// Blocks set aside: see the head of this file. Written by the owner, read by any CPU.
pub(super) struct Outgoing<'m, P: Platform> {
    /// Number of blocks, and from bit [`PAGES`] on their base pages.
    filled: P::Word,
    /// Empty if no block is ever set aside.
    blocks: &'m [P::Word],
    /// Tag for order 0.
    tag: PlaceTag,
    /// Limit of `filled`: the gate of [`push`](Self::push), 0 while it is shut.
    room: P::Word,
}

/// The limit of an open gate.
const OPEN: u64 = ((MOST_PAGES + 1) << PAGES) - 1;

/// Most blocks set aside under a configuration: at most as many as a list may have.
pub(super) fn slots(config: &Config) -> usize {
    match config.experiment.pcp_orders {
        _ if !cfg!(feature = "mobility") || !config.engine.has_maps() => 0,
        PcpOrders::None => 0,
        _ => MOST_ASIDE.min(config.experiment.pcp_slots) as usize,
    }
}

impl<'m, P: Platform> Outgoing<'m, P> {
    pub(super) fn new(cpu: CpuId, blocks: &'m [P::Word]) -> Self {
        Self {
            filled: P::Word::new(0),
            blocks,
            tag: PlaceTag::new(cpu).on_list(Order::ZERO, ASKED),
            room: P::Word::new(OPEN),
        }
    }

    /// Lets frees set blocks aside.
    pub(super) fn open(&self) {
        if self.room.load(Relaxed) != OPEN {
            self.room.store(OPEN, Relaxed);
        }
    }

    /// Shuts the gate: no free sets a block aside. Callable from any CPU.
    pub(super) fn shut(&self) {
        self.room.store(0, Relaxed);
    }

    /// Adds a block. Returns its new head word; `None` if there is no room, or the gate is shut.
    #[inline(always)]
    pub(super) fn push(&self, pfn: Pfn, order: Order) -> Option<u64> {
        let before = self.filled.load(Relaxed);
        let filled = before + (1 | order.pages() << PAGES);
        if filled > self.room.load(Relaxed) {
            return None;
        }
        let at = before as u32;
        self.blocks.get(at as usize)?.store(pfn.0 | u64::from(order.get()) << ORDER, Relaxed);
        // Release: a CPU that sees the length sees the block.
        self.filled.store(filled, Release);
        Some(self.tag.of_order(order).at(at))
    }

    /// Whether the block is here, at a position. For verification.
    pub(super) fn holds(&self, order: Order, position: u32, pfn: Pfn) -> bool {
        self.blocks().nth(position as usize) == Some((order, pfn))
    }

    /// The blocks, by position.
    pub(super) fn blocks(&self) -> impl ExactSizeIterator<Item = (Order, Pfn)> {
        let len = self.filled.load(Acquire) as u32;
        self.blocks[..len as usize].iter().map(|block| {
            let entry = block.load(Relaxed);
            (Order::from_bits(entry >> ORDER), Pfn(entry & PFN))
        })
    }

    /// Base pages of the blocks. A racy read, unless the caller is the owner.
    pub(super) fn pages(&self) -> u32 {
        if !cfg!(feature = "mobility") || self.blocks.is_empty() {
            0
        } else {
            (self.filled.load(Relaxed) >> PAGES) as u32
        }
    }

    /// Removes all blocks, which are free now.
    pub(super) fn clear(&self) {
        self.filled.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::platform::machine::Machine;

    /// Blocks are kept as they were set aside, up to 512 pages and as many as there are slots, while the gate is open.
    #[test]
    fn blocks_are_set_aside_as_long_as_there_is_room() {
        for (k, slots, fit) in [(0, 8, 8), (0, 1024, 512), (3, 128, 64), (8, 128, 2), (7, 3, 3), (5, 0, 0)] {
            let order = Order::from_bits(k);
            let words: Vec<_> = (0..slots).map(|_| Word::new(0)).collect();
            let outgoing: Outgoing<'_, Machine> = Outgoing::new(CpuId(3), &words);
            let block = |n: u64| Pfn((1 << 40) + n * order.pages());
            outgoing.shut();
            assert_eq!(outgoing.push(block(0), order), None, "shut");
            outgoing.open();
            let heads: Vec<u64> = (0..).map_while(|n| outgoing.push(block(n), order)).collect();
            assert_eq!(heads.len(), fit, "order {k}");
            assert_eq!(outgoing.pages(), (fit as u32) << k);
            assert!(outgoing.blocks().eq((0..fit as u64).map(|n| (order, block(n)))));
            assert!(heads.windows(2).all(|two| two[0] + 1 == two[1]), "each names its place");
            for (at, n) in (0..).zip(0..fit as u64) {
                assert!(outgoing.holds(order, at, block(n)) && !outgoing.holds(order, at, block(n + 1)));
            }
            outgoing.clear();
            assert_eq!((outgoing.pages(), outgoing.blocks().len()), (0, 0));
            assert_eq!(outgoing.push(block(9), order).is_some(), fit > 0);
        }
    }
}
