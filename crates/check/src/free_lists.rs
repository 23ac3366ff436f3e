//! The free blocks of an allocator, list by list, as its descriptors say.

use std::collections::BTreeMap;

use framewright::Allocator;
use framewright::config::Engine;
use framewright::frame::{FrameUser, State};
use framewright::platform::Platform;
use framewright::units::{MAX_ORDER, Migratetype, Order, Pfn};

/// Free blocks by list, first to last. Empty lists are left out, so that equality is equality of contents.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct FreeLists(BTreeMap<(Migratetype, Order), Vec<Pfn>>);

impl FreeLists {
    /// These lists with the blocks of each in ascending order: equal if the same blocks are free.
    pub fn in_any_order(mut self) -> Self {
        self.0.values_mut().for_each(|blocks| blocks.sort_unstable());
        self
    }

    /// Lists of an allocator, all zones together. No CPU may allocate or free during the call.
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

    /// Blocks of one list, first to last.
    pub fn blocks(&self, list: Migratetype, order: Order) -> &[Pfn] {
        self.0.get(&(list, order)).map_or(&[], Vec::as_slice)
    }

    /// Pages on all lists.
    pub fn pages(&self) -> u64 {
        self.0.iter().map(|((_, order), blocks)| order.pages() * blocks.len() as u64).sum()
    }
}
