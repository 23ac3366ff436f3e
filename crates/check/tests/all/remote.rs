//! Lists that a CPU in need drains while their owner runs: no block is handed out twice, and none is lost.

use std::sync::Arc;

use ::shuttle::rand::{Rng, thread_rng};
use framewright::pcp::Pcp;
use framewright_check::platform::loom::{self, Bounds, Flaw, LoomWith, full};
use framewright_check::platform::shuttle::{self, Shuttle};
use framewright_check::prelude::*;
use framewright_check::refute::must_fail;

const O: Order = Order::ZERO;

fn spec(pages: u64, cpus: usize, pcp_orders: PcpOrders) -> Spec {
    Spec::one_zone(pages, cpus).slots(4).fixed(2, 4).orders(pcp_orders).spins(1)
}

fn world<P: Platform<Pin = OwnedPin>>(pages: u64, cpus: usize, pcp_orders: PcpOrders) -> World<P> {
    spec(pages, cpus, pcp_orders).build()
}

/// CPU 0 allocates and frees the pages of its list; each of `drainers` other CPUs drains all lists and takes a page.
/// If they are `away`, these lists are not of the first zone.
fn drained_under_the_owner(drainers: usize, preemptions: usize, away: bool) {
    let executions = loom::model(Bounds { preemptions, spins: 2 }, move || {
        let spec = spec(4, 1 + drainers, PcpOrders::Zero).away(away);
        let world = Arc::new(spec.build::<LoomWith<true>>());
        world.on(0, |cpu| {
            let pages = [(); 2].map(|()| cpu.must_alloc(O));
            pages.into_iter().for_each(|pfn| cpu.must_free(pfn, O));
        });
        let threads: Vec<_> = (1..=drainers)
            .map(|n| {
                let world = world.clone();
                ::loom::thread::spawn(move || {
                    world.allocator().request_drain();
                    world.on(n, |cpu| cpu.alloc(O, M).ok())
                })
            })
            .collect();
        let mut held: Vec<Pfn> = world.on(0, |cpu| {
            let first = cpu.alloc(O, M).ok();
            let second = cpu.alloc(O, M).ok();
            first.into_iter().for_each(|pfn| cpu.must_free(pfn, O));
            second.into_iter().chain(cpu.alloc(O, M)).collect()
        });
        held.extend(threads.into_iter().filter_map(|thread| thread.join().expect("no panic")));
        held.sort_unstable();
        let all = held.len();
        held.dedup();
        assert_eq!(held.len(), all, "a page has two owners");
        assert_eq!(world.settled().allocated, all as u64);
    });
    println!("{drainers} drainers, {preemptions} preemptions: {executions} executions");
}

#[test]
fn loom_sees_no_page_with_two_owners() {
    for away in [false, true] {
        drained_under_the_owner(1, if full() { 3 } else { 1 }, away);
        if full() {
            drained_under_the_owner(2, 1, away);
        }
    }
}

/// One preemption is enough to find that either half is missing.
#[test]
fn loom_misses_either_half_of_the_barrier() {
    let told = ["two owners", "settled", "is allocated", "per-CPU", "list"];
    must_fail("no barrier in hits", &told, || {
        loom::lack(Flaw::NoLightBarrier);
        drained_under_the_owner(1, 1, false);
    });
    must_fail("no barrier in drains", &told, || {
        loom::lack(Flaw::NoHeavyBarrier);
        drained_under_the_owner(1, 1, false);
    });
}

/// Two owners allocate, free and hand over; three CPUs run out of memory again and again.
#[test]
fn shuttle_sees_every_page_accounted_for() {
    for (engine, away) in
        [(Engine::Framewright, false), (Engine::Framewright, true), (Engine::Compact, false)]
    {
        shuttle::random(if full() { 20_000 } else { 100 }, move || {
            let world = spec(64, 5, PcpOrders::UpToHuge).engine(engine).away(away).build::<Shuttle>();
            let shared = Arc::new((world, SharedOracle::new(BASE, 64)));
            shuttle_team(&shared, 5, |(world, oracle), n| run(world, oracle, n));
            shared.0.settled();
        });
    }
}

fn run(world: &World<Shuttle>, oracle: &SharedOracle, n: usize) {
    let mut held: Vec<Block> = Vec::new();
    for _ in 0..12 {
        let order = Order::new(thread_rng().gen_range(0..3)).expect("an order");
        let most = if n < 2 { 4 } else { 16 };
        world.on(n, |cpu| match () {
            () if held.len() < most && thread_rng().gen_ratio(2, 3) => {
                if let Ok(pfn) = cpu.alloc(order, M) {
                    oracle.handed_out(Block { pfn, order });
                    held.push(Block { pfn, order });
                }
            }
            () if held.is_empty() => world.allocator().request_drain(),
            () => {
                let block = held.swap_remove(thread_rng().gen_range(0..held.len()));
                oracle.giving_back(block);
                cpu.must_free(block.pfn, block.order);
            }
        });
    }
}

/// Hits through words do not say that their CPU is inside a call: a CPU in need drains the lists of one that is in no
/// call, and only asks one whose words were given away.
#[test]
fn lists_whose_words_were_given_away_are_not_drained_by_others() {
    for gives_words in [false, true] {
        shuttle::random(20, move || {
            let world = world::<Shuttle>(4, 2, PcpOrders::Zero);
            let held: Vec<Pfn> = (0..4).map(|_| world.must_alloc(0, O)).collect();
            held.into_iter().for_each(|pfn| world.must_free(0, pfn, O));
            let listed = world.pcp(0).count();
            assert!(listed > 0);
            if gives_words {
                assert!(world.on(0, |cpu| cpu.hit_words(M)).is_some());
            }
            // Now and then there is no barrier.
            (0..20).for_each(|_| world.allocator().request_drain());
            assert_eq!(world.pcp(0).count(), if gives_words { listed } else { 0 });
            world.on(0, |cpu| cpu.drain());
            assert_eq!(world.settled().free, 4);
        });
    }
}

/// Allocations of a list hit again after a refill, also if it was drained before its words were given away.
#[test]
fn a_drained_list_whose_words_are_given_away_has_hits_again() {
    shuttle::random(20, || {
        let world = world::<Shuttle>(4, 2, PcpOrders::Zero);
        let held = world.must_alloc(0, O);
        world.must_free(0, held, O);
        // Now and then there is no barrier.
        (0..20).for_each(|_| world.allocator().request_drain());
        assert_eq!(world.pcp(0).count(), 0);
        world.on(0, |cpu| {
            assert!(cpu.hit_words(M).is_some());
            let first = cpu.must_alloc(O);
            let second = cpu.alloc_hit(O, M).expect("the refill brought two");
            [first, second].into_iter().for_each(|pfn| cpu.must_free(pfn, O));
            cpu.drain();
        });
        assert_eq!(world.settled().free, 4);
    });
}

/// A list that another CPU has drained takes no hit until its owner's next slow call. Lists whose hits count are not
/// drained by others.
#[test]
fn a_drained_list_takes_no_hit_until_a_slow_call() {
    for engine in STORES {
        shuttle::random(20, move || {
            let config = world::<Shuttle>(64, 2, PcpOrders::Zero).allocator().config().engine(engine);
            let world = Spec::one_zone(64, 2).config(config).build::<Shuttle>();
            let held = world.must_alloc(0, O);
            let listed = world.pcp(0).count();
            assert!(listed > 0);
            if engine == Engine::Framewright {
                world.on(0, |cpu| {
                    assert!(cpu.free_hit(held, O));
                    assert_eq!(cpu.alloc_hit(O, M), Some(held));
                });
            }
            // Now and then there is no barrier.
            (0..20).for_each(|_| world.allocator().request_drain());
            if engine == Engine::Linux {
                assert_eq!(world.pcp(0).count(), listed);
                world.on(0, |cpu| cpu.answer());
            }
            assert_eq!(world.pcp(0).count(), 0);
            world.on(0, |cpu| {
                assert!(!cpu.free_hit(held, O), "a drain may be at work");
                cpu.must_free(held, O);
                cpu.drain();
            });
            assert_eq!(world.settled().free, 64);
        });
    }
}

/// A given block on the list of a CPU that is in no call is brought back from there, and had at the first try.
#[test]
fn a_given_block_is_brought_back_from_the_list_of_another_cpu() {
    let had = Arc::new(core::sync::atomic::AtomicU64::new(0));
    let count = had.clone();
    shuttle::random(20, move || {
        let world = world::<Shuttle>(4, 2, PcpOrders::Zero);
        let pfn = world.must_alloc(1, O);
        world.must_free(1, pfn, O);
        match world.on(0, |cpu| cpu.alloc_at(pfn, O)) {
            Ok(()) => {
                count.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
                world.must_free(0, pfn, O);
            }
            // Now and then there is no barrier.
            Err(error) => assert_eq!(error.why, PlaceFailure::Listed { pfn, cpu: CpuId(1) }),
        }
        world.drain_all();
        assert_eq!(world.settled().free, 4);
    });
    assert!(had.load(core::sync::atomic::Ordering::Relaxed) > 0);
}

/// Memory on the list of another CPU is had whenever it is missing, however soon after the last time, and also after a
/// drain that was to empty lists and found none.
#[test]
fn what_another_cpu_has_listed_is_had_again_and_again() {
    for with_empty in [false, true] {
        shuttle::random(20, move || {
            let world = world::<Shuttle>(4, 2, PcpOrders::Zero);
            let held: Vec<Pfn> = (0..3).map(|_| world.must_alloc(1, O)).collect();
            for _ in 0..2 {
                world.drain_all();
                if with_empty {
                    world.on(0, |cpu| cpu.hwpoison(held[0])).expect("it is in use");
                    world.on(0, |cpu| cpu.unpoison(held[0])).expect("it is marked");
                }
                let pfn = world.must_alloc(1, O);
                world.must_free(1, pfn, O);
                assert_eq!((world.pcp(1).count(), world.zone().free_pages()), (1, 0));
                // Now and then there is no barrier.
                let had = (0..20).find_map(|_| world.on(0, |cpu| cpu.alloc(O, M).ok()));
                assert_eq!(had, Some(pfn));
                world.must_free(0, pfn, O);
            }
            held.into_iter().for_each(|pfn| world.must_free(1, pfn, O));
            world.drain_all();
            assert_eq!(world.settled().free, 4);
        });
    }
}

/// A CPU in need waits for one that is in a call at that moment, and that drains at its next one.
#[test]
fn a_cpu_in_need_waits_for_one_that_is_in_a_call() {
    use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

    shuttle::random(100, || {
        let world = spec(4, 2, PcpOrders::Zero).spins(2_000).build::<Shuttle>();
        let held: Vec<Pfn> = (0..4).map(|_| world.must_alloc(1, O)).collect();
        held[1..].iter().for_each(|&pfn| world.must_free(1, pfn, O));
        assert_eq!(world.zone().free_pages(), 0);
        let ((), had) = shuttle_pair(
            &Arc::new((world, AtomicBool::new(false))),
            |(world, is_done)| {
                for _ in (0..4_000).take_while(|_| !is_done.load(Relaxed)) {
                    let pfn = world.on(1, |cpu| cpu.alloc(O, M));
                    pfn.into_iter().for_each(|pfn| world.must_free(1, pfn, O));
                }
            },
            |(world, is_done)| {
                let had = world.on(0, |cpu| cpu.alloc(O, M));
                is_done.store(true, Relaxed);
                had
            },
        );
        assert!(had.is_ok(), "{had:?}");
    });
}

/// Where there is no barrier, the lists of another CPU stay as they are: it gets a request.
#[test]
fn without_a_barrier_no_list_is_drained_by_another_cpu() {
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

    let left = Arc::new(AtomicU64::new(0));
    let count = left.clone();
    shuttle::random(if quick() { 2000 } else { 200 }, move || {
        let world = world::<Shuttle>(4, 2, PcpOrders::Zero);
        let pfn = world.must_alloc(1, O);
        world.must_free(1, pfn, O);
        let listed = world.pcp(1).count();
        world.allocator().request_drain();
        let now = world.pcp(1).count();
        assert!(now == 0 || now == listed && world.pcp(1).count() > 0);
        count.fetch_add(u64::from(now), Relaxed);
    });
    assert!(left.load(Relaxed) > 0, "a list was drained without a barrier");
}

/// What lists may hold is divided by the CPUs that use the zone, not by all; those that drain their lists give their
/// share back. Small blocks have a part of the free memory, huge ones a part of all.
#[test]
fn cpus_that_use_a_zone_share_what_its_lists_may_hold() {
    type Pages = fn(&Pcp<'_, Shuttle>) -> u32;
    shuttle::random(1, || {
        let cases: [(Order, u32, Pages, u32); 2] =
            [(O, 2000, |pcp| pcp.high(), 512), (order(9), 30, |pcp| pcp.huge_pages(), 4096)];
        for (order, blocks, pages, most) in cases {
            let world = Spec::one_zone(1 << 15, 16).build::<Shuttle>();
            let used = |n: u16| {
                world.on(n.into(), |cpu| {
                    let held: Vec<Pfn> = (0..blocks).map(|_| cpu.must_alloc(order)).collect();
                    held.into_iter().for_each(|pfn| cpu.must_free(pfn, order));
                });
                world.settled();
                pages(world.pcp(n))
            };
            let alone = used(0);
            assert!((most / 2 + 1..=most).contains(&alone), "order {order}: {alone} alone");
            (0..2).for_each(|_| (1..4).for_each(|n| assert!(used(n) < alone)));
            let of_four = used(0);
            assert!((most / 16..=most / 4).contains(&of_four), "order {order}: {of_four} of four");
            (1..4).for_each(|n| world.on(n, |cpu| cpu.drain()));
            assert_eq!(used(0), alone, "order {order}: alone again");
        }
    });
}
