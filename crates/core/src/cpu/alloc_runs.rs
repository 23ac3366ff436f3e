//! Frames in few runs, for callers that need many frames and accept any place for the next run: pools of blocks, lists
//! of a device, read-ahead.

use core::ops::Range;

use super::Cpu;
use crate::config::ZonelistCache;
use crate::frame::FrameUser;
use crate::pcp::Local;
use crate::platform::Platform;
use crate::policy::passes::Mark;
use crate::reclaim::Helpers;
use crate::request::{Flags, Request};
use crate::units::{MAX_ORDER, Migratetype, Order, Pfn, ZoneId};

/// Most ascending parts that are put in order one by one.
const MOST_PARTS: usize = 32;

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

    /// Sorts the runs. Those of a visit of a pageblock are ascending, and most pageblocks are visited once: so a few
    /// ascending parts are put between the others as a whole.
    fn sort(&mut self) {
        let runs = &mut self.out[..self.len];
        let mut sorted = 1;
        for _ in 0..MOST_PARTS {
            let Some(next) = runs.get(sorted) else { return };
            let at = runs[..sorted].partition_point(|run| run.start < next.start);
            let above = runs[at..sorted].first().map_or(Pfn(u64::MAX), |run| run.start);
            let fits = |two: &&[Range<Pfn>]| two[0].start < two[1].start && two[1].start < above;
            let end = sorted + 1 + runs[sorted..].windows(2).take_while(fits).count();
            runs[at..end].rotate_right(end - sorted);
            sorted = end;
        }
        runs.sort_unstable_by_key(|run| run.start);
    }

    /// Sorts the runs, and joins those that touch.
    fn join(&mut self) {
        self.sort();
        let runs = &mut self.out[..self.len];
        let mut kept = 0;
        for n in 1..runs.len() {
            let run = runs[n].clone();
            if runs[kept].end == run.start {
                runs[kept].end = run.end;
                continue;
            }
            kept += 1;
            if kept < n {
                runs[kept] = run;
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
    /// With maps, runs have any length. A zone gives its longest runs first, and none shorter than an eighth of one
    /// that it keeps: where many frames are missing, a pageblock also gives its shorter runs, because a visit of
    /// another one costs as much as ten of them. Of the pageblocks with such a run it takes the fullest; whole free
    /// pageblocks only if no other one has a run as long as the rest of the request. Runs are taken down to the zone's
    /// low mark. The rest, and everything with lists, is allocated as blocks, the largest order first.
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
            let (from, wanted, room) = (runs.len, runs.left - last, runs.room());
            if local.take_runs(order, migratetype, wanted, room, |run| runs.push(run)) > 0 {
                self.lay_out(&local, migratetype, runs, from);
            } else if zone.cut.is_cut()
                && let Some(smaller) = order.down()
            {
                order = smaller;
            } else {
                // One section was asked for all orders.
                break;
            }
        }
    }

    /// Makes blocks of the runs from number `from` on, which were taken from a zone.
    fn lay_out(&self, local: &Local<'_, '_, P, M>, asked: Migratetype, runs: &mut Runs<'_>, from: usize) {
        let new = &runs.out[from..runs.len];
        let blocks = new.iter().map(|run| self.frames.set_tiles(run.clone(), asked)).sum();
        let pages = new.iter().map(|run| run.end.0 - run.start.0).sum();
        self.count_numa(self.zone, local.zone.id(), blocks);
        if local.checks_blocks() {
            self.drop_bad(local, runs, from, (blocks, pages));
        } else {
            local.count_direct(blocks, pages);
        }
    }

    /// Checks the blocks of the runs from number `from` on: `all` blocks and frames. If one is bad, the others of its
    /// run are free again, and the run is dropped.
    #[cold]
    fn drop_bad(&self, local: &Local<'_, '_, P, M>, runs: &mut Runs<'_>, from: usize, all: (u64, u64)) {
        let (mut kept, (mut blocks, mut pages)) = (from, all);
        for n in from..runs.len {
            let run = runs.out[n].clone();
            let bad = Order::tiles(run.clone()).filter(|&(pfn, order)| !local.is_good(pfn, order));
            let bad = bad.fold((0, 0), |bad, (_, order)| (bad.0 + 1, bad.1 + order.pages()));
            if bad.0 == 0 {
                runs.out[kept] = run;
                kept += 1;
                continue;
            }
            (blocks, pages) = (blocks - bad.0, pages - bad.1);
            runs.left += run.end.0 - run.start.0;
            for (pfn, order) in Order::tiles(run) {
                // The free of a bad block is refused.
                let _refused = self.free(pfn, order);
            }
        }
        runs.len = kept;
        local.count_direct(blocks, pages);
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
