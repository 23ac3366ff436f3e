//! Frames in few runs, for callers that need many frames and accept any place for the next run: pools of blocks, lists
//! of a device, read-ahead.

use core::ops::Range;

use super::Cpu;
use crate::buddy::{Picked, Wanted};
use crate::frame::FrameUser;
use crate::pcp::Local;
use crate::platform::Platform;
use crate::policy::passes::Mark;
use crate::reclaim::Helpers;
use crate::request::{Flags, Request};
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn, ZoneId};

/// A request for a pageblock or more is for much of the memory if it is for at least this part of what is free.
const PART_OF_FREE: u64 = 8;

/// Runs found so far, in the caller's memory.
struct Runs<'o> {
    out: &'o mut [Range<Pfn>],
    /// The first `len` are valid.
    len: usize,
    /// Frames still to find.
    left: u64,
    /// Whether the runs are ascending, and none touches the next.
    is_tidy: bool,
}

impl Runs<'_> {
    fn room(&self) -> usize {
        self.out.len() - self.len
    }

    /// Adds `more` runs that are in place, ascending and apart, with `pages` frames.
    fn add(&mut self, more: usize, pages: u64) {
        let (before, new) = self.out.split_at(self.len);
        self.is_tidy &= self.len == 0 || more == 0 || before[self.len - 1].end < new[0].start;
        self.len += more;
        self.left -= pages;
    }

    /// Sorts the runs, and joins those that touch. Those of one hold of a lock need neither.
    fn tidy(&mut self) {
        if core::mem::replace(&mut self.is_tidy, true) {
            return;
        }
        let runs = &mut self.out[..self.len];
        runs.sort_unstable_by_key(|run| run.start);
        let mut kept = 0;
        for n in 1..runs.len() {
            let run = runs[n].clone();
            if runs[kept].end == run.start {
                runs[kept].end = run.end;
            } else {
                kept += 1;
                runs[kept] = run;
            }
        }
        self.len = kept + 1;
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
    /// low mark. The rest, and everything with lists, is allocated as blocks, the largest order first. A request for
    /// more than is free, or for a pageblock or more and an eighth of what is free, drains all CPUs' lists first.
    ///
    /// O(runs), and O(runs × log runs) to sort them.
    pub fn alloc_runs<'o>(
        &self,
        pages: u64,
        migratetype: Migratetype,
        out: &'o mut [Range<Pfn>],
    ) -> &'o [Range<Pfn>] {
        let left = if migratetype.is_ordinary() { pages } else { 0 };
        let mut runs = Runs { out, len: 0, left, is_tidy: true };
        if self.allocator.config.tries_zones_plainly() && self.frames.has_maps() {
            // Where little is left of the zones, lists hold much, and the longest runs. A pageblock is worth a drain.
            let enough = if left < PAGEBLOCK_PAGES { left } else { left.saturating_mul(PART_OF_FREE) };
            if self.allocator.free_pages() < enough {
                self.drain();
                self.drain_others(self.allocator.zones.iter());
            }
            for &zone in self.allocator.zonelist_of(self.cpu) {
                self.runs_of(zone, migratetype, &mut runs);
            }
        }
        self.blocks_as_runs(migratetype, &mut runs);
        runs.tidy();
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
        let wanted = self.may_leave(zone, &request, Mark::Low).min(runs.left);
        let last = runs.left - wanted;
        let mut order = MAX_ORDER;
        while runs.left > last && runs.room() != 0 {
            let wanted = runs.left - last;
            order = order.min(Order::for_pages(wanted).unwrap_or(MAX_ORDER));
            if self.take_runs(&local, order, migratetype, wanted, runs) {
                continue;
            }
            // One section was asked for all orders below the pageblock order.
            let has_more = order >= PAGEBLOCK_ORDER || zone.cut.is_cut();
            let Some(smaller) = order.down().filter(|_| has_more) else { break };
            order = smaller;
        }
    }

    /// Takes at most `most` frames from the section that would miss them least, and makes allocated blocks of them:
    /// runs with blocks of `order`; below the pageblock order, if the zone has one section, then also with smaller
    /// ones. Returns whether there were any.
    fn take_runs(
        &self,
        local: &Local<'_, '_, P, M>,
        order: Order,
        asked: Migratetype,
        most: u64,
        runs: &mut Runs<'_>,
    ) -> bool {
        let wanted = Wanted { may_fall_back: false, may_use_cma: false, ..local.wanted(order, asked) };
        let least = if local.zone.cut.is_cut() { order } else { Order::ZERO };
        let (from, room) = (runs.len, runs.room());
        let (mut more, mut picked) = (0, Picked::new());
        let pages = local.in_best_section(&wanted, |n, _| {
            local.in_section(n, |buddy| {
                if order < PAGEBLOCK_ORDER {
                    return buddy.take_runs(least..=order, asked, (most, room), &mut picked);
                }
                let pages;
                (more, pages) = buddy.take_wholes_as_runs(order, asked, most, &mut runs.out[from..]);
                pages
            })
        });
        more += picked.write(&mut runs.out[from..]);
        runs.add(more, pages);
        let blocks = self.frames.set_tiles_of(&runs.out[from..runs.len], asked);
        self.count_numa(self.zone, local, blocks);
        match local.checks_blocks() {
            true => self.drop_bad(local, runs, from, (blocks, pages)),
            false => local.count_direct(blocks, pages),
        }
        pages > 0
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
                runs.tidy();
                if runs.room() == 0 {
                    return;
                }
            }
            while order.pages() > runs.left {
                order = order.down().unwrap_or(Order::ZERO);
            }
            let request = Request::new(order, migratetype);
            let few = Flags::NO_WAIT.and(Flags::NO_RESERVES);
            let request = if order != Order::ZERO { request.with(few) } else { request };
            match self.alloc_with(&request, &Helpers::NONE) {
                Ok(pfn) => {
                    runs.out[runs.len] = pfn..pfn.add(order.pages());
                    runs.add(1, order.pages());
                }
                Err(_) => match order.down() {
                    Some(smaller) => order = smaller,
                    None => return,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    /// Up to five frames, in every order in which they may be found, and tidied once before all are found: in the end
    /// the runs are ascending, none touches the next, and no frame is lost.
    #[test]
    fn runs_are_ascending_and_apart_in_whatever_order_they_were_found() {
        let mut orders = Vec::from([Vec::new()]);
        let mut n = 0;
        while n < orders.len() {
            let next = (0..5).filter(|pfn| !orders[n].contains(pfn));
            let longer: Vec<Vec<u64>> = next.map(|pfn| [&orders[n][..], &[pfn]].concat()).collect();
            orders.extend(longer);
            n += 1;
        }
        assert_eq!(orders.len(), 326);
        for found in orders {
            let mut expected: Vec<Range<Pfn>> = Vec::new();
            for pfn in (0..5).filter(|pfn| found.contains(pfn)).map(Pfn) {
                match expected.last_mut() {
                    Some(run) if run.end == pfn => run.end = pfn.add(1),
                    _ => expected.push(pfn..pfn.add(1)),
                }
            }
            for early in 0..=found.len() {
                let mut out = [const { Pfn(0)..Pfn(0) }; 5];
                let mut runs = Runs { out: &mut out, len: 0, left: 5, is_tidy: true };
                for (n, &pfn) in found.iter().enumerate() {
                    if n == early {
                        runs.tidy();
                    }
                    runs.out[runs.len] = Pfn(pfn)..Pfn(pfn + 1);
                    runs.add(1, 1);
                }
                runs.add(0, 0);
                runs.tidy();
                assert_eq!(runs.left, 5 - found.len() as u64);
                assert_eq!(runs.out[..runs.len], expected, "{found:?}, tidied after {early}");
            }
        }
    }
}
