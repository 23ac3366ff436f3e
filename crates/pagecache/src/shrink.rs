//! Reclaim: the LRU lists as the allocator's reclaimer (v3.0's rules).

use framewright::platform::Platform;
use framewright::reclaim::{Ask, By, Reclaim, Reclaimable, Reclaimed, Release};
use framewright::{Order, Pfn, ZoneId};

use crate::cache::Cache;
use crate::device::Device;
use crate::policy::{self, Decision, Lists, May, SLICE};
use crate::slot::{FileId, Is, PageSlot};

/// Pages that leave the lists to be looked at together.
type Slice = [Pfn; SLICE as usize];

/// A page that was decided to be written.
#[derive(Clone, Copy)]
struct ToWrite {
    file: FileId,
    index: u64,
    pfn: Pfn,
}

impl<P: Platform, D: Device> Cache<'_, P, D> {
    /// Moves cold pages of the active list to the inactive one. Returns the pages looked at.
    fn shrink_active(&self, zone: ZoneId, most: u64) -> u64 {
        self.locked(|state| {
            let mut looked = 0;
            while looked < most
                && let Some(pfn) = state.coldest(&self.slots, zone, true)
            {
                looked += 1;
                // Used or not, it goes: only mapped code would stay (v3.0), and there is none here.
                self.slots.with(pfn, |slot| slot.is = slot.is.with(Is::YOUNG, false));
                state.relink(&self.slots, zone, pfn, false);
                state.events.pgdeactivate += 1;
            }
            state.events.pgrefill += looked;
            state.note_scan(zone, looked, 0);
            looked
        })
    }

    /// Looks at up to a slice of the inactive list's cold end. Frees what can be freed; writes what may be.
    fn shrink_inactive(&self, ask: &Ask<'_>, to: &dyn Release, most: u64) -> Reclaimed {
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
                && let Some(pfn) = state.coldest(&self.slots, ask.zone, false)
            {
                scanned += 1;
                let slot = self.slots.get(pfn);
                let decision = if slot.users > 0 {
                    Decision::Keep { mark: slot.is.has(Is::REFERENCED) }
                } else {
                    policy::decide(page(slot), may)
                };
                self.slots.with(pfn, |slot| {
                    slot.is = slot.is.with(Is::YOUNG, false);
                    slot.is = slot.is.with(Is::REFERENCED, matches!(decision, Decision::Keep { mark: true }));
                });
                match decision {
                    Decision::Free => {
                        state.remove(&self.slots, ask.zone, pfn, true);
                        free[freed] = pfn;
                        freed += 1;
                    }
                    Decision::Activate => {
                        state.relink(&self.slots, ask.zone, pfn, true);
                        state.events.pgactivate += 1;
                        rotated += 1;
                    }
                    Decision::Write => {
                        state.relink(&self.slots, ask.zone, pfn, false);
                        write[writes] = Some(ToWrite { file: slot.file, index: slot.index, pfn });
                        writes += 1;
                    }
                    Decision::Keep { .. } => {
                        state.relink(&self.slots, ask.zone, pfn, false);
                        state.events.pgrotated += u64::from(slot.is.has(Is::WRITEBACK));
                        rotated += 1;
                    }
                }
            }
            state.note_scan(ask.zone, scanned, rotated);
            scanned
        });
        for &pfn in &free[..freed] {
            let given = to.free(pfn, Order::ZERO);
            debug_assert!(given.is_ok(), "a page of the cache was freed by somebody else");
        }
        for ToWrite { file, index, pfn } in write.into_iter().flatten() {
            self.write_out(file, index, pfn, true);
        }
        Reclaimed { scanned, freed: freed as u64 }
    }

    /// One zone at one priority: in slices, the active list as long as it is the longer one.
    fn shrink_zone(&self, ask: &Ask<'_>, to: &dyn Release) -> Reclaimed {
        self.poll();
        let zone = &self.allocator.zones()[ask.zone.index()];
        let lists = self.locked(|state| state.lists(ask.zone));
        let anon = Lists::default();
        let counts =
            policy::scan_counts(anon, lists, zone.free_pages(), zone.marks().high, None, ask.priority);
        let (mut active, mut inactive) = counts.file;
        let mut done = Reclaimed::default();
        while active > 0 || inactive > 0 {
            if active > 0 {
                let slice = active.min(SLICE);
                active -= slice;
                if policy::inactive_file_is_low(&self.locked(|state| state.lists(ask.zone))) {
                    self.shrink_active(ask.zone, slice);
                }
            }
            if inactive > 0 {
                let slice = inactive.min(SLICE);
                inactive -= slice;
                done += self.shrink_inactive(ask, to, slice);
            }
            if policy::is_enough(done.freed, ask.target, ask.priority) {
                break;
            }
        }
        done
    }
}

/// A slot as the policy sees it.
const fn page(slot: PageSlot) -> policy::Page {
    policy::Page {
        writeback: slot.is.has(Is::WRITEBACK),
        anon: false,
        mapped: slot.is.has(Is::MAPPED),
        young: slot.is.has(Is::YOUNG) as u8,
        referenced: slot.is.has(Is::REFERENCED),
        dirty: slot.is.has(Is::DIRTY),
    }
}

impl<P: Platform, D: Device> Reclaim for Cache<'_, P, D> {
    fn reclaim(&self, ask: &Ask<'_>, to: &dyn Release) -> Reclaimed {
        self.shrink_zone(ask, to)
    }

    fn reclaimable(&self, zone: ZoneId) -> Reclaimable {
        self.locked(|state| state.reclaimable(zone))
    }

    fn wait_if_congested(&self, _: ZoneId, ms: u32) {
        self.device.wait_if_congested(ms);
        self.poll();
    }

    fn wake_flushers(&self, pages: u64) {
        // Nobody else writes: the caller does a little of it.
        self.write_back(pages.min(SLICE));
    }
}
