//! Memory pressure of a zone: marks, reserves, flags, and counters of reclaim.
//!
//! All words are written rarely and read off the fast path. Marks and reserves are 0 until
//! [`resize_watermarks`](crate::alloc::Allocator::resize_watermarks), as in Linux' early boot.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::events::ZoneWords;
use crate::platform::{Platform, Word, update};
use crate::policy;
use crate::policy::compact::{Defer, Resume};
use crate::policy::watermark::{Marks, ZONES};
use crate::units::{MAX_ZONE_PAGES, PAGEBLOCK_PAGES, ZoneType};

/// A CPU runs zone reclaim here.
const RECLAIM_LOCKED: u64 = 1;
/// Background reclaim has given the zone up.
const UNRECLAIMABLE: u64 = 2;
/// A fragmenting steal has boosted the marks, and background reclaim was not woken yet.
const BOOSTED: u64 = 4;

/// Background reclaim works on the zone (Linux v6.1: `ZONE_RECLAIM_ACTIVE`).
const RECLAIM_ACTIVE: u64 = 8;
/// The last allocation that missed found the free pages at or below the high mark (v6.7: `ZONE_BELOW_HIGH`).
const BELOW_HIGH: u64 = 16;
const SHORT: u64 = RECLAIM_ACTIVE | BELOW_HIGH;

/// First bit of the 8 bits in `flags` that count the coming rounds of background compaction that do nothing.
const REST: u32 = 8;
/// First bit in `flags` of the number of the pageblock where the next round continues.
const NEXT_ROUND: u32 = 16;
/// Bits of a pageblock's number.
const PAGEBLOCK_BITS: u32 = (MAX_ZONE_PAGES / PAGEBLOCK_PAGES).ilog2();
const _: () = assert!(NEXT_ROUND + PAGEBLOCK_BITS <= 64);
/// First bit of the scanners' positions in `compaction`.
const RESUME: u32 = 24;

/// The highest mark. What [`Access`](policy::watermark::Access) leaves of it is more than any zone has.
const HIGHEST: u64 = u32::MAX as u64;
const _: () = assert!(HIGHEST * 3 / 16 > MAX_ZONE_PAGES);

/// Marks, reserves and flags of one zone.
#[repr(C, align(64))]
pub(crate) struct Pressure<P: Platform> {
    min: P::Word,
    low: P::Word,
    high: P::Word,
    boost: P::Word,
    /// By the highest zone type of the request.
    reserve: [P::Word; ZONES],
    flags: P::Word,
    /// Pages scanned since the zone last got one back.
    scanned: P::Word,
    /// Pages in pageblocks reserved for high-order atomic requests. Written by the free store, under its lock.
    pub(super) highatomic: P::Word,
    /// [`Defer`] in the lowest bits, [`Resume`] above.
    compaction: P::Word,
    pub(crate) events: ZoneWords<P>,
}

impl<P: Platform> Pressure<P> {
    pub(crate) fn new() -> Self {
        let zero = || P::Word::new(0);
        Self {
            min: zero(),
            low: zero(),
            high: zero(),
            boost: zero(),
            reserve: core::array::from_fn(|_| zero()),
            flags: zero(),
            scanned: zero(),
            highatomic: zero(),
            compaction: zero(),
            events: ZoneWords::new(),
        }
    }

    /// The marks, without boost.
    pub(crate) fn marks(&self) -> Marks {
        Marks { min: self.min.load(Relaxed), low: self.low.load(Relaxed), high: self.high.load(Relaxed) }
    }

    /// Sets the marks, at most [`HIGHEST`]: sums with other counts do not overflow.
    pub(crate) fn set_marks(&self, Marks { min, low, high }: Marks) {
        for (word, mark) in [(&self.min, min), (&self.low, low), (&self.high, high)] {
            word.store(mark.min(HIGHEST), Relaxed);
        }
    }

    pub(crate) fn boost(&self) -> u64 {
        self.boost.load(Relaxed)
    }

    /// Sets the boost. CPUs that write at the same time may lose a little of it, which does no harm.
    pub(crate) fn set_boost(&self, pages: u64) {
        self.boost.store(pages, Relaxed);
    }

    /// Pages that a request up to type `highest` must leave here.
    pub(crate) fn reserve(&self, highest: ZoneType) -> u64 {
        self.reserve[highest as usize].load(Relaxed)
    }

    pub(crate) fn set_reserves(&self, row: &[u64; ZONES]) {
        self.reserve.iter().zip(row).for_each(|(word, &pages)| word.store(pages, Relaxed));
    }

    pub(crate) fn highatomic(&self) -> u64 {
        self.highatomic.load(Relaxed)
    }

    /// Sets or clears a flag. Returns whether this changed it.
    fn set_flag(&self, flag: u64, is_set: bool) -> bool {
        update(&self.flags, AcqRel, |old| ((old & flag != 0) != is_set).then_some(old ^ flag)).is_some()
    }

    /// Takes the right to run zone reclaim here, until the result is dropped; `None` if another CPU has it.
    pub(crate) fn lock_reclaim(&self) -> Option<ReclaimLock<'_, P>> {
        // Made only if this CPU has the right: the drop gives it back.
        self.set_flag(RECLAIM_LOCKED, true).then(|| ReclaimLock(self))
    }

    pub(crate) fn is_unreclaimable(&self) -> bool {
        self.flags.load(Relaxed) & UNRECLAIMABLE != 0
    }

    pub(crate) fn give_up(&self) {
        self.set_flag(UNRECLAIMABLE, true);
    }

    /// Records a boost: background reclaim should be woken.
    pub(crate) fn note_boosted(&self) {
        self.set_flag(BOOSTED, true);
    }

    /// Whether background reclaim should be woken because of a boost. `true` once for each boost.
    pub(crate) fn take_boosted(&self) -> bool {
        self.flags.load(Relaxed) & BOOSTED != 0 && self.set_flag(BOOSTED, false)
    }

    /// Shortage of the zone, as its per-CPU lists see it. A racy read of one word.
    pub(crate) fn on_lists(&self) -> policy::pcp::Shortage {
        match self.flags.load(Relaxed) & SHORT {
            0 => policy::pcp::Shortage::None,
            BELOW_HIGH => policy::pcp::Shortage::BelowHigh,
            _ => policy::pcp::Shortage::Reclaim,
        }
    }

    /// Records whether background reclaim works on the zone. Returns whether this changed.
    pub(crate) fn set_reclaim_active(&self, active: bool) -> bool {
        self.set_flag(RECLAIM_ACTIVE, active)
    }

    /// Changes one field of the flags' word.
    fn set_field(&self, from: u32, bits: u32, value: u64) {
        let mask = ((1 << bits) - 1) << from;
        update(&self.flags, AcqRel, |old| Some((old & !mask) + (value << from & mask)));
    }

    /// Whether background compaction does nothing this time; counts one round less to skip. CPUs that call this at the
    /// same time may skip one round too many.
    pub(crate) fn rests(&self) -> bool {
        let left = self.flags.load(Relaxed) >> REST & 0xff;
        if left != 0 {
            self.set_field(REST, 8, left - 1);
        }
        left != 0
    }

    /// Lets background compaction do nothing for `rounds` rounds.
    pub(crate) fn rest(&self, rounds: u8) {
        self.set_field(REST, 8, u64::from(rounds));
    }

    /// Number of the pageblock, from the zone's first, where the next round continues.
    pub(crate) fn next_round(&self) -> u64 {
        self.flags.load(Relaxed) >> NEXT_ROUND & ((1 << PAGEBLOCK_BITS) - 1)
    }

    pub(crate) fn set_next_round(&self, pageblock: u64) {
        self.set_field(NEXT_ROUND, PAGEBLOCK_BITS, pageblock);
    }

    /// Records that `free` pages are free. Returns whether they have crossed the high mark since the last call.
    pub(crate) fn note_free_pages(&self, free: u64) -> bool {
        let below = free <= self.high.load(Relaxed).saturating_add(self.boost());
        let old = self.flags.load(Relaxed) & BELOW_HIGH != 0;
        below != old && self.set_flag(BELOW_HIGH, below)
    }

    pub(crate) fn scanned(&self) -> u64 {
        self.scanned.load(Relaxed)
    }

    pub(crate) fn count_scanned(&self, pages: u64) {
        crate::events::count(&self.scanned, pages);
    }

    /// Called when a page came back to the buddy lists: the zone is reclaimable again. Under the zone lock; usually two
    /// loads.
    pub(crate) fn note_freed(&self) {
        if self.scanned.load(Relaxed) != 0 {
            self.scanned.store(0, Relaxed);
        }
        if self.is_unreclaimable() {
            self.set_flag(UNRECLAIMABLE, false);
        }
    }

    pub(crate) fn defer(&self) -> Defer {
        Defer::unpack(self.compaction.load(Relaxed))
    }

    /// CPUs that compact at the same time may overwrite each other's changes here: then one compacts once too often, or
    /// scans more.
    pub(crate) fn set_defer(&self, defer: Defer) {
        let resume = self.compaction.load(Relaxed) >> RESUME << RESUME;
        self.compaction.store(defer.pack() + resume, Relaxed);
    }

    /// Positions at which the next compaction continues.
    pub(crate) fn resume(&self) -> Option<Resume> {
        Resume::unpack(self.compaction.load(Relaxed) >> RESUME)
    }

    pub(crate) fn set_resume(&self, resume: Option<Resume>) {
        let defer = self.compaction.load(Relaxed) & ((1 << RESUME) - 1);
        self.compaction.store((Resume::pack(resume) << RESUME) + defer, Relaxed);
    }
}

/// The right to run zone reclaim in a zone. Given back when dropped, also by a panic.
pub(crate) struct ReclaimLock<'a, P: Platform>(&'a Pressure<P>);

impl<P: Platform> Drop for ReclaimLock<'_, P> {
    fn drop(&mut self) {
        self.0.set_flag(RECLAIM_LOCKED, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::machine::Machine;

    #[test]
    fn each_flag_is_news_once_and_leaves_the_others() {
        let pressure = Pressure::<Machine>::new();
        assert!(!pressure.set_reclaim_active(false), "it was not active");
        assert!(pressure.set_reclaim_active(true) && !pressure.set_reclaim_active(true));
        pressure.note_boosted();
        assert!(pressure.set_reclaim_active(false) && !pressure.set_reclaim_active(false));
        assert!(!pressure.is_unreclaimable());
        assert!(pressure.take_boosted() && !pressure.take_boosted());
        pressure.give_up();
        assert!(pressure.is_unreclaimable() && !pressure.take_boosted());
        let lock = pressure.lock_reclaim();
        assert!(lock.is_some() && pressure.lock_reclaim().is_none());
        drop(lock);
        assert!(pressure.lock_reclaim().is_some() && pressure.is_unreclaimable());
    }

    #[test]
    fn rounds_of_compaction_leave_the_flags_alone() {
        let pressure = Pressure::<Machine>::new();
        let last = MAX_ZONE_PAGES / PAGEBLOCK_PAGES - 1;
        pressure.give_up();
        pressure.rest(2);
        pressure.set_next_round(last);
        assert!(pressure.is_unreclaimable() && pressure.next_round() == last);
        assert_eq!([(); 3].map(|()| pressure.rests()), [true, true, false]);
        assert!(pressure.set_reclaim_active(true) && pressure.next_round() == last);
        pressure.rest(u8::MAX);
        pressure.set_next_round(0);
        assert!(pressure.rests() && pressure.is_unreclaimable() && pressure.next_round() == 0);
    }

    #[test]
    fn where_to_go_on_and_what_to_pass_over_are_apart() {
        let pressure = Pressure::<Machine>::new();
        let (defer, resume) =
            (Defer { considered: u8::MAX, shift: 6, failed: 10 }, Some(Resume { low: 5, high: 0x7_fff0 }));
        pressure.set_resume(resume);
        pressure.set_defer(defer);
        assert_eq!((pressure.defer(), pressure.resume()), (defer, resume));
        pressure.set_resume(None);
        assert_eq!((pressure.defer(), pressure.resume()), (defer, None));
        pressure.set_resume(resume);
        pressure.set_defer(Defer::default());
        assert_eq!((pressure.defer(), pressure.resume()), (Defer::default(), resume));
    }
}
