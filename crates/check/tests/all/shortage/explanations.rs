//! Other CPUs' lists in the error of a failed allocation.

use framewright_check::prelude::*;

/// No block of the largest order, and a refill brings 32 pages.
fn small(cpus: usize) -> World<Plain> {
    Spec::one_zone(512, cpus).fixed(32, 100).build()
}

#[test]
fn an_error_does_not_count_the_callers_lists_as_other_cpus() {
    let world = small(1);
    let error = world.on(0, |cpu| {
        cpu.must_alloc(0);
        let atomic = Request::new(MAX_ORDER, M).with(Flags::ATOMIC);
        cpu.request(&atomic).expect_err("no block is so large")
    });
    assert_eq!(error.tried, 1, "{error}");
    assert_eq!(error.on_other_cpus, 0, "there is no other CPU: {error}");
}

#[test]
fn what_was_not_asked_back_is_not_called_so() {
    let world = small(2);
    world.must_alloc(1, 0);
    let held = || world.pcp(1).count();
    let before = held();
    assert!(before > 0);
    let error = world.on(0, |cpu| {
        let atomic = Request::new(MAX_ORDER, M).with(Flags::ATOMIC);
        cpu.request(&atomic).expect_err("no block is so large")
    });
    // Had CPU 1 been asked, it would give its pages back now.
    world.on(1, |cpu| cpu.answer());
    let asked = held() < before;
    assert!(asked || !error.to_string().contains("asked back"), "no CPU was asked: {error}");
}

/// The error has the sums; each zone's part is looked up on demand.
#[test]
fn what_each_zone_lacks_is_looked_up_on_demand() {
    let zone = |start, kind| ZoneSpec { node: NodeId(0), kind, start: Pfn(start), pages: 512 };
    let both = [zone(1024, ZoneType::Dma32), zone(2048, ZoneType::Normal)];
    let world = Spec::zones(both, 1).plain();
    let large = Request::new(MAX_ORDER, M);
    let (error, now, zones) = world.on(0, |cpu| {
        let error = cpu.request(&large).expect_err("no block is so large");
        let mut zones = Vec::new();
        let now = cpu.explain(&large, &Helpers::NONE, |zone| zones.push(*zone));
        (error, now, zones)
    });
    assert_eq!((error.tried, now), (2, AllocError { asked_back: false, ..error }), "{error}");
    let shown = |zone: &Shortfall| (zone.kind, zone.free, zone.largest);
    let nine = Order::new(9);
    assert_eq!(
        zones.iter().map(shown).collect::<Vec<_>>(),
        [(ZoneType::Normal, 512, nine), (ZoneType::Dma32, 512, nine)]
    );
    assert_eq!((error.free, error.largest), (1024, nine));
    assert_eq!(
        error.to_string(),
        "no Movable block of order 10: 2 zones tried; 1024 pages free, largest usable block order 9"
    );
    assert_eq!(zones[1].to_string(), "node 0 DMA32: 512 pages free, largest usable block order 9");
    // Of zones above the highest that it may use, a request learns nothing.
    let mut kinds = Vec::new();
    let below = large.up_to(ZoneType::Dma32);
    let below = world.on(0, |cpu| cpu.explain(&below, &Helpers::NONE, |zone| kinds.push(zone.kind)));
    assert_eq!((below.tried, kinds), (1, vec![ZoneType::Dma32]));
}
