//! Caches of small objects, which give pages back in proportion to how hard the LRU lists are searched (v3.0's
//! `shrink_slab`): who searches a tenth of the lists asks for four tenths of the objects, divided by what an object
//! costs to make again.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use framewright::ZoneId;
use framewright::platform::{Platform, Word};
use framewright::reclaim::{By, ReclaimRequest, Reclaimed, Release};

/// Objects that a cache is asked to look at in one call.
pub const BATCH: u64 = 128;
/// Cost of making an object again, in units of a disk access, if a cache says nothing else.
pub const SEEKS: u64 = 2;

/// A cache of small objects that are in pages of their own. Called with no lock held, on the thread that needs memory;
/// it must not allocate from the same allocator.
///
/// ```
/// use std::sync::Mutex;
///
/// use framewright::reclaim::Release;
/// use framewright::{Order, Pfn, ZoneId};
/// use framewright_pagecache::slab::Shrinker;
///
/// /// Names, 64 to a page; a page goes when all of its names have.
/// struct Names(Mutex<Vec<(Pfn, u64)>>);
///
/// impl Shrinker for Names {
///     fn objects(&self) -> u64 {
///         self.0.lock().unwrap().iter().map(|(_, names)| names).sum()
///     }
///
///     fn pages(&self, _: ZoneId) -> u64 {
///         self.0.lock().unwrap().len() as u64
///     }
///
///     fn shrink(&self, mut objects: u64, to: &dyn Release) {
///         let mut pages = self.0.lock().unwrap();
///         while let Some((pfn, names)) = pages.last_mut() {
///             let gone = objects.min(*names);
///             (*names, objects) = (*names - gone, objects - gone);
///             if *names > 0 {
///                 break;
///             }
///             // SAFETY: the page is this cache's, and holds no object any more.
///             let _ = unsafe { to.free(*pfn, Order::ZERO) };
///             pages.pop();
///         }
///     }
/// }
/// ```
pub trait Shrinker: Sync {
    /// Objects that could go.
    fn objects(&self) -> u64;

    /// Pages of a zone that would be free without them.
    fn pages(&self, zone: ZoneId) -> u64;

    /// Cost of making an object again, in units of a disk access; at least 1.
    fn seeks(&self) -> u64 {
        SEEKS
    }

    /// Looks at `objects` objects, drops those without a user, and frees pages that are empty.
    fn shrink(&self, objects: u64, to: &dyn Release);
}

/// How many objects to look at, of `objects` that could go, after `scanned` pages of `lru` were looked at, with `left`
/// from earlier: left + 4 · scanned · objects / (seeks · (lru + 1)), at most twice as many as there are, and at most
/// half of them where the new part is less than a quarter. O(1).
#[must_use]
pub fn to_scan(left: u64, objects: u64, seeks: u64, scanned: u64, lru: u64) -> u64 {
    let wide = u128::from;
    let delta = (4 * wide(scanned) / wide(seeks.max(1))).saturating_mul(wide(objects)) / (wide(lru) + 1);
    let total = delta.saturating_add(wide(left));
    let most = if delta < wide(objects) / 4 { wide(objects) / 2 } else { 2 * wide(objects) };
    total.min(most).try_into().unwrap_or(u64::MAX)
}

/// One cache, and the objects that it was asked for and has not looked at yet: fewer than a batch, as a rule.
struct Registered<'c, P: Platform> {
    shrinker: &'c dyn Shrinker,
    left: P::Word,
}

/// All caches of small objects.
pub(crate) struct Shrinkers<'c, P: Platform> {
    all: Vec<Registered<'c, P>>,
    /// Pages of the LRU lists looked at since a thread last shrank the caches.
    scanned: P::Word,
}

impl<'c, P: Platform> Shrinkers<'c, P> {
    pub(crate) fn new(all: &[&'c dyn Shrinker]) -> Self {
        let registered = |&shrinker| Registered { shrinker, left: P::Word::new(0) };
        Self { all: all.iter().map(registered).collect(), scanned: P::Word::new(0) }
    }

    /// Pages of the LRU lists were looked at.
    pub(crate) fn note_scan(&self, pages: u64) {
        if !self.all.is_empty() {
            self.scanned.fetch_add(pages, Relaxed);
        }
    }

    /// Pages of a zone that would be free without small objects.
    pub(crate) fn pages(&self, zone: ZoneId) -> u64 {
        self.all.iter().map(|cache| cache.shrinker.pages(zone)).sum()
    }

    /// Shrinks all, with `lru` pages on the lists that were searched. Pages that are freed may be in any zone.
    pub(crate) fn shrink(&self, ask: &ReclaimRequest<'_>, to: &dyn Release, lru: u64) -> Reclaimed {
        let mut done = Reclaimed::default();
        if self.all.is_empty() {
            return done;
        }
        // Zone reclaim shrinks again and again after one search, until enough is free.
        let scanned =
            if ask.by == By::Zone { self.scanned.load(Relaxed) } else { self.scanned.swap(0, Relaxed) };
        let before = to.freed();
        for Registered { shrinker, left } in &self.all {
            let mut total =
                to_scan(left.swap(0, Relaxed), shrinker.objects(), shrinker.seeks(), scanned, lru);
            while total >= BATCH {
                shrinker.shrink(BATCH, to);
                done.scanned += BATCH;
                total -= BATCH;
            }
            left.fetch_add(total, Relaxed);
        }
        done.freed = to.freed() - before;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_go_as_pages_are_searched_for() {
        // A tenth of the lists, two seeks: two tenths of the objects, a quarter of them not being reached: half at
        // most.
        assert_eq!(to_scan(0, 10_000, 2, 100, 999), 2000);
        assert_eq!(to_scan(4000, 10_000, 2, 100, 999), 5000, "what was left is not let grow for ever");
        // Three tenths: six tenths.
        assert_eq!(to_scan(0, 10_000, 2, 300, 999), 6000);
        assert_eq!(to_scan(u64::MAX, 10_000, 2, 300, 999), 20_000, "at most twice what there is");
        assert_eq!(to_scan(0, 10_000, 1, 100, 999), 4000, "what is cheap to make again goes sooner");
        assert_eq!(to_scan(0, 0, 2, 100, 999), 0);
        assert_eq!(to_scan(0, 10_000, 2, 0, 999), 0, "nobody searches");
        assert_eq!(to_scan(9, u64::MAX, 0, u64::MAX, 0), u64::MAX, "no overflow");
    }
}
