//! Drains of other CPUs' lists: done here, or requested.

use super::Allocator;
use crate::frame::FrameUser;
use crate::pcp::{Pcp, REQUEST_DRAIN};
use crate::platform::Platform;
use crate::units::{CpuId, ZoneId};
use crate::zone::Zone;

impl<'m, P: Platform, M: FrameUser> Allocator<'m, P, M> {
    /// The lists of some zones: of the CPU `only`, or of all CPUs, but not of `caller`.
    fn others<'a>(
        &'a self,
        caller: Option<CpuId>,
        zones: impl Iterator<Item = &'m Zone<'m, P>> + 'a,
        only: Option<CpuId>,
    ) -> impl Iterator<Item = (ZoneId, CpuId, &'m Pcp<'m, P>)> + 'a {
        zones.flat_map(move |zone| {
            let pcps = self.cpu_ids().zip(self.pcps_of(zone.id()));
            let is_meant = move |cpu| Some(cpu) != caller && only.is_none_or(|only| only == cpu);
            pcps.filter(move |&(cpu, _)| is_meant(cpu)).map(|(cpu, pcp)| (zone.id(), cpu, pcp))
        })
    }

    /// Drains the lists of some zones: of the CPU `only`, or of all CPUs, but not of `caller`. Where the platform can,
    /// this CPU drains the lists of CPUs that are in no call; other owners get a request, and drain at their next slow
    /// call. Empty lists are skipped, unless `even_empty`: then every CPU has ended the hit that it may be in, or gets
    /// a request.
    pub(crate) fn drain_others(
        &self,
        caller: Option<CpuId>,
        zones: impl Iterator<Item = &'m Zone<'m, P>> + Clone,
        only: Option<CpuId>,
        even_empty: bool,
    ) {
        if !cfg!(feature = "smp") {
            return;
        }
        let _one_at_a_time = P::DRAINS_REMOTELY.then(|| self.drains.begin());
        let mut asks = false;
        if P::DRAINS_REMOTELY {
            let those =
                self.others(caller, zones.clone(), only).filter(|(_, _, pcp)| even_empty || pcp.count() > 0);
            asks = those.fold(false, |asks, (_, _, pcp)| pcp.ask() || asks);
        }
        let drains = asks && P::heavy_barrier();
        let mut pages = 0;
        for (zone, cpu, pcp) in self.others(caller, zones.clone(), only) {
            match drains.then(|| self.local(zone, cpu, caller).drain_for_owner()).flatten() {
                Some(drained) => pages += drained,
                // It may be about to put a block onto one.
                None if even_empty => pcp.set_request(REQUEST_DRAIN),
                None => pcp.request_drain(),
            }
            if asks && !drains {
                pcp.give_up();
            }
        }
        if drains && pages == 0 && !even_empty {
            zones.for_each(Zone::rest);
        }
    }

    /// Like [`drain_others`](Self::drain_others), but waits a moment for the owners that got a request.
    pub(crate) fn drain_others_and_wait(
        &self,
        caller: Option<CpuId>,
        zones: impl Iterator<Item = &'m Zone<'m, P>> + Clone,
        only: Option<CpuId>,
        even_empty: bool,
    ) {
        self.drain_others(caller, zones.clone(), only, even_empty);
        if !cfg!(feature = "smp") {
            return;
        }
        for _ in 0..self.config.experiment.remote_drain_spins {
            if !self.others(caller, zones.clone(), only).any(|(_, _, pcp)| pcp.drain_pending()) {
                break;
            }
            P::relax();
        }
    }
}
