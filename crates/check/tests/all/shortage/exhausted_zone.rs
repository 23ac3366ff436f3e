//! A request that finds a zone exhausted neither locks it nor writes to it.

use framewright::config::Config;
use framewright::platform::Platform;
use framewright::units::{CpuId, Migratetype, NodeId, Order, Pfn, ZoneId, ZoneType};
use framewright::zone::ZoneSpec;
use framewright::{Flags, Helpers, Request};
use framewright_check::fixture::{Place, Spec, World};
use framewright_check::platform::checked::{self, Checked};
use framewright_check::platform::pin::OwnedPin;
use framewright_check::platform::plain::Plain;

/// Two nodes, two CPUs on the first, whose memory CPU 1 has allocated, so that none is on a list.
fn world<P: Platform<Pin = OwnedPin>>() -> World<P> {
    const PAGES: u64 = 1 << 18;
    let zone = |node: u16| ZoneSpec {
        node: NodeId(node),
        kind: ZoneType::Normal,
        start: Pfn(0x10_0000 + u64::from(node) * PAGES),
        pages: PAGES,
    };
    let world: World<P> = Spec::zones([zone(0), zone(1)], 2).config(Config::default()).build();
    world.on(0, |cpu| cpu.answer());
    world.on(1, |cpu| {
        let own = Request::new(Order::ZERO, Migratetype::Movable).with(Flags::THIS_NODE.and(Flags::NO_WAIT));
        while cpu.alloc_with(&own, &Helpers::NONE).is_ok() {}
    });
    let allocator = world.allocator();
    assert_eq!((allocator.zones()[0].free_pages(), allocator.pcp_pages()), (0, 0));
    world
}

/// CPU 0 allocates from the second zone of its zonelist, because the first is exhausted.
fn allocate<P: Platform<Pin = OwnedPin>>(world: &World<P>, pages: u32) {
    world.on(0, |cpu| {
        for _ in 0..pages {
            cpu.alloc(Order::ZERO, Migratetype::Movable).expect("node 1 has plenty");
        }
    });
}

#[test]
fn it_is_not_locked() {
    let world = world::<Plain>();
    let own = world.allocator().pcp(ZoneId(0), CpuId(0));
    let before = own.events().lock_acquisitions;
    allocate(&world, 1000);
    let locked = own.events().lock_acquisitions - before;
    assert_eq!(locked, 0, "times the exhausted zone was locked for 1000 allocations from another one");
}

/// A list that no refill has filled does not make later refills larger.
#[test]
fn the_high_of_its_empty_lists_stays() {
    let world = world::<Plain>();
    let own = world.allocator().pcp(ZoneId(0), CpuId(0));
    let before = own.high();
    allocate(&world, 1000);
    assert_eq!(
        own.high(),
        before,
        "{:?}, refills that brought something: {}",
        own.sizing(),
        own.events().refills
    );
}

/// How many words of the lists are written by a request that fails in the first zone.
#[test]
fn little_is_written() {
    let world = world::<Checked>();
    world.on(0, |cpu| {
        let (mut slots, mut rmws) = (Vec::new(), Vec::new());
        for _ in 0..12 {
            let ((_, accesses), tally) = checked::tally(|| {
                checked::trace(|| cpu.alloc(Order::ZERO, Migratetype::Movable).expect("node 1 has plenty"))
            });
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
