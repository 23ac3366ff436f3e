//! Choice of what reclaim does with a page, and of how many it looks at. Pure functions, rules of v3.0. Sizes are base
//! pages.

use framewright::policy::reclaim::FIRST_PRIORITY;

/// Pages that are taken off a list to be looked at in one go.
pub const SLICE: u64 = 32;
/// Default swappiness, of 200.
pub const SWAPPINESS: u64 = 60;

/// The two kinds of pages, each with lists of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Of a space: freed once they are in swap.
    Anon,
    /// Of a file.
    File,
}

impl Kind {
    /// Both, in the order in which reclaim looks at them.
    pub const ALL: [Self; 2] = [Self::Anon, Self::File];
}

/// A page on the inactive list, as reclaim sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Page {
    /// Being written.
    pub writeback: bool,
    /// Not a file's.
    pub anon: bool,
    /// Mapped into an address space.
    pub mapped: bool,
    /// Used through how many mappings since last asked (0, 1 or more).
    pub young: u8,
    /// Marked as used, by a read, a write or an earlier look.
    pub referenced: bool,
    /// Holds what storage does not.
    pub dirty: bool,
}

/// Rights of a reclaim pass.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct May {
    /// Write.
    pub write: bool,
    /// Unmap.
    pub unmap: bool,
    /// The device has more to do than it can.
    pub congested: bool,
    /// Does not care: background and zone reclaim.
    pub ignores_congestion: bool,
}

/// Decision about a page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Decision {
    /// Back to the inactive list as it is: it is not even asked whether it was used.
    Pass,
    /// Back to the inactive list. Marked as used, if `mark`.
    Keep {
        /// Whether the next look finds it used.
        mark: bool,
    },
    /// To the active list.
    Activate,
    /// Written, and back to the inactive list until that is done.
    Write,
    /// Freed.
    Free,
}

/// Decides on a page. Being looked at uses up `young` and `referenced`, unless it is passed over. O(1).
#[must_use]
pub const fn decide(page: Page, may: May) -> Decision {
    if page.writeback || (page.mapped && !may.unmap) {
        return Decision::Pass;
    }
    if page.young > 0 {
        if page.anon || page.referenced || page.young > 1 {
            return Decision::Activate;
        }
        return Decision::Keep { mark: true };
    }
    if page.dirty {
        // Used recently: it will be dirtied again.
        if page.referenced && !page.anon {
            return Decision::Keep { mark: false };
        }
        if !may.write || (may.congested && !may.ignores_congestion) {
            return Decision::Keep { mark: false };
        }
        return Decision::Write;
    }
    Decision::Free
}

/// Whether a use moves a page to the active list: the second one on the inactive list does, the first marks it.
#[must_use]
pub const fn activates(referenced: bool, active: bool) -> bool {
    referenced && !active
}

/// Pages on the lists of a zone, and what reclaim has made of them recently.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Lists {
    /// Active and inactive.
    pub active: u64,
    /// Pages there.
    pub inactive: u64,
    /// Pages looked at, decayed.
    pub scanned: u64,
    /// Those of them that were put back as used, decayed.
    pub rotated: u64,
}

impl Lists {
    /// Both.
    #[must_use]
    pub const fn all(&self) -> u64 {
        self.active + self.inactive
    }

    /// After a scan: history halves when it weighs more than a quarter of the list.
    #[must_use]
    pub const fn decayed(mut self) -> Self {
        if self.scanned > self.all() / 4 {
            self.scanned /= 2;
            self.rotated /= 2;
        }
        self
    }
}

/// Pages to look at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ScanCounts {
    /// Anonymous: active, inactive.
    pub anon: (u64, u64),
    /// File: active, inactive.
    pub file: (u64, u64),
}

impl ScanCounts {
    /// At least a slice of each inactive list that is looked at at all. A zone that was given up is only asked for
    /// with the first priority, at which a small one's share is nothing; and what was being written when it was
    /// given up may be there in the meantime (v3.0: background reclaim looks at a slice of any zone). O(1).
    #[must_use]
    pub fn or_a_slice(self, anon: Lists, file: Lists, has_swap: bool) -> Self {
        let least = |count: u64, list: u64| count.max(list.min(SLICE));
        Self {
            anon: (self.anon.0, if has_swap { least(self.anon.1, anon.inactive) } else { self.anon.1 }),
            file: (self.file.0, least(self.file.1, file.inactive)),
        }
    }
}

/// How many pages of each list to look at: size >> priority, times the kind's fraction.
///
/// Without swap, file only. Priority 0 looks at everything. With file + free ≤ high, anonymous only. Else by
/// weight: anonymous (s + 1) · (scanned + 1) / (rotated + 1), file likewise with 200 − s. `swap` is s, the
/// swappiness, if there is room to swap to. O(1).
#[must_use]
pub fn scan_counts(
    anon: Lists,
    file: Lists,
    free: u64,
    high: u64,
    swap: Option<u64>,
    priority: u8,
) -> ScanCounts {
    let (a, f) = match swap {
        None => (0, 1),
        Some(_) if priority == 0 => (1, 1),
        Some(_) if file.all().saturating_add(free) <= high => (1, 0),
        Some(s) => {
            let weight = |prio: u64, lists: &Lists| (prio + 1) * (lists.scanned + 1) / (lists.rotated + 1);
            (weight(s.min(200), &anon), weight(200 - s.min(200), &file))
        }
    };
    let sum =
        if swap.is_some() && priority == 0 { 1 } else { a + f + u64::from(swap.is_some() && a * f > 0) };
    let part = |pages: u64, share: u64| {
        ((u128::from(pages >> priority) * u128::from(share)) / u128::from(sum.max(1))) as u64
    };
    ScanCounts {
        anon: (part(anon.active, a), part(anon.inactive, a)),
        file: (part(file.active, f), part(file.inactive, f)),
    }
}

/// Whether the active file list gives pages to the inactive one: it is the longer one.
#[must_use]
pub const fn inactive_file_is_low(file: &Lists) -> bool {
    file.active > file.inactive
}

/// Ratio of the anonymous lists of a zone: inactive · ratio < active, ratio = max(1, isqrt(10 · GiB)).
#[must_use]
pub fn inactive_anon_is_low(anon: &Lists, zone_pages: u64) -> bool {
    let ratio = (10 * (zone_pages >> 18)).isqrt().max(1);
    anon.inactive.saturating_mul(ratio) < anon.active
}

/// Whether a page that is in memory may keep its slot of the swap area: not while more than half of them are
/// taken. Who keeps it need not be written again if it does not change.
#[must_use]
pub const fn keeps_slot(free: u64, slots: u64) -> bool {
    free.saturating_mul(2) >= slots
}

/// Whether shrinking a zone may stop: enough was freed, and it is not the first, lightest look.
#[must_use]
pub const fn is_enough(freed: u64, target: u64, priority: u8) -> bool {
    freed >= target && priority < FIRST_PRIORITY
}

/// Pages to read ahead when a file is read at `index` and was last read at `last`, with the window so far:
/// 4 at first, doubled up to 32 while it goes on in sequence, 0 otherwise.
#[must_use]
pub const fn read_ahead(last: Option<u64>, index: u64, window: u64) -> u64 {
    let sequential = match last {
        None => index == 0,
        Some(last) => index == last || index == last + 1,
    };
    match (sequential, window) {
        (false, _) => 0,
        (true, 0) => 4,
        (true, window) if window >= 16 => 32,
        (true, window) => window * 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page table of section 7, gone through completely.
    #[test]
    fn every_page_under_every_permission() {
        for bits in 0..1_u32 << 9 {
            let bit = |n: u32| bits >> n & 1 == 1;
            for young in 0..3 {
                let page = Page {
                    writeback: bit(0),
                    anon: bit(1),
                    mapped: bit(2),
                    young,
                    referenced: bit(3),
                    dirty: bit(4),
                };
                let may = May { write: bit(5), unmap: bit(6), congested: bit(7), ignores_congestion: bit(8) };
                let decision = decide(page, may);
                let case = (page, may, decision);
                match decision {
                    Decision::Free => assert!(!page.dirty && !page.writeback && young == 0, "{case:?}"),
                    Decision::Write => assert!(page.dirty && may.write && !page.writeback, "{case:?}"),
                    Decision::Activate => assert!(young > 0 && !page.writeback, "{case:?}"),
                    Decision::Keep { .. } | Decision::Pass => {}
                }
                if page.writeback || (page.mapped && !may.unmap) {
                    assert_eq!(decision, Decision::Pass, "{case:?}");
                } else if young > 0 {
                    let active = page.anon || page.referenced || young > 1;
                    assert_eq!(decision == Decision::Activate, active, "{case:?}");
                } else if !page.dirty {
                    assert_eq!(decision, Decision::Free, "referenced and clean is reclaimed: {case:?}");
                } else if page.referenced && !page.anon {
                    assert_eq!(decision, Decision::Keep { mark: false }, "{case:?}");
                } else {
                    let may = may.write && (!may.congested || may.ignores_congestion);
                    assert_eq!(decision == Decision::Write, may, "{case:?}");
                }
            }
        }
    }

    fn lists(active: u64, inactive: u64, scanned: u64, rotated: u64) -> Lists {
        Lists { active, inactive, scanned, rotated }
    }

    #[test]
    fn scans_are_shares_of_the_lists() {
        let (anon, file) = (lists(400, 400, 0, 0), lists(4000, 8000, 0, 0));
        let counts = |swap, free, priority| scan_counts(anon, file, free, 1000, swap, priority);
        let file_only = counts(None, 0, 2);
        assert_eq!((file_only.anon, file_only.file), ((0, 0), (1000, 2000)));
        let all = counts(Some(60), 0, 0);
        assert_eq!((all.anon, all.file), ((400, 400), (4000, 8000)));
        // Weights 61 and 141, of 203.
        let shares = counts(Some(60), 0, 2);
        assert_eq!((shares.anon, shares.file), ((30, 30), (694, 1389)));
        let little = scan_counts(anon, lists(100, 100, 0, 0), 100, 1000, Some(60), 1);
        assert_eq!((little.anon, little.file), ((200, 200), (0, 0)), "no file left to speak of");
        let last = scan_counts(anon, lists(100, 100, 0, 0), 100, 1000, Some(60), 0);
        assert_eq!((last.anon, last.file), ((400, 400), (100, 100)), "the last look is at everything");
        // Pages that are used again weigh against their list.
        let used = scan_counts(anon, lists(4000, 8000, 99, 99), 0, 1000, Some(60), 2);
        assert_eq!(used.file.1, shares.file.1);
        let spent = scan_counts(anon, lists(4000, 8000, 99, 0), 0, 1000, Some(60), 2);
        assert!(spent.file.1 > shares.file.1);
    }

    /// Every swappiness, priority and history on a coarse grid: shares never exceed the lists, go up with
    /// swappiness and down with what is used again, and are nothing where there is nowhere to swap to.
    #[test]
    fn every_balance_is_a_share() {
        let sizes = [0, 1, 31, 1000, 1 << 20];
        let histories = [(0, 0), (40, 0), (40, 20), (40, 40)];
        for anon_size in sizes {
            for file_size in sizes {
                for (scanned, rotated) in histories {
                    for priority in 0..=FIRST_PRIORITY {
                        let anon = lists(anon_size, anon_size / 2, scanned, rotated);
                        let file = lists(file_size / 2, file_size, 40, 20);
                        let counts = |swap| scan_counts(anon, file, 0, 10, swap, priority);
                        let none = counts(None);
                        assert_eq!(none.anon, (0, 0));
                        assert_eq!(none.file, (file.active >> priority, file.inactive >> priority));
                        let mut before = counts(Some(0));
                        for swappiness in [1, 60, 100, 200, 300] {
                            let counts = counts(Some(swappiness));
                            let case = (anon, file, swappiness, priority, counts);
                            assert!(counts.anon.0 <= anon.active >> priority, "{case:?}");
                            assert!(counts.anon.1 <= anon.inactive >> priority, "{case:?}");
                            assert!(counts.file.0 <= file.active >> priority, "{case:?}");
                            assert!(counts.file.1 <= file.inactive >> priority, "{case:?}");
                            assert!(counts.anon >= before.anon && counts.file <= before.file, "{case:?}");
                            if priority == 0 {
                                assert_eq!(counts.anon, (anon.active, anon.inactive), "{case:?}");
                                assert_eq!(counts.file, (file.active, file.inactive), "{case:?}");
                            } else if file.all() <= 10 {
                                assert_eq!(counts.file, (0, 0), "{case:?}");
                            }
                            let used = Lists { rotated: anon.rotated + 1, ..anon };
                            let less = scan_counts(used, file, 0, 10, Some(swappiness), priority);
                            assert!(less.anon <= counts.anon && less.file >= counts.file, "{case:?}");
                            before = counts;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_zone_that_was_given_up_is_looked_at() {
        let (anon, file) = (lists(400, 20, 0, 0), lists(4000, 8000, 0, 0));
        let counts = scan_counts(anon, file, 0, 1000, Some(60), 12);
        assert_eq!(counts, ScanCounts::default());
        let least = |has_swap| counts.or_a_slice(anon, file, has_swap);
        assert_eq!(least(true), ScanCounts { anon: (0, 20), file: (0, SLICE) });
        assert_eq!(least(false), ScanCounts { anon: (0, 0), file: (0, SLICE) });
        let more = scan_counts(anon, file, 0, 1000, Some(60), 0);
        assert_eq!(more.or_a_slice(anon, file, true), more);
    }

    #[test]
    fn slots_are_kept_up_to_half() {
        for slots in 0..10 {
            for free in 0..=slots {
                assert_eq!(keeps_slot(free, slots), slots - free <= free, "{free} of {slots}");
            }
        }
    }

    #[test]
    fn the_second_use_activates_and_enough_is_freed_after_the_first_look() {
        let all = [(false, false), (false, true), (true, false), (true, true)];
        assert_eq!(
            all.map(|(referenced, active)| activates(referenced, active)),
            [false, false, true, false]
        );
        assert!(!is_enough(9, 10, 0) && is_enough(10, 10, 0) && is_enough(11, 10, FIRST_PRIORITY - 1));
        assert!(!is_enough(11, 10, FIRST_PRIORITY));
    }

    #[test]
    fn history_decays() {
        assert_eq!(lists(100, 100, 50, 20).decayed(), lists(100, 100, 50, 20));
        assert_eq!(lists(100, 100, 51, 21).decayed(), lists(100, 100, 25, 10));
    }

    #[test]
    fn which_inactive_list_is_low() {
        assert!(
            inactive_file_is_low(&lists(101, 100, 0, 0)) && !inactive_file_is_low(&lists(100, 100, 0, 0))
        );
        let anon = lists(301, 100, 0, 0);
        assert!(inactive_anon_is_low(&anon, 1 << 18), "1 GiB: 3 to 1");
        assert!(!inactive_anon_is_low(&lists(300, 100, 0, 0), 1 << 18));
        assert!(!inactive_anon_is_low(&lists(1000, 100, 0, 0), 10 << 18), "10 GiB: 10 to 1");
    }

    #[test]
    fn read_ahead_doubles_in_sequence() {
        let mut window = 0;
        let mut seen = [0; 6];
        for (n, place) in seen.iter_mut().enumerate() {
            let last = (n as u64).checked_sub(1);
            window = read_ahead(last, n as u64, window);
            *place = window;
        }
        assert_eq!(seen, [4, 8, 16, 32, 32, 32]);
        assert_eq!(read_ahead(Some(5), 100, 32), 0);
        assert_eq!(read_ahead(None, 7, 0), 0);
    }
}
