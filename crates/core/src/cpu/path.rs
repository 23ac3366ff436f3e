//! Parameters that the steps of an allocation past the per-CPU lists share.

use crate::platform::Platform;
use crate::policy::nodes::Choice;
use crate::reclaim::Helpers;
use crate::request::Request;
use crate::units::ZoneId;
use crate::zone::{Zone, ZoneSpec};

/// A request, its zones and its helpers.
pub(super) struct Path<'p, 'm> {
    pub(super) request: &'p Request<'p>,
    pub(super) helpers: &'p Helpers<'p>,
    pub(super) choice: Choice,
    /// The zonelist of the node at which the request starts.
    pub(super) list: &'m [ZoneId],
    /// Whether this CPU is in reclaim.
    pub(super) reclaiming: bool,
    /// Whether other types give whole pageblocks only, and only zones of the first zone's node are tried.
    pub(super) avoid_fragmentation: bool,
}

impl Path<'_, '_> {
    /// Whether the request may use the zone.
    pub(super) fn covers(&self, spec: &ZoneSpec) -> bool {
        self.request.may_use(spec.kind) && self.choice.only.has(spec.node)
    }

    /// Pages that a zone keeps from the request.
    pub(super) fn kept_of<P: Platform>(&self, zone: &Zone<P>) -> u64 {
        zone.marks().min + zone.reserve(self.request.highest_usable())
    }

    /// Pages of a zone that the reclaimer could free, by its own count; 0 without one.
    pub(super) fn reclaimable_of<P: Platform>(&self, zone: &Zone<P>) -> u64 {
        let reclaimable = self.helpers.reclaim.map(|reclaimer| reclaimer.reclaimable(zone.id()));
        reclaimable.map_or(0, |pages| pages.on_lists().saturating_add(pages.slab))
    }
}
