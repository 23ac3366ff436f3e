//! A request that finds a zone exhausted neither locks it nor writes to it.

use framewright_check::platform::checked;
use framewright_check::prelude::*;

/// Two nodes, and two CPUs on the first. CPU 1 has allocated all memory of that node, so none of it is on a list.
fn world<P: Platform<Pin = OwnedPin>>() -> World<P> {
    const PAGES: u64 = 1 << 18;
    let zones = [normal(0, 0x10_0000, PAGES), normal(1, 0x10_0000 + PAGES, PAGES)];
    let world: World<P> = Spec::zones(zones, 2).build();
    world.on(0, |cpu| cpu.answer());
    world.on(1, |cpu| {
        let lists = page().with(Flags::THIS_NODE.and(Flags::NO_WAIT));
        while cpu.request(&lists).is_ok() {}
    });
    let allocator = world.allocator();
    assert_eq!((allocator.zones()[0].free_pages(), allocator.pcp_pages()), (0, 0));
    world
}

/// A list that no refill has filled does not make later refills larger.
#[test]
fn an_exhausted_zone_is_not_locked_and_its_lists_stay() {
    let world = world::<Plain>();
    let lists = world.pcp(0);
    let seen = || (lists.events().lock_acquisitions, lists.high());
    let before = seen();
    world.on(0, |cpu| (0..1000).for_each(|_| _ = cpu.must_alloc(0)));
    assert_eq!(seen(), before, "holds of the exhausted zone's lock, and `high`; {:?}", lists.sizing());
}

/// How many words of the lists are written by a request that fails in the first zone.
#[test]
fn a_request_writes_little_to_an_exhausted_zones_lists() {
    let world = world::<Checked>();
    world.on(0, |cpu| {
        let (mut slots, mut rmws) = (Vec::new(), Vec::new());
        for _ in 0..12 {
            let ((_, accesses), tally) = checked::tally(|| checked::trace(|| cpu.must_alloc(0)));
            let written = |a: &&checked::Access| a.write && world.place_of(a.address) == Some(Place::Slots);
            slots.push(accesses.iter().filter(written).count());
            rmws.push(tally.rmws);
        }
        // The first two refill from the other zone.
        let most = slots[2..].iter().max();
        assert!(
            most < Some(&8),
            "slots written, allocation by allocation: {slots:?}; read-modify-writes: {rmws:?}"
        );
    });
}
