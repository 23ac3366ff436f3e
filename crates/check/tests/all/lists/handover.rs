//! Hand-overs between CPUs past the zone lock: pages, requests, sizes. loom, two or three threads.

use std::sync::Arc as StdArc;

use framewright_check::platform::loom;
use framewright_check::prelude::*;

const BOUNDS: Bounds = Bounds { preemptions: 2, spins: 4 };

/// Small lists of order 0: what loom can go through.
fn config() -> Config {
    few_pages(4, 2, 4, 1)
}

fn size(batch: u32, high: u32) -> Sizing {
    Sizing { batch, high_min: high, high_max: high }
}

/// The last resize wins, however the owner's answer falls between two requests.
#[test]
fn a_resize_is_never_lost() {
    loom::model(BOUNDS.widened_if_full(), || {
        let world = StdArc::new(Spec::one_zone(4, 1).config(config()).build::<Loom>());
        let answer = |world: &World<Loom>| world.on(0, |cpu| cpu.answer());
        loom_pair(&world, answer, |world| {
            for high in [6, 8] {
                world.allocator().resize_pcps_of(ZoneId(0), size(2, high));
            }
        });
        world.on(0, |cpu| {
            cpu.answer();
            assert_eq!(cpu.allocator().pcp(ZoneId(0), cpu.id()).high(), 8, "the second size was lost");
        });
    });
}

/// A block that one CPU allocated is freed by another while the first starts its list again. The free is right,
/// so it must be accepted, even though the list's storage still shows the block where it once waited.
#[test]
fn a_right_free_is_never_refused() {
    loom::model(BOUNDS.widened_if_full(), || {
        let world = StdArc::new(Spec::one_zone(4, 2).config(config()).build::<Loom>());
        let alloc = |cpu: usize| world.must_alloc(cpu, 0);
        // CPU 0's first refill brings two blocks. One is handed out, the other leaves slot 0 by a drain.
        alloc(0);
        world.on(0, |cpu| cpu.drain());
        // CPU 1 gets it; freed and allocated on CPU 0 it passes through slot 1, and the list is empty.
        let block = alloc(1);
        world.must_free(0, block, 0);
        assert_eq!(alloc(0), block);
        // During the free a refill counts from slot 0 again.
        loom_pair(&world, |world| world.must_alloc(0, 0), move |world| world.must_free(1, block, 0));
    });
}
