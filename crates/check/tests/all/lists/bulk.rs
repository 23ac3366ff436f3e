//! Moving many blocks at once is only faster: the same blocks are free in the end, on the same lists, whatever
//! comes back in whatever order. Where on a list a block stands may differ: whether it goes to the head or the
//! tail depends on what is free at that moment, and a run is freed in ascending order.

use framewright_check::exhaust;
use framewright_check::prelude::*;

fn pair(config: Config) -> [World<Plain>; 2] {
    [Bulk::OneByOne, Bulk::Runs]
        .map(|bulk| Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).config(Config { bulk, ..config }).build())
}

/// Allocates eight blocks, frees up to four of them in every order, and drains.
#[test]
fn runs_free_the_same_blocks_as_single_moves_do() {
    const BLOCKS: usize = 8;
    for order in [Order::ZERO, order(1)] {
        exhaust::every(|choices| {
            let fixed = PcpFixed { batch: BLOCKS as u32 * 2, high: 10_000 };
            let worlds = pair(Config { pcp_fixed: Some(fixed), ..Config::default() });
            let mut freed = Vec::new();
            let mut left: Vec<usize> = (0..BLOCKS).collect();
            for _ in 0..4 {
                match choices.below(left.len() + 1) {
                    0 => break,
                    n => freed.push(left.remove(n - 1)),
                }
            }
            let lists = worlds.each_ref().map(|world| {
                world.on(0, |cpu| {
                    let blocks: Vec<_> = (0..BLOCKS).map(|_| cpu.must_alloc(order)).collect();
                    // What the refill brought beside them goes back first.
                    cpu.drain();
                    for &n in &freed {
                        cpu.must_free(blocks[n], order);
                    }
                    cpu.drain();
                });
                world.settled();
                world.free_lists().in_any_order()
            });
            assert_eq!(lists[0], lists[1], "freed {freed:?} of {BLOCKS} blocks of order {order}");
        });
    }
}
