//! Reclaim: the LRU lists as the allocator's reclaimer (v3.0's rules).

use core::sync::atomic::Ordering::Relaxed;

use framewright::platform::{Platform, Word};
use framewright::reclaim::{By, Reclaim, ReclaimRequest, Reclaimable, Reclaimed, Release};
use framewright::{Pfn, ZoneId};

use crate::cache::Cache;
use crate::device::Device;
use crate::policy::{self, Decision, Kind, May, SLICE};
use crate::slot::{Marks, Owner, PageSlot};
use crate::state::State;

/// Pages that leave the lists to be looked at together.
type Slice = [Pfn; SLICE as usize];

/// A page that was decided to be written.
#[derive(Clone, Copy)]
struct ToWrite {
    owner: Owner,
    index: u64,
}

impl<P: Platform, D: Device> Cache<'_, P, D> {
    /// Moves cold pages of the active list to the inactive one. Returns the pages looked at.
    fn shrink_active(&self, zone: ZoneId, kind: Kind, most: u64) -> u64 {
        self.locked(|state| {
            let (mut looked, mut used) = (0, 0);
            while looked < most
                && let Some(pfn) = state.coldest(&self.slots, zone, kind, true)
            {
                looked += 1;
                // Used or not, it goes: only mapped code would stay (v3.0), and there is none here. But the other
                // kind is looked at more often then.
                used += u64::from(self.slots.get(pfn).marks.has(Marks::YOUNG));
                self.slots.with(pfn, |slot| slot.marks = slot.marks.with(Marks::YOUNG, false));
                state.relink(&self.slots, zone, pfn, false);
                state.events.pgdeactivate += 1;
            }
            state.events.pgrefill += looked;
            state.note_scan(zone, kind, looked, used);
            looked
        })
    }

    /// Looks at up to a slice of the inactive list's cold end. Frees what can be freed; writes what may be.
    fn shrink_inactive(
        &self,
        ask: &ReclaimRequest<'_>,
        to: &dyn Release,
        kind: Kind,
        most: u64,
    ) -> Reclaimed {
        let may = May {
            write: ask.may_write,
            unmap: ask.may_unmap,
            congested: self.device.is_congested(),
            ignores_congestion: ask.by != By::Direct,
        };
        let mut free: Slice = [Pfn(0); SLICE as usize];
        let mut write = [None; SLICE as usize];
        let (mut freed, mut writes) = (0, 0);
        let scanned = self.locked(|state| {
            let (mut scanned, mut rotated) = (0, 0);
            while scanned < most.min(SLICE)
                && let Some(pfn) = state.coldest(&self.slots, ask.zone, kind, false)
            {
                scanned += 1;
                let slot = self.slots.get(pfn);
                let decision = if slot.users > 0 { Decision::Pass } else { policy::decide(page(slot), may) };
                if decision != Decision::Pass {
                    let mark = matches!(decision, Decision::Keep { mark: true });
                    self.slots.with(pfn, |slot| {
                        slot.marks = slot.marks.with(Marks::YOUNG, false).with(Marks::REFERENCED, mark);
                    });
                }
                match decision {
                    Decision::Free => {
                        state.remove(&self.slots, ask.zone, pfn, false);
                        free[freed] = pfn;
                        freed += 1;
                    }
                    Decision::Activate => {
                        state.activate(&self.slots, ask.zone, pfn);
                        if kind == Kind::Anon {
                            self.spare_slot(state, pfn);
                        }
                        rotated += 1;
                    }
                    Decision::Write => {
                        state.relink(&self.slots, ask.zone, pfn, false);
                        write[writes] = Some(ToWrite { owner: slot.owner(), index: slot.index });
                        writes += 1;
                    }
                    Decision::Keep { .. } | Decision::Pass => state.relink(&self.slots, ask.zone, pfn, false),
                }
            }
            state.note_scan(ask.zone, kind, scanned, rotated);
            count(state, kind, scanned, freed as u64);
            scanned
        });
        for &pfn in &free[..freed] {
            self.slots.release(pfn, to);
        }
        for ToWrite { owner, index } in write.into_iter().flatten() {
            self.write_out(owner, index, true);
        }
        Reclaimed { scanned, freed: freed as u64 }
    }

    /// One zone at one priority: in slices, an active list as long as it is too long for its inactive one.
    fn shrink_zone(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        self.poll();
        let zone = &self.allocator.zones()[ask.zone.index()];
        let (swappiness, [anon, file]) = self.locked(|state| {
            let swap = self.swap.filter(|_| state.swap.has_room());
            (swap.map(|swap| swap.swappiness), state.lists_to_scan(ask.zone))
        });
        let (free, high) = (zone.free_pages(), zone.marks().high);
        let mut counts = policy::scan_counts(anon, file, free, high, swappiness, ask.priority);
        if zone.is_unreclaimable() {
            counts = counts.or_a_slice(anon, file, swappiness.is_some());
        }
        let mut left = [(Kind::Anon, counts.anon), (Kind::File, counts.file)];
        let mut done = Reclaimed::default();
        // Active anonymous pages alone are no reason to go on (v3.0): that frees nothing.
        while left[0].1.1 > 0 || left[1].1.0 > 0 || left[1].1.1 > 0 {
            for (kind, (active, inactive)) in &mut left {
                let slice = SLICE.min(*active);
                *active -= slice;
                if slice > 0 && self.inactive_is_low(ask.zone, *kind) {
                    self.shrink_active(ask.zone, *kind, slice);
                }
                let slice = SLICE.min(*inactive);
                *inactive -= slice;
                if slice > 0 {
                    done += self.shrink_inactive(ask, to, *kind, slice);
                }
            }
            if policy::is_enough(done.freed, ask.target, ask.priority) {
                break;
            }
        }
        // Whether any were scanned or not, so that it shows by then which of them are used.
        if swappiness.is_some() && self.inactive_is_low(ask.zone, Kind::Anon) {
            self.shrink_active(ask.zone, Kind::Anon, SLICE);
        }
        done
    }

    /// Pages on a zone's lists.
    fn lru_pages(&self, zone: ZoneId) -> u64 {
        self.locked(|state| Kind::ALL.iter().map(|&kind| state.lists(zone, kind).all()).sum())
    }

    /// Whether an active list gives pages to its inactive one.
    fn inactive_is_low(&self, zone: ZoneId, kind: Kind) -> bool {
        let lists = self.locked(|state| state.lists(zone, kind));
        match kind {
            Kind::Anon => {
                let pages = self.allocator.zones()[zone.index()].present_pages();
                policy::inactive_anon_is_low(&lists, pages)
            }
            Kind::File => policy::inactive_file_is_low(&lists),
        }
    }
}

fn count(state: &mut State, kind: Kind, scanned: u64, freed: u64) {
    let events = &mut state.events;
    let (scan, steal) = match kind {
        Kind::Anon => (&mut events.pgscan_anon, &mut events.pgsteal_anon),
        Kind::File => (&mut events.pgscan_file, &mut events.pgsteal_file),
    };
    *scan += scanned;
    *steal += freed;
}

/// A slot as the policy sees it.
const fn page(slot: PageSlot) -> policy::Page {
    policy::Page {
        writeback: slot.marks.has(Marks::WRITEBACK),
        anon: slot.marks.has(Marks::ANON),
        mapped: slot.marks.has(Marks::MAPPED),
        young: slot.marks.has(Marks::YOUNG) as u8,
        referenced: slot.marks.has(Marks::REFERENCED),
        dirty: slot.marks.has(Marks::DIRTY),
    }
}

impl<P: Platform, D: Device> Reclaim for Cache<'_, P, D> {
    fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        self.check_sink(to);
        let done = self.shrink_zone(ask, to);
        self.shrinkers.note_scan(done.scanned);
        done
    }

    fn shrink(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        let lru = match ask.by {
            // All of them: what is freed may be anywhere.
            By::Direct => (0..self.allocator.zones().len()).map(|n| self.lru_pages(ZoneId(n as u8))).sum(),
            By::Background | By::Zone => self.lru_pages(ask.zone),
        };
        self.shrinkers.shrink(ask, to, lru)
    }

    fn reclaimable(&self, zone: ZoneId) -> Reclaimable {
        Reclaimable { slab: self.shrinkers.pages(zone), ..self.locked(|state| state.reclaimable(zone)) }
    }

    fn wait_if_congested(&self, _: ZoneId, ms: u32) {
        let until = P::now_ns().saturating_add(u64::from(ms) * 1_000_000);
        self.device.wait_if_congested(ms);
        self.poll();
        // Anonymous pages may all be on their way to the swap area, where no limit has made their writers wait as
        // those of files do. Who looks at them again before they are there looks in vain, and a slow device is
        // taken for memory that is gone.
        let swapped = || self.locked(|state| state.swap_writes_ended);
        let enough = self.locked(|state| state.swap_writes_ended + state.writeback_pages_of(Kind::Anon));
        let mut turn = 0;
        while swapped() < enough && P::now_ns() < until {
            self.device.wait_for_completion();
            self.wait(turn);
            turn += 1;
        }
    }

    fn wake_flushers(&self, pages: u64) {
        // For the background writer. The caller itself may hold locks that writing needs (`Flags::NO_WRITE`).
        self.asked.store(pages, Relaxed);
    }
}
