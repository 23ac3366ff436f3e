//! Data that the cache's lock guards: the index of pages, their LRU lists by zone, files, and counts.
//!
//! # Invariants
//! 1. Every page in the index is on exactly one list of its zone: active or inactive, of its kind.
//! 2. A list's length is the number of its pages; `dirty` and `mapped` of a zone count its file pages that are.
//! 3. A page with users, or being written, is neither freed nor handed to one user alone.
//! 4. A file counts a page as on its way if and only if the page does.
//! 5. An anonymous page is dirty as long as it has no slot of the swap area. A slot is cached if its page is here,
//!    holds what the slot holds, and is not being written.
//! 6. `cached` names the frames of the pages in the index, no others. The slot of any other frame has another owner.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Bound;

use framewright::platform::Platform;
use framewright::reclaim::Reclaimable;
use framewright::{Pfn, ZoneId};

use crate::device::IoError;
use crate::file::File;
use crate::latency::Histogram;
use crate::policy::{self, Kind, Lists};
use crate::slot::{ALONE, FileId, Marks, NONE, Owner, PageSlot, Slots, SpaceId};
use crate::swap::SwapMap;

/// One LRU list of a zone: its hot end is the head, reclaim looks at the tail.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u64,
}

const EMPTY: List = List { head: NONE, tail: NONE, len: 0 };

#[derive(Clone, Copy, Debug)]
struct KindPages {
    /// Inactive, active.
    lists: [List; 2],
    scanned: u64,
    rotated: u64,
    /// In the index.
    pages: u64,
    /// Being written.
    writeback: u64,
}

const NO_PAGES: KindPages = KindPages { lists: [EMPTY; 2], scanned: 0, rotated: 0, pages: 0, writeback: 0 };

#[derive(Clone, Copy, Debug)]
struct ZonePages {
    kinds: [KindPages; 2],
    /// Of files.
    dirty: u64,
    mapped: u64,
}

/// Of which kind a page is.
pub(crate) const fn kind(marks: Marks) -> Kind {
    if marks.has(Marks::ANON) { Kind::Anon } else { Kind::File }
}

macro_rules! counters {
    ($(#[$outer:meta])* $what:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $what { $($(#[$doc])* pub $name: u64,)* }

        impl $what {
            /// Each counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Counts of the cache's events. Pages, with the kernel's names.
    CacheEvents {
        /// Pages read from storage.
        pgpgin,
        /// Pages written to storage.
        pgpgout,
        /// Those of the pages read that were swapped in.
        pswpin,
        /// Those of the pages written that were swapped out.
        pswpout,
        /// Pages that reclaim has sent to storage.
        nr_vmscan_write,
        /// Pages of active lists looked at.
        pgrefill,
        /// Pages moved to an active list.
        pgactivate,
        /// Pages moved to an inactive list.
        pgdeactivate,
        /// Pages that reclaim had sent to storage, moved to the cold end when they were there.
        pgrotated,
        /// Anonymous pages of inactive lists looked at.
        pgscan_anon,
        /// Pages of files likewise.
        pgscan_file,
        /// Those of the anonymous ones that were freed.
        pgsteal_anon,
        /// And of files.
        pgsteal_file,
        /// Pages of files used that were there.
        cache_hits,
        /// Pages of files used that were not.
        cache_misses,
        /// Pages read ahead.
        read_ahead,
        /// Reads and writes that storage failed.
        io_errors,
    }
}

counters! {
    /// Counts of the cache's pages in a zone, with the kernel's names.
    ZoneCounts {
        /// Anonymous, on the inactive list.
        nr_inactive_anon,
        /// On the active list.
        nr_active_anon,
        /// Of files, on the inactive list.
        nr_inactive_file,
        /// On the active list.
        nr_active_file,
        /// Anonymous.
        nr_anon_pages,
        /// Of files.
        nr_file_pages,
        /// Of files, mapped.
        nr_mapped,
        /// Of files, dirty.
        nr_dirty,
        /// Being written.
        nr_writeback,
    }
}

/// Data that the lock guards.
pub(crate) struct State {
    /// A bit for each frame, from the first that a link can name: whether it is a page of the index. The slot of a
    /// frame has no mark of it: one that is not the cache's must not be looked at.
    cached: Vec<u64>,
    pub(crate) index: BTreeMap<(Owner, u64), Pfn>,
    dirty: BTreeSet<(FileId, u64)>,
    /// The dirty page that was to be written last, of those of all files.
    last_turn: (FileId, u64),
    pub(crate) files: BTreeMap<FileId, File>,
    zones: Vec<ZonePages>,
    pub(crate) swap: SwapMap,
    /// Writes of anonymous pages that are over, successful or not.
    pub(crate) swap_writes_ended: u64,
    /// Counts of dirty pages and pages being written that were reported last.
    unwritten: u64,
    /// Error of the last write, if that failed.
    pub(crate) last_write_error: Option<IoError>,
    pub(crate) events: CacheEvents,
    pub(crate) allocation_times: Histogram,
}

impl State {
    pub(crate) fn new(zones: usize, frames: u64, swap_slots: u32) -> Self {
        let none = ZonePages { kinds: [NO_PAGES; 2], dirty: 0, mapped: 0 };
        Self {
            cached: alloc::vec![0; frames.div_ceil(64) as usize],
            index: BTreeMap::new(),
            dirty: BTreeSet::new(),
            last_turn: (FileId(u32::MAX), u64::MAX),
            files: BTreeMap::new(),
            zones: alloc::vec![none; zones],
            swap: SwapMap::new(swap_slots),
            swap_writes_ended: 0,
            unwritten: 0,
            last_write_error: None,
            events: CacheEvents::default(),
            allocation_times: Histogram::default(),
        }
    }

    // ---- index -------------------------------------------------------------------------------------------

    pub(crate) fn find(&self, owner: impl Into<Owner>, index: u64) -> Option<Pfn> {
        self.index.get(&(owner.into(), index)).copied()
    }

    /// Whether a frame, of any owner, is a page of the index.
    pub(crate) fn owns<P: Platform>(&self, slots: &Slots<'_, P>, pfn: Pfn) -> bool {
        slots.number(pfn).is_some_and(|n| self.cached[(n / 64) as usize] >> (n % 64) & 1 == 1)
    }

    fn set_own<P: Platform>(&mut self, slots: &Slots<'_, P>, pfn: Pfn, is_cached: bool) {
        let n = slots.number(pfn).expect("a page of the cache is a frame of its allocator");
        let word = &mut self.cached[(n / 64) as usize];
        *word = *word & !(1 << (n % 64)) | u64::from(is_cached) << (n % 64);
    }

    pub(crate) fn pages(&self, kind: Kind) -> u64 {
        self.zones.iter().map(|zone| zone.kinds[kind as usize].pages).sum()
    }

    /// Pages of files that are dirty.
    pub(crate) fn dirty_pages(&self) -> u64 {
        self.dirty.len() as u64
    }

    /// Why pages cannot be written, which take memory that no request gets: the error of the last write, if that failed
    /// and there may be such pages still.
    pub(crate) fn stuck(&self) -> Option<IoError> {
        self.last_write_error.filter(|_| self.dirty_pages() + self.pages(Kind::Anon) > 0)
    }

    /// Pages being written.
    pub(crate) fn writeback_pages(&self) -> u64 {
        Kind::ALL.iter().map(|&kind| self.writeback_pages_of(kind)).sum()
    }

    pub(crate) fn writeback_pages_of(&self, kind: Kind) -> u64 {
        self.zones.iter().map(|zone| zone.kinds[kind as usize].writeback).sum()
    }

    /// Dirty pages · 2³² + pages being written, if that has changed since it was last asked. A cache has fewer than 2³²
    /// of either.
    pub(crate) fn news_of_unwritten(&mut self) -> Option<u64> {
        let now = self.dirty_pages() << 32 | self.writeback_pages();
        let before = core::mem::replace(&mut self.unwritten, now);
        (now != before).then_some(now)
    }

    /// The first dirty page of a file, or of any, at or behind a place.
    pub(crate) fn next_dirty(&self, from: (FileId, u64), file: Option<FileId>) -> Option<(FileId, u64)> {
        let found = self.dirty.range(from..).next().copied()?;
        file.is_none_or(|file| file == found.0).then_some(found)
    }

    /// The dirty page whose turn it is, of any file: the one behind the last, and after all of them the first. So those
    /// that cannot be written do not keep others from it, and each is found by one only of those who write.
    pub(crate) fn next_to_write(&mut self) -> Option<(FileId, u64)> {
        let behind = (Bound::Excluded(self.last_turn), Bound::Unbounded);
        self.last_turn = *self.dirty.range(behind).next().or_else(|| self.dirty.first())?;
        Some(self.last_turn)
    }

    /// The last dirty page of a file, or of any.
    pub(crate) fn last_dirty(&self, file: Option<FileId>) -> Option<(FileId, u64)> {
        let end = (file.unwrap_or(FileId(u32::MAX)), u64::MAX);
        self.dirty.range((file.unwrap_or_default(), 0)..=end).next_back().copied()
    }

    /// Ends a round of a file, or of each, of which pages are on their way. Returns the rounds.
    pub(crate) fn end_rounds(&mut self, file: Option<FileId>) -> Vec<(FileId, u64)> {
        let end = file.unwrap_or(FileId(u32::MAX));
        let files = self.files.range_mut(file.unwrap_or_default()..=end);
        files
            .filter(|(_, known)| known.pages_writing() > 0)
            .map(|(&file, known)| (file, known.end_round()))
            .collect()
    }

    /// State of a file. It is known from now on.
    pub(crate) fn file(&mut self, file: FileId) -> &mut File {
        self.files.entry(file).or_default()
    }

    /// The first page of a file or space at or behind `index`.
    pub(crate) fn next_page(&self, owner: impl Into<Owner>, index: u64) -> Option<(u64, Pfn)> {
        let owner = owner.into();
        self.index.range((owner, index)..=(owner, u64::MAX)).next().map(|(&(_, index), &pfn)| (index, pfn))
    }

    /// Puts a page that was just allocated into the index, had alone, at the hot end of the inactive list: it has
    /// to show that it is worth keeping. An anonymous page that is new, not swapped in, begins on the active one
    /// (v3.0). Returns the slot of the swap area that holds what belongs into it, if there is one.
    pub(crate) fn insert<P: Platform>(
        &mut self,
        slots: &Slots<'_, P>,
        zone: ZoneId,
        pfn: Pfn,
        owner: Owner,
        index: u64,
    ) -> Option<u32> {
        let (number, marks, swapped) = match owner {
            Owner::File(file) => (file.0, Marks::default(), None),
            Owner::Space(space) => {
                let swapped = self.swap.find((space, index));
                let marks = Marks::ANON.with(Marks::MAPPED, true);
                let marks =
                    marks.with(Marks::ACTIVE, swapped.is_none()).with(Marks::DIRTY, swapped.is_none());
                (space.0, marks, swapped)
            }
        };
        slots.with(pfn, |slot| {
            *slot = PageSlot { index, number, next: NONE, prev: NONE, marks, users: ALONE };
        });
        let before = self.index.insert((owner, index), pfn);
        debug_assert!(before.is_none(), "a page is cached twice");
        self.set_own(slots, pfn, true);
        self.zones[zone.index()].kinds[kind(marks) as usize].pages += 1;
        self.link(slots, zone, pfn);
        self.note_scan(zone, kind(marks), 1, u64::from(marks.has(Marks::ACTIVE)));
        swapped
    }

    /// Takes a page out of the index and off its list: it is the caller's to free. If it is anonymous, its slot of
    /// the swap area stays, and is all that there is of it. If it is a file's, and not `dropped`, storage has it.
    pub(crate) fn remove<P: Platform>(
        &mut self,
        slots: &Slots<'_, P>,
        zone: ZoneId,
        pfn: Pfn,
        dropped: bool,
    ) {
        self.unlink(slots, zone, pfn);
        self.set(slots, zone, pfn, Marks::DIRTY, false);
        self.set(slots, zone, pfn, Marks::MAPPED, false);
        let slot = slots.get(pfn);
        self.index.remove(&(slot.owner(), slot.index));
        self.zones[zone.index()].kinds[kind(slot.marks) as usize].pages -= 1;
        match slot.owner() {
            Owner::File(file) => {
                if let Some(file) = self.files.get_mut(&file) {
                    file.leave(slot.index, dropped);
                }
            }
            Owner::Space(space) => self.swap.set_cached((space, slot.index), false),
        }
        slots.with(pfn, |slot| *slot = PageSlot::default());
        self.set_own(slots, pfn, false);
    }

    /// A page that is not being written is in frame `to` from now on, which was allocated for it just now. Within its
    /// zone it keeps its place on its list; in another one it begins at the hot end.
    pub(crate) fn relocate<P: Platform>(
        &mut self,
        slots: &Slots<'_, P>,
        (from_zone, from): (ZoneId, Pfn),
        (to_zone, to): (ZoneId, Pfn),
    ) {
        let slot = slots.get(from);
        debug_assert!(!slot.marks.has(Marks::WRITEBACK), "a page moves that a device reads");
        if from_zone == to_zone {
            let list = self.list_of(to_zone, slot.marks);
            let me = slots.link(to);
            match slots.pfn(slot.prev) {
                Some(before) => slots.with(before, |slot| slot.next = me),
                None => list.head = me,
            }
            match slots.pfn(slot.next) {
                Some(behind) => slots.with(behind, |slot| slot.prev = me),
                None => list.tail = me,
            }
            slots.with(to, |new| *new = slot);
        } else {
            self.unlink(slots, from_zone, from);
            let of_file = u64::from(kind(slot.marks) == Kind::File);
            let dirty = of_file * u64::from(slot.marks.has(Marks::DIRTY));
            let mapped = of_file * u64::from(slot.marks.has(Marks::MAPPED));
            let old = &mut self.zones[from_zone.index()];
            old.kinds[kind(slot.marks) as usize].pages -= 1;
            (old.dirty, old.mapped) = (old.dirty - dirty, old.mapped - mapped);
            let new = &mut self.zones[to_zone.index()];
            new.kinds[kind(slot.marks) as usize].pages += 1;
            (new.dirty, new.mapped) = (new.dirty + dirty, new.mapped + mapped);
            slots.with(to, |new| *new = slot);
            self.link(slots, to_zone, to);
        }
        self.index.insert((slot.owner(), slot.index), to);
        slots.with(from, |old| *old = PageSlot::default());
        self.set_own(slots, from, false);
        self.set_own(slots, to, true);
    }

    /// Sets or clears a state bit, and counts it.
    pub(crate) fn set<P: Platform>(
        &mut self,
        slots: &Slots<'_, P>,
        zone: ZoneId,
        pfn: Pfn,
        what: Marks,
        on: bool,
    ) {
        let slot = slots.get(pfn);
        if slot.marks.has(what) == on {
            return;
        }
        slots.with(pfn, |slot| slot.marks = slot.marks.with(what, on));
        let zone = &mut self.zones[zone.index()];
        let count = |pages: &mut u64| *pages = if on { *pages + 1 } else { *pages - 1 };
        match (what, slot.owner()) {
            (Marks::DIRTY, Owner::File(file)) => {
                count(&mut zone.dirty);
                if on {
                    self.dirty.insert((file, slot.index));
                } else {
                    self.dirty.remove(&(file, slot.index));
                }
            }
            (Marks::DIRTY, Owner::Space(space)) if on => drop(self.swap.release((space, slot.index))),
            (Marks::MAPPED, Owner::File(_)) => count(&mut zone.mapped),
            (Marks::WRITEBACK, _) => count(&mut zone.kinds[kind(slot.marks) as usize].writeback),
            _ => {}
        }
    }

    /// A slot of the swap area for an anonymous page that has none: a free one, or that of a page which is in
    /// memory as well, and dirty from now on.
    pub(crate) fn take_swap_slot<P: Platform>(
        &mut self,
        slots: &Slots<'_, P>,
        page: (SpaceId, u64),
    ) -> Option<u32> {
        if self.swap.usage().free == 0
            && let Some((space, index)) = self.swap.rob()
            && let Some(pfn) = self.find(space, index)
        {
            slots.with(pfn, |slot| slot.marks = slot.marks.with(Marks::DIRTY, true));
        }
        self.swap.take(page)
    }

    // ---- lists -------------------------------------------------------------------------------------------

    /// The list that a page's state names.
    fn list_of(&mut self, zone: ZoneId, marks: Marks) -> &mut List {
        &mut self.zones[zone.index()].kinds[kind(marks) as usize].lists[usize::from(marks.has(Marks::ACTIVE))]
    }

    /// Puts a page at the hot end of its list.
    fn link<P: Platform>(&mut self, slots: &Slots<'_, P>, zone: ZoneId, pfn: Pfn) {
        let list = self.list_of(zone, slots.get(pfn).marks);
        let me = slots.link(pfn);
        slots.with(pfn, |slot| (slot.next, slot.prev) = (list.head, NONE));
        match slots.pfn(list.head) {
            Some(head) => slots.with(head, |slot| slot.prev = me),
            None => list.tail = me,
        }
        list.head = me;
        list.len += 1;
    }

    fn unlink<P: Platform>(&mut self, slots: &Slots<'_, P>, zone: ZoneId, pfn: Pfn) {
        let PageSlot { next, prev, marks, .. } = slots.get(pfn);
        let list = self.list_of(zone, marks);
        match slots.pfn(prev) {
            Some(before) => slots.with(before, |slot| slot.next = next),
            None => list.head = next,
        }
        match slots.pfn(next) {
            Some(behind) => slots.with(behind, |slot| slot.prev = prev),
            None => list.tail = prev,
        }
        slots.with(pfn, |slot| (slot.next, slot.prev) = (NONE, NONE));
        list.len -= 1;
    }

    /// The page at the cold end of a list.
    pub(crate) fn coldest<P: Platform>(
        &self,
        slots: &Slots<'_, P>,
        zone: ZoneId,
        kind: Kind,
        active: bool,
    ) -> Option<Pfn> {
        slots.pfn(self.zones[zone.index()].kinds[kind as usize].lists[usize::from(active)].tail)
    }

    /// Moves a page to the cold end of its list: it is the next that reclaim looks at.
    pub(crate) fn relink_cold<P: Platform>(&mut self, slots: &Slots<'_, P>, zone: ZoneId, pfn: Pfn) {
        self.unlink(slots, zone, pfn);
        let list = self.list_of(zone, slots.get(pfn).marks);
        let me = slots.link(pfn);
        slots.with(pfn, |slot| (slot.next, slot.prev) = (NONE, list.tail));
        match slots.pfn(list.tail) {
            Some(tail) => slots.with(tail, |slot| slot.next = me),
            None => list.head = me,
        }
        list.tail = me;
        list.len += 1;
    }

    /// Moves a page on its list, or to the other one, to the hot end.
    pub(crate) fn relink<P: Platform>(&mut self, slots: &Slots<'_, P>, zone: ZoneId, pfn: Pfn, active: bool) {
        self.unlink(slots, zone, pfn);
        slots.with(pfn, |slot| slot.marks = slot.marks.with(Marks::ACTIVE, active));
        self.link(slots, zone, pfn);
    }

    /// Moves a page to the active list.
    pub(crate) fn activate<P: Platform>(&mut self, slots: &Slots<'_, P>, zone: ZoneId, pfn: Pfn) {
        self.relink(slots, zone, pfn, true);
        self.events.pgactivate += 1;
    }

    /// A page was used. That of an anonymous one only shows when reclaim asks its mapping.
    pub(crate) fn mark_used<P: Platform>(&mut self, slots: &Slots<'_, P>, zone: ZoneId, pfn: Pfn) {
        let marks = slots.get(pfn).marks;
        if marks.has(Marks::ANON) {
            slots.with(pfn, |slot| slot.marks = slot.marks.with(Marks::YOUNG, true));
        } else if policy::activates(marks.has(Marks::REFERENCED), marks.has(Marks::ACTIVE)) {
            slots.with(pfn, |slot| slot.marks = slot.marks.with(Marks::REFERENCED, false));
            self.activate(slots, zone, pfn);
            self.note_scan(zone, Kind::File, 1, 1);
        } else {
            slots.with(pfn, |slot| slot.marks = slot.marks.with(Marks::REFERENCED, true));
        }
    }

    /// The lists of one kind in a zone, for the policies.
    pub(crate) fn lists(&self, zone: ZoneId, kind: Kind) -> Lists {
        let pages = &self.zones[zone.index()].kinds[kind as usize];
        Lists {
            active: pages.lists[1].len,
            inactive: pages.lists[0].len,
            scanned: pages.scanned,
            rotated: pages.rotated,
        }
    }

    /// Both kinds' lists of a zone, for a scan. Old history fades.
    pub(crate) fn lists_to_scan(&mut self, zone: ZoneId) -> [Lists; 2] {
        Kind::ALL.map(|kind| {
            let lists = self.lists(zone, kind).decayed();
            let pages = &mut self.zones[zone.index()].kinds[kind as usize];
            (pages.scanned, pages.rotated) = (lists.scanned, lists.rotated);
            lists
        })
    }

    /// Notes pages that were looked at, and those of them that were put among the used ones.
    pub(crate) fn note_scan(&mut self, zone: ZoneId, kind: Kind, scanned: u64, rotated: u64) {
        let pages = &mut self.zones[zone.index()].kinds[kind as usize];
        pages.scanned += scanned;
        pages.rotated += rotated;
    }

    pub(crate) fn reclaimable(&self, zone: ZoneId) -> Reclaimable {
        let counts = self.counts(zone);
        let anon_lru = counts.nr_inactive_anon + counts.nr_active_anon;
        Reclaimable {
            file_lru: counts.nr_inactive_file + counts.nr_active_file,
            file: counts.nr_file_pages,
            file_mapped: counts.nr_mapped,
            file_dirty: counts.nr_dirty,
            anon_lru: if self.swap.has_room() { anon_lru } else { 0 },
            slab: 0,
        }
    }

    pub(crate) fn counts(&self, zone: ZoneId) -> ZoneCounts {
        let ZonePages { kinds: [anon, file], dirty, mapped } = &self.zones[zone.index()];
        ZoneCounts {
            nr_inactive_anon: anon.lists[0].len,
            nr_active_anon: anon.lists[1].len,
            nr_inactive_file: file.lists[0].len,
            nr_active_file: file.lists[1].len,
            nr_anon_pages: anon.pages,
            nr_file_pages: file.pages,
            nr_mapped: *mapped,
            nr_dirty: *dirty,
            nr_writeback: anon.writeback + file.writeback,
        }
    }

    // ---- checking ----------------------------------------------------------------------------------------

    /// Walks everything. What is wrong, if something is. No thread may be at work.
    pub(crate) fn verify<P: Platform>(
        &self,
        slots: &Slots<'_, P>,
        zone_of: impl Fn(Pfn) -> ZoneId,
    ) -> Result<(), &'static str> {
        let mut counts = alloc::vec![ZoneCounts::default(); self.zones.len()];
        let (mut cached, mut on_their_way) = (0, 0);
        for (&(owner, index), &pfn) in &self.index {
            let slot = slots.get(pfn);
            if (slot.owner(), slot.index) != (owner, index) {
                return Err("a page does not say which it is");
            }
            if !self.owns(slots, pfn) {
                return Err("a page is not among the cache's own frames");
            }
            let [active, dirty, mapped, writeback] =
                [Marks::ACTIVE, Marks::DIRTY, Marks::MAPPED, Marks::WRITEBACK].map(|bit| slot.marks.has(bit));
            let count = &mut counts[zone_of(pfn).index()];
            count.nr_writeback += u64::from(writeback);
            match owner {
                Owner::File(file) => {
                    if dirty != self.dirty.contains(&(file, index)) {
                        return Err("a page is dirty on one side only");
                    }
                    on_their_way += usize::from(writeback);
                    count.nr_file_pages += 1;
                    count.nr_inactive_file += u64::from(!active);
                    count.nr_active_file += u64::from(active);
                    count.nr_dirty += u64::from(dirty);
                    count.nr_mapped += u64::from(mapped);
                }
                Owner::Space(space) => {
                    let page = (space, index);
                    if !mapped {
                        return Err("an anonymous page is not mapped");
                    }
                    if dirty == self.swap.find(page).is_some() || (dirty && writeback) {
                        return Err("an anonymous page is dirty and has a slot, or has none and is clean");
                    }
                    if self.swap.is_cached(page) == (dirty || writeback) {
                        return Err("a slot is cached, and its page is not the same, or the other way round");
                    }
                    cached += u64::from(self.swap.is_cached(page));
                    count.nr_anon_pages += 1;
                    count.nr_inactive_anon += u64::from(!active);
                    count.nr_active_anon += u64::from(active);
                }
            }
        }
        for (n, (zone, found)) in self.zones.iter().zip(&counts).enumerate() {
            if self.counts(ZoneId(n as u8)) != *found {
                return Err("counts of a zone are not the sums of its pages");
            }
            for kind in Kind::ALL {
                for (active, list) in zone.kinds[kind as usize].lists.iter().enumerate() {
                    verify_list(slots, list, kind, active == 1)?;
                }
            }
        }
        if self.cached.iter().map(|word| u64::from(word.count_ones())).sum::<u64>() != self.index.len() as u64
        {
            return Err("a frame is the cache's own and holds no page");
        }
        if self.dirty.len() as u64 != self.zones.iter().map(|zone| zone.dirty).sum::<u64>() {
            return Err("a dirty page is not cached");
        }
        if self.files.values().map(File::pages_writing).sum::<usize>() != on_their_way {
            return Err("a file counts other pages on their way than there are");
        }
        if self.swap.usage().cached != cached {
            return Err("a slot is cached for a page that is not in memory");
        }
        self.swap.verify()
    }
}

/// Walks a list of pages of one kind.
fn verify_list<P: Platform>(
    slots: &Slots<'_, P>,
    list: &List,
    list_kind: Kind,
    active: bool,
) -> Result<(), &'static str> {
    let (mut at, mut before, mut len) = (list.head, NONE, 0);
    while let Some(pfn) = slots.pfn(at) {
        let slot = slots.get(pfn);
        if slot.prev != before || slot.marks.has(Marks::ACTIVE) != active || kind(slot.marks) != list_kind {
            return Err("a page's links or state are not its list's");
        }
        (before, at) = (at, slot.next);
        len += 1;
        if len > list.len {
            break;
        }
    }
    if len != list.len || before != list.tail {
        return Err("a list is not as long as it says, or ends elsewhere");
    }
    Ok(())
}
