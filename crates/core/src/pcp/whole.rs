//! Whole pageblocks that a CPU keeps where many want the zone lock.
//!
//! Where the lock is waited for, each hold costs all who wait. So a CPU that has waited moves whole pageblocks: a refill takes some
//! at once, without a look at their maps, lays one out on its list, and keeps the others as blocks of the
//! pageblock order on this CPU's list of that order. The next refill lays out one of those, and a drain that brings back
//! every frame of a pageblock puts it there. Neither takes the lock.
//!
//! What lies there is whole, so nothing becomes fragmented by it: any CPU that finds no memory has it drained, and this CPU's
//! next allocation of the pageblock order takes it. It is bounded as what lies on lists of order 0 is
//! (see [`share_of_free`](crate::policy::pcp::share_of_free)), and where nobody waits, nothing of all this happens.
//!
//! # The head words
//! A pageblock none of whose frames is free has a head word that says [`State::Body`], and so has each frame of a block of the
//! pageblock order. From pages to pageblock: first the pages' head words say [`State::Body`], as in any drain; then the pageblock is
//! put onto its list, then its head word says so, then the pages leave theirs. From pageblock to pages: first its head word says
//! [`State::Body`], then it leaves its list, and the pages are laid out as in any refill. So at each moment a free by another
//! CPU finds a block that is on a list, or none; one that has marked a head word finds its mark overwritten.

use core::sync::atomic::Ordering::Relaxed;

use super::list::List;
use super::{Local, Pcp, kind_of};
use crate::frame::{FrameUser, State};
use crate::platform::{Platform, Word};
use crate::policy::pcp::Sizing;
use crate::units::{Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// Holds of the zone lock without waiting after which nobody waits any more.
const PATIENCE: u64 = 16;
/// Most pageblocks that a refill takes besides what it lays out.
const MOST_AHEAD: u64 = 2;
/// Of what is kept, a refill lays out no more at once: memory does not pass all at once what all CPUs would write.
const PART: Order = Order::new(7).expect("an order");
/// Most that it lays out: as many as the largest refill has pages for.
const MOST_NOW: u64 = 3;

impl<P: Platform> Pcp<'_, P> {
    /// Notes how a hold of the zone lock went. By the owner.
    pub(super) fn note_wait(&self, waited: bool) {
        let Some(more) = self.more.filter(|_| !self.each_call) else { return };
        let left = more.crowd.load(Relaxed);
        match waited {
            true => more.crowd.store(PATIENCE, Relaxed),
            false if left > 0 => more.crowd.store(left - 1, Relaxed),
            false => {}
        }
    }

    /// Whether the owner has waited for the zone lock lately.
    fn is_crowded(&self) -> bool {
        self.more.is_some_and(|more| more.crowd.load(Relaxed) > 0)
    }
}

impl<P: Platform, M: FrameUser> Local<'_, '_, P, M> {
    /// Whether whole pageblocks may be kept at all: not where memory is tight.
    pub(super) fn may_keep_whole(&self) -> bool {
        self.config.moves_pageblocks() && !self.pcp.merges()
    }

    /// Whether this CPU has waited for the zone lock lately, and may keep whole pageblocks.
    pub(super) fn is_crowded(&self) -> bool {
        self.may_keep_whole() && self.pcp.is_crowded()
    }

    /// The list of this CPU's whole pageblocks of a type.
    fn kept(&self, migratetype: Migratetype) -> Option<&List<'_, P>> {
        self.list(PAGEBLOCK_ORDER, migratetype).map(|number| self.pcp.list(number))
    }

    /// How many pageblocks of a type may come to those that this CPU keeps: together with them, as many as have the pages that
    /// its lists may hold besides.
    pub(super) fn room_for_whole(&self, sizing: Sizing, migratetype: Migratetype) -> u64 {
        if !sizing.is_tuned() || !self.may_keep_whole() {
            return 0;
        }
        // Both together stay below what the lists may hold where all memory is free.
        let pages = sizing.high_max.saturating_sub(self.pcp.huge_pages());
        let most = pages.min(self.pcp.sizing().high_max.saturating_sub(pages));
        let most = u64::from(most) / PAGEBLOCK_PAGES;
        let room = |list: &List<'_, P>| most.min(list.capacity().into()).saturating_sub(list.len().into());
        self.kept(migratetype).map_or(0, room)
    }

    /// How many whole pageblocks a refill of so many blocks of an order takes, whose CPU has waited for the lock: to be laid out, and to be kept if
    /// there are so many. The first time one of each, so that others need not wait long. None if there is no room to keep any,
    /// or one does not fit the list.
    pub(super) fn whole_of(&self, blocks: u64, order: Order, capacity: u32, room: u64) -> (u64, u64) {
        let each = PAGEBLOCK_PAGES >> order.get();
        let fit = (u64::from(capacity) / each).min(MOST_NOW);
        match (room.min(fit), self.pcp.is_crowded()) {
            (0, _) => (0, 0),
            (_, false) => (1, 1),
            (_, true) => ((blocks / each).clamp(1, fit), room.min(MOST_AHEAD)),
        }
    }

    /// Keeps a pageblock, or a part of one, that nobody has, all of whose frames' head words say [`State::Body`]. `false`, and nothing
    /// has happened, if its list has no room, or if it is of no ordinary pageblock of the type.
    pub(super) fn keep(&self, start: Pfn, order: Order, migratetype: Migratetype) -> bool {
        let pageblock = start.block_start(PAGEBLOCK_ORDER);
        if !self.is_plain(pageblock, migratetype) || self.frames.state(start, order) != State::Body {
            return false;
        }
        let Some(placed) = self.pcp.put(order, migratetype, start) else { return false };
        self.list_place(start, order, placed);
        self.pcp.count_pages(order.pages() as i64);
        true
    }

    /// Whether a pageblock is of the type, and has no bad frame.
    fn is_plain(&self, start: Pfn, migratetype: Migratetype) -> bool {
        let info = self.frames.info(start);
        info.is_present() && info.migratetype() == migratetype && !info.is_poisoned()
    }

    /// Where the zone lock is waited for: takes the smallest part of a pageblock that this CPU keeps, and sets blocks of it in an
    /// empty list of an order below its own. Returns from which place on and how many; `None` if it keeps none.
    pub(super) fn lay_out_kept(&self, number: usize, migratetype: Migratetype) -> Option<(u64, u64)> {
        let (order, _) = kind_of(number);
        if order >= PAGEBLOCK_ORDER
            || !self.is_crowded()
            || u64::from(self.pcp.list(number).capacity()) < PAGEBLOCK_PAGES >> order.get()
        {
            return None;
        }
        let kept = Self::least_part(order).and_above().find_map(|from| {
            let list = self.pcp.list(self.list(from, migratetype)?);
            let plain = |&start: &Pfn| self.is_plain(start.block_start(PAGEBLOCK_ORDER), migratetype);
            Some((from, list, list.first().filter(plain)?))
        });
        let (from, list, start) = kept?;
        self.frames.set_state(start, from, State::Body);
        list.pop();
        self.pcp.count_pages(-(from.pages() as i64));
        let at = self.pcp.refill_from(self.pcp.list(number));
        Some((at, self.lay_out((start, from), number, at, migratetype)))
    }

    /// The smallest part of a pageblock that is laid out at once as blocks of an order: two of them at least.
    fn least_part(order: Order) -> Order {
        Order::new(order.get() + 1).map_or(PAGEBLOCK_ORDER, |above| above.max(PART))
    }

    /// Sets blocks of a pageblock or a part of one, which nobody has, in an empty list that has room for all, from place `at` on.
    /// Halves of it are kept, down to what is laid out at once. Returns how many blocks were set.
    pub(super) fn lay_out(
        &self,
        (start, from): (Pfn, Order),
        number: usize,
        at: u64,
        migratetype: Migratetype,
    ) -> u64 {
        let (order, _) = kind_of(number);
        let least = Self::least_part(order);
        let mut now = from;
        while now > least
            && let Some(half) = Order::new(now.get() - 1)
            && self.keep(start.add(half.pages()), half, migratetype)
        {
            now = half;
        }
        let list = self.pcp.list(number);
        let blocks = now.pages() >> order.get();
        (0..blocks).for_each(|n| list.set(at + blocks - 1 - n, start.add(n << order.get())));
        blocks
    }

    /// How many blocks a drain of a list gives back that is to give back so many, where the lock is waited for. If it would end
    /// within a pageblock whose blocks lie on the list one after the other: all of them, if they do, else those before, if
    /// there are any.
    pub(super) fn to_whole(&self, number: usize, blocks: u32) -> u32 {
        let (order, _) = kind_of(number);
        let list = self.pcp.list(number);
        let at = |n: u32| list.peek_tail(n);
        let ends = blocks.checked_sub(1).and_then(|n| Some((at(n)?, at(n + 1)?)));
        let Some((last, next)) = ends else { return blocks };
        let start = last.block_start(PAGEBLOCK_ORDER);
        let within = |pfn: Pfn| pfn.block_start(PAGEBLOCK_ORDER) == start;
        let below = ((last.0 - start.0) >> order.get()) as u32;
        let above = (PAGEBLOCK_PAGES >> order.get()) as u32 - 1 - below;
        let (before, behind) = match () {
            () if !within(next) => return blocks,
            () if next == last.add(order.pages()) => (below + 1, above),
            () if next.add(order.pages()) == last => (above + 1, below),
            () => return blocks,
        };
        if at(blocks + behind - 1).is_some_and(within) {
            return blocks + behind;
        }
        blocks.checked_sub(before).filter(|&fewer| fewer > 0).unwrap_or(blocks)
    }
}
