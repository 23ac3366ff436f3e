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
//! 5. A zone manages the frames that are in blocks. Memory that boot has left for later is in pageblocks that are not
//!    present.
//! 6. Every block on a per-CPU list is taken, with the list's order and type, and its head word states its place on the
//!    list. So does that of every block that is set aside, and of no other block. Together they add up to the count.
//!    With compact metadata no word states this: no caller has such a block, and it is not free.
//! 7. A pageblock that a hook was told of is free as a whole. A frame that is marked as bad is not free; if its
//!    pageblock does not record bad frames, the frame is out of use.
//! 8. Untouched memory is free, in blocks of the largest order, which no list holds; its pageblocks are as new.
//! 9. If a zone has several sections, each shows the bins and free pageblocks that it has.
//!
//! [`Allocator::verify`] checks these statements; comments give the number of each.

use core::fmt;
use core::ops::Range;

use crate::alloc::Allocator;
use crate::buddy::Buddy;
use crate::frame::{FrameUser, ListPlace, State};
use crate::platform::Platform;
use crate::policy::{fallback, init};
use crate::units::{
    CpuId, MAX_ORDER, Migratetype, NR_ORDERS, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn, ZoneId,
};
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

/// Content of the free lists of a zone.
#[derive(Default)]
struct Listed {
    /// Blocks by order, isolated ones included.
    blocks: [u64; NR_ORDERS],
    /// Base pages, isolated ones not counted.
    pages: u64,
    /// Base pages in CMA pageblocks.
    cma: u64,
}

impl Listed {
    fn add(&mut self, more: &Self) {
        self.blocks.iter_mut().zip(more.blocks).for_each(|(all, blocks)| *all += blocks);
        self.pages += more.pages;
        self.cma += more.cma;
    }
}

/// Result of a walk over a section's frames.
#[derive(Default)]
struct Tiles {
    account: Account,
    /// Free blocks by order.
    free_blocks: [u64; NR_ORDERS],
    /// With compact metadata, frames without any record: on a CPU's list, or never added.
    none: u64,
}

impl Tiles {
    fn add(&mut self, Self { account, free_blocks, none }: &Self) {
        self.account.free += account.free;
        self.account.allocated += account.allocated;
        self.account.quarantined += account.quarantined;
        self.account.reserved += account.reserved;
        self.free_blocks.iter_mut().zip(free_blocks).for_each(|(all, blocks)| *all += blocks);
        self.none += none;
    }
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
            let same = |what, found: u64, recorded: u64| {
                let violation = Violation { what, zone: zone.id(), pfn: None, found: (found, recorded) };
                if found == recorded { Ok(()) } else { Err(violation) }
            };
            // 6: blocks on per-CPU lists are taken, and their head words state their places.
            let (on_pcp, unsaid) = self.verify_pcps(zone)?;
            let sections = || 0..zone.cut.sections();
            let mut lists = Listed::default();
            let mut untouched = 0;
            for n in sections() {
                let check = |buddy: &mut Buddy<'_, 'm, P, M>| {
                    // 2: lists and bins are chains of free blocks.
                    lists.add(&self.verify_lists(zone, buddy)?);
                    // 8: untouched memory is whole blocks, and no descriptor of it was written.
                    untouched += self.verify_untouched(zone, buddy)?;
                    // 9: CPUs that choose a section see its present bins and bitmaps.
                    same("a section shows other free blocks than it has", u64::from(buddy.is_as_shown()), 1)
                };
                zone.with_section(n, self.frames, self.waiter(None), check).0?;
            }
            // 3: the counters equal the sums of the lists.
            same("free pages are not the sum of the lists", lists.pages + untouched, zone.free_pages())?;
            same("free CMA pages are not the sum of the CMA lists", lists.cma, zone.free_cma_pages())?;
            // 1, 4 and 7: blocks do not overlap and leave no frame out; buddies that can merge have merged.
            let mut tiles = Tiles::default();
            for n in sections() {
                let check = |_: &mut Buddy<'_, 'm, P, M>| self.verify_tiling(zone, zone.cut.range(n));
                tiles.add(&zone.with_section(n, self.frames, self.waiter(None), check).0?);
            }
            for (found, recorded) in tiles.free_blocks.into_iter().zip(lists.blocks) {
                same("a free block is on no list", found, recorded)?;
            }
            // 5: the zone manages the frames in blocks; the others are left for later.
            let mut found = tiles.account;
            same("blocks on lists are with callers, or free", unsaid, unsaid.min(tiles.none))?;
            found.allocated += unsaid;
            found.reserved += tiles.none - unsaid;
            let Account { free, allocated, quarantined, .. } = found;
            let managed = free + untouched + allocated + quarantined;
            same("managed pages are not all that is not reserved", managed, zone.managed_pages())?;
            self.verify_left(zone)?;
            same("more pages on per-CPU lists than are taken", on_pcp, on_pcp.min(allocated))?;
            found.free += untouched;
            account.free += found.free;
            account.on_pcp += on_pcp;
            account.allocated += found.allocated - on_pcp;
            account.quarantined += found.quarantined;
            account.reserved += found.reserved;
        }
        Ok(account)
    }

    /// Walks the lists of all CPUs. Returns their pages, and how many of these pages no word records.
    fn verify_pcps(&self, zone: &Zone<P>) -> Result<(u64, u64), Violation> {
        let (mut total, mut unsaid) = (0, 0);
        for cpu in (0..self.cpus()).map(|cpu| CpuId(cpu as u16)) {
            let pcp = self.pcp(zone.id(), cpu);
            let mut pages = 0;
            for (order, list, position, pfn) in pcp.blocks() {
                pages += order.pages();
                let list_place = Some(ListPlace { cpu, position });
                let wrong = |what| Violation {
                    what,
                    zone: zone.id(),
                    pfn: Some(pfn),
                    found: (u64::from(position), u64::from(cpu.0)),
                };
                if !self.frames.contains(pfn) || self.frames.info(pfn).zone() != zone.id() {
                    return Err(wrong("a per-CPU list holds a foreign frame"));
                }
                if !self.frames.has_word(order) {
                    let is_free = |pfn| self.frames.map(pfn).is_some_and(|map| map.has(pfn));
                    let mut frames = (0..order.pages()).map(|n| pfn.add(n));
                    if frames.any(|pfn| is_free(pfn) || self.frames.state(pfn, Order::ZERO) != State::Body) {
                        return Err(wrong("a block on a per-CPU list is free, or a caller has it"));
                    }
                    unsaid += order.pages();
                    continue;
                }
                match self.frames.state(pfn, order) {
                    State::Taken { order: taken, asked, list_place: place }
                        if taken == order && asked == list =>
                    {
                        if place != list_place {
                            return Err(wrong("a block on a per-CPU list does not say where it sits"));
                        }
                    }
                    _ => {
                        return Err(wrong(
                            "a per-CPU list holds a block that is not taken, or of another order",
                        ));
                    }
                }
            }
            if pages != u64::from(pcp.count()) {
                return Err(Violation {
                    what: "a per-CPU count is not the sum of its lists",
                    zone: zone.id(),
                    pfn: None,
                    found: (pages, u64::from(pcp.count())),
                });
            }
            total += pages;
        }
        Ok((total, unsaid))
    }

    /// Walks every list and bin. With maps, blocks below the pageblock order are bits.
    fn verify_lists(&self, zone: &Zone<P>, buddy: &Buddy<'_, 'm, P, M>) -> Result<Listed, Violation> {
        let mut all = Listed::default();
        let mut count = |list, pages: u64| match list {
            Migratetype::Isolate => {}
            Migratetype::Cma => (all.pages, all.cma) = (all.pages + pages, all.cma + pages),
            _ => all.pages += pages,
        };
        let mut blocks = [0; NR_ORDERS];
        for order in Order::all().filter(|_| !self.frames.has_maps()) {
            for list in Migratetype::ALL.into_iter().filter(|&list| list != Migratetype::Isolate) {
                let on_list = self.verify_list(zone, buddy, order, list)?;
                blocks[order.index()] += on_list;
                count(list, on_list * order.pages());
            }
            let found = (blocks[order.index()], buddy.nr_free(order));
            if found.0 != found.1 {
                let what = "nr_free is not the number of free blocks";
                return Err(Violation { what, zone: zone.id(), pfn: None, found });
            }
            blocks[order.index()] += self.verify_list(zone, buddy, order, Migratetype::Isolate)?;
        }
        if self.frames.has_maps() {
            for list in Migratetype::ALL {
                count(list, self.verify_bins(zone, buddy, list, &mut blocks)?);
                let wrong = |(what, pfn)| Violation { what, zone: zone.id(), pfn, found: (0, 0) };
                let [singles, pairs] = buddy.check_whole(list).map_err(wrong)?;
                blocks[PAGEBLOCK_ORDER.index()] += singles;
                blocks[MAX_ORDER.index()] += pairs;
                count(list, singles * PAGEBLOCK_PAGES + pairs * MAX_ORDER.pages());
            }
        }
        all.blocks = blocks;
        Ok(all)
    }

    /// Walks the untouched pageblocks. Returns their pages.
    fn verify_untouched(&self, zone: &Zone<P>, buddy: &Buddy<'_, 'm, P, M>) -> Result<u64, Violation> {
        let Range { start, end } = buddy.untouched();
        let wrong = |what, pfn: Pfn| {
            let found = (start.0, end.0);
            Violation { what, zone: zone.id(), pfn: Some(pfn), found }
        };
        if start == end {
            return Ok(0);
        }
        let whole = start.is_aligned(MAX_ORDER) && end.is_aligned(MAX_ORDER);
        if !whole || start < zone.spec().start || zone.spec().end() < end {
            return Err(wrong("untouched memory is no run of the largest blocks of its zone", start));
        }
        if !buddy.has(MAX_ORDER, Migratetype::Movable) {
            return Err(wrong("memory is untouched, and its list is empty", start));
        }
        for at in (start.0..end.0).step_by(PAGEBLOCK_PAGES as usize).map(Pfn) {
            let is_new = !self.frames.info(at).is_present()
                && self.frames.state(at, PAGEBLOCK_ORDER) == State::Body
                && self.frames.map(at).is_some_and(|map| map.bits().count() == 0);
            if !is_new {
                return Err(wrong("an untouched pageblock is not as new", at));
            }
        }
        Ok(end.0 - start.0)
    }

    /// Memory that is left to be initialised is in pageblocks that are not present, and such pageblocks hold no other
    /// memory.
    fn verify_left(&self, zone: &Zone<P>) -> Result<(), Violation> {
        let Some(deferred) = self.deferred() else { return Ok(()) };
        let rest = &deferred.zones()[zone.id().index()];
        if rest.left() == 0 {
            // All memory is initialised; pageblocks may have been taken offline since.
            return Ok(());
        }
        let mut absent = 0;
        for range in init::clipped(rest.rest().free, rest.rest().deferred_from..zone.spec().end()) {
            let mut at = range.start;
            while at < range.end {
                let end = at.block_start(PAGEBLOCK_ORDER).add(PAGEBLOCK_PAGES).min(range.end);
                absent += if self.frames.info(at).is_present() { 0 } else { end.0 - at.0 };
                at = end;
            }
        }
        let found = (absent, rest.left());
        let what = "the memory left to be initialised is not what is not present";
        if found.0 == found.1 { Ok(()) } else { Err(Violation { what, zone: zone.id(), pfn: None, found }) }
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
            bits.blocks().for_each(|(_, order)| blocks[usize::from(order)] += 1);
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
        let mut blocks = 0;
        let mut last = None;
        let most = zone.spec().pages >> order.get();
        for pfn in buddy.blocks(order, list) {
            let wrong = |what| Violation { what, zone: zone.id(), pfn: Some(pfn), found: (blocks, most) };
            if !pfn.is_aligned(order)
                || !zone.spec().spans(pfn)
                || !zone.spec().spans(Pfn(pfn.0 + order.pages() - 1))
            {
                return Err(wrong("a free block is misaligned or outside its zone"));
            }
            let before = last.unwrap_or(pfn);
            let base = zone.link_base().0;
            match self.frames.state(pfn, order) {
                State::Free { order: head_order, list: head_list, prev, .. }
                    if head_order == order && head_list == list && base + u64::from(prev) == before.0 => {}
                _ => return Err(wrong("a block on a free list does not say so, or its back link is wrong")),
            }
            last = Some(pfn);
            blocks += 1;
        }
        if last != buddy.last(order, list) {
            return Err(Violation {
                what: "a free list does not end at its last block",
                zone: zone.id(),
                pfn: last,
                found: (blocks, most),
            });
        }
        Ok(blocks)
    }

    /// Walks a section from its first frame to its last, block by block.
    fn verify_tiling(&self, zone: &Zone<P>, section: Range<Pfn>) -> Result<Tiles, Violation> {
        let Tiles { mut account, mut free_blocks, mut none } = Tiles::default();
        let mut at = section.start;
        while at < section.end {
            let wrong =
                |what| Violation { what, zone: zone.id(), pfn: Some(at), found: (at.0, section.end.0) };
            if !self.frames.info(at).is_present() {
                at = at.block_start(PAGEBLOCK_ORDER).add(PAGEBLOCK_PAGES);
                continue;
            }
            let (head, state) = self.frames.find(at);
            if head != at {
                return Err(wrong("two blocks overlap"));
            }
            let pages = state.pages();
            match state {
                State::Free { order, .. } => {
                    free_blocks[order.index()] += 1;
                    account.free += pages;
                    if self.could_merge(at, order) {
                        return Err(wrong("two free buddies have not merged"));
                    }
                }
                State::Taken { order, asked, list_place } => {
                    let is_true = |ListPlace { cpu, position }| {
                        cpu.index() < self.cpus()
                            && self.pcp(zone.id(), cpu).is_aside_as_said(order, asked, position, at)
                    };
                    if !list_place.is_none_or(is_true) {
                        return Err(wrong("a block says that it is set aside, and it is not"));
                    }
                    account.allocated += pages;
                }
                State::Quarantined { .. } => account.quarantined += pages,
                State::Reserved => account.reserved += pages,
                // No word records more: the frame is on a CPU's list, or was never added.
                State::Body if self.frames.is_compact() => none += pages,
                State::Body => return Err(wrong("a frame belongs to no block")),
            }
            self.verify_body(zone, at, pages, matches!(state, State::Free { .. }))?;
            self.verify_bits(at, state).map_err(wrong)?;
            at = at.add(pages);
        }
        Ok(Tiles { account, free_blocks, none })
    }

    /// Checks the bits of a block's pageblock besides its type: reported, and bad frames. The frames of a large block
    /// may be untouched, so its marks are read only if the pageblock records bad frames.
    fn verify_bits(&self, head: Pfn, state: State) -> Result<(), &'static str> {
        let info = self.frames.info(head);
        let (is_free, pages) = match state {
            State::Free { order, .. } => (true, order.pages()),
            State::Taken { order, .. } | State::Quarantined { order } => (false, order.pages()),
            State::Body | State::Reserved => (false, 1),
        };
        if info.is_reported() && !(is_free && pages >= PAGEBLOCK_PAGES) {
            return Err("a pageblock that a hook was told of is not free");
        }
        let small = pages < PAGEBLOCK_PAGES;
        if (small || info.is_poisoned())
            && (is_free || !info.is_poisoned())
            && self.frames.first_mark(head, pages).is_some()
        {
            return Err("a frame that is marked as bad is free, or its pageblock does not say so");
        }
        Ok(())
    }

    /// No frame inside a block has the head word of a block. Of whole pageblocks only the pageblocks' own heads are
    /// read, so that untouched descriptors stay untouched.
    fn verify_body(&self, zone: &Zone<P>, head: Pfn, pages: u64, is_free: bool) -> Result<(), Violation> {
        for block in (0..pages / PAGEBLOCK_PAGES).map(|n| head.add(n * PAGEBLOCK_PAGES)) {
            if self.frames.map(block).is_some_and(|map| map.bits().count() > 0) {
                let what = "a pageblock that is one block has bits in its map";
                return Err(Violation { what, zone: zone.id(), pfn: Some(block), found: (head.0, pages) });
            }
        }
        if is_free && self.frames.has_maps() && pages >= PAGEBLOCK_PAGES {
            // Each pageblock of the block has a head of its own.
            return Ok(());
        }
        let inside = if pages >= PAGEBLOCK_PAGES { PAGEBLOCK_ORDER } else { Order::ZERO };
        for n in 1..pages >> inside.get() {
            let pfn = head.add(n << inside.get());
            if self.frames.state(pfn, inside) != State::Body {
                let what = "a frame inside a block says it starts one";
                return Err(Violation { what, zone: zone.id(), pfn: Some(pfn), found: (head.0, pages) });
            }
        }
        Ok(())
    }

    fn could_merge(&self, pfn: Pfn, order: Order) -> bool {
        if order == MAX_ORDER || (order == PAGEBLOCK_ORDER && self.frames.has_maps()) {
            // With maps two free buddy pageblocks of one type are one block; those of two types never merge.
            return false;
        }
        let buddy = pfn.buddy(order);
        let (info, buddy_info) = (self.frames.info(pfn), self.frames.info(buddy));
        // A present buddy is of the same zone: zones begin at multiples of the largest block.
        if !buddy_info.is_present() {
            return false;
        }
        matches!(self.frames.state(buddy, order), State::Free { order: free, .. } if free == order)
            && fallback::may_merge(order, info.migratetype(), buddy_info.migratetype())
    }
}
