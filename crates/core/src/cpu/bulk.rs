//! Bulk calls: many blocks of one order, allocated or freed in few holds of the zone lock (Linux: `alloc_pages_bulk`,
//! `free_unref_folios`).

use core::fmt;

use super::Cpu;
use crate::error::FreeError;
use crate::frame::{BlockInfo, FrameUser, State};
use crate::platform::Platform;
use crate::policy::passes::Mark;
use crate::request::Request;
use crate::units::{Migratetype, Order, Pfn, ZoneId, ZoneType};
use crate::zone::Zone;

/// Most blocks freed in one hold of the zone lock: their words fit the first-level cache, and other CPUs do not wait
/// long.
const MOST_FREED: usize = 128;

/// Some frees of a bulk call were refused. The others are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BulkFreeError {
    /// Number of refused frees.
    pub refused: usize,
    /// The first refusal.
    pub first: FreeError,
}

impl fmt::Display for BulkFreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} free(s) refused, the others are done: {}", self.refused, self.first)
    }
}

impl core::error::Error for BulkFreeError {}

/// Fills `out` from its front with the blocks that `next` gives. Returns their number.
fn fill(out: &mut [Pfn], mut next: impl FnMut() -> Option<Pfn>) -> usize {
    out.iter_mut().map_while(|place| next().map(|pfn| *place = pfn)).count()
}

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Fills `out` with blocks of `order`, each to be freed on its own or by [`free_bulk`](Self::free_bulk). Returns
    /// the number of blocks, which are at the front; fewer than `out` holds only if [`alloc`](Self::alloc) fails then,
    /// too. `migratetype` is one of the ordinary three; for any other type, returns 0.
    ///
    /// The blocks of this CPU's list come first. Then the zones of the request give a pageblock's worth in each hold of
    /// their locks, down to their low marks if they keep marks. The rest is allocated one by one.
    ///
    /// O(blocks): one word of bits at a time, with [`Engine::Framewright`](crate::config::Engine::Framewright).
    pub fn alloc_bulk(&self, order: Order, migratetype: Migratetype, out: &mut [Pfn]) -> usize {
        if !migratetype.is_ordinary() {
            return 0;
        }
        let mut got = fill(out, || self.alloc_hit(order, migratetype));
        let by_zone = self.allocator.config.tries_zones_plainly();
        for &zone in self.allocator.zonelist_of(self.cpu).iter().filter(|_| by_zone) {
            if got == out.len() {
                break;
            }
            got += self.bulk_from(zone, order, migratetype, &mut out[got..]);
        }
        got + fill(&mut out[got..], || self.alloc(order, migratetype).ok())
    }

    /// Claims an allocated block for a free by this CPU; `false` if another CPU's free has claimed it. A block that
    /// last was on a list of this CPU needs no claim, as in a hit.
    fn take_back(&self, pfn: Pfn, order: Order, info: BlockInfo) -> bool {
        if !self.frames.has_word(order) {
            return self.claim(pfn, order, info);
        }
        let Some(head) = self.allocator.frames.taken_head(pfn, order) else { return false };
        match head.list_place() {
            Some(list_place) if list_place.cpu == self.cpu => {
                // A remote drain writes the head word before the block leaves the list.
                let again = || self.allocator.frames.taken_head(pfn, order);
                !self.waits(pfn, order, head, info.zone())
                    && (!P::DRAINS_REMOTELY
                        || again().is_some_and(|again| again.list_place() == Some(list_place)))
            }
            _ => self.claim(pfn, order, info),
        }
    }

    /// Prepares a block of this CPU for a free with others, from where on another free of it is refused. `false` if its
    /// pageblock has bad frames in use; then the state is unchanged. A mark that another CPU sets at this moment may be
    /// overwritten: that CPU waits, and looks at the mark again, as beside a [`split`](Self::split).
    fn goes_with_others(&self, pfn: Pfn, order: Order, info: BlockInfo) -> bool {
        let pcp = self.allocator.pcp(info.zone(), self.cpu);
        pcp.enter();
        let info = if P::DRAINS_REMOTELY { self.frames.info(pfn) } else { info };
        let is_plain = !info.is_poisoned();
        if is_plain {
            self.frames.set_state(pfn, order, State::Body);
        }
        pcp.leave();
        is_plain
    }

    /// Takes blocks from this CPU's list and from the zone, above its low mark.
    fn bulk_from(&self, id: ZoneId, order: Order, migratetype: Migratetype, out: &mut [Pfn]) -> usize {
        let zone = &self.allocator.zones[id.index()];
        if !Request::new(order, migratetype).may_use(zone.spec().kind) {
            return 0;
        }
        let local = self.local(id);
        let got = fill(out, || local.take_listed(order, migratetype));
        let mut blocks = (out.len() - got) as u64;
        if self.allocator.config.keep_marks {
            self.note_free_pages(zone);
            blocks = blocks.min(self.to_spare(zone, order, migratetype) >> order.get());
        }
        let taken = local.alloc_many(order, migratetype, migratetype, &mut out[got..][..blocks as usize]);
        self.count_numa(self.zone, &local, taken as u64);
        got + taken
    }

    /// Base pages that may leave a zone above its low mark; all free pages if blocks leave one by one (Linux v3.0 has
    /// no such call).
    fn to_spare(&self, zone: &Zone<P>, order: Order, migratetype: Migratetype) -> u64 {
        if !self.allocator.config.engine.has_maps() {
            return zone.free_pages().saturating_sub(zone.marks().low + zone.reserve(ZoneType::Movable) + 1);
        }
        self.may_leave(zone, &Request::new(order, migratetype), Mark::Low)
    }

    /// Frees blocks of `order` that any CPU allocated, directly to the zone, so that all CPUs can take them
    /// immediately. Each free is checked like [`free`](Self::free).
    ///
    /// O(blocks): adjacent blocks that follow one another in `blocks` are freed as one run.
    ///
    /// # Errors
    /// The number of refused frees, and the reason of the first. A refused free changes nothing; all others are done.
    pub fn free_bulk(&self, order: Order, blocks: &[Pfn]) -> Result<(), BulkFreeError> {
        let frames = &self.allocator.frames;
        let mut failed: Option<BulkFreeError> = None;
        let mut batch = [Pfn(0); MOST_FREED];
        let (mut len, mut zone) = (0, self.zone);
        for &pfn in blocks {
            let info = frames.info(pfn);
            let is_ours = frames.contains(pfn) && self.take_back(pfn, order, info);
            if len > 0 && (!is_ours || len == MOST_FREED || info.zone() != zone) {
                self.local(zone).free_many(order, &batch[..len]);
                len = 0;
            }
            if !is_ours {
                // After the flush: a block that is in `blocks` twice is free by now, and refused as free.
                let first = self.refuse(pfn, order);
                failed.get_or_insert(BulkFreeError { refused: 0, first }).refused += 1;
                continue;
            }
            self.fill_freed(pfn, order);
            if !self.goes_with_others(pfn, order, info) {
                self.local(info.zone()).free_direct(pfn, order);
                continue;
            }
            (batch[len], zone) = (pfn, info.zone());
            len += 1;
        }
        if len > 0 {
            self.local(zone).free_many(order, &batch[..len]);
        }
        self.local(zone).answer();
        failed.map_or(Ok(()), Err)
    }
}
