//! What CPUs hand each other past the zone lock: pages, requests, sizes. loom, two or three threads.

use std::sync::Arc as StdArc;

use framewright::config::{Config, Experiment, PcpFixed, PcpOrders};
use framewright::policy::pcp::Sizing;
use framewright::units::{Migratetype, Order, ZoneId};
use framewright_check::fixture::Spec;
use framewright_check::platform::loom::{self, Bounds, Loom};

const BOUNDS: Bounds = Bounds { preemptions: 2, spins: 4 };

/// Small lists of order 0: what loom can go through.
fn config() -> Config {
    Config {
        experiment: Experiment {
            pcp_orders: PcpOrders::Zero,
            pcp_slots: 4,
            pcp_fixed: Some(PcpFixed { batch: 2, high: 4 }),
            remote_drain_spins: 1,
            ..Experiment::default()
        },
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

/// A CPU that frees what another hands out refuses what that one's refill has just brought, whenever it looks.
#[test]
fn what_a_refill_brings_is_refused() {
    let executions = loom::model(BOUNDS.widened_if_full(), || {
        let world = StdArc::new(Spec::one_zone(16, 2).config(config()).build::<Loom>());
        let alloc =
            || world.on(0, |cpu| cpu.alloc(Order::ZERO, Migratetype::Movable)).expect("memory is left");
        let [block, _] = [alloc(), alloc()];
        let other = world.clone();
        let remote = ::loom::thread::spawn(move || {
            other.on(1, |cpu| cpu.free(block, Order::ZERO)).expect("a right free was refused");
            other.on(1, |cpu| cpu.free(block.add(3), Order::ZERO)).expect_err("no CPU was handed it");
        });
        assert_eq!(alloc(), block.add(2), "a refill of two");
        remote.join().expect("every free was treated as it should be");
        assert_eq!(world.settled().allocated, 2);
    });
    println!("{executions} executions");
}
