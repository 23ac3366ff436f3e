//! When all that was asked is answered, and nobody asks any more, a hit hits.

use std::sync::Arc;

use framewright::config::{Config, Experiment, PcpFixed, PcpOrders};
use framewright::platform::Platform;
use framewright::policy::pcp::Sizing;
use framewright::units::{CpuId, Migratetype, Order, ZoneId};
use framewright_check::fixture::{Spec, World};
use framewright_check::platform::loom::{self, Bounds, Loom, full};
use framewright_check::platform::pin::OwnedPin;
use framewright_check::platform::plain::Plain;
use framewright_check::platform::shuttle::{self, Shuttle};

/// Three lists of order 0. The movable one has three blocks, of four that a refill brings, and is open; then somebody
/// asks for a size, so that the owner has something to answer.
fn world<P: Platform<Pin = OwnedPin>>() -> World<P> {
    let config = Config {
        experiment: Experiment {
            pcp_orders: PcpOrders::Zero,
            pcp_slots: 8,
            pcp_fixed: Some(PcpFixed { batch: 4, high: 8 }),
            remote_drain_spins: 1,
            ..Experiment::default()
        },
        ..Config::default()
    };
    let world = Spec::one_zone(16, 1).config(config).build();
    world.on(0, |cpu| {
        cpu.alloc(Order::ZERO, Migratetype::Movable).expect("memory is left");
        let block = cpu.alloc_hit(Order::ZERO, Migratetype::Movable).expect("nobody has asked for anything");
        cpu.free(block, Order::ZERO).expect("it is allocated");
    });
    resize(&world);
    world
}

/// Somebody asks for another size.
fn resize<P: Platform<Pin = OwnedPin>>(world: &World<P>) {
    world.allocator().resize_pcps_of(ZoneId(0), Sizing { batch: 4, high_min: 8, high_max: 8 });
}

/// All is still. Two calls answer whatever was asked.
fn a_hit_hits<P: Platform<Pin = OwnedPin>>(world: &World<P>) {
    world.on(0, |cpu| {
        cpu.answer();
        cpu.answer();
        assert!(cpu.allocator().pcp(ZoneId(0), CpuId(0)).count() > 0, "there is something to hit");
        let mut slow = 0;
        for _ in 0..10 {
            let block = cpu.alloc_hit(Order::ZERO, Migratetype::Movable).unwrap_or_else(|| {
                slow += 1;
                cpu.alloc(Order::ZERO, Migratetype::Movable).expect("memory is left")
            });
            cpu.free(block, Order::ZERO).expect("it is allocated");
        }
        assert_eq!(
            slow, 0,
            "of 10 allocations did not hit a list that has blocks, and nobody asks for anything"
        );
    });
}

#[test]
fn loom_sees_a_hit_hit() {
    let executions = loom::model(Bounds { preemptions: 2, spins: 4 }, || {
        let world = Arc::new(world::<Loom>());
        let other = world.clone();
        let resizer = ::loom::thread::spawn(move || resize(&other));
        world.on(0, |cpu| cpu.answer());
        resizer.join().expect("the thread did not panic");
        a_hit_hits(&world);
    });
    println!("{executions} executions");
}

/// Here every ordering counts as sequentially consistent.
#[test]
fn shuttle_sees_a_hit_hit() {
    shuttle::random(if full() { 20_000 } else { 1000 }, || {
        let world = Arc::new(world::<Shuttle>());
        let other = world.clone();
        let resizer = ::shuttle::thread::spawn(move || resize(&other));
        world.on(0, |cpu| (0..3).for_each(|_| cpu.answer()));
        resizer.join().expect("the thread did not panic");
        a_hit_hits(&world);
    });
}

/// How often, with real threads and the lists of the default configuration. The owner makes pairs on one list while
/// somebody resizes once; then all is still, the owner has answered, and each list that has blocks is tried.
#[test]
fn how_often_with_real_threads() {
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering::{Acquire, Release};
    const ROUNDS: u64 = 2000;
    const TYPES: [Migratetype; 3] = [Migratetype::Unmovable, Migratetype::Movable, Migratetype::Reclaimable];
    let lists = || (0..4).flat_map(|order| TYPES.map(|of| (Order::new(order).expect("an order"), of)));
    let size = Sizing { batch: 64, high_min: 100_000, high_max: 100_000 };
    let world: World<Plain> = Spec::one_zone(1 << 16, 1).config(Config::default()).build();
    world.allocator().resize_pcps_of(ZoneId(0), size);
    let (begun, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let (mut rounds, mut shut) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                while begun.load(Acquire) < round {
                    std::thread::yield_now();
                }
                world.allocator().resize_pcps_of(ZoneId(0), size);
                done.store(round, Release);
            }
        });
        world.on(0, |cpu| {
            let pair = || {
                let block = cpu.alloc(Order::ZERO, Migratetype::Unmovable).expect("memory is left");
                cpu.free(block, Order::ZERO).expect("it is allocated");
            };
            for round in 1..=ROUNDS {
                // Every list has blocks, and is open: a refill opens it.
                cpu.drain();
                for (order, of) in lists() {
                    let first = cpu.alloc(order, of).expect("memory is left");
                    let block = cpu.alloc_hit(order, of).expect("just refilled, and nobody asks");
                    cpu.free(block, order).expect("it is allocated");
                    cpu.free(first, order).expect("it is allocated");
                }
                let pcp = cpu.allocator().pcp(ZoneId(0), CpuId(0));
                let drains = pcp.events().drains;
                begun.store(round, Release);
                while done.load(Acquire) < round {
                    pair();
                }
                cpu.answer();
                cpu.answer();
                assert_eq!(pcp.events().drains, drains, "what was put on the lists is there");
                let mut these = 0;
                for (order, of) in lists() {
                    match cpu.alloc_hit(order, of) {
                        Some(block) => cpu.free(block, order).expect("it is allocated"),
                        None => these += 1,
                    }
                }
                rounds += u64::from(these > 0);
                shut += these;
            }
        });
    });
    assert_eq!(
        rounds, 0,
        "of {ROUNDS} resizes left lists shut: {shut} of 12 x {ROUNDS}, all with blocks on them"
    );
}
