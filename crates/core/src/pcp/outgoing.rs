//! Blocks on their way back to the zone, which this CPU does not hand out again.
//!
//! A list hands out last what was freed last. In memory that is used at random, a page that is freed would come back with
//! the next allocation, and its pageblock, most of which may be free, would never become whole. So a freed block of a
//! sparsely used pageblock goes here, and the next allocation takes one of a pageblock that is nearly full.
//!
//! Only where free memory is kept as bits, whose words say how many frames of a pageblock are free. Linux has no such
//! thing, and its presets keep lists.
//!
//! # The head word of a block here, and who may free it
//! Nobody may: it is free for all but the zone. From the free that brings it here until the zone has it, its head word is
//! in turn
//! 1. the mark of the freeing CPU, which is the owner here (see [`Cpu::claim`](crate::cpu::Cpu)), until it is in its place:
//!    another CPU that frees the block waits for what comes next. A block that last sat on a list of the freeing CPU needs
//!    no mark: its head word stays as it was, as in a hit;
//! 2. [`State::Taken`](crate::frame::State::Taken), asked for as [`ASKED`], with the owner and the place here as its list place:
//!    every free is refused. Only [`Local`](super::Local) writes such a word, for a block that it has just set aside. A
//!    block leaves through the zone alone, which writes over it, and whoever is handed a block later gives it a head
//!    of an ordinary type. So such a word alone says that the block is here: a CPU that frees it need not look
//!    here, nothing can happen between two looks, and it claims nothing. One that has seen the head word of before 1
//!    finds another one when it wants to put its mark there;
//! 3. [`State::Body`](crate::frame::State::Body), as of every free block below the pageblock order. It is written before the
//!    zone lock is taken, so before the bits are set and before the block is forgotten here.
//!
//! The owner's own free that hits compares the whole upper half of the word with that of a list: the type differs, so it
//! goes the slow way, and is refused there.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::config::{Config, PcpOrders};
use crate::frame::PlaceTag;
use crate::platform::{Platform, Word};
use crate::policy::pcp::MOST_ASIDE;
use crate::units::{CpuId, Migratetype, Order, Pfn};

/// Most base pages that do: 2 MiB. An order-8 block fits.
const MOST_PAGES: u64 = 512;
/// What the head word of a block here says it was asked for as: no block that sits, or last sat, on a list was.
pub(super) const ASKED: Migratetype = Migratetype::HighAtomic;
/// Bit from which an entry holds the block's order.
const ORDER: u32 = 56;
/// The bits of an entry that hold its first frame.
const PFN: u64 = (1 << ORDER) - 1;
/// Bit from which `filled` holds base pages.
const PAGES: u32 = 32;

/// See the file's head. Written by the owner, read by anyone.
pub(super) struct Outgoing<'m, P: Platform> {
    /// How many blocks, and from bit [`PAGES`] on the base pages in them.
    filled: P::Word,
    /// None where nothing is set aside.
    blocks: &'m [P::Word],
    /// For order 0.
    tag: PlaceTag,
    /// What `filled` may be at most: the gate of [`push`](Self::push), 0 while it is shut.
    room: P::Word,
}

/// The room of a gate that is open.
const OPEN: u64 = ((MOST_PAGES + 1) << PAGES) - 1;

/// Blocks that may be set aside under a configuration: not more than a list may have.
pub(super) fn slots(config: &Config) -> usize {
    match config.experiment.pcp_orders {
        _ if !config.engine.has_maps() => 0,
        PcpOrders::None => 0,
        _ => MOST_ASIDE.min(config.experiment.pcp_slots) as usize,
    }
}

fn entry(pfn: Pfn, order: Order) -> u64 {
    pfn.0 | u64::from(order.get()) << ORDER
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

    /// Lets no free set a block aside. Callable from any CPU.
    pub(super) fn shut(&self) {
        self.room.store(0, Relaxed);
    }

    /// Adds a block. Returns what its head word must say; `None` if there is no room, or the gate is shut.
    #[inline(always)]
    pub(super) fn push(&self, pfn: Pfn, order: Order) -> Option<u64> {
        let before = self.filled.load(Relaxed);
        let filled = before + (1 | order.pages() << PAGES);
        if filled > self.room.load(Relaxed) {
            return None;
        }
        let at = before as u32;
        self.blocks.get(at as usize)?.store(entry(pfn, order), Relaxed);
        // Release: a CPU that sees the length sees the block.
        self.filled.store(filled, Release);
        Some(self.tag.of_order(order).at(at))
    }

    /// Whether the block sits here, at a position. For verification.
    pub(super) fn holds(&self, order: Order, position: u32, pfn: Pfn) -> bool {
        self.blocks().nth(position as usize) == Some((order, pfn))
    }

    /// The blocks, by position.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (Order, Pfn)> {
        let len = self.filled.load(Acquire) as u32;
        self.blocks[..len as usize].iter().map(|block| {
            let entry = block.load(Relaxed);
            (Order::from_bits(entry >> ORDER), Pfn(entry & PFN))
        })
    }

    /// Base pages of the blocks. A racy read for others than the owner.
    pub(super) fn pages(&self) -> u32 {
        if self.blocks.is_empty() { 0 } else { (self.filled.load(Relaxed) >> PAGES) as u32 }
    }

    /// Forgets the blocks, which are free now.
    pub(super) fn clear(&self) {
        self.filled.store(0, Release);
    }
}
