//! What the cache's lock guards: the index of pages, their LRU lists by zone, files, and counts.
//!
//! # Invariants
//! 1. Every page in the index is on exactly one list of its zone, or is isolated: taken off to be looked at.
//! 2. A list's length is the number of its pages; `dirty` and `mapped` of a zone count its pages that are.
//! 3. A page with users, or being written, is neither freed nor handed to anybody alone.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use framewright::platform::Platform;
use framewright::reclaim::Reclaimable;
use framewright::{Pfn, ZoneId};

use crate::latency::Histogram;
use crate::policy::{self, Lists};
use crate::slot::{ALONE, FileId, Is, NONE, PageSlot, Slots};

/// One LRU list of a zone: its hot end is the head, reclaim looks at the tail.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u64,
}

const EMPTY: List = List { head: NONE, tail: NONE, len: 0 };

/// The file pages of one zone.
#[derive(Clone, Copy, Debug)]
struct ZonePages {
    /// Inactive, active.
    lists: [List; 2],
    scanned: u64,
    rotated: u64,
    /// In the index.
    pages: u64,
    dirty: u64,
    mapped: u64,
}

/// What the cache knows of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct File {
    /// The page read last, and how far reading ahead goes.
    pub(crate) last_read: Option<u64>,
    pub(crate) window: u64,
    /// A write of one of its pages failed since the last flush.
    pub(crate) failed: bool,
}

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What the cache has been through. Pages, with the kernel's names.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct CacheEvents { $($(#[$doc])* pub $name: u64,)* }

        impl CacheEvents {
            /// Each counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

events! {
    /// Pages read from storage.
    pgpgin,
    /// Pages written to storage.
    pgpgout,
    /// Those of them that reclaim sent.
    nr_vmscan_write,
    /// Pages of active lists looked at.
    pgrefill,
    /// Pages moved to an active list.
    pgactivate,
    /// Pages moved to an inactive list.
    pgdeactivate,
    /// Pages put back to the hot end because they were being written.
    pgrotated,
    /// Pages used that were there.
    cache_hits,
    /// Pages used that were not.
    cache_misses,
    /// Pages read ahead.
    read_ahead,
    /// Reads and writes that storage failed.
    io_errors,
}

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct State {
    index: BTreeMap<(FileId, u64), Pfn>,
    dirty: BTreeSet<(FileId, u64)>,
    pub(crate) files: BTreeMap<FileId, File>,
    zones: Vec<ZonePages>,
    /// Pages being written.
    writeback: u64,
    pub(crate) events: CacheEvents,
    pub(crate) allocation_times: Histogram,
}

impl State {
    pub(crate) fn new(zones: usize) -> Self {
        let none = ZonePages { lists: [EMPTY; 2], scanned: 0, rotated: 0, pages: 0, dirty: 0, mapped: 0 };
        Self {
            index: BTreeMap::new(),
            dirty: BTreeSet::new(),
            files: BTreeMap::new(),
            zones: alloc::vec![none; zones],
            writeback: 0,
            events: CacheEvents::default(),
            allocation_times: Histogram::default(),
        }
    }

    // ---- index -------------------------------------------------------------------------------------------

    pub(crate) fn find(&self, file: FileId, index: u64) -> Option<Pfn> {
        self.index.get(&(file, index)).copied()
    }

    pub(crate) fn pages(&self) -> u64 {
        self.index.len() as u64
    }

    pub(crate) fn dirty_pages(&self) -> u64 {
        self.dirty.len() as u64
    }

    pub(crate) const fn writeback_pages(&self) -> u64 {
        self.writeback
    }

    /// Dirty pages · 2³² + pages being written. A cache has fewer than 2³² of either.
    pub(crate) fn unwritten(&self) -> u64 {
        self.dirty_pages() << 32 | self.writeback_pages()
    }

    /// The first dirty page of a file, or of any, at or behind a place.
    pub(crate) fn next_dirty(&self, from: (FileId, u64), file: Option<FileId>) -> Option<(FileId, u64, Pfn)> {
        let found = self.dirty.range(from..).next().copied()?;
        let wanted = file.is_none_or(|file| file == found.0);
        wanted.then(|| self.find(found.0, found.1).map(|pfn| (found.0, found.1, pfn))).flatten()
    }

    /// The first page of a file at or behind `index`.
    pub(crate) fn next_page(&self, file: FileId, index: u64) -> Option<(u64, Pfn)> {
        self.index.range((file, index)..=(file, u64::MAX)).next().map(|(&(_, index), &pfn)| (index, pfn))
    }

    /// Puts a page that was just allocated into the index, had alone, at the hot end of the inactive list.
    pub(crate) fn insert<P: Platform>(
        &mut self,
        slots: &Slots<'_, P>,
        zone: ZoneId,
        pfn: Pfn,
        file: FileId,
        index: u64,
    ) {
        slots.with(pfn, |slot| {
            *slot = PageSlot { index, file, next: NONE, prev: NONE, is: Is::default(), users: ALONE };
        });
        let before = self.index.insert((file, index), pfn);
        debug_assert!(before.is_none(), "a page of a file is cached twice");
        self.zones[zone.index()].pages += 1;
        self.link(slots, zone, pfn);
    }

    /// Takes a page out of the index. It is on no list any more, and the caller's to free.
    pub(crate) fn remove<P: Platform>(&mut self, slots: &Slots<'_, P>, zone: ZoneId, pfn: Pfn, listed: bool) {
        if listed {
            self.unlink(slots, zone, pfn);
        }
        self.set(slots, zone, pfn, Is::DIRTY, false);
        self.set(slots, zone, pfn, Is::MAPPED, false);
        let slot = slots.get(pfn);
        self.index.remove(&(slot.file, slot.index));
        self.zones[zone.index()].pages -= 1;
        slots.with(pfn, |slot| *slot = PageSlot::default());
    }

    /// Sets or clears a state bit, and counts it.
    pub(crate) fn set<P: Platform>(
        &mut self,
        slots: &Slots<'_, P>,
        zone: ZoneId,
        pfn: Pfn,
        what: Is,
        on: bool,
    ) {
        let slot = slots.get(pfn);
        if slot.is.has(what) == on {
            return;
        }
        slots.with(pfn, |slot| slot.is = slot.is.with(what, on));
        let zone = &mut self.zones[zone.index()];
        let count = |pages: &mut u64| *pages = if on { *pages + 1 } else { *pages - 1 };
        match what {
            Is::DIRTY => {
                count(&mut zone.dirty);
                let key = (slot.file, slot.index);
                if on {
                    self.dirty.insert(key);
                } else {
                    self.dirty.remove(&key);
                }
            }
            Is::MAPPED => count(&mut zone.mapped),
            Is::WRITEBACK => count(&mut self.writeback),
            _ => {}
        }
    }

    // ---- lists -------------------------------------------------------------------------------------------

    /// Puts a page at the hot end of the list that its state names.
    pub(crate) fn link<P: Platform>(&mut self, slots: &Slots<'_, P>, zone: ZoneId, pfn: Pfn) {
        let active = slots.get(pfn).is.has(Is::ACTIVE);
        let list = &mut self.zones[zone.index()].lists[usize::from(active)];
        let me = slots.link(pfn);
        slots.with(pfn, |slot| (slot.next, slot.prev) = (list.head, NONE));
        match slots.pfn(list.head) {
            Some(head) => slots.with(head, |slot| slot.prev = me),
            None => list.tail = me,
        }
        list.head = me;
        list.len += 1;
    }

    pub(crate) fn unlink<P: Platform>(&mut self, slots: &Slots<'_, P>, zone: ZoneId, pfn: Pfn) {
        let PageSlot { next, prev, is, .. } = slots.get(pfn);
        let list = &mut self.zones[zone.index()].lists[usize::from(is.has(Is::ACTIVE))];
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
        active: bool,
    ) -> Option<Pfn> {
        slots.pfn(self.zones[zone.index()].lists[usize::from(active)].tail)
    }

    /// Moves a page on its list, or to the other one, to the hot end.
    pub(crate) fn relink<P: Platform>(&mut self, slots: &Slots<'_, P>, zone: ZoneId, pfn: Pfn, active: bool) {
        self.unlink(slots, zone, pfn);
        slots.with(pfn, |slot| slot.is = slot.is.with(Is::ACTIVE, active));
        self.link(slots, zone, pfn);
    }

    /// A page was used.
    pub(crate) fn mark_used<P: Platform>(&mut self, slots: &Slots<'_, P>, zone: ZoneId, pfn: Pfn) {
        let is = slots.get(pfn).is;
        if policy::activates(is.has(Is::REFERENCED), is.has(Is::ACTIVE)) {
            slots.with(pfn, |slot| slot.is = slot.is.with(Is::REFERENCED, false));
            self.relink(slots, zone, pfn, true);
            self.events.pgactivate += 1;
            self.zones[zone.index()].rotated += 1;
        } else {
            slots.with(pfn, |slot| slot.is = slot.is.with(Is::REFERENCED, true));
        }
    }

    /// The lists of a zone, for the policies.
    pub(crate) fn lists(&self, zone: ZoneId) -> Lists {
        let zone = &self.zones[zone.index()];
        Lists {
            active: zone.lists[1].len,
            inactive: zone.lists[0].len,
            scanned: zone.scanned,
            rotated: zone.rotated,
        }
    }

    /// Notes a scan.
    pub(crate) fn note_scan(&mut self, zone: ZoneId, scanned: u64, rotated: u64) {
        let entry = &mut self.zones[zone.index()];
        entry.scanned += scanned;
        entry.rotated += rotated;
        let decayed = self.lists(zone).decayed();
        let entry = &mut self.zones[zone.index()];
        (entry.scanned, entry.rotated) = (decayed.scanned, decayed.rotated);
    }

    pub(crate) fn reclaimable(&self, zone: ZoneId) -> Reclaimable {
        let zone = &self.zones[zone.index()];
        Reclaimable {
            file_lru: zone.lists[0].len + zone.lists[1].len,
            file: zone.pages,
            file_mapped: zone.mapped,
            file_dirty: zone.dirty,
            anon_lru: 0,
            slab: 0,
        }
    }

    // ---- checking ----------------------------------------------------------------------------------------

    /// Walks everything. What is wrong, if something is. Nobody may have pages isolated meanwhile.
    pub(crate) fn verify<P: Platform>(
        &self,
        slots: &Slots<'_, P>,
        zone_of: impl Fn(Pfn) -> ZoneId,
    ) -> Result<(), &'static str> {
        let mut counts: Vec<[u64; 4]> = alloc::vec![[0; 4]; self.zones.len()];
        let mut writeback = 0;
        for (&(file, index), &pfn) in &self.index {
            let slot = slots.get(pfn);
            if (slot.file, slot.index) != (file, index) {
                return Err("a page does not say which it is");
            }
            if slot.is.has(Is::DIRTY) != self.dirty.contains(&(file, index)) {
                return Err("a page is dirty on one side only");
            }
            writeback += u64::from(slot.is.has(Is::WRITEBACK));
            let count = &mut counts[zone_of(pfn).index()];
            count[0] += 1;
            count[1] += u64::from(slot.is.has(Is::DIRTY));
            count[2] += u64::from(slot.is.has(Is::MAPPED));
        }
        for (n, zone) in self.zones.iter().enumerate() {
            let mut listed = 0;
            for (active, list) in zone.lists.iter().enumerate() {
                let (mut at, mut before, mut len) = (list.head, NONE, 0);
                while let Some(pfn) = slots.pfn(at) {
                    let slot = slots.get(pfn);
                    if slot.prev != before || slot.is.has(Is::ACTIVE) != (active == 1) {
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
                listed += len;
            }
            let found = [listed, zone.dirty, zone.mapped, 0];
            if counts[n] != found || zone.pages != listed {
                return Err("counts of a zone are not the sums of its pages");
            }
        }
        if writeback != self.writeback {
            return Err("pages are being written that are not counted, or the other way round");
        }
        if self.dirty.len() as u64 != self.zones.iter().map(|zone| zone.dirty).sum::<u64>() {
            return Err("a dirty page is not cached");
        }
        Ok(())
    }
}
