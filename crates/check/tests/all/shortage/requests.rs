//! After a CPU has answered all requests of other CPUs, its next calls are hits again.

use std::sync::Arc;

use framewright_check::platform::loom;
use framewright_check::prelude::*;

/// Three lists of order 0. The movable one has three blocks, of four that a refill brings, and is open; then another
/// CPU asks for a size, so that the owner has something to answer.
fn world<P: Platform<Pin = OwnedPin>>() -> World<P> {
    let config = few_pages(8, 4, 8, 1);
    let world = Spec::one_zone(16, 1).config(config).build();
    world.on(0, |cpu| {
        cpu.must_alloc(0);
        let block = cpu.alloc_hit(Order::ZERO, M).expect("no CPU has asked for anything");
        cpu.must_free(block, 0);
    });
    resize(&world);
    world
}

/// Another CPU asks for another size.
fn resize<P: Platform<Pin = OwnedPin>>(world: &World<P>) {
    world.allocator().resize_pcps_of(ZoneId(0), Sizing { batch: 4, high_min: 8, high_max: 8 });
}

/// No other CPU runs. Two calls answer every request.
fn a_hit_hits<P: Platform<Pin = OwnedPin>>(world: &World<P>) {
    world.on(0, |cpu| {
        cpu.answer();
        cpu.answer();
        assert!(cpu.allocator().pcp(ZoneId(0), CpuId(0)).count() > 0, "there is something to hit");
        let mut slow = 0;
        for _ in 0..10 {
            let block = cpu.alloc_hit(Order::ZERO, M).unwrap_or_else(|| {
                slow += 1;
                cpu.must_alloc(0)
            });
            cpu.must_free(block, 0);
        }
        assert_eq!(
            slow, 0,
            "of 10 allocations did not hit a list that has blocks, and no CPU asks for anything"
        );
    });
}

#[test]
fn loom_sees_a_hit_hit() {
    loom::model(Bounds { preemptions: 2, spins: 4 }, || {
        let world = Arc::new(world::<Loom>());
        loom_pair(&world, |world| world.on(0, |cpu| cpu.answer()), resize);
        a_hit_hits(&world);
    });
}
