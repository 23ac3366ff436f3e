//! The zones' pages and list sizes at one moment, to compare before and after.

use framewright::CpuId;

use crate::kernel::Kernel;
use crate::machine::List;

/// Limit on the number of zones.
pub(super) const MAX_ZONES: usize = 64;

/// One zone at one moment: managed pages, and batch and lower high of its per-CPU lists.
pub(super) type ZoneState = (u64, u32, u32);

/// The zones at one moment.
#[derive(Debug)]
pub(crate) struct Zones(pub(super) List<ZoneState, MAX_ZONES>);

impl Zones {
    /// As they are now.
    pub(crate) fn read(kernel: &Kernel) -> Self {
        let mut zones = List::new((0, 0, 0));
        for zone in kernel.pages.zones() {
            let sizing = kernel.pages.pcp(zone.id(), CpuId(0)).sizing();
            zones.push((zone.managed_pages(), sizing.batch, sizing.high_min));
        }
        Self(zones)
    }

    /// Per-CPU lists of this size.
    pub(super) fn lists(&self, kernel: &Kernel, batch: u32, high: u32) -> usize {
        self.0.iter().filter(|zone| (zone.1, zone.2) == (batch, high)).count() * kernel.pages.cpus()
    }
}
