//! The swap area: which of its slots hold which anonymous pages. Pure.
//!
//! A page has a slot from when it is about to be written until it is dirtied or dropped, whether it is in memory
//! or not. While it is in memory too, and is what the slot holds, the slot is *cached*: if all others are taken,
//! it can be had, and the page is dirty again.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::policy;
use crate::slot::{FileId, SpaceId};

/// Slots that are handed out one after the other where they can be (Linux: `SWAPFILE_CLUSTER`).
pub const CLUSTER: u32 = 256;

/// Swap area for anonymous pages when memory is short: pages of a file of the cache alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swap {
    /// The file. Slot n is its page n. What it held before does not matter, nor what is left there.
    pub file: FileId,
    /// How many slots there are.
    pub slots: u32,
    /// Weight of anonymous pages in a scan, against those of files: 0 to 200 (`vm.swappiness`).
    pub swappiness: u64,
}

impl Swap {
    /// With the default swappiness.
    #[must_use]
    pub const fn new(file: FileId, slots: u32) -> Self {
        Self { file, slots, swappiness: policy::SWAPPINESS }
    }
}

/// How full a swap area is, in slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapUse {
    /// All.
    pub slots: u64,
    /// Slots without an owner.
    pub free: u64,
    /// Those whose page is in memory as well.
    pub cached: u64,
}

/// An anonymous page.
pub(crate) type AnonPage = (SpaceId, u64);

/// A slot that is taken.
#[derive(Clone, Copy, Debug)]
struct Taken {
    page: AnonPage,
    cached: bool,
}

/// The slots of a swap area.
///
/// They are handed out next to each other: pages that reclaim writes together then are together, and go in one
/// call, as Linux has them. Where the next slot is not free, a cluster that no thread has begun is looked for, the
/// lowest first, so that what is used of the file stays short; if there is none, the next free slot will do.
pub(crate) struct SwapMap {
    /// How many there are.
    len: u32,
    /// Those of the clusters that were ever begun, from the first on.
    slots: Vec<Option<Taken>>,
    /// By page, which slot.
    pages: BTreeMap<AnonPage, u32>,
    /// By cluster begun, how many slots are taken.
    taken: Vec<u32>,
    cached: u64,
    /// The slot behind the one that was taken last.
    next: u32,
}

impl SwapMap {
    pub(crate) const fn new(len: u32) -> Self {
        Self { len, slots: Vec::new(), pages: BTreeMap::new(), taken: Vec::new(), cached: 0, next: 0 }
    }

    pub(crate) fn usage(&self) -> SwapUse {
        let slots = u64::from(self.len);
        SwapUse { slots, free: slots - self.pages.len() as u64, cached: self.cached }
    }

    /// Whether a page in memory could have a slot.
    pub(crate) fn has_room(&self) -> bool {
        let SwapUse { free, cached, .. } = self.usage();
        free + cached > 0
    }

    /// Whether pages in memory may keep their slots.
    pub(crate) fn keeps(&self) -> bool {
        let SwapUse { slots, free, .. } = self.usage();
        policy::keeps_slot(free, slots)
    }

    pub(crate) fn find(&self, page: AnonPage) -> Option<u32> {
        self.pages.get(&page).copied()
    }

    /// Whether a page has a slot that others could have.
    pub(crate) fn is_cached(&self, page: AnonPage) -> bool {
        self.find(page).and_then(|slot| self.slots[slot as usize]).is_some_and(|taken| taken.cached)
    }

    /// A slot for a page that has none. `None` if all are taken. O(clusters).
    pub(crate) fn take(&mut self, page: AnonPage) -> Option<u32> {
        let slot = self.find_free()?;
        if slot as usize == self.slots.len() {
            self.slots.resize(slot.saturating_add(CLUSTER).min(self.len) as usize, None);
            self.taken.push(0);
        }
        self.slots[slot as usize] = Some(Taken { page, cached: false });
        self.taken[(slot / CLUSTER) as usize] += 1;
        let before = self.pages.insert(page, slot);
        debug_assert!(before.is_none(), "a page has two slots");
        self.next = slot + 1;
        Some(slot)
    }

    fn find_free(&self) -> Option<u32> {
        if self.pages.len() as u64 == u64::from(self.len) {
            return None;
        }
        let is_free = |slot: &u32| self.slots.get(*slot as usize).is_some_and(Option::is_none);
        if !self.next.is_multiple_of(CLUSTER) && is_free(&self.next) {
            return Some(self.next);
        }
        if let Some(cluster) = self.taken.iter().position(|&taken| taken == 0) {
            return Some(cluster as u32 * CLUSTER);
        }
        if self.slots.len() < self.len as usize {
            return Some(self.slots.len() as u32);
        }
        // The rest of this cluster, those after it, those before it, and its beginning.
        let (first, clusters) = (self.next / CLUSTER, self.taken.len());
        (0..=clusters).find_map(|n| {
            let cluster = (first as usize + n) % clusters;
            let start = cluster as u32 * CLUSTER;
            let end = start.saturating_add(CLUSTER).min(self.len);
            let from = if n == 0 && start <= self.next { self.next } else { start };
            let full = self.taken[cluster] == end - start;
            if full { None } else { (from..end).find(is_free) }
        })
    }

    /// Gives back the slot of a page, if it has one. Whether it had.
    pub(crate) fn release(&mut self, page: AnonPage) -> bool {
        let Some(slot) = self.pages.remove(&page) else { return false };
        let taken = self.slots[slot as usize].take();
        self.cached -= u64::from(taken.is_some_and(|taken| taken.cached));
        self.taken[(slot / CLUSTER) as usize] -= 1;
        true
    }

    /// Gives back up to `most` slots of a space's pages `first..=last`, but none of a page that is `in_memory`: it may
    /// just be read from there, and the thread that drops it gives its slot back. Returns where to go on; `None` if
    /// that was the last of them.
    pub(crate) fn release_pages(
        &mut self,
        space: SpaceId,
        (first, last): (u64, u64),
        most: usize,
        mut in_memory: impl FnMut(u64) -> bool,
    ) -> Option<u64> {
        let mut from = first;
        for _ in 0..most {
            if from > last {
                return None;
            }
            let (&page, _) = self.pages.range((space, from)..=(space, last)).next()?;
            if !in_memory(page.1) {
                self.release(page);
            }
            from = page.1.checked_add(1)?;
        }
        Some(from)
    }

    /// Notes whether a page that has a slot is in memory, too, and the same.
    pub(crate) fn set_cached(&mut self, page: AnonPage, cached: bool) {
        let Some(slot) = self.find(page) else { return };
        let Some(taken) = &mut self.slots[slot as usize] else { return };
        if taken.cached != cached {
            taken.cached = cached;
            self.cached = if cached { self.cached + 1 } else { self.cached - 1 };
        }
    }

    /// Takes a cached slot from its page. Returns the page: what it holds is in memory alone from now on.
    /// The search goes round, so that many of them together are O(slots).
    pub(crate) fn rob(&mut self) -> Option<AnonPage> {
        if self.cached == 0 {
            return None;
        }
        let len = self.slots.len();
        let slot = (0..len).map(|n| (self.next as usize + n) % len).find(|&slot| {
            let taken = self.slots[slot];
            taken.is_some_and(|taken| taken.cached)
        })?;
        let page = self.slots[slot]?.page;
        self.release(page);
        self.next = slot as u32;
        Some(page)
    }

    /// Walks everything. What is wrong, if something is.
    pub(crate) fn verify(&self) -> Result<(), &'static str> {
        let taken = || self.slots.iter().flatten();
        if taken().count() != self.pages.len() {
            return Err("a slot of the swap area is taken for no page, or one has several pages");
        }
        for (&page, &slot) in &self.pages {
            if self.slots.get(slot as usize).and_then(Option::as_ref).is_none_or(|taken| taken.page != page) {
                return Err("a slot of the swap area does not say whose it is");
            }
        }
        for (cluster, &count) in self.slots.chunks(CLUSTER as usize).zip(&self.taken) {
            if cluster.iter().flatten().count() != count as usize {
                return Err("a cluster of the swap area counts other slots than are taken");
            }
        }
        if taken().filter(|taken| taken.cached).count() as u64 != self.cached {
            return Err("the swap area counts other cached slots than there are");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(n: u32) -> AnonPage {
        (SpaceId(n % 3), u64::from(n))
    }

    #[test]
    fn slots_lie_together() {
        let mut map = SwapMap::new(3 * CLUSTER + 10);
        for n in 0..300 {
            assert_eq!(map.take(page(n)), Some(n));
        }
        // Half of the first cluster is free, and no reason to leave the second one.
        (0..128).for_each(|n| assert!(map.release(page(2 * n))));
        assert_eq!(map.take(page(1000)), Some(300));
        (301..2 * CLUSTER).for_each(|n| assert_eq!(map.take(page(1000 + n)), Some(n)));
        assert_eq!(map.take(page(2000)), Some(2 * CLUSTER), "a cluster of its own");
        (1..CLUSTER).for_each(|n| assert_eq!(map.take(page(2000 + n)), Some(2 * CLUSTER + n)));
        for n in 0..10 {
            assert_eq!(map.take(page(3000 + n)), Some(3 * CLUSTER + n), "the last one is short");
        }
        for n in 0..128 {
            assert_eq!(map.take(page(4000 + n)), Some(2 * n), "no cluster is free any more");
        }
        assert_eq!(map.take(page(5000)), None);
        assert!(!map.has_room());
        map.verify().unwrap();
    }

    #[test]
    fn what_is_cached_can_be_had() {
        let mut map = SwapMap::new(4);
        (0..4).for_each(|n| assert_eq!(map.take(page(n)), Some(n)));
        assert_eq!(map.rob(), None, "all are in swap only");
        map.set_cached(page(2), true);
        map.set_cached(page(2), true);
        assert!(map.is_cached(page(2)) && map.has_room() && !map.keeps());
        assert_eq!(map.usage(), SwapUse { slots: 4, free: 0, cached: 1 });
        assert_eq!(map.rob(), Some(page(2)));
        assert_eq!((map.find(page(2)), map.take(page(9))), (None, Some(2)));
        assert!(!map.release(page(2)), "it has none");
        map.set_cached(page(2), true);
        assert_eq!(map.usage(), SwapUse { slots: 4, free: 0, cached: 0 });
        map.verify().unwrap();
    }

    #[test]
    fn an_area_without_slots_gives_none() {
        let mut map = SwapMap::new(0);
        assert_eq!((map.take(page(1)), map.rob(), map.has_room()), (None, None, false));
        assert_eq!(map.release_pages(SpaceId(1), (0, u64::MAX), 1, |_| false), None);
        map.verify().unwrap();
    }

    /// Long random histories against a model that knows only which slots are taken.
    #[test]
    fn no_slot_is_had_twice_and_none_is_lost() {
        for slots in [1, 7, CLUSTER, CLUSTER + 1, 3 * CLUSTER - 5] {
            let mut map = SwapMap::new(slots);
            let mut model: BTreeMap<AnonPage, (u32, bool)> = BTreeMap::new();
            let mut rng = fastrand::Rng::with_seed(slots.into());
            for step in 0..20_000_u32 {
                let page = page(rng.u32(..2 * slots));
                // Fills up in one third of the time, and empties in the next.
                let dice = rng.u64(..16) + u64::from(step / 4000 % 3) * 3;
                if dice < 11 {
                    if model.contains_key(&page) {
                        map.set_cached(page, dice.is_multiple_of(2));
                        model.entry(page).and_modify(|held| held.1 = dice.is_multiple_of(2));
                    } else if let Some(slot) = map.take(page) {
                        assert!(slot < slots && model.values().all(|&(taken, _)| taken != slot));
                        model.insert(page, (slot, false));
                    } else {
                        assert_eq!(model.len(), slots as usize, "there is a free one");
                    }
                } else if dice < 20 {
                    assert_eq!(map.release(page), model.remove(&page).is_some());
                } else if dice == 20 {
                    let robbed = map.rob();
                    assert_eq!(robbed.is_some(), model.values().any(|held| held.1));
                    assert!(robbed.is_none_or(|page| model.remove(&page).is_some_and(|held| held.1)));
                } else {
                    let all = map.release_pages(page.0, (10, page.1), 5, |_| false).is_none();
                    let gone =
                        model.keys().filter(|&&(space, at)| space == page.0 && (10..=page.1).contains(&at));
                    let gone: Vec<_> = gone.copied().collect();
                    assert_eq!(all, gone.len() < 5);
                    for page in gone.into_iter().take(5) {
                        model.remove(&page);
                    }
                }
                assert_eq!(map.find(page), model.get(&page).map(|held| held.0));
                assert_eq!(map.is_cached(page), model.get(&page).is_some_and(|held| held.1));
                if step % 64 == 0 {
                    map.verify().unwrap();
                }
            }
            map.verify().unwrap();
            assert_eq!(map.usage().free, u64::from(slots) - model.len() as u64);
        }
    }
}
