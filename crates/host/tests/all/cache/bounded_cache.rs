//! A bounded cache from elsewhere, hooked up to an arena: its values are in blocks, and when memory runs short
//! reclaim lowers its bound. How one does so with any cache that can be told to hold less.

use std::sync::Arc;

use framewright_host::framewright::reclaim::{Reclaim, ReclaimRequest, Reclaimed, Release};
use framewright_host::{Arena, Migratetype, Order, SharedArena, SharedBlock};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, UnitWeighter};

/// The cache, with blocks as values.
struct Values(Cache<u64, Arc<SharedBlock>>);

impl Reclaim for Values {
    fn reclaim(&self, ask: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
        // Each value is one page: as many fewer. The bound goes up again immediately; only the values are gone, and
        // those of them that no thread holds have freed their blocks. A cache in parts rounds its bound up in each of
        // them, and may drop nothing at first: on a machine with many CPUs it has many.
        let (bound, before) = (self.0.capacity(), self.0.len() as u64);
        let (mut fewer, mut gone) = (ask.target.clamp(1, 64), 0);
        while gone == 0 && fewer / 2 < before {
            self.0.set_capacity(before.saturating_sub(fewer).max(1));
            gone = before.saturating_sub(self.0.len() as u64);
            fewer *= 2;
        }
        self.0.set_capacity(bound);
        Reclaimed { scanned: gone, freed: gone }
    }
}

#[test]
fn a_bounded_cache_makes_room_for_others() {
    // As many parts as on a machine with few CPUs, and with many.
    [1, 64].into_iter().for_each(makes_room);
}

fn makes_room(parts: usize) {
    let arena: SharedArena = Arena::builder().bytes(8 << 20).cpus(2).build_shared().unwrap();
    // The bound is beyond what the arena holds: without reclaim it would be of no use.
    let options =
        OptionsBuilder::new().estimated_items_capacity(10_000).weight_capacity(10_000).shards(parts).build();
    let values = Arc::new(Values(Cache::with_options(
        options.unwrap(),
        UnitWeighter,
        DefaultHashBuilder::default(),
        DefaultLifecycle::default(),
    )));
    assert!(arena.set_reclaim(values.clone()));
    let pages = 2048_u64;
    for key in 0..10 * pages {
        let mut block = arena.alloc_block(Order::ZERO, Migratetype::Movable).unwrap();
        block.bytes_mut()[..8].copy_from_slice(&key.to_le_bytes());
        values.0.insert(key, Arc::new(block));
    }
    let held: Vec<u64> = (0..10 * pages)
        .filter(|key| {
            let block = values.0.get(key);
            block.is_some_and(|block| {
                assert_eq!(block.bytes()[..8], key.to_le_bytes(), "a value is what was put there");
                true
            })
        })
        .collect();
    assert!(held.len() as u64 > pages / 2, "{} of {pages} pages are used for values", held.len());
    // Others get memory, too: half of it immediately.
    let others: Vec<_> =
        (0..pages / 2).map(|_| arena.alloc_block(Order::ZERO, Migratetype::Movable).unwrap()).collect();
    drop(others);
    values.0.clear();
    arena.detach();
    assert_eq!(arena.allocator().verify().unwrap().allocated, 0);
}
