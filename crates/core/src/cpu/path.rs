//! What the steps of an allocation past the per-CPU lists hand each other.

use crate::policy::nodes::Choice;
use crate::reclaim::Helpers;
use crate::request::Request;
use crate::units::ZoneId;
use crate::zone::ZoneSpec;

/// Where a request looks, and with whose help.
pub(super) struct Path<'p, 'm> {
    pub(super) request: &'p Request<'p>,
    pub(super) helpers: &'p Helpers<'p>,
    pub(super) choice: Choice,
    /// The zonelist of the node it starts from, or of this CPU, if that is its node.
    pub(super) list: &'m [ZoneId],
    /// Whether this CPU is in reclaim.
    pub(super) reclaiming: bool,
    /// Whether other types give whole pageblocks only, and only zones of the first one's node are looked at.
    pub(super) avoid_fragmentation: bool,
}

impl Path<'_, '_> {
    /// Whether the zone is on the way at all.
    pub(super) fn covers(&self, spec: &ZoneSpec) -> bool {
        self.request.may_use(spec.kind) && self.choice.only.has(spec.node)
    }
}

/// What zone reclaim did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scan {
    /// Nothing: not this caller, or not now.
    NotScanned,
    /// Nothing: it would be useless.
    Full,
    /// It scanned, with or without success.
    Scanned,
}
