//! A block that no CPU was ever handed is freed while another CPU's refill takes it from the zone, or its drain
//! gives it back.

use std::sync::Arc;

use framewright_check::platform::loom;
use framewright_check::prelude::*;

fn world<P: Platform<Pin = OwnedPin>>(engine: Engine) -> World<P> {
    let config = few_pages(4, 2, 4, 1).engine(engine);
    Spec::one_zone(4, 2).config(config).build()
}

fn alloc<P: Platform<Pin = OwnedPin>>(world: &World<P>, cpu: usize) -> Pfn {
    world.must_alloc(cpu, 0)
}

/// CPU 0's first refill brings two blocks; the second one waits on its list, and no CPU was handed it.
fn second(form: Engine) -> Pfn {
    let world = world::<Plain>(form);
    alloc(&world, 0);
    assert_eq!(world.settled().on_pcp, 1);
    alloc(&world, 0)
}

fn wrong_free<P: Platform<Pin = OwnedPin>>(world: &World<P>, block: Pfn) -> bool {
    world.on(1, |cpu| cpu.free(block, Order::ZERO)).is_ok()
}

/// Nothing is under way any more.
fn must_be_refused<P: Platform<Pin = OwnedPin>>(world: &World<P>, accepted: bool, block: Pfn) {
    if accepted {
        let verdict = world.allocator().verify().err();
        let on = |cpu| world.pcp(cpu).count();
        panic!(
            "one CPU alone freed {block:?}, which was handed to no CPU, and that was accepted; on the lists of CPU 0 \
             and 1: {} and {} pages; free: {}, of 4; verify: {verdict:?}",
            on(0),
            on(1),
            world.allocator().free_pages()
        );
    }
}

/// Every reason, with words and without, with lists and with maps. Half of the last pageblock but one has memory, and
/// none of the last.
#[test]
fn a_wrong_free_says_why() {
    use FreeFailure::{Foreign, Inside, Misaligned, NotAllocated, Reserved, WrongOrder};
    const END: u64 = 3 * PAGEBLOCK_PAGES + PAGEBLOCK_PAGES / 2;
    let compact = with_engine(Engine::Compact);
    for config in [Config::default(), compact, Config::linux_v5_4(), Config::linux_v6_1()] {
        let world = Spec::one_zone(5 * PAGEBLOCK_PAGES, 2).memory([(BASE, END)]).config(config).plain();
        let [large, first, second] = [2, 0, 0].map(|n| world.must_alloc(0, n));
        let (even, odd) = if first.is_aligned(order(1)) { (first, second) } else { (second, first) };
        let expect = |pfn: Pfn, n: u8, why| {
            let error = world.on(0, |cpu| cpu.free(pfn, order(n))).expect_err("it is wrong");
            assert_eq!((error.pfn, error.order, error.why), (pfn, order(n), why), "{config:?}");
            let any_context = world.allocator().try_free(pfn, order(n)).expect_err("it is wrong");
            assert_eq!(any_context, TryFreeError::Refused(error), "{config:?}");
        };
        for (pfn, n, why) in [
            (large.add(1), 0, Inside { order: order(2) }),
            (large.add(2), 1, Inside { order: order(2) }),
            (large, 1, WrongOrder { allocated: order(2) }),
            (large, 0, WrongOrder { allocated: order(2) }),
            (even, 1, WrongOrder { allocated: order(0) }),
            (odd, 1, Misaligned),
            (Pfn(7), 0, Foreign),
            (Pfn(BASE.0 - 1), 0, Foreign),
            (BASE.add(4 * PAGEBLOCK_PAGES), 0, Foreign),
            (BASE.add(END), 0, Reserved),
            (BASE.add(END - 1), 0, NotAllocated),
        ] {
            expect(pfn, n, why);
        }
        for (cpu, block, n) in [(1, large, 2), (0, first, 0), (1, second, 0)] {
            world.must_free(cpu, block, n);
            expect(block, n, NotAllocated);
        }
    }
}

/// CPU 0 refills, or gives its blocks back.
fn refill_or_drain<P: Platform<Pin = OwnedPin>>(world: &World<P>, drains: bool) {
    if drains {
        world.on(0, |cpu| cpu.drain());
    } else {
        alloc(world, 0);
    }
}

#[test]
fn loom_sees_the_free_refused_during_a_refill_and_a_drain() {
    for (form, drains) in FORMS.into_iter().flat_map(|form| [(form, false), (form, true)]) {
        let block = second(form);
        loom::model(Bounds { preemptions: 2, spins: 2 }.widened_if_full(), move || {
            let world = Arc::new(world::<Loom>(form));
            (0..u32::from(drains)).for_each(|_| _ = alloc(&world, 0));
            let here = |world: &World<Loom>| refill_or_drain(world, drains);
            let ((), accepted) = loom_pair(&world, here, move |world| wrong_free(world, block));
            must_be_refused(&world, accepted, block);
        });
    }
}
