//! A free store of its own for unit tests: with maps, in memory that no test gives back.

extern crate std;

use core::sync::atomic::Ordering::Relaxed;
use std::vec::Vec;

use super::*;
use crate::frame::{Frame, PageMap};
use crate::platform::Word;
use crate::platform::machine::Machine;

type Words = <Machine as Platform>::Word;

/// First frame of a store.
pub(crate) const BASE: Pfn = Pfn(5 * MAX_ORDER.pages());
/// Its zone.
pub(crate) const ZONE: ZoneId = ZoneId(3);

/// A free store, and what a zone has beside it.
pub(crate) struct Store {
    areas: FreeAreas<Machine>,
    cold: Cold<Machine>,
    pub(crate) common: Common<'static, Machine>,
    pub(crate) extent: Extent<Machine>,
    highatomic: Words,
    pub(crate) frames: FrameMap<'static, Machine, ()>,
}

impl Store {
    /// A store without memory, of `pageblocks` pageblocks of movable type. `has_words`: whether each frame has a word.
    pub(crate) fn new(pageblocks: u64, has_words: bool) -> Self {
        let pages = pageblocks * PAGEBLOCK_PAGES;
        let frames: Vec<_> = (0..if has_words { pages } else { 0 }).map(|_| Frame::new(())).collect();
        let maps = pageblocks as usize * if has_words { 1 } else { 2 } + maps_of_bitmaps(pages);
        let maps: Vec<PageMap<Machine>> = (0..maps).map(|_| PageMap::new()).collect();
        let all: Vec<_> = (0..pageblocks).map(|_| Pageblock::new()).collect();
        let store = Self {
            areas: FreeAreas::new(),
            cold: Cold::new(),
            common: Common {
                counters: Counters::new(false, true),
                words: &[],
                special: Word::new(0),
                zone: ZONE,
                reports: false,
                lazy: false,
            },
            // A test may cut off some frames at the end.
            extent: Extent {
                untouched: Untouched::new(),
                bitmaps: Bitmaps::new(0, pages),
                n: 1,
                range: BASE..BASE.add(pages),
            },
            highatomic: Word::new(0),
            frames: FrameMap::new(BASE, frames.leak(), all.leak(), maps.leak(), true),
        };
        (0..pageblocks).for_each(|n| store.set_type(n, Migratetype::Movable));
        store
    }

    /// Likewise, the second of three sections.
    pub(crate) fn section(pageblocks: u64) -> Self {
        let words: Vec<_> = (0..3 * WORDS).map(|_| Word::new(0)).collect();
        let mut store = Self::new(pageblocks, true);
        store.common.words = words.leak();
        store
    }

    /// A store whose pageblocks are absent, and may stay so until they are needed.
    pub(crate) fn lazy(pageblocks: u64) -> Self {
        let mut store = Self::new(pageblocks, true);
        store.common.lazy = true;
        (0..pageblocks).for_each(|n| store.frames.set_info(Self::pageblock(n), BlockInfo::ABSENT));
        store
    }

    /// The first frame of a pageblock.
    pub(crate) fn pageblock(n: u64) -> Pfn {
        BASE.add(n * PAGEBLOCK_PAGES)
    }

    /// Gives a pageblock without free frames another type.
    pub(crate) fn set_type(&self, n: u64, list: Migratetype) {
        self.frames.set_info(Self::pageblock(n), BlockInfo::new(ZONE, list));
    }

    /// Runs `f` on it, as under the lock.
    pub(crate) fn with<R>(&mut self, f: impl FnOnce(&mut Buddy<'_, 'static, Machine, ()>) -> R) -> R {
        let at = (&self.common, &self.extent, &self.highatomic);
        let mut buddy = Buddy::new(&mut self.areas, &mut self.cold, at, &self.frames);
        let result = f(&mut buddy);
        let (pending, _) = buddy.end();
        self.common.counters.count(pending);
        result
    }

    /// Frees frames of a pageblock one by one.
    pub(crate) fn free(&mut self, n: u64, frames: impl IntoIterator<Item = u64>) {
        let at = Self::pageblock(n);
        self.with(|buddy| {
            frames.into_iter().for_each(|frame| buddy.free(at.add(frame), Order::ZERO, Placement::Likely));
        });
    }

    /// The free frames of a pageblock, ascending.
    pub(crate) fn free_frames(&self, n: u64) -> Vec<u64> {
        let start = Self::pageblock(n);
        match self.frames.free_whole(start) {
            Some(_) => (0..PAGEBLOCK_PAGES).collect(),
            None => {
                let map = self.frames.map(start).expect("it has maps");
                (0..PAGEBLOCK_PAGES).filter(|&n| map.has(start.add(n))).collect()
            }
        }
    }

    /// Whether it is a section among several.
    pub(crate) const fn is_section(&self) -> bool {
        !self.common.words.is_empty()
    }

    /// Checks what a section publishes against its pageblocks.
    #[track_caller]
    fn check_words(&self) {
        let words = self.common.words;
        if words.is_empty() {
            return;
        }
        let mut expected = [0_u64; WORDS];
        let pageblocks = (self.extent.range.end.0 - self.extent.range.start.0) / PAGEBLOCK_PAGES;
        let whole = |n: u64| self.frames.free_whole(Self::pageblock(n)).filter(|_| n < pageblocks);
        for n in 0..pageblocks {
            let (start, list) = (Self::pageblock(n), self.frames.info(Self::pageblock(n)).migratetype());
            if let Some(list) = whole(n) {
                let buddy = whole(n ^ 1);
                let kind = u64::from(buddy == Some(list));
                expected[list.index()] |= 1 << 63;
                expected[6] |= 1 << (2 * list.index() as u64 + kind);
                let is_mixed =
                    list.is_ordinary() && buddy.is_some_and(|upper| upper.is_ordinary() && upper != list);
                expected[6] |= u64::from(is_mixed) << 12;
            } else if let Some(head) = self.frames.open_head(start) {
                expected[list.index()] |=
                    1 << (usize::from(head.largest()) * 7 + class_of(u64::from(head.free())));
            }
        }
        let found: Vec<u64> = words.chunks(3).map(|sections| sections[1].load(Relaxed)).collect();
        assert_eq!(found, expected);
        assert!(
            words.chunks(3).all(|sections| [0, 2].iter().all(|&n: &usize| sections[n].load(Relaxed) == 0))
        );
    }

    /// Checks bins, bitmaps and counters. Returns the free pages.
    #[track_caller]
    pub(crate) fn check(&mut self) -> u64 {
        let counted = self.common.counters.free_pages();
        let (start, end) = (self.extent.range.start, self.extent.range.end);
        let open = Pfn::pageblocks(start..end).filter(|&at| self.frames.open_head(at).is_some()).count();
        self.check_words();
        self.with(|buddy| {
            assert!(buddy.is_as_shown());
            let (mut free, mut met) = (0, 0);
            for list in Migratetype::ALL {
                let [singles, pairs] = buddy.check_whole(list).expect("the bitmaps are right");
                let mut pages = singles * PAGEBLOCK_PAGES + pairs * MAX_ORDER.pages();
                for at in buddy.open_pageblocks(list) {
                    pages += buddy.check_open(at, list).expect("the bins are right").count();
                    met += 1;
                }
                free += if list == Migratetype::Isolate { 0 } else { pages };
                if list == Migratetype::Cma {
                    assert_eq!(pages, buddy.common.counters.free_cma_pages());
                }
            }
            let untouched = buddy.untouched();
            free += untouched.end.0 - untouched.start.0;
            assert_eq!((met, free), (open, counted), "open pageblocks, free pages");
            free
        })
    }
}

/// A request for a movable block that stays with its type.
pub(crate) const fn wanted(order: Order) -> Wanted {
    Wanted {
        order,
        migratetype: Migratetype::Movable,
        may_use_cma: false,
        may_fall_back: false,
        generation: Generation::V6_1,
        avoid_fragmentation: false,
    }
}

/// Fullness class of an open pageblock, from its free frames.
pub(crate) fn class_of(free: u64) -> usize {
    [16, 48, 112, 192, 288, 416].into_iter().filter(|&least| free >= least).count()
}
