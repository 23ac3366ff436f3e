//! Whether a request has left every zone as much as it has to: the marks, judged from outside.

use framewright::config::{Engine, Generation};
use framewright::frame::FrameUser;
use framewright::platform::Platform;
use framewright::units::CpuId;
use framewright::zone::Zone;
use framewright::{Allocator, Flags, Migratetype, Request};

use crate::oracle::Breach;

/// Pages that the zones had before a request, and that each must keep.
#[derive(Clone, Debug)]
pub struct Floors(Vec<Floor>);

#[derive(Clone, Copy, Debug)]
struct Floor {
    free: u64,
    kept: u64,
    /// Pages that checks have found bad so far: what they find in the request goes out of use, and is not taken by it.
    bad: u64,
}

fn bad_pages<P: Platform, M: FrameUser>(allocator: &Allocator<'_, P, M>, zone: &Zone<P>) -> u64 {
    let cpus = (0..allocator.cpus()).map(|cpu| CpuId(cpu as u16));
    cpus.map(|cpu| allocator.pcp(zone.id(), cpu).events().bad_pages).sum()
}

impl Floors {
    /// Of a request that is about to be made by a CPU that is not in reclaim. Blocks reserved for high orders count as
    /// if the request could use them. Nothing is promised where zones keep no marks, or are refilled block by block as
    /// Linux does it.
    pub fn before<P: Platform, M: FrameUser>(allocator: &Allocator<'_, P, M>, request: &Request<'_>) -> Self {
        let config = allocator.config();
        if !config.keep_marks || config.engine == Engine::Linux {
            return Self(Vec::new());
        }
        let floor = |zone: &Zone<P>| {
            let computed = allocator.watermarks(zone.id()).min;
            let kept = lowered(zone.marks().min.min(computed), request.flags, config.experiment.marks);
            // What is for others on top counts for a request that keeps any mark at all.
            let reserve = if exempt(request.flags) { 0 } else { zone.reserve(request.highest_usable()) };
            let free = usable(zone, request, config.experiment.marks);
            Floor { free, kept: kept + reserve, bad: bad_pages(allocator, zone) }
        };
        Self(allocator.zones().iter().map(floor).collect())
    }

    /// After the request.
    ///
    /// # Errors
    /// The first zone that has less than before, and less than the request had to leave.
    pub fn check<P: Platform, M: FrameUser>(
        &self,
        allocator: &Allocator<'_, P, M>,
        request: &Request<'_>,
    ) -> Result<(), Breach> {
        for (floor, zone) in self.0.iter().zip(allocator.zones()) {
            let bad = bad_pages(allocator, zone) - floor.bad;
            let left = usable(zone, request, allocator.config().experiment.marks) + bad;
            if left < floor.free && left < floor.kept {
                return Err(Breach::BelowMark { zone: zone.id(), left, floor: floor.kept });
            }
        }
        Ok(())
    }
}

fn exempt(flags: Flags) -> bool {
    flags.has(Flags::VICTIM) && !flags.has(Flags::NO_RESERVES)
}

/// The part of the min mark that a request with these flags keeps.
fn lowered(min: u64, flags: Flags, generation: Generation) -> u64 {
    let harder = flags.has(Flags::NO_WAIT) && !flags.has(Flags::NO_RESERVES);
    let (high, is_new) = (flags.has(Flags::HIGH), generation == Generation::V6_1);
    match (high, harder) {
        _ if exempt(flags) => 0,
        (true, true) => min.div_ceil(2) - min.div_ceil(2) / 4,
        (true, false) => min.div_ceil(2),
        (false, true) if !is_new => min - min / 4,
        _ => min,
    }
}

fn usable<P: Platform>(zone: &Zone<P>, request: &Request<'_>, generation: Generation) -> u64 {
    let counts_cma = request.migratetype == Migratetype::Movable || generation == Generation::V3_0;
    zone.free_pages() - if counts_cma { 0 } else { zone.free_cma_pages().min(zone.free_pages()) }
}
