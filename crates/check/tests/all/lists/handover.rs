//! What CPUs hand each other past the zone lock: pages, requests, sizes. loom, two or three threads.

use std::sync::Arc as StdArc;

use framewright::config::{Config, PcpFixed, PcpOrders};
use framewright::error::FreeFailure;
use framewright::platform::Platform;
use framewright::policy::pcp::Sizing;
use framewright::units::{Migratetype, Order, Pfn, ZoneId};
use framewright_check::fixture::{Spec, World};
use framewright_check::platform::checked::{Checked, tally};
use framewright_check::platform::loom::{self, Bounds, Loom};
use framewright_check::platform::pin::OwnedPin;

const BOUNDS: Bounds = Bounds { preemptions: 2, spins: 4 };

/// Small lists of order 0: what loom can go through.
fn config() -> Config {
    Config {
        pcp_orders: PcpOrders::Zero,
        pcp_slots: 4,
        pcp_fixed: Some(PcpFixed { batch: 2, high: 4 }),
        remote_drain_spins: 1,
        ..Config::default()
    }
}

fn size(batch: u32, high: u32) -> Sizing {
    Sizing { batch, high_min: high, high_max: high }
}

/// Whoever resizes last wins, however the owner's answer falls between two requests.
#[test]
fn a_resize_is_never_lost() {
    let executions = loom::model(BOUNDS.widened_if_full(), || {
        let world = StdArc::new(Spec::one_zone(4, 1).config(config()).build::<Loom>());
        let other = world.clone();
        let resizer = ::loom::thread::spawn(move || {
            for high in [6, 8] {
                other.allocator().resize_pcps_of(ZoneId(0), size(2, high));
            }
        });
        world.on(0, |cpu| cpu.answer());
        resizer.join().expect("the thread did not panic");
        world.on(0, |cpu| {
            cpu.answer();
            assert_eq!(cpu.allocator().pcp(ZoneId(0), cpu.id()).high(), 8, "the second size was lost");
        });
    });
    println!("{executions} executions");
}

/// A block that one CPU allocated is freed by another while the first starts its list anew. The free is right,
/// so it must be accepted, even though the list's storage still shows the block where it once waited.
#[test]
fn a_right_free_is_never_refused() {
    let executions = loom::model(BOUNDS.widened_if_full(), || {
        let world = StdArc::new(Spec::one_zone(4, 2).config(config()).build::<Loom>());
        let alloc = |cpu: usize| {
            world.on(cpu, |cpu| cpu.alloc(Order::ZERO, Migratetype::Movable)).expect("memory is left")
        };
        // CPU 0's first refill brings two blocks. One is handed out, the other leaves slot 0 by a drain.
        alloc(0);
        world.on(0, |cpu| cpu.drain());
        // CPU 1 gets it; freed and allocated on CPU 0 it passes through slot 1, and the list is empty.
        let block = alloc(1);
        world.on(0, |cpu| cpu.free(block, Order::ZERO)).expect("it is allocated");
        assert_eq!(alloc(0), block);
        let other = world.clone();
        let remote = ::loom::thread::spawn(move || {
            other.on(1, |cpu| cpu.free(block, Order::ZERO)).expect("a right free was refused");
        });
        // Meanwhile a refill counts from slot 0 again.
        alloc(0);
        remote.join().expect("the free was accepted");
    });
    println!("{executions} executions");
}

/// Lists of all orders: the only ones that may only shrink.
fn all_orders() -> Config {
    let pcp_fixed = Some(PcpFixed { batch: 2, high: 16 });
    Config { pcp_orders: PcpOrders::UpToHuge, pcp_slots: 16, pcp_fixed, ..config() }
}

fn alloc<P: Platform<Pin = OwnedPin>>(world: &World<P>) -> Pfn {
    world.on(0, |cpu| cpu.alloc(Order::ZERO, Migratetype::Movable)).expect("memory is left")
}

fn free<P: Platform<Pin = OwnedPin>>(world: &World<P>, cpu: usize, pfn: Pfn) {
    world.on(cpu, |cpu| cpu.free(pfn, Order::ZERO)).expect("a right free was refused");
}

/// What is left of CPU 0's list is handed out, first block first.
fn alloc_listed<P: Platform<Pin = OwnedPin>>(world: &World<P>) -> Vec<Pfn> {
    let hit = || world.on(0, |cpu| cpu.alloc_hit(Order::ZERO, Migratetype::Movable));
    core::iter::from_fn(hit).collect()
}

/// What CPU 0 has handed out when its lists only shrink, and CPU 1 has looked at them once: four blocks, all that its list held.
fn shrinking<P: Platform<Pin = OwnedPin>>(world: &World<P>) -> [Pfn; 4] {
    // A look leaves a note.
    free(world, 1, alloc(world));
    let before = alloc_listed(world);
    // The refill finds it.
    let first = alloc(world);
    // Another look: what waits below has yet to leave.
    before.into_iter().for_each(|pfn| free(world, 1, pfn));
    let rest = alloc_listed(world);
    [first, rest[0], rest[1], rest[2]]
}

/// A CPU that frees what another hands out refuses what that one's refill has just brought, whatever it has seen of the
/// other's list, and when.
#[test]
fn what_a_refill_brings_is_refused_while_lists_only_shrink() {
    let executions = loom::model(BOUNDS.widened_if_full(), || {
        let world = StdArc::new(Spec::one_zone(16, 2).config(all_orders()).build::<Loom>());
        let last = shrinking(&world)[3];
        // The next refill brings eight blocks: this one lies where the last one did, and stays.
        let waits = last.add(8);
        let other = world.clone();
        let remote = ::loom::thread::spawn(move || {
            free(&other, 1, last);
            other.on(1, |cpu| cpu.free(waits, Order::ZERO)).expect_err("nobody was handed it");
        });
        assert_eq!(alloc(&world).add(7), waits);
        remote.join().expect("every free was treated as it should be");
        assert_eq!(world.settled().allocated, 4);
    });
    println!("{executions} executions");
}

/// A block that was handed out before the last refills is freed elsewhere while the list is refilled once more, with fewer blocks. The
/// free is right, so it must be accepted, however old a part of what that CPU sees of the list is.
#[test]
fn a_right_free_is_never_refused_while_lists_only_shrink() {
    let executions = loom::model(BOUNDS.widened_if_full(), || {
        let world = StdArc::new(Spec::one_zone(44, 2).config(all_orders()).build::<Loom>());
        shrinking(&world);
        let refill = || [vec![alloc(&world)], alloc_listed(&world)].concat();
        free(&world, 1, refill()[0]);
        let blocks = refill();
        free(&world, 1, blocks[1]);
        assert_eq!((blocks.len(), refill().len()), (14, 14), "as many as the list may hold");
        // It was in the middle, where the next refill does not write.
        let block = blocks[6];
        let other = world.clone();
        let remote = ::loom::thread::spawn(move || free(&other, 1, block));
        alloc(&world);
        remote.join().expect("a right free was refused");
        assert!(alloc_listed(&world).len() < 4, "the zone had less");
    });
    println!("{executions} executions");
}

/// Of blocks that were handed out before a refill another CPU looks at one at most, as long as the list only shrinks.
#[test]
fn what_was_handed_out_before_a_refill_needs_no_look() {
    let world: World<Checked> = Spec::one_zone(1024, 2).config(all_orders()).build();
    let [_, rest @ ..] = shrinking(&world);
    let behind = alloc(&world);
    // The new refill has changed the list: one look.
    free(&world, 1, behind);
    let looks = |pfn| tally(|| free(&world, 1, pfn)).1.loads;
    let [second, third, fourth] = rest.map(looks);
    assert_eq!([second, third], [third, fourth], "loads of frees without a look");
    let below = alloc(&world);
    assert!(looks(below) > fourth, "a block from further down needs one");
}

/// One look is enough for several blocks of a list that only shrinks. It grows again when its owner frees, and a second free of that
/// block elsewhere is refused.
#[test]
fn a_list_grows_again_when_its_owner_frees() {
    let world: World<Checked> = Spec::one_zone(1024, 2).config(all_orders()).build();
    let refused = |pfn| world.on(1, |cpu| cpu.free(pfn, Order::ZERO)).expect_err("nobody has it").why;
    let [first, second, ..] = shrinking(&world);
    let loads = |pfn| tally(|| free(&world, 1, pfn)).1.loads;
    // It lay above what CPU 1 has seen; the other one below.
    let (without, with) = (loads(first), loads(second));
    assert!(without < with, "{without} loads without a look, {with} with one");
    // Its refill brings another block, which waits.
    let block = alloc(&world);
    assert_eq!(refused(block.add(7)), FreeFailure::NotAllocated);
    free(&world, 0, block);
    assert_eq!(refused(block), FreeFailure::NotAllocated);
    assert_eq!(alloc(&world), block, "last in, first out");
    free(&world, 1, block);
    assert_eq!(refused(block), FreeFailure::NotAllocated);
    assert_eq!(world.settled().allocated, 2);
}
