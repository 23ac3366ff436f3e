//! Blocks from the zone to a list.

use super::list::List;
use super::{Local, bump, kind_of};
use crate::buddy::{Pieces, Wanted};
use crate::config::{Bulk, RefillCheck};
use crate::frame::{FrameUser, State};
use crate::platform::Platform;
use crate::policy::pcp::{PcpRule, Sizing, Tuning, moved_at_once};
use crate::units::{Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// What a refill is to bring, and what the lists' rule is to keep then.
struct Refill {
    sizing: Sizing,
    tuning: Tuning,
    /// Blocks.
    wanted: u64,
}

impl<P: Platform, M: FrameUser> Local<'_, '_, P, M> {
    /// Fills an empty list, so that what is taken first is at its head. Returns the blocks taken, bad ones included.
    ///
    /// The head words of the blocks stay [`State::Body`] until the blocks are on the list: a wrong free of one of them
    /// is refused at any moment of this.
    pub(super) fn refill(&self, number: usize, migratetype: Migratetype) -> u64 {
        let (order, _) = kind_of(number);
        let list = self.pcp.list(number);
        if let Some((from, laid)) = self.lay_out_kept(number, migratetype) {
            self.lay_in_late(number, from, laid);
            return laid;
        }
        let check_under_lock = self.config.refill_check == RefillCheck::UnderZoneLock;
        let late = self.frames.has_maps()
            && self.config.bulk == Bulk::Runs
            && !check_under_lock
            && order < PAGEBLOCK_ORDER;
        if self.has_less_than(order) {
            return 0;
        }
        let sizing = self.sizing_for(order);
        let Refill { tuning, wanted, .. } = self.plan(number, sizing);
        if late {
            return self.refill_late(number, migratetype, Refill { sizing, tuning, wanted });
        }
        // From the top down: the first block taken will be the first one handed out.
        let mut index = wanted;
        let taken = self.take_from_zone(self.wanted(order, migratetype), wanted, |pfn| {
            if check_under_lock && self.frames.find_bad(pfn, order).is_some() {
                self.quarantine(pfn, order);
                return false;
            }
            self.note_taken(pfn, order);
            index -= 1;
            list.set(index, pfn);
            true
        });
        if taken > 0 {
            self.pcp.set_tuning(self.config, sizing, self.pressure(), tuning);
            self.lay_in(number, index, wanted);
            self.count_refill(taken << order.get());
        }
        taken
    }

    /// How many blocks a refill of a list is to bring.
    #[inline(always)]
    fn plan(&self, number: usize, sizing: Sizing) -> Refill {
        let (order, _) = kind_of(number);
        let (tuning, mut blocks) =
            self.pcp.tuning().refill(self.config.pcp_rule, sizing, order, self.pressure());
        if blocks > 1 {
            blocks = blocks.max(self.fewest(number, sizing));
        }
        let wanted = u64::from(blocks.min(self.pcp.list(number).capacity()));
        Refill { sizing, tuning, wanted }
    }

    /// The same with maps: the zone lock is held for the words of bits alone, and the blocks are laid out when it is given back.
    /// A CPU that had to wait for the lock takes more: see `whole`.
    fn refill_late(&self, number: usize, migratetype: Migratetype, mut refill: Refill) -> u64 {
        let mut pieces = Pieces::new();
        let of = self.wanted(kind_of(number).0, migratetype);
        let taken = self.take_late(number, of, &mut refill, &mut pieces);
        self.bring(number, migratetype, &refill, &mut pieces, taken)
    }

    /// Lays out what was taken, so many blocks in all, of which so many pageblocks are to be kept whole. Returns the blocks on the list.
    fn bring(
        &self,
        number: usize,
        migratetype: Migratetype,
        refill: &Refill,
        pieces: &mut Pieces,
        (mut taken, ahead): (u64, u64),
    ) -> u64 {
        let (order, _) = kind_of(number);
        let list = self.pcp.list(number);
        let each = PAGEBLOCK_PAGES >> order.get();
        if taken == 0 {
            return 0;
        }
        let &Refill { mut sizing, mut tuning, .. } = refill;
        let from = self.pcp.refill_from(list);
        self.count_refill(taken << order.get());
        for _ in 0..ahead {
            let start = pieces.pop();
            if self.keep(start, PAGEBLOCK_ORDER, migratetype) {
                // What is kept whole is not in the way of what may be freed.
                sizing.high_max += PAGEBLOCK_PAGES as u32;
                tuning.high += PAGEBLOCK_PAGES as u32;
            } else {
                self.free_direct(start, PAGEBLOCK_ORDER);
            }
            taken -= each;
        }
        if let Some(start) = pieces.only_whole() {
            taken = self.lay_out((start, PAGEBLOCK_ORDER), number, from, migratetype);
        } else {
            // From the top down: the first block taken will be the first one handed out.
            let mut index = from + taken;
            pieces.each(order, |pfn| {
                index -= 1;
                list.set(index, pfn);
            });
        }
        self.pcp.set_tuning(self.config, sizing, self.pressure(), tuning);
        self.lay_in_late(number, from, taken);
        taken
    }

    /// Takes what a refill is to bring under one hold of the zone lock. Returns how many blocks, and how many pageblocks of them are to be kept whole.
    fn take_late(
        &self,
        number: usize,
        of: Wanted,
        refill: &mut Refill,
        pieces: &mut Pieces,
    ) -> (u64, u64) {
        let (order, migratetype) = kind_of(number);
        let capacity = self.pcp.list(number).capacity();
        let balance = (self.zone.free_pages(), self.zone.free_cma_pages());
        let sizing = refill.sizing;
        let room = || if balance.1 == 0 { self.room_for_whole(sizing, migratetype) } else { 0 };
        let mut ahead = 0;
        let taken = self.take_by(|buddy, waited| {
            if waited {
                self.scale_up(order, refill);
            }
            let wanted = refill.wanted.min(capacity.into());
            if waited {
                let (now, keep) = self.whole_of(wanted, order, capacity, room());
                let got = buddy.take_pageblocks(of, now + keep, pieces);
                ahead = got.saturating_sub(now);
                if got > 0 {
                    return got * (PAGEBLOCK_PAGES >> order.get());
                }
            }
            buddy.take_pieces(of, wanted, balance, pieces)
        });
        (taken, ahead)
    }

    /// A refill of order 0 that had to wait: as many blocks as its rule allows at once, not the next time.
    fn scale_up(&self, order: Order, refill: &mut Refill) {
        if self.config.pcp_rule == PcpRule::Auto && order == Order::ZERO {
            let rule = self.config.pcp_rule;
            let (tuning, blocks) =
                self.pcp.tuning().scaled_up().refill(rule, refill.sizing, order, self.pressure());
            (refill.tuning, refill.wanted) = (tuning, u64::from(blocks));
        }
    }

    fn count_refill(&self, pages: u64) {
        bump(&self.pcp.events.refills, 1);
        bump(&self.pcp.events.refilled_pages, pages);
    }

    /// Makes so many blocks that a refill has set from a place on those of an empty list.
    fn lay_in_late(&self, number: usize, from: u64, blocks: u64) {
        self.pcp.list(number).fill_from(from, blocks);
        self.filled(number);
    }

    /// The same for those at positions `from..to`, which move down to position 0.
    fn lay_in(&self, number: usize, from: u64, to: u64) {
        self.pcp.list(number).fill(from, to);
        self.filled(number);
    }

    /// Behind the filling of a list.
    fn filled(&self, number: usize) {
        let (order, _) = kind_of(number);
        let list = self.pcp.list(number);
        if self.config.refill_check == RefillCheck::AfterUnlock && M::CHECKED {
            self.check_refilled(list, order);
        }
        self.pcp.open_refilled(number);
        for place in list.places() {
            self.frames.list_place(list.at(place), order, place);
        }
        self.pcp.count_pages((u64::from(list.len()) << order.get()) as i64);
    }

    /// Fewest blocks of a list that move at once, whatever its rule says: none of order 0.
    pub(super) fn fewest(&self, number: usize, sizing: Sizing) -> u32 {
        let (order, _) = kind_of(number);
        let fewest = self.config.pcp_min_refill;
        match self.config.bulk {
            _ if order == Order::ZERO => 0,
            Bulk::OneByOne => fewest,
            Bulk::Runs if self.shares_room(order) => {
                let share = self.pcp.share_of(number, sizing.high_max);
                // One block at a time is no refill: a list with room for less than two takes two all the same.
                moved_at_once(order, share.div_ceil(2 << order.get()), fewest.min(2), fewest)
            }
            Bulk::Runs => moved_at_once(order, sizing.high_max >> 1 >> order.get(), fewest, fewest),
        }
    }

    /// Whether lists of the order share what all of them may hold: those of the pageblock order may hold as much besides.
    fn shares_room(&self, order: Order) -> bool {
        self.config.pcp_rule == PcpRule::Auto && order < PAGEBLOCK_ORDER
    }

    /// Whether the zone has too little for one block, whatever its free lists look like. Read without the lock: what
    /// happened before is seen, what happens meanwhile may not be.
    pub(super) fn has_less_than(&self, order: Order) -> bool {
        self.zone.free_pages() < order.pages()
    }

    /// Under the zone lock: Linux links each page that it takes here, and so fetches its descriptor.
    pub(super) fn note_taken(&self, pfn: Pfn, order: Order) {
        if self.config.bulk == Bulk::OneByOne {
            self.frames.set_state(pfn, order, State::Body);
        }
    }

    /// Walks what a refill has just brought, first block first, and drops bad blocks; the others keep their
    /// order.
    fn check_refilled(&self, list: &List<'_, P>, order: Order) {
        let places = list.places();
        let (bottom, mut kept) = (places.start, places.end);
        for index in places.rev() {
            let pfn = list.at(index);
            if self.frames.find_bad(pfn, order).is_some() {
                self.quarantine(pfn, order);
                continue;
            }
            kept -= 1;
            if kept != index {
                list.set(kept, pfn);
            }
        }
        list.drop_tail((kept - bottom) as u32);
    }
}
