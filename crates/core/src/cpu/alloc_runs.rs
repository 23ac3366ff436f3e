//! Frames in few runs, for callers that need many frames and accept any place for the next run: pools of blocks, lists
//! of a device, read-ahead.

use core::ops::Range;

use super::Cpu;
use crate::config::ZonelistCache;
use crate::frame::{FrameUser, State};
use crate::pcp::Local;
use crate::platform::Platform;
use crate::policy::passes::Mark;
use crate::reclaim::Helpers;
use crate::request::{Flags, Request};
use crate::units::{MAX_ORDER, Migratetype, Order, Pfn, ZoneId};

/// Runs found so far, in the caller's memory.
struct Runs<'o> {
    out: &'o mut [Range<Pfn>],
    /// The first `len` are valid.
    len: usize,
    /// Frames still to find.
    left: u64,
}

impl Runs<'_> {
    fn room(&self) -> usize {
        self.out.len() - self.len
    }

    fn push(&mut self, run: Range<Pfn>) {
        self.left -= run.end.0 - run.start.0;
        self.out[self.len] = run;
        self.len += 1;
    }

    /// Sorts the runs, and joins those that touch.
    fn join(&mut self) {
        let runs = &mut self.out[..self.len];
        runs.sort_unstable_by_key(|run| run.start);
        let mut kept = 0;
        for n in 1..runs.len() {
            if runs[kept].end == runs[n].start {
                runs[kept].end = runs[n].end;
            } else {
                kept += 1;
                runs[kept] = runs[n].clone();
            }
        }
        self.len = self.len.min(kept + 1);
    }
}

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Allocates `pages` frames in few runs of contiguous frames, and writes these to the front of `out`, ascending.
    /// Returns them. There are fewer frames than requested only if `out` has no room for more runs, or if
    /// [`alloc`](Self::alloc) fails, too. A run is freed by [`free_range`](Self::free_range), in any parts.
    /// `migratetype` is one of the ordinary three; for any other type there are no runs.
    ///
    /// With maps, runs have any length. A zone gives its longest runs first, and none shorter than a quarter of those
    /// in other zones. Of the pageblocks with such a run it takes the fullest; whole free pageblocks only if no other
    /// one has a run as long as the rest of the request. Runs are taken down to the zone's low mark. The rest, and
    /// everything with lists, is allocated as blocks, the largest order first.
    ///
    /// O(runs), and O(runs × log runs) to sort them.
    pub fn alloc_runs<'o>(
        &self,
        pages: u64,
        migratetype: Migratetype,
        out: &'o mut [Range<Pfn>],
    ) -> &'o [Range<Pfn>] {
        let mut runs = Runs { out, len: 0, left: if migratetype.is_ordinary() { pages } else { 0 } };
        let config = &self.allocator.config;
        let by_zone = config.experiment.zonelist_cache == ZonelistCache::Off && !config.fault_injection;
        if by_zone && self.frames.has_maps() {
            for &zone in self.allocator.zonelist_of(self.cpu) {
                self.runs_of(zone, migratetype, &mut runs);
            }
        }
        self.blocks_as_runs(migratetype, &mut runs);
        runs.join();
        let Runs { out, len, .. } = runs;
        &out[..len]
    }

    /// Takes runs from a zone, above its low mark.
    fn runs_of(&self, id: ZoneId, migratetype: Migratetype, runs: &mut Runs<'_>) {
        let zone = &self.allocator.zones[id.index()];
        let request = Request::new(Order::ZERO, migratetype);
        if runs.left == 0 || !request.may_use(zone.spec().kind) {
            return;
        }
        let local = self.local(id);
        local.answer();
        self.note_free_pages(zone);
        let spare = self.may_leave(zone, &request, Mark::Low);
        let last = runs.left - spare.min(runs.left);
        let mut order = Order::for_pages(runs.left - last).unwrap_or(MAX_ORDER);
        while runs.left > last && runs.room() > 0 {
            let (from, wanted) = (runs.len, runs.left - last);
            let room = runs.room();
            if local.take_runs(order, migratetype, wanted, room, |run| runs.push(run)) == 0 {
                let Some(smaller) = order.down() else { break };
                order = smaller;
                continue;
            }
            let mut kept = from;
            for n in from..runs.len {
                let run = runs.out[n].clone();
                if self.lay_out(&local, &run, migratetype) {
                    runs.out[kept] = run;
                    kept += 1;
                } else {
                    runs.left += run.end.0 - run.start.0;
                }
            }
            runs.len = kept;
        }
    }

    /// Makes blocks of a run that was taken from a zone. If a check finds one bad, the others are free again, and it
    /// returns `false`.
    fn lay_out(&self, local: &Local<'_, '_, P, M>, run: &Range<Pfn>, asked: Migratetype) -> bool {
        let blocks = || Order::tiles(run.clone());
        let (mut all, mut good, mut pages) = (0, 0, 0);
        for (pfn, order) in blocks() {
            self.frames.set_state(pfn, order, State::Taken { order, asked, list_place: None });
            all += 1;
            if local.is_good(pfn, order) {
                (good, pages) = (good + 1, pages + order.pages());
            }
        }
        local.count_direct(good, pages);
        self.count_numa(self.zone, local.zone.id(), all);
        if good < all {
            // The free of a bad block is refused.
            for (pfn, order) in blocks() {
                let _refused = self.free(pfn, order);
            }
        }
        good == all
    }

    /// Allocates blocks, the largest first: from lists, from other types, and with the help that a failing request
    /// gets.
    fn blocks_as_runs(&self, migratetype: Migratetype, runs: &mut Runs<'_>) {
        let mut order = MAX_ORDER;
        while runs.left > 0 {
            if runs.room() == 0 {
                runs.join();
                if runs.room() == 0 {
                    return;
                }
            }
            while order.pages() > runs.left {
                order = order.down().unwrap_or(Order::ZERO);
            }
            let request = Request::new(order, migratetype);
            let few = Flags::NO_WAIT.and(Flags::NO_RESERVES);
            let request = if order > Order::ZERO { request.with(few) } else { request };
            match self.alloc_with(&request, &Helpers::NONE) {
                Ok(pfn) => runs.push(pfn..pfn.add(order.pages())),
                Err(_) => match order.down() {
                    Some(smaller) => order = smaller,
                    None => return,
                },
            }
        }
    }
}
