//! Allocations that fail on purpose, and memory that is handed out or is free filled with zeroes.

use framewright::fault::{FaultCounts, FaultRule};
use framewright_check::prelude::*;

fn world(config: Config) -> World<Plain> {
    Spec::one_zone(4096, 2).config(config).build()
}

#[test]
fn the_nth_allocation_fails_and_no_other() {
    let world = world(Config::default().but(|config| config.fault_injection = true));
    world.on(0, |cpu| {
        for n in [1, 2, 9] {
            assert!(world.allocator().inject(Some(&FaultRule::nth(n))));
            for at in 1..20 {
                match cpu.alloc(order(0), M) {
                    Ok(pfn) => {
                        assert_ne!(at, n);
                        cpu.must_free(pfn, 0);
                    }
                    Err(error) => assert_eq!((at, error.why), (n, AllocFailure::Injected), "{error}"),
                }
            }
            assert_eq!(world.allocator().fault_counts(), FaultCounts { seen: 19, failed: 1 });
        }
        assert!(world.allocator().inject(None));
        assert!((0..100).all(|_| cpu.alloc(order(0), M).is_ok()), "no rule");
    });
}

#[test]
fn a_share_fails_by_seed_and_order_and_so_often_only() {
    let run = |rule: FaultRule| {
        let world = world(Config::default().but(|config| config.fault_injection = true));
        assert!(world.allocator().inject(Some(&rule)));
        let failed: Vec<bool> = (0..400)
            .map(|n| {
                world.on(n % 2, |cpu| match cpu.alloc(order((n % 3) as u8), M) {
                    Ok(pfn) => {
                        cpu.must_free(pfn, order((n % 3) as u8));
                        false
                    }
                    Err(_) => true,
                })
            })
            .collect();
        assert_eq!(
            world.allocator().fault_counts().failed,
            failed.iter().filter(|&&failed| failed).count() as u64
        );
        failed
    };
    assert_eq!(run(FaultRule::share(30, 5)), run(FaultRule::share(30, 5)));
    assert_ne!(run(FaultRule::share(30, 5)), run(FaultRule::share(30, 6)));
    let large = run(FaultRule { orders: u16::MAX << 2, ..FaultRule::share(100, 0) });
    assert!(large.iter().zip(0..).all(|(&failed, n)| failed == (n % 3 == 2)));
    assert_eq!(
        run(FaultRule { times: Some(7), ..FaultRule::share(100, 0) })
            .iter()
            .filter(|&&failed| failed)
            .count(),
        7
    );
}

#[test]
fn every_way_to_allocate_can_fail_and_some_requests_never_do() {
    let world = world(Config::default().but(|config| config.fault_injection = true));
    let all = FaultRule::share(100, 0);
    assert!(world.allocator().inject(Some(&all)));
    world.on(0, |cpu| {
        let request = Request::new(order(0), M);
        assert!(cpu.request(&request).is_err());
        let pfn = cpu.request(&request.with(Flags::NO_FAIL)).expect("it never fails");
        cpu.must_free(pfn, 0);
        assert_eq!(cpu.alloc_at(BASE, order(0)).expect_err("injected").why, PlaceFailure::Injected);
        let range = cpu.alloc_contig_range(BASE..BASE.add(4), &Helpers::NONE).expect_err("injected");
        assert_eq!(range.place.why, PlaceFailure::Injected);
        assert_eq!(cpu.alloc_bulk(order(0), M, &mut [Pfn(0); 9]), 0);
    });
    assert_eq!(world.settled().allocated, 0);
    // One that was made without has none, and costs nothing: its lists give hits.
    let plain = self::world(Config::default());
    assert!(!plain.allocator().inject(Some(&all)));
    plain.on(0, |cpu| {
        let pfn = cpu.must_alloc(0);
        cpu.must_free(pfn, 0);
        assert_eq!(cpu.alloc_hit(order(0), M), Some(pfn));
    });
}

#[test]
fn zeroes_need_memory_to_write_them_to() {
    let plain = world(Config::default());
    let request = Request::new(order(0), M).with(Flags::ZERO);
    let error = plain.on(0, |cpu| cpu.request(&request)).expect_err("no direct map");
    assert_eq!(error.why, AllocFailure::NoDirectMap, "{error}");
    let zones = [*plain.allocator().zones()[0].spec()];
    let nodes = [framewright::NodeId(0)];
    let config = Config::default().but(|config| config.init_on_free = true);
    assert!(Plan::new(&zones, &nodes, &config).is_ok());
    assert!(SetupError::PoisonNeedsDirectMap.to_string().contains("init_on_free"));
}

/// Memory is written to by its owners; a caller that asks for zeroes gets them, and with `init_on_free` every caller
/// does.
#[test]
fn zeroes_are_had_on_request_and_always_after_a_free() {
    for init_on_free in [false, true] {
        let world = Spec::one_zone(4096, 2)
            .config(Config::default().but(|config| config.init_on_free = init_on_free))
            .with_pages()
            .plain();
        world.on(0, |cpu| {
            let dirty = |pfn: Pfn, pages: u64| (0..pages).for_each(|n| world.scribble(pfn.add(n)));
            let is_zero =
                |pfn: Pfn, pages: u64| (0..pages).all(|n| world.page(pfn.add(n)).iter().all(|&b| b == 0));
            for k in [0, 3, 5, 10] {
                let pages = order(k).pages();
                let pfn = cpu.must_alloc(k);
                dirty(pfn, pages);
                cpu.must_free(pfn, k);
                let again = cpu.must_alloc(k);
                // A free that fills is no hit, and its pageblock is mostly free: the block may go back to the zone.
                assert!(again == pfn || k > 3 || init_on_free, "the same memory, from the list");
                assert_eq!(is_zero(pfn, pages), init_on_free, "order {k}");
                dirty(again, pages);
                cpu.free_bulk(order(k), &[again]).expect("it is allocated");
                assert_eq!(is_zero(again, pages), init_on_free, "order {k}, in bulk");
                let request = Request::new(order(k), M).with(Flags::ZERO);
                let zeroed = cpu.request(&request).expect("all is free");
                assert!(is_zero(zeroed, pages));
                cpu.must_free(zeroed, k);
                cpu.drain();
            }
        });
    }
}

/// Calls for many blocks, and for runs, fail like those for one.
#[test]
fn calls_for_many_blocks_fail_too() {
    let world = world(Config::default().but(|config| config.fault_injection = true));
    for fails in [true, false] {
        assert!(world.allocator().inject(fails.then_some(&FaultRule::share(100, 0))));
        world.on(0, |cpu| {
            let got = cpu.alloc_bulk(order(0), M, &mut [Pfn(0); 7]);
            let runs = cpu.alloc_runs(7, M, &mut [Pfn(0)..Pfn(0)]).len();
            assert_eq!((got, runs), if fails { (0, 0) } else { (7, 1) });
        });
    }
}
