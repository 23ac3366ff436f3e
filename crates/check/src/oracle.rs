//! Owners of frames, kept apart from the allocator: a breach of the contract is found by bookkeeping that
//! shares no code with what it judges.
//!
//! [`Oracle`] is exact and explains; it serves one thread at a time. [`SharedOracle`] is a bitmap of
//! atomics for many threads and for 10^8 operations. [`Payload`] asks another question, for the model
//! checkers: does what the last owner wrote *happen before* what the next one reads?

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet};

use framewright::platform::{Platform, SharedCell};
use framewright::units::{Order, Pfn, ZoneId};

/// A block as the user sees it: the first frame and the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// First frame.
    pub pfn: Pfn,
    /// Size.
    pub order: Order,
}

impl Block {
    /// The blocks that a range of frames is allocated as: each as large as its place and the rest of the range allow.
    pub fn tiles(range: Range<Pfn>) -> impl Iterator<Item = Self> {
        let (mut at, end) = (range.start, range.end);
        core::iter::from_fn(move || {
            let fits = |order: &Order| at.is_aligned(*order) && at.add(order.pages()) <= end;
            let order = Order::all().rfind(fits).filter(|_| at < end)?;
            let block = Self { pfn: at, order };
            at = at.add(order.pages());
            Some(block)
        })
    }

    fn end(self) -> u64 {
        self.pfn.0 + self.order.pages()
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "order-{} block at {:#x}", self.order.get(), self.pfn.0)
    }
}

/// Something that an allocator did and must not do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breach {
    /// It handed out a block that does not start at a multiple of its size.
    Misaligned(Block),
    /// It handed out frames that it does not manage.
    NotItsMemory(Block),
    /// It handed out frames that already have an owner.
    Overlap {
        /// The block that it handed out.
        handed_out: Block,
        /// The block that was owned before.
        owned: Block,
    },
    /// It handed out a frame that a check finds bad, or whose memory is known to have failed.
    BadFrame {
        /// The block that it handed out.
        handed_out: Block,
        /// The bad frame in it.
        bad: Pfn,
    },
    /// A request left a zone below the mark that its flags allow.
    BelowMark {
        /// The zone.
        zone: ZoneId,
        /// Base pages of use to the request that are free now.
        left: u64,
        /// As many had to stay.
        floor: u64,
    },
    /// It accepted a free that it had to refuse.
    AcceptedBadFree {
        /// The block that was freed.
        freed: Block,
        /// Why that is wrong.
        because: BadFree,
    },
}

/// Why a free has to be refused. At most one reason is given, the first that applies in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadFree {
    /// Some frame of the block does not belong to the allocator.
    Foreign,
    /// The block does not start at a multiple of its size.
    Misaligned,
    /// A block of another size starts there.
    WrongOrder(Block),
    /// It starts inside a block with an owner, but not at its first frame.
    InsideOf(Block),
    /// The first frame has no owner: freed already, or never handed out.
    NotOwned,
}

/// Exact bookkeeping of a set of frames. Each call is logarithmic in the number of live blocks.
#[derive(Clone, Debug)]
pub struct Oracle {
    /// Disjoint ranges `start..end` of managed frames, by start.
    memory: BTreeMap<u64, u64>,
    /// Live blocks by first frame.
    live: BTreeMap<u64, Order>,
    /// Frames that must not be handed out.
    bad: BTreeSet<u64>,
    pages_owned: u64,
}

impl Oracle {
    /// All frames of `ranges` (first frame, pages) are managed, and none has an owner. The ranges must be
    /// disjoint.
    pub fn new(ranges: impl IntoIterator<Item = (Pfn, u64)>) -> Self {
        let mut memory = BTreeMap::<u64, u64>::new();
        let mut sorted: Vec<_> =
            ranges.into_iter().map(|(start, pages)| (start.0, start.0 + pages)).collect();
        sorted.sort_unstable();
        for (start, end) in sorted {
            match memory.last_entry() {
                Some(mut last) if *last.get() == start => {
                    last.insert(end);
                }
                last => {
                    assert!(last.is_none_or(|l| *l.get() < start), "ranges overlap at {start:#x}");
                    memory.insert(start, end);
                }
            }
        }
        Self { memory, live: BTreeMap::new(), bad: BTreeSet::new(), pages_owned: 0 }
    }

    /// The allocator was told that the memory of a frame has failed, or a check finds the frame bad.
    pub fn went_bad(&mut self, pfn: Pfn) {
        self.bad.insert(pfn.0);
    }

    /// The frame is good again.
    pub fn became_good(&mut self, pfn: Pfn) {
        self.bad.remove(&pfn.0);
    }

    /// The frames that are bad, in ascending order.
    pub fn bad(&self) -> impl ExactSizeIterator<Item = Pfn> + '_ {
        self.bad.iter().copied().map(Pfn)
    }

    /// The allocator gave `pages` frames from `start` on away for good: they are not its memory any more.
    ///
    /// # Errors
    /// One of them has an owner; the books stay as they were.
    pub fn went_offline(&mut self, start: Pfn, pages: u64) -> Result<(), Breach> {
        let end = start.0 + pages;
        let frames = Block { pfn: start, order: Order::ZERO };
        let live = self.live.range(start.0..end).next().map(|(&at, &order)| Block { pfn: Pfn(at), order });
        if let Some(owned) = self.owner_of(start).or(live) {
            return Err(Breach::Overlap { handed_out: frames, owned });
        }
        let Some((&from, &to)) = self.memory.range(..=start.0).next_back().filter(|&(_, &to)| end <= to)
        else {
            return Err(Breach::NotItsMemory(frames));
        };
        self.memory.remove(&from);
        self.memory.extend([(from, start.0), (end, to)].into_iter().filter(|(from, to)| from < to));
        Ok(())
    }

    /// The allocator got `pages` frames from `start` on, which were not its memory.
    pub fn came_online(&mut self, start: Pfn, pages: u64) {
        let ranges = self.memory.iter().map(|(&from, &to)| (Pfn(from), to - from));
        self.memory = Self::new(ranges.chain([(start, pages)])).memory;
    }

    /// The allocator handed `block` out.
    ///
    /// # Errors
    /// It must not have; the books stay as they were.
    pub fn handed_out(&mut self, block: Block) -> Result<(), Breach> {
        if !block.pfn.is_aligned(block.order) {
            return Err(Breach::Misaligned(block));
        }
        if !self.manages(block) {
            return Err(Breach::NotItsMemory(block));
        }
        if let Some(owned) = self.owner_within(block) {
            return Err(Breach::Overlap { handed_out: block, owned });
        }
        if let Some(&bad) = self.bad.range(block.pfn.0..block.end()).next() {
            return Err(Breach::BadFrame { handed_out: block, bad: Pfn(bad) });
        }
        self.live.insert(block.pfn.0, block.order);
        self.pages_owned += block.order.pages();
        Ok(())
    }

    /// The allocator took `block` back.
    ///
    /// # Errors
    /// It had to refuse; the books stay as they were.
    pub fn took_back(&mut self, block: Block) -> Result<(), Breach> {
        match self.judge(block) {
            Some(because) => Err(Breach::AcceptedBadFree { freed: block, because }),
            None => {
                self.live.remove(&block.pfn.0);
                self.pages_owned -= block.order.pages();
                Ok(())
            }
        }
    }

    /// Whether a free of `block` has to be refused, and why.
    pub fn judge(&self, block: Block) -> Option<BadFree> {
        if !self.manages(block) {
            return Some(BadFree::Foreign);
        }
        if !block.pfn.is_aligned(block.order) {
            return Some(BadFree::Misaligned);
        }
        match self.owner_of(block.pfn) {
            None => Some(BadFree::NotOwned),
            Some(owned) if owned.pfn != block.pfn => Some(BadFree::InsideOf(owned)),
            Some(owned) if owned.order != block.order => Some(BadFree::WrongOrder(owned)),
            Some(_) => None,
        }
    }

    /// The live block that holds `pfn`.
    pub fn owner_of(&self, pfn: Pfn) -> Option<Block> {
        let (&start, &order) = self.live.range(..=pfn.0).next_back()?;
        let block = Block { pfn: Pfn(start), order };
        (pfn.0 < block.end()).then_some(block)
    }

    /// Live blocks in ascending order.
    pub fn live(&self) -> impl ExactSizeIterator<Item = Block> + '_ {
        self.live.iter().map(|(&start, &order)| Block { pfn: Pfn(start), order })
    }

    /// Pages that have an owner.
    pub const fn pages_owned(&self) -> u64 {
        self.pages_owned
    }

    /// Pages without an owner: what the allocator has to account for.
    pub fn pages_free(&self) -> u64 {
        self.memory.iter().map(|(start, end)| end - start).sum::<u64>() - self.pages_owned
    }

    /// Whether all frames of a block are the allocator's.
    pub fn manages(&self, block: Block) -> bool {
        let Some(end) = block.pfn.0.checked_add(block.order.pages()) else { return false };
        self.memory.range(..=block.pfn.0).next_back().is_some_and(|(_, &range_end)| end <= range_end)
    }

    /// Blocks that callers keep, in place of a larger one that was split.
    pub fn kept(&mut self, blocks: impl Iterator<Item = Block>) {
        for block in blocks {
            self.live.insert(block.pfn.0, block.order);
            self.pages_owned += block.order.pages();
        }
    }

    /// Any live block that shares a frame with `block`.
    pub fn owner_within(&self, block: Block) -> Option<Block> {
        self.owner_of(block.pfn).or_else(|| {
            let (&start, &order) = self.live.range(block.pfn.0..block.end()).next()?;
            Some(Block { pfn: Pfn(start), order })
        })
    }
}

/// Bookkeeping for many threads together: one bit per frame, one byte for the order of each live block.
///
/// A thread records a block after it got it and erases it before it frees it, so that two records can
/// only meet if two threads owned a frame at the same time. A breach panics: no caller takes an
/// error in the middle of 10^8 operations.
#[derive(Debug)]
pub struct SharedOracle {
    base: Pfn,
    pages: u64,
    owned: Box<[AtomicU64]>,
    /// 1 + order at the first frame of a live block, 0 elsewhere.
    heads: Box<[AtomicU8]>,
}

impl SharedOracle {
    /// `pages` frames from `base` on; none has an owner.
    pub fn new(base: Pfn, pages: u64) -> Self {
        Self {
            base,
            pages,
            owned: (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            heads: (0..pages).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    /// The calling thread just got `block`.
    ///
    /// # Panics
    /// The block is misaligned, outside of the memory, or partly owned already.
    pub fn handed_out(&self, block: Block) {
        assert!(block.pfn.is_aligned(block.order), "{:?}", Breach::Misaligned(block));
        let first = block.pfn.0.wrapping_sub(self.base.0);
        assert!(
            first < self.pages && block.order.pages() <= self.pages - first,
            "{:?}",
            Breach::NotItsMemory(block)
        );
        self.for_each_word(block, |word, mask| {
            let before = word.fetch_or(mask, Ordering::Relaxed);
            assert!(before & mask == 0, "{block:?} was handed out, but some of its frames have an owner");
        });
        self.heads[first as usize].store(1 + block.order.get(), Ordering::Relaxed);
    }

    /// The calling thread is about to free `block`, which it got.
    ///
    /// # Panics
    /// The block has no owner: the test itself is wrong, or the block was handed out twice.
    pub fn giving_back(&self, block: Block) {
        let first = block.pfn.0 - self.base.0;
        let head = self.heads[first as usize].swap(0, Ordering::Relaxed);
        assert!(head == 1 + block.order.get(), "{block:?} is given back by a thread that does not own it");
        self.for_each_word(block, |word, mask| {
            let before = word.fetch_and(!mask, Ordering::Relaxed);
            assert!(before & mask == mask, "{block:?} is given back, but some of its frames have no owner");
        });
    }

    /// Pages that have an owner. Exact once no thread is at work.
    pub fn pages_owned(&self) -> u64 {
        self.owned.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Live blocks in ascending order. Exact once no thread is at work.
    pub fn live(&self) -> impl Iterator<Item = Block> + '_ {
        self.heads.iter().zip(self.base.0..).filter_map(|(head, pfn)| {
            let order = Order::new(head.load(Ordering::Relaxed).checked_sub(1)?)?;
            Some(Block { pfn: Pfn(pfn), order })
        })
    }

    /// Calls `f` with each word that holds bits of `block`, and the mask of them.
    fn for_each_word(&self, block: Block, mut f: impl FnMut(&AtomicU64, u64)) {
        let first = block.pfn.0 - self.base.0;
        let end = first + block.order.pages();
        let mut at = first;
        while at < end {
            let bit = at % 64;
            let bits = (64 - bit).min(end - at);
            f(&self.owned[(at / 64) as usize], (u64::MAX >> (64 - bits)) << bit);
            at += bits;
        }
    }
}

/// One cell per frame that its owner writes and no other thread may touch.
///
/// On [`Loom`](crate::platform::loom::Loom) an owner who does not happen after the last one is a race on
/// the cell, and fails the model; on [`Shuttle`](crate::platform::shuttle::Shuttle) two owners at the same
/// time are.
#[expect(missing_debug_implementations, reason = "the cells belong to owners; printing would touch them")]
pub struct Payload<P: Platform> {
    base: Pfn,
    cells: Box<[P::Cell<u64>]>,
}

// SAFETY: the purpose of the type is that only a frame's owner touches its cell; whether that holds is what
// the checked platforms find out, and their cells panic rather than race.
#[expect(unsafe_code, reason = "see above")]
unsafe impl<P: Platform> Sync for Payload<P> {}
// SAFETY: as above; the value itself is plain memory.
#[expect(unsafe_code, reason = "see above")]
unsafe impl<P: Platform> Send for Payload<P> {}

impl<P: Platform> Payload<P> {
    /// No frame is owned.
    pub fn new(base: Pfn, pages: u64) -> Self {
        Self { base, cells: (0..pages).map(|_| P::Cell::new(0)).collect() }
    }

    /// The caller got `block` and leaves its mark, `owner`, which must not be 0.
    ///
    /// # Panics
    /// Another owner's mark is still there.
    #[track_caller]
    pub fn enter(&self, block: Block, owner: u64) {
        self.replace(block, 0, owner);
    }

    /// The caller is about to free `block` and takes its mark away.
    ///
    /// # Panics
    /// The mark is not the one it left.
    #[track_caller]
    pub fn leave(&self, block: Block, owner: u64) {
        self.replace(block, owner, 0);
    }

    #[track_caller]
    #[expect(unsafe_code, reason = "the cell hands out a raw pointer")]
    fn replace(&self, block: Block, expected: u64, new: u64) {
        for pfn in block.pfn.0..block.end() {
            let found = self.cells[(pfn - self.base.0) as usize].with_mut(|mark| {
                // SAFETY: the pointer is valid in this closure; exclusivity is the frame owner's, and is
                // what the platform's cell checks.
                unsafe { mark.replace(new) }
            });
            assert!(found == expected, "frame {pfn:#x} bears mark {found}, not {expected}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(pfn: u64, order: u8) -> Block {
        Block { pfn: Pfn(pfn), order: Order::new(order).unwrap() }
    }

    #[test]
    fn every_breach_is_seen() {
        let mut oracle = Oracle::new([(Pfn(16), 16), (Pfn(32), 8), (Pfn(48), 16)]);
        assert_eq!(oracle.pages_free(), 40);
        oracle.handed_out(block(20, 2)).unwrap();
        let cases = [
            (block(17, 1), Breach::Misaligned(block(17, 1))),
            (block(12, 2), Breach::NotItsMemory(block(12, 2))),
            (block(32, 4), Breach::NotItsMemory(block(32, 4))),
            (block(20, 2), Breach::Overlap { handed_out: block(20, 2), owned: block(20, 2) }),
            (block(22, 0), Breach::Overlap { handed_out: block(22, 0), owned: block(20, 2) }),
            (block(16, 3), Breach::Overlap { handed_out: block(16, 3), owned: block(20, 2) }),
        ];
        for (handed_out, breach) in cases {
            assert_eq!(oracle.handed_out(handed_out), Err(breach));
        }
        assert_eq!(oracle.pages_owned(), 4);
        oracle.handed_out(block(32, 3)).unwrap();
        assert_eq!(oracle.live().collect::<Vec<_>>(), [block(20, 2), block(32, 3)]);
    }

    #[test]
    fn a_bad_frame_is_seen() {
        let mut oracle = Oracle::new([(Pfn(16), 16)]);
        oracle.went_bad(Pfn(22));
        let breach = Breach::BadFrame { handed_out: block(20, 2), bad: Pfn(22) };
        assert_eq!(oracle.handed_out(block(20, 2)), Err(breach));
        oracle.handed_out(block(24, 3)).unwrap();
        oracle.became_good(Pfn(22));
        oracle.handed_out(block(20, 2)).unwrap();
    }

    #[test]
    fn memory_comes_and_goes() {
        let mut oracle = Oracle::new([(Pfn(16), 32)]);
        oracle.handed_out(block(20, 2)).unwrap();
        let frames = |pfn| block(pfn, 0);
        let overlap = |pfn| Breach::Overlap { handed_out: frames(pfn), owned: block(20, 2) };
        assert_eq!(oracle.went_offline(Pfn(16), 8), Err(overlap(16)));
        assert_eq!(oracle.went_offline(Pfn(22), 2), Err(overlap(22)));
        assert_eq!(oracle.went_offline(Pfn(40), 16), Err(Breach::NotItsMemory(frames(40))));
        oracle.went_offline(Pfn(32), 8).unwrap();
        assert_eq!((oracle.pages_free(), oracle.judge(block(32, 3))), (20, Some(BadFree::Foreign)));
        assert_eq!(oracle.went_offline(Pfn(32), 8), Err(Breach::NotItsMemory(frames(32))));
        oracle.came_online(Pfn(32), 8);
        oracle.handed_out(block(32, 4)).unwrap();
    }

    #[test]
    fn every_bad_free_is_judged() {
        let mut oracle = Oracle::new([(Pfn(16), 24)]);
        oracle.handed_out(block(20, 2)).unwrap();
        let cases = [
            (block(0, 0), BadFree::Foreign),
            (block(32, 4), BadFree::Foreign),
            (block(u64::MAX, 0), BadFree::Foreign),
            (block(21, 2), BadFree::Misaligned),
            (block(20, 1), BadFree::WrongOrder(block(20, 2))),
            (block(22, 1), BadFree::InsideOf(block(20, 2))),
            (block(16, 3), BadFree::NotOwned),
            (block(24, 2), BadFree::NotOwned),
        ];
        for (freed, because) in cases {
            assert_eq!(oracle.judge(freed), Some(because), "{freed:?}");
            assert_eq!(oracle.took_back(freed), Err(Breach::AcceptedBadFree { freed, because }));
        }
        oracle.took_back(block(20, 2)).unwrap();
        assert_eq!(oracle.judge(block(20, 2)), Some(BadFree::NotOwned));
        assert_eq!(oracle.pages_free(), 24);
    }

    #[test]
    fn the_shared_oracle_counts_across_words() {
        let oracle = SharedOracle::new(Pfn(1024), 2048);
        for b in [block(1024, 10), block(2048, 0), block(2112, 6), block(2110, 1)] {
            oracle.handed_out(b);
        }
        assert_eq!(oracle.pages_owned(), 1024 + 1 + 64 + 2);
        assert_eq!(oracle.live().count(), 4);
        oracle.giving_back(block(1024, 10));
        assert_eq!(oracle.pages_owned(), 1 + 64 + 2);
        oracle.handed_out(block(1536, 9));
    }

    #[test]
    #[should_panic(expected = "have an owner")]
    fn the_shared_oracle_sees_an_overlap() {
        let oracle = SharedOracle::new(Pfn(0), 2048);
        oracle.handed_out(block(512, 0));
        oracle.handed_out(block(0, 10));
    }

    #[test]
    #[should_panic(expected = "does not own it")]
    fn the_shared_oracle_sees_a_wrong_order() {
        let oracle = SharedOracle::new(Pfn(0), 64);
        oracle.handed_out(block(8, 2));
        oracle.giving_back(block(8, 1));
    }
}
