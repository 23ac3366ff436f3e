//! A buddy allocator that is easy to believe: every list is a plain vector, every question is answered by
//! looking through all of them. No descriptors, no links, no counters that could disagree.
//!
//! It follows the behaviour of Linux v6.1 (`__rmqueue`, `__rmqueue_fallback`, `__free_one_page`), written down
//! from that and not from the core, and says not only whether a block is free but where on which list, so that
//! the core's lists must equal its lists after every step.

use std::collections::BTreeMap;

use framewright::Allocator;
use framewright::config::Engine;
use framewright::frame::{FrameUser, State};
use framewright::platform::Platform;
use framewright::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

use crate::oracle::Block;

/// Free blocks by list, first to last. Empty lists are left out, so that equality is equality of contents.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct FreeLists(BTreeMap<(Migratetype, Order), Vec<Pfn>>);

impl FreeLists {
    /// The same lists with each one's blocks ascending: equal if the same blocks are free.
    pub fn in_any_order(mut self) -> Self {
        self.0.values_mut().for_each(|blocks| blocks.sort_unstable());
        self
    }

    /// What an allocator's descriptors say, all zones together. Nobody may allocate or free meanwhile.
    pub fn of<P: Platform, M: FrameUser>(allocator: &Allocator<'_, P, M>) -> Self {
        let mut lists = Self::default();
        let maps = allocator.config().engine != Engine::Linux;
        for zone in allocator.zones() {
            let spec = zone.spec();
            let base = spec.start.block_start(MAX_ORDER);
            // Every free block of the zone: order and list, and what it says follows and precedes it.
            let mut linked = BTreeMap::new();
            let mut at = spec.start;
            while at < spec.end() {
                let pages = match allocator.frames().contains(at).then(|| allocator.frames().find(at)) {
                    // A bit of a map has no place on a list; ascending is as good as any.
                    Some((head, State::Free { order, list, .. })) if maps => {
                        assert_eq!(head, at, "a walk from head to head lands inside a block");
                        lists.0.entry((list, order)).or_default().push(head);
                        order.pages()
                    }
                    Some((head, State::Free { order, list, next, prev })) => {
                        assert_eq!(head, at, "a walk from head to head lands inside a block");
                        linked.insert(at, (list, order, base.add(next.into()), base.add(prev.into())));
                        order.pages()
                    }
                    Some((_, State::Taken { order, .. } | State::Quarantined { order })) => order.pages(),
                    Some((_, State::Body | State::Reserved)) | None => 1,
                };
                at = at.add(pages);
            }
            for (&head, &(list, order, _, prev)) in &linked {
                // A block that has none before it names itself.
                if prev == head {
                    let blocks = lists.0.entry((list, order)).or_default();
                    assert!(
                        blocks.is_empty() || allocator.zones().len() > 1,
                        "two heads: {list}, order {order}"
                    );
                    let (mut block, before) = (head, blocks.len());
                    loop {
                        blocks.push(block);
                        assert!(blocks.len() - before <= linked.len(), "circular: {list}, order {order}");
                        let &(_, _, next, _) = linked.get(&block).expect("a link leads to a free block");
                        if next == block {
                            break;
                        }
                        block = next;
                    }
                }
            }
            let listed: usize = lists.0.values().map(Vec::len).sum();
            assert!(listed >= linked.len(), "a free block is on no list");
        }
        lists
    }

    /// The blocks on one list, first to last.
    pub fn blocks(&self, list: Migratetype, order: Order) -> &[Pfn] {
        self.0.get(&(list, order)).map_or(&[], Vec::as_slice)
    }

    /// Pages on all lists.
    pub fn pages(&self) -> u64 {
        self.0.iter().map(|((_, order), blocks)| order.pages() * blocks.len() as u64).sum()
    }

    fn push(&mut self, list: Migratetype, block: Block, tail: bool) {
        let blocks = self.0.entry((list, block.order)).or_default();
        blocks.insert(if tail { blocks.len() } else { 0 }, block.pfn);
    }

    fn pop_first(&mut self, list: Migratetype, order: Order) -> Option<Block> {
        let blocks = self.0.get_mut(&(list, order))?;
        let pfn = blocks.remove(0);
        if blocks.is_empty() {
            self.0.remove(&(list, order));
        }
        Some(Block { pfn, order })
    }

    /// Takes a block off whatever list it is on; `None` if it is not free.
    fn remove(&mut self, block: Block) -> Option<Migratetype> {
        let list = self.list_of(block)?;
        let blocks = self.0.get_mut(&(list, block.order))?;
        blocks.retain(|&pfn| pfn != block.pfn);
        if blocks.is_empty() {
            self.0.remove(&(list, block.order));
        }
        Some(list)
    }

    /// The list a free block is on.
    fn list_of(&self, block: Block) -> Option<Migratetype> {
        self.0
            .iter()
            .find(|((_, order), blocks)| *order == block.order && blocks.contains(&block.pfn))
            .map(|((list, _), _)| *list)
    }

    /// Free blocks that start in the pageblock at `start`, in ascending order.
    fn within(&self, start: Pfn) -> Vec<Block> {
        let inside = |pfn: &Pfn| pfn.block_start(PAGEBLOCK_ORDER) == start;
        let mut blocks: Vec<_> = self
            .0
            .iter()
            .flat_map(|((_, order), blocks)| {
                blocks.iter().filter(|&pfn| inside(pfn)).map(|&pfn| Block { pfn, order: *order })
            })
            .collect();
        blocks.sort_unstable();
        blocks
    }
}

/// One zone, kept naively.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Naive {
    /// Pageblocks that have memory, and their types.
    types: BTreeMap<Pfn, Migratetype>,
    /// The types of isolated pageblocks before they were isolated.
    before_isolation: BTreeMap<Pfn, Migratetype>,
    lists: FreeLists,
    /// Taken blocks and what they were asked for as.
    taken: BTreeMap<Block, Migratetype>,
    grouping: bool,
}

impl Naive {
    /// `pages` frames from `start` on: movable, free, in blocks as large as alignment allows, ascending. Blocks
    /// are grouped by mobility if the zone has a pageblock for each of the `types` types.
    pub fn new(start: Pfn, pages: u64, types: u64) -> Self {
        let mut naive = Self {
            types: BTreeMap::new(),
            before_isolation: BTreeMap::new(),
            lists: FreeLists::default(),
            taken: BTreeMap::new(),
            grouping: pages >= PAGEBLOCK_PAGES * types,
        };
        let end = start.add(pages);
        let mut at = start;
        while at < end {
            naive.types.insert(at.block_start(PAGEBLOCK_ORDER), Migratetype::Movable);
            let order = Order::all()
                .rev()
                .find(|&order| at.is_aligned(order) && at.add(order.pages()) <= end)
                .expect("order 0 always fits");
            naive.lists.push(Migratetype::Movable, Block { pfn: at, order }, true);
            at = at.add(order.pages());
        }
        naive
    }

    /// The free lists.
    pub const fn lists(&self) -> &FreeLists {
        &self.lists
    }

    /// Blocks that are out.
    pub fn taken(&self) -> impl ExactSizeIterator<Item = Block> + '_ {
        self.taken.keys().copied()
    }

    /// The type of the pageblock of `pfn`.
    pub fn type_of(&self, pfn: Pfn) -> Option<Migratetype> {
        self.types.get(&pfn.block_start(PAGEBLOCK_ORDER)).copied()
    }

    /// Hands out a block of `order` to a request of type `asked`; `None` if there is none.
    pub fn alloc(&mut self, order: Order, asked: Migratetype) -> Option<Pfn> {
        let block = self.find(order, asked)?;
        self.taken.insert(block, asked);
        Some(block.pfn)
    }

    fn find(&mut self, order: Order, asked: Migratetype) -> Option<Block> {
        let lends = asked == Migratetype::Movable;
        let cma = |naive: &mut Self| if lends { naive.split_off(order, Migratetype::Cma) } else { None };
        if 2 * self.free_pages(|list| list == Migratetype::Cma) > self.free_pages(|_| true)
            && let Some(block) = cma(self)
        {
            return Some(block);
        }
        loop {
            if let Some(block) = self.split_off(order, asked).or_else(|| cma(self)) {
                return Some(block);
            }
            if !self.steal(order, asked) {
                return None;
            }
        }
    }

    /// Pages on lists that `counts`, isolated ones never.
    fn free_pages(&self, counts: impl Fn(Migratetype) -> bool) -> u64 {
        let lists =
            self.lists.0.iter().filter(|((list, _), _)| *list != Migratetype::Isolate && counts(*list));
        lists.map(|((_, order), blocks)| order.pages() * blocks.len() as u64).sum()
    }

    /// Takes the first block of the smallest sufficient order, halves it until it fits, keeps the lower half
    /// each time and puts the upper one at the head.
    fn split_off(&mut self, order: Order, list: Migratetype) -> Option<Block> {
        let mut block = order.and_above().find_map(|from| self.lists.pop_first(list, from))?;
        while block.order > order {
            let half = Order::new(block.order.get() - 1)?;
            self.lists.push(list, Block { pfn: block.pfn.add(half.pages()), order: half }, false);
            block.order = half;
        }
        Some(block)
    }

    /// Moves blocks of another type to the lists of `asked`. Whether there were any.
    fn steal(&mut self, order: Order, asked: Migratetype) -> bool {
        use Migratetype::{Movable, Reclaimable, Unmovable};
        let others = match asked {
            Unmovable => [Reclaimable, Movable],
            Reclaimable => [Unmovable, Movable],
            Movable => [Reclaimable, Unmovable],
            _ => return false,
        };
        let first = |at: Order| {
            others.iter().find_map(|&list| {
                let &pfn = self.lists.blocks(list, at).first()?;
                Some(Block { pfn, order: at })
            })
        };
        let Some(largest) = order.and_above().rev().find_map(first) else { return false };
        let takes_all = |found: Order| found.get() >= 4 || asked != Movable || !self.grouping;
        let block = if takes_all(largest.order) {
            largest
        } else {
            order.and_above().find_map(first).expect("there is a largest, so there is a smallest")
        };
        if block.order >= PAGEBLOCK_ORDER {
            for n in 0..block.order.pages() / PAGEBLOCK_PAGES {
                self.types.insert(block.pfn.add(n * PAGEBLOCK_PAGES), asked);
            }
            self.move_to_tail(block, asked);
        } else if takes_all(block.order) {
            self.take_over(block.pfn.block_start(PAGEBLOCK_ORDER), asked);
        } else {
            self.move_to_tail(block, asked);
        }
        true
    }

    /// Moves all free blocks of a pageblock, and retypes it if at least half of it then suits `asked`.
    fn take_over(&mut self, start: Pfn, asked: Migratetype) {
        let blocks = self.lists.within(start);
        let free: u64 = blocks.iter().map(|block| block.order.pages()).sum();
        for block in blocks {
            self.move_to_tail(block, asked);
        }
        let movable: u64 = self
            .taken
            .iter()
            .filter(|(block, as_)| {
                block.pfn.block_start(PAGEBLOCK_ORDER) == start && **as_ == Migratetype::Movable
            })
            .map(|(block, _)| block.order.pages())
            .sum();
        let compatible = if asked == Migratetype::Movable {
            movable
        } else if self.types[&start] == Migratetype::Movable {
            PAGEBLOCK_PAGES - free - movable
        } else {
            0
        };
        if free + compatible >= PAGEBLOCK_PAGES / 2 || !self.grouping {
            self.types.insert(start, asked);
        }
    }

    fn move_to_tail(&mut self, block: Block, to: Migratetype) {
        self.lists.remove(block).expect("only free blocks are moved");
        self.lists.push(to, block, true);
    }

    /// Takes back a block that `alloc` handed out.
    pub fn free(&mut self, block: Block) {
        self.taken.remove(&block).expect("only what was handed out comes back");
        let list = self.type_of(block.pfn).expect("its pageblock has memory");
        let mut block = block;
        while block.order < MAX_ORDER {
            let buddy = Block { pfn: block.pfn.buddy(block.order), order: block.order };
            if !self.may_merge(block, buddy) {
                break;
            }
            self.lists.remove(buddy);
            block.pfn = block.pfn.min(buddy.pfn);
            block.order = Order::new(block.order.get() + 1).expect("below the largest order");
        }
        let tail = block.order.get() <= 8 && {
            let parent = Order::new(block.order.get() + 1).expect("order 9 exists");
            let start = block.pfn.block_start(parent);
            let whole = Block { pfn: start, order: parent };
            self.may_merge(whole, Block { pfn: start.buddy(parent), order: parent })
        };
        self.lists.push(list, block, tail);
    }

    /// Whether `buddy` is free and `block` may be joined with it.
    fn may_merge(&self, block: Block, buddy: Block) -> bool {
        self.lists.list_of(buddy).is_some()
            && (block.order < PAGEBLOCK_ORDER || {
                let (mine, its) = (self.type_of(block.pfn), self.type_of(buddy.pfn));
                let ordinary = |list: Option<Migratetype>| list.is_some_and(Migratetype::is_ordinary);
                mine == its || (ordinary(mine) && ordinary(its))
            })
    }
}
