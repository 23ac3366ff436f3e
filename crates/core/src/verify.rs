//! Invariants of the whole allocator, checked by a walk over all frames and lists.
//!
//! 1. Blocks tile each zone: every frame of a present pageblock belongs to exactly one block, or is reserved.
//! 2. Every free list is a consistent chain of blocks whose head words name that list. The number of blocks equals the
//!    counters, and every free block is on a list. With maps, each pageblock that is free as a whole has its bit in the
//!    bitmap of its type, and no other pageblock has one; each pageblock with bits in its map is in the bin of its
//!    type, its number of free frames and their largest block.
//! 3. The count of free pages is the sum of the free blocks outside isolated lists; that of free CMA pages is the sum
//!    of the CMA lists.
//! 4. No two free buddies exist that may merge; with maps they are one block.
//! 5. A zone manages the frames that are in blocks; with compact metadata each pageblock records how many others it
//!    has. Memory that boot has left for later is in pageblocks that are not present.
//! 6. Every block on a per-CPU list is taken, with the list's order and type, and its head word states its place on the
//!    list. So does that of every block that is set aside, and of no other block. Together they add up to the count.
//!    With compact metadata no word states this: no caller has such a block, and it is not free.
//! 7. A pageblock that a hook was told of is free as a whole. A frame that is marked as bad is not free; if its
//!    pageblock does not record bad frames, the frame is out of use.
//! 8. Untouched memory is free, in blocks of the largest order, which no list holds; its pageblocks are as new.
//! 9. If a zone has several sections, each shows the bins and free pageblocks that it has.
//! 10. A section counts its pageblocks that are isolated and those with bad frames in use, a zone those reserved for
//!     high orders. Frees check their pageblock if one is isolated, and hit if there is none of the first two kinds.
//!
//! [`Allocator::verify`] checks these statements; comments give the number of each.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use crate::alloc::Allocator;
use crate::buddy::Buddy;
use crate::frame::{FrameUser, ListPlace, State};
use crate::pcp::Pcp;
use crate::platform::{Platform, Word};
use crate::policy::{fallback, init};
use crate::units::{MAX_ORDER, Migratetype, NR_ORDERS, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn, ZoneId};
use crate::zone::Zone;

/// Base pages by their state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// On buddy lists, isolated ones included.
    pub free: u64,
    /// On per-CPU lists.
    pub on_pcp: u64,
    /// Allocated.
    pub allocated: u64,
    /// Found bad and out of use.
    pub quarantined: u64,
    /// Reserved, in pageblocks that have memory.
    pub reserved: u64,
}

impl Account {
    fn add(&mut self, more: Self) {
        self.free += more.free;
        self.on_pcp += more.on_pcp;
        self.allocated += more.allocated;
        self.quarantined += more.quarantined;
        self.reserved += more.reserved;
    }
}

/// Findings of the walks over a zone's lists and frames.
#[derive(Default)]
struct Found {
    /// Free blocks on lists, in bins and in bitmaps, by order, isolated ones included.
    listed: [u64; NR_ORDERS],
    /// Base pages of these blocks, isolated ones not counted.
    listed_pages: u64,
    /// Base pages of those in CMA pageblocks.
    listed_cma: u64,
    untouched_pages: u64,
    /// Isolated pageblocks, and pageblocks with a bad frame in use: frees have to look at these.
    special: [u64; 2],
    /// Base pages of pageblocks that are reserved for high orders.
    highatomic: u64,
    /// Base pages, frame by frame.
    account: Account,
    /// Free blocks by order, frame by frame.
    free_blocks: [u64; NR_ORDERS],
    /// With compact metadata, frames without any record: on a CPU's list, or never added.
    none: u64,
}

/// An invariant that does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Description of the broken invariant.
    pub what: &'static str,
    /// Zone in which it was found.
    pub zone: ZoneId,
    /// The frame, if one frame shows it.
    pub pfn: Option<Pfn>,
    /// The value that was counted, and the value in the counter or descriptor.
    pub found: (u64, u64),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.zone, self.what)?;
        if let Some(pfn) = self.pfn {
            write!(f, " at {pfn:?}")?;
        }
        write!(f, " (found {}, recorded {})", self.found.0, self.found.1)
    }
}

impl core::error::Error for Violation {}

/// Checks statements about a zone, or about one frame of it. `found` is what a violation shows.
fn check(
    zone: ZoneId,
    pfn: Option<Pfn>,
    found: (u64, u64),
) -> impl Fn(bool, &'static str) -> Result<(), Violation> {
    move |holds, what| if holds { Ok(()) } else { Err(Violation { what, zone, pfn, found }) }
}

/// Checks that a zone's counter has the value that was found.
fn same<P: Platform>(zone: &Zone<P>, what: &'static str, found: u64, recorded: u64) -> Result<(), Violation> {
    check(zone.id(), None, (found, recorded))(found == recorded, what)
}

impl<'m, P: Platform, M: FrameUser> Allocator<'m, P, M> {
    /// Checks every invariant, and returns how many base pages are in each state. O(frames).
    ///
    /// No CPU may allocate or free during the call: a page that moves would be counted twice, or not at all. Pages stay
    /// on their per-CPU lists.
    ///
    /// # Errors
    /// The first violation found.
    pub fn verify(&self) -> Result<Account, Violation> {
        let mut account = Account::default();
        for zone in self.zones {
            // 6: blocks on per-CPU lists are taken, and their head words state their places.
            let (on_pcp, unsaid) = self.verify_pcps(zone)?;
            let mut all = Found::default();
            for n in 0..zone.cut.sections() {
                let check = |buddy: &mut Buddy<'_, 'm, P, M>| {
                    // 2: lists and bins are chains of free blocks.
                    self.verify_lists(zone, buddy, &mut all)?;
                    // 8: untouched memory is whole blocks, and no descriptor of it was written.
                    all.untouched_pages += self.verify_untouched(zone, buddy)?;
                    self.verify_special(zone, buddy, &mut all)?;
                    // 9: CPUs that choose a section see its present bins and bitmaps.
                    let what = "a section shows other free blocks than it has";
                    same(zone, what, u64::from(buddy.is_as_shown()), 1)?;
                    // 1, 4 and 7: blocks do not overlap and leave no frame out; buddies that can merge have merged.
                    self.verify_tiling(zone, buddy.range(), &mut all)
                };
                zone.with_section(n, &self.frames, self.waiter(None), check).0?;
            }
            // 10: frees look at their pageblocks where they must, and only there.
            let what = "pages reserved for high orders are not counted so";
            same(zone, what, all.highatomic, zone.pressure.highatomic())?;
            let may_hit = |pcp: &&Pcp<'_, P>| cfg!(feature = "lists") && !pcp.counts();
            for pcp in self.pcps_of(zone.id()).iter().filter(may_hit) {
                let is_right = if pcp.is_closed() { all.special != [0; 2] } else { all.special[0] == 0 };
                let [isolated, marked] = all.special;
                check(zone.id(), None, (isolated, marked))(
                    is_right,
                    "frees check their pageblocks, or do not, without reason",
                )?;
            }
            // 3: the counters equal the sums of the lists.
            let free = all.listed_pages + all.untouched_pages;
            same(zone, "free pages are not the sum of the lists", free, zone.free_pages())?;
            let what = "free CMA pages are not the sum of the CMA lists";
            same(zone, what, all.listed_cma, zone.free_cma_pages())?;
            for (found, recorded) in all.free_blocks.into_iter().zip(all.listed) {
                same(zone, "a free block is on no list", found, recorded)?;
            }
            // 5: the zone manages the frames in blocks; the others are left for later.
            let mut found = all.account;
            same(zone, "blocks on lists are with callers, or free", unsaid, unsaid.min(all.none))?;
            found.allocated += unsaid;
            found.reserved += all.none - unsaid;
            let absent = self.recorded_absent(zone).unwrap_or(found.reserved);
            let what = "pageblocks do not record how many of their frames were never added";
            same(zone, what, found.reserved, absent)?;
            found.free += all.untouched_pages;
            let managed = found.free + found.allocated + found.quarantined;
            same(zone, "managed pages are not all that is not reserved", managed, zone.managed_pages())?;
            self.verify_left(zone)?;
            let what = "more pages on per-CPU lists than are taken";
            same(zone, what, on_pcp, on_pcp.min(found.allocated))?;
            found.allocated -= on_pcp;
            account.add(Account { on_pcp, ..found });
        }
        Ok(account)
    }

    /// With compact metadata: the frames that were never added, as their pageblocks record them.
    fn recorded_absent(&self, zone: &Zone<P>) -> Option<u64> {
        let spec = zone.spec();
        let all = Pfn::pageblocks(spec.start..spec.end()).filter(|&block| self.frames.contains(block));
        let absent: u64 = all.clone().map(|block| self.frames.info(block).absent()).sum();
        // Frames after the zone are never added.
        let end = all.last().map_or(spec.end(), |block| block.add(PAGEBLOCK_PAGES));
        self.frames.is_compact().then(|| absent - end.0.saturating_sub(spec.end().0))
    }

    /// Walks the lists of all CPUs. Returns their pages, and how many of these pages no word records.
    fn verify_pcps(&self, zone: &Zone<P>) -> Result<(u64, u64), Violation> {
        let (mut total, mut unsaid, mut sharers) = (0, 0, 0);
        for (cpu, pcp) in self.cpu_ids().zip(self.pcps_of(zone.id())) {
            let mut pages = 0;
            for (order, list, position, pfn) in pcp.blocks() {
                pages += order.pages();
                let check = check(zone.id(), Some(pfn), (u64::from(position), u64::from(cpu.0)));
                let is_here = self.frames.contains(pfn) && self.frames.info(pfn).zone() == zone.id();
                check(is_here, "a per-CPU list holds a foreign frame")?;
                if !self.frames.has_word(order) {
                    let is_free = |pfn| self.frames.map(pfn).is_some_and(|map| map.has(pfn));
                    let is_unrecorded =
                        |pfn| !is_free(pfn) && self.frames.state(pfn, Order::ZERO) == State::Body;
                    let all = (0..order.pages()).all(|n| is_unrecorded(pfn.add(n)));
                    check(all, "a block on a per-CPU list is free, or a caller has it")?;
                    unsaid += order.pages();
                    continue;
                }
                let state = self.frames.state(pfn, order);
                let is_taken =
                    matches!(state, State::Taken { order: o, asked, .. } if (o, asked) == (order, list));
                check(is_taken, "a per-CPU list holds a block that is not taken, or of another order")?;
                let list_place = Some(ListPlace { cpu, position });
                let says = state == State::Taken { order, asked: list, list_place };
                check(says, "a block on a per-CPU list does not say where it sits")?;
            }
            same(zone, "a per-CPU count is not the sum of its lists", pages, pcp.count().into())?;
            let what = "a CPU has blocks on lists, and no share of what lists may hold";
            check(zone.id(), None, (pages, 0))(pcp.is_empty_without_share(), what)?;
            sharers += u64::from(pcp.is_sharer());
            total += pages;
        }
        same(zone, "a zone does not count the CPUs that share it", sharers, zone.sharers.load(Relaxed))?;
        Ok((total, unsaid))
    }

    /// Walks every list and bin. With maps, blocks below the pageblock order are bits.
    fn verify_lists(
        &self,
        zone: &Zone<P>,
        buddy: &Buddy<'_, 'm, P, M>,
        Found { listed: blocks, listed_pages: pages, listed_cma: cma, .. }: &mut Found,
    ) -> Result<(), Violation> {
        let mut count = |list, found: u64| match list {
            Migratetype::Isolate => {}
            Migratetype::Cma => (*pages, *cma) = (*pages + found, *cma + found),
            _ => *pages += found,
        };
        for order in Order::all().filter(|_| !self.frames.has_maps()) {
            let mut found = 0;
            for list in Migratetype::ALL.into_iter().filter(|&list| list != Migratetype::Isolate) {
                let on_list = self.verify_list(zone, buddy, order, list)?;
                found += on_list;
                count(list, on_list * order.pages());
            }
            same(zone, "nr_free is not the number of free blocks", found, buddy.nr_free(order))?;
            blocks[order.index()] += found + self.verify_list(zone, buddy, order, Migratetype::Isolate)?;
        }
        for list in Migratetype::ALL.into_iter().filter(|_| self.frames.has_maps()) {
            count(list, self.verify_bins(zone, buddy, list, blocks)?);
            let wrong = |(what, pfn)| Violation { what, zone: zone.id(), pfn, found: (0, 0) };
            let [singles, pairs] = buddy.check_whole(list).map_err(wrong)?;
            blocks[PAGEBLOCK_ORDER.index()] += singles;
            blocks[MAX_ORDER.index()] += pairs;
            count(list, singles * PAGEBLOCK_PAGES + pairs * MAX_ORDER.pages());
        }
        Ok(())
    }

    /// Walks a section's pageblocks, and adds those that are special.
    fn verify_special(
        &self,
        zone: &Zone<P>,
        buddy: &Buddy<'_, 'm, P, M>,
        all: &mut Found,
    ) -> Result<(), Violation> {
        let mut found = [0; 2];
        let infos = Pfn::pageblocks(buddy.range()).map(|block| self.frames.info(block));
        for info in infos.filter(|info| info.is_present()) {
            let migratetype = info.migratetype();
            found[0] += u64::from(migratetype == Migratetype::Isolate);
            found[1] += u64::from(info.is_poisoned());
            all.highatomic += u64::from(migratetype == Migratetype::HighAtomic) * PAGEBLOCK_PAGES;
        }
        let [isolated, marked] = found;
        same(zone, "isolated pageblocks are not counted so", isolated, buddy.isolated_pageblocks())?;
        same(zone, "pageblocks with bad frames are not counted so", marked, buddy.marked_pageblocks())?;
        all.special = [all.special[0] + isolated, all.special[1] + marked];
        let is_known = found == [0; 2] || buddy.has_special_pageblocks();
        let what = "a zone does not know of its special pageblocks";
        check(zone.id(), None, (isolated, marked))(is_known, what)
    }

    /// Walks the untouched pageblocks. Returns their pages.
    fn verify_untouched(&self, zone: &Zone<P>, buddy: &Buddy<'_, 'm, P, M>) -> Result<u64, Violation> {
        let Range { start, end } = buddy.untouched();
        if start == end {
            return Ok(0);
        }
        let at = |pfn| check(zone.id(), Some(pfn), (start.0, end.0));
        let is_aligned = start.is_aligned(MAX_ORDER) && end.is_aligned(MAX_ORDER);
        let is_whole = is_aligned && zone.spec().start <= start && end <= zone.spec().end();
        at(start)(is_whole, "untouched memory is no run of the largest blocks of its zone")?;
        let has_block = buddy.has(MAX_ORDER, Migratetype::Movable);
        at(start)(has_block, "memory is untouched, and its list is empty")?;
        for block in Pfn::pageblocks(start..end) {
            let is_new = !self.frames.info(block).is_present()
                && self.frames.state(block, PAGEBLOCK_ORDER) == State::Body
                && self.frames.map(block).is_some_and(|map| map.bits().count() == 0);
            at(block)(is_new, "an untouched pageblock is not as new")?;
        }
        Ok(end.0 - start.0)
    }

    /// Memory that is left to be initialised is in pageblocks that are not present, and such pageblocks hold no other
    /// memory.
    fn verify_left(&self, zone: &Zone<P>) -> Result<(), Violation> {
        let rest = self.deferred().map(|deferred| &deferred.zones()[zone.id().index()]);
        // If all memory is initialised, pageblocks may have been taken offline since.
        let Some(rest) = rest.filter(|rest| rest.left() != 0) else { return Ok(()) };
        let mut absent = 0;
        for range in init::clipped(rest.rest().free, rest.rest().deferred_from..zone.spec().end()) {
            let is_absent = |&block: &Pfn| !self.frames.info(block).is_present();
            for block in Pfn::pageblocks(range.clone()).filter(is_absent) {
                absent += block.add(PAGEBLOCK_PAGES).min(range.end).0 - block.max(range.start).0;
            }
        }
        let what = "the memory left to be initialised is not what is not present";
        same(zone, what, absent, rest.left())
    }

    /// Walks the open pageblocks of a type. Returns their free pages, and adds their blocks to `blocks` by order.
    fn verify_bins(
        &self,
        zone: &Zone<P>,
        buddy: &Buddy<'_, 'm, P, M>,
        list: Migratetype,
        blocks: &mut [u64; NR_ORDERS],
    ) -> Result<u64, Violation> {
        let most = zone.spec().pages.div_ceil(PAGEBLOCK_PAGES);
        let (mut met, mut pages) = (0, 0);
        for start in buddy.open_pageblocks(list) {
            let wrong = |what| Violation { what, zone: zone.id(), pfn: Some(start), found: (met, most) };
            if met == most {
                return Err(wrong("the bins have more pageblocks than the zone: one is circular"));
            }
            let bits = buddy.check_open(start, list).map_err(wrong)?;
            bits.count_blocks(blocks);
            pages += bits.count();
            met += 1;
        }
        Ok(pages)
    }

    /// Walks one list. Returns the number of its blocks.
    fn verify_list(
        &self,
        zone: &Zone<P>,
        buddy: &Buddy<'_, 'm, P, M>,
        order: Order,
        list: Migratetype,
    ) -> Result<u64, Violation> {
        let (mut blocks, mut last) = (0, None);
        let (spec, recorded) = (zone.spec(), buddy.nr_free(order));
        for pfn in buddy.blocks(order, list) {
            let check = check(zone.id(), Some(pfn), (blocks, recorded));
            let is_inside = spec.spans(pfn) && spec.spans(Pfn(pfn.0 + order.pages() - 1));
            check(pfn.is_aligned(order) && is_inside, "a free block is misaligned or outside its zone")?;
            let before = last.unwrap_or(pfn).0 - spec.start.0;
            let says = match self.frames.state(pfn, order) {
                State::Free { order: head_order, list: head_list, prev, .. } => {
                    (head_order, head_list, u64::from(prev)) == (order, list, before)
                }
                _ => false,
            };
            check(says, "a block on a free list does not say so, or its back link is wrong")?;
            last = Some(pfn);
            blocks += 1;
        }
        let is_end = last == buddy.last(order, list);
        check(zone.id(), last, (blocks, recorded))(is_end, "a free list does not end at its last block")?;
        Ok(blocks)
    }

    /// Walks a section from its first frame to its last, block by block.
    fn verify_tiling(
        &self,
        zone: &Zone<P>,
        section: Range<Pfn>,
        Found { account, free_blocks, none, .. }: &mut Found,
    ) -> Result<(), Violation> {
        let mut at = section.start;
        while at < section.end {
            let check = check(zone.id(), Some(at), (at.0, section.end.0));
            if !self.frames.info(at).is_present() {
                at = at.block_start(PAGEBLOCK_ORDER).add(PAGEBLOCK_PAGES);
                continue;
            }
            let (head, state) = self.frames.find(at);
            check(head == at, "two blocks overlap")?;
            let pages = state.pages();
            match state {
                State::Free { order, .. } => {
                    free_blocks[order.index()] += 1;
                    account.free += pages;
                    check(!self.could_merge(at, order), "two free buddies have not merged")?;
                }
                State::Taken { order, asked, list_place } => {
                    let is_true = |ListPlace { cpu, position }| {
                        cpu.index() < self.cpus()
                            && self.pcp(zone.id(), cpu).is_aside_as_said(order, asked, position, at)
                    };
                    let is_true = list_place.is_none_or(is_true);
                    check(is_true, "a block says that it is set aside, and it is not")?;
                    account.allocated += pages;
                }
                State::Quarantined { .. } => account.quarantined += pages,
                State::Reserved => account.reserved += pages,
                // No word records more: the frame is on a CPU's list, or was never added.
                State::Body if self.frames.is_compact() => *none += pages,
                State::Body => check(false, "a frame belongs to no block")?,
            }
            self.verify_body(zone, at, state)?;
            self.verify_bits(at, state, check)?;
            at = at.add(pages);
        }
        Ok(())
    }

    /// Checks the bits of a block's pageblock besides its type: reported, and bad frames. The frames of a large block
    /// may be untouched, so its marks are read only if the pageblock records bad frames.
    fn verify_bits(
        &self,
        head: Pfn,
        state: State,
        check: impl Fn(bool, &'static str) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let (info, pages) = (self.frames.info(head), state.pages());
        let (is_free, is_small) = (matches!(state, State::Free { .. }), pages < PAGEBLOCK_PAGES);
        let is_whole = is_free && !is_small;
        check(is_whole || !info.is_reported(), "a pageblock that a hook was told of is not free")?;
        let looks = if info.is_poisoned() { is_free } else { is_small };
        let is_sound = !looks || self.frames.first_mark(head, pages).is_none();
        check(is_sound, "a frame that is marked as bad is free, or its pageblock does not say so")
    }

    /// No frame inside a block has the head word of a block. Of whole pageblocks only the pageblocks' own heads are
    /// read, so that untouched descriptors stay untouched.
    fn verify_body(&self, zone: &Zone<P>, head: Pfn, state: State) -> Result<(), Violation> {
        let pages = state.pages();
        let at = |pfn| check(zone.id(), Some(pfn), (head.0, pages));
        for block in (0..pages / PAGEBLOCK_PAGES).map(|n| head.add(n * PAGEBLOCK_PAGES)) {
            let has_bits = self.frames.map(block).is_some_and(|map| map.bits().count() != 0);
            at(block)(!has_bits, "a pageblock that is one block has bits in its map")?;
        }
        let is_large = pages >= PAGEBLOCK_PAGES;
        if is_large && self.frames.has_maps() && matches!(state, State::Free { .. }) {
            // Each pageblock of the block has a head of its own.
            return Ok(());
        }
        let inside = if is_large { PAGEBLOCK_ORDER } else { Order::ZERO };
        for pfn in (1..pages >> inside.get()).map(|n| head.add(n << inside.get())) {
            let is_body = self.frames.state(pfn, inside) == State::Body;
            at(pfn)(is_body, "a frame inside a block says it starts one")?;
        }
        Ok(())
    }

    fn could_merge(&self, pfn: Pfn, order: Order) -> bool {
        // With maps two free buddy pageblocks of one type are one block; those of two types never merge.
        let largest = if self.frames.has_maps() { PAGEBLOCK_ORDER } else { MAX_ORDER };
        if order >= largest {
            return false;
        }
        let buddy = pfn.buddy(order);
        let (info, buddy_info) = (self.frames.info(pfn), self.frames.info(buddy));
        // A present buddy is of the same zone: zones begin at multiples of the largest block.
        buddy_info.is_present()
            && matches!(self.frames.state(buddy, order), State::Free { order: free, .. } if free == order)
            && fallback::may_merge(order, info.migratetype(), buddy_info.migratetype())
    }
}
