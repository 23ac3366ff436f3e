//! What a failed allocation says of other CPUs' lists.

use framewright::config::{Config, PcpFixed};
use framewright::units::{CpuId, MAX_ORDER, Migratetype, Order, ZoneId};
use framewright::{Flags, Helpers, Request};
use framewright_check::fixture::{Spec, World};
use framewright_check::platform::plain::Plain;

/// No block of the largest order, and a refill brings 32 pages.
fn small(cpus: usize) -> World<Plain> {
    let config = Config { pcp_fixed: Some(PcpFixed { batch: 32, high: 100 }), ..Config::default() };
    Spec::one_zone(512, cpus).config(config).build()
}

#[test]
fn its_own_lists_are_not_other_cpus() {
    let world = small(1);
    let error = world.on(0, |cpu| {
        cpu.alloc(Order::ZERO, Migratetype::Movable).expect("memory is left");
        let atomic = Request::new(MAX_ORDER, Migratetype::Movable).with(Flags::ATOMIC);
        cpu.alloc_with(&atomic, &Helpers::NONE).expect_err("no block is so large")
    });
    let zone = error.zones[0].expect("one zone was tried");
    assert_eq!(zone.on_other_cpus, 0, "there is no other CPU: {error}");
}

#[test]
fn what_was_not_asked_back_is_not_called_so() {
    let world = small(2);
    world.on(1, |cpu| cpu.alloc(Order::ZERO, Migratetype::Movable)).expect("memory is left");
    let held = || world.allocator().pcp(ZoneId(0), CpuId(1)).count();
    let before = held();
    assert!(before > 0);
    let error = world.on(0, |cpu| {
        let atomic = Request::new(MAX_ORDER, Migratetype::Movable).with(Flags::ATOMIC);
        cpu.alloc_with(&atomic, &Helpers::NONE).expect_err("no block is so large")
    });
    // Had CPU 1 been asked, it would give its pages back now.
    world.on(1, |cpu| cpu.answer());
    let asked = held() < before;
    assert!(asked || !error.to_string().contains("asked back"), "nobody was asked: {error}");
}
