//! A zone of 16 frames with free lists, gone through completely: whatever sequence of allocations and frees leads to a state,
//! every list of the core holds what the naive model's holds, in the same order, and every wrong free is
//! refused and changes nothing.

use framewright::config::Experiment;
use framewright_check::exhaust::{self, Reached};
use framewright_check::naive::Naive;
use framewright_check::prelude::*;

const PAGES: u64 = 16;

/// Migratetypes that the core counts when it decides whether a zone groups by mobility.
const TYPES: u64 = 5;

#[derive(Clone, Copy, Debug)]
enum Action {
    Alloc(Order, Migratetype),
    Free(Block),
}

fn orders() -> impl Iterator<Item = Order> {
    (0..=4).filter_map(Order::new)
}

/// Explores sequences of allocations of `types` and of frees, straight on the buddy lists.
fn explore(types: &[Migratetype], depth: usize) -> Reached {
    let spec = Spec::one_zone(PAGES, 1).config(Config {
        engine: Engine::Linux,
        experiment: Experiment { pcp_orders: PcpOrders::None, ..Experiment::default() },
        ..Config::default()
    });
    exhaust::reach(depth, |path: &[Action]| {
        let world = spec.plain();
        let mut naive = Naive::new(BASE, PAGES, TYPES);
        world.on(0, |cpu| {
            for action in path {
                match *action {
                    Action::Alloc(order, asked) => {
                        assert_eq!(cpu.alloc(order, asked).ok(), naive.alloc(order, asked), "{action:?}");
                    }
                    Action::Free(block) => {
                        cpu.must_free(block.pfn, block.order);
                        naive.free(block);
                    }
                }
            }
        });
        compare(&world, &naive);
        let mut actions: Vec<_> = naive.taken().map(Action::Free).collect();
        for order in orders() {
            actions.extend(types.iter().map(|&asked| Action::Alloc(order, asked)));
        }
        (naive, actions)
    })
}

/// The core's lists are the model's; and no free but those of the blocks that are out is accepted.
fn compare(world: &World<Plain>, naive: &Naive) {
    assert_eq!(world.free_lists(), *naive.lists());
    let account = world.settled();
    assert_eq!(account.allocated, naive.taken().map(|block| block.order.pages()).sum::<u64>());
    let taken: Vec<_> = naive.taken().collect();
    let before = world.free_lists();
    world.on(0, |cpu| {
        for pfn in (BASE.0 - 1..=BASE.0 + PAGES).map(Pfn) {
            for order in orders().filter(|&order| !taken.contains(&Block { pfn, order })) {
                assert!(cpu.free(pfn, order).is_err(), "accepted: order {order} at {pfn}");
            }
        }
    });
    assert_eq!(world.free_lists(), before, "a refused free changed something");
}

#[test]
fn lists_of_one_type_are_the_naive_models() {
    let reached = explore(&[M], if full() { 11 } else { 8 });
    println!("{reached:?}");
}

#[test]
fn lists_of_types_that_steal_are_the_naive_models() {
    let all = ORDINARY;
    let reached = explore(&all, if full() { 6 } else { 5 });
    println!("{reached:?}");
}
