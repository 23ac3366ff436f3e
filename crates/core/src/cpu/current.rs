//! The zone whose lists serve a CPU's hits.
//!
//! A CPU begins at the first zone in its zonelist. When another zone of its node and type gives a block, that zone serves its hits
//! from then on, until another one gives: so what a CPU allocates beyond its first zone costs no more.
#![expect(
    unsafe_code,
    reason = "a cell of references, for a type that may be used as one with a shorter life"
)]

use core::cell::Cell;
use core::marker::PhantomData;
use core::mem::transmute;

use super::Cpu;
use crate::alloc::Allocator;
use crate::frame::{BlockInfo, FrameUser, ZoneFrames};
use crate::pcp::Pcp;
use crate::platform::Platform;
use crate::units::{CpuId, Migratetype, ZoneId};

/// Facts that hits of a CPU read, for one zone.
pub(super) struct Current<'a, 'm, P: Platform, M> {
    zone: ZoneId,
    /// This CPU's lists of the zone.
    pcp: &'a Pcp<'m, P>,
    /// The zone's frames; none if a head word alone does not say whether a free is right.
    near: ZoneFrames<'m, P, M>,
    /// Unmovable pageblocks of the zone, or of nowhere if no free may take the short way.
    home: BlockInfo,
}

impl<P: Platform, M> Clone for Current<'_, '_, P, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform, M> Copy for Current<'_, '_, P, M> {}

/// A [`Current`] that can be replaced. Unlike in a plain cell, its lifetimes can be shortened.
pub(super) struct CurrentCell<'a, 'm, P: Platform, M: 'static> {
    cell: Cell<Current<'static, 'static, P, M>>,
    borrowed: PhantomData<Current<'a, 'm, P, M>>,
}

impl<'a, 'm, P: Platform, M: FrameUser> CurrentCell<'a, 'm, P, M> {
    pub(super) fn new(current: Current<'a, 'm, P, M>) -> Self {
        // SAFETY: what leaves the cell has the lifetimes of this type again, or shorter ones.
        Self { cell: Cell::new(unsafe { outlasting(current) }), borrowed: PhantomData }
    }

    #[inline(always)]
    fn get(&self) -> Current<'a, 'm, P, M> {
        self.cell.get()
    }

    /// # Safety
    /// What is in the cell, and `current`, borrow from the same allocator: then they live equally long, whatever `'a` and `'m` are
    /// here.
    unsafe fn set(&self, current: Current<'a, 'm, P, M>) {
        // SAFETY: what leaves the cell lives as long as what was put there first, by the caller's promise.
        self.cell.set(unsafe { outlasting(current) });
    }
}

/// # Safety
/// The result is not used for longer than `current` may be.
unsafe fn outlasting<P: Platform, M: FrameUser>(
    current: Current<'_, '_, P, M>,
) -> Current<'static, 'static, P, M> {
    // SAFETY: the same type but for its lifetimes, for which the caller vouches.
    unsafe { transmute(current) }
}

impl<'a, 'm, P: Platform, M: FrameUser> Current<'a, 'm, P, M> {
    pub(super) fn of(allocator: &'a Allocator<'m, P, M>, cpu: CpuId, zone: ZoneId) -> Self {
        let config = &allocator.config;
        let short = !config.poison && !config.init_on_free && !allocator.frames.is_compact();
        let spec = allocator.zones[zone.index()].spec();
        // Where boot clears descriptors, those of absent memory may hold anything permanently.
        let valid = allocator.later.is_none_or(|later| later.clear.is_none());
        let near = short && (valid || P::CLEARS_DESCRIPTORS) && !config.counts_each_call();
        let home = if short { BlockInfo::new(zone, Migratetype::Unmovable) } else { BlockInfo::NOWHERE };
        let near = allocator.frames.of_zone(spec.start, spec.pages, near);
        Self { zone, pcp: allocator.pcp(zone, cpu), near, home }
    }
}

impl<'a, 'm, P: Platform, M: FrameUser> Cpu<'a, 'm, P, M> {
    /// Has a zone serve this CPU's hits that has just given a block. Not one of another node or type, whose memory a hit must not
    /// prefer.
    #[inline]
    pub(super) fn move_to(&self, zone: ZoneId) {
        let of = |zone: ZoneId| {
            let spec = self.allocator.zones[zone.index()].spec();
            (spec.node, spec.kind)
        };
        if zone != self.zone() && !self.pcp().counts() && of(zone) == of(self.first_zone()) {
            // SAFETY: both are of this CPU's allocator.
            unsafe { self.current.set(Current::of(self.allocator, self.cpu, zone)) };
        }
    }

    /// The zone that serves this CPU's hits.
    #[inline(always)]
    pub(super) fn zone(&self) -> ZoneId {
        self.current.get().zone
    }

    /// This CPU's lists of that zone.
    #[inline(always)]
    pub(super) fn pcp(&self) -> &'a Pcp<'m, P> {
        self.current.get().pcp
    }

    /// That zone's frames; none if a head word alone does not say whether a free is right.
    #[inline(always)]
    pub(super) fn near(&self) -> ZoneFrames<'m, P, M> {
        self.current.get().near
    }

    /// Unmovable pageblocks of that zone, or of nowhere if no free may take the short way.
    #[inline(always)]
    pub(super) fn home(&self) -> BlockInfo {
        self.current.get().home
    }
}
