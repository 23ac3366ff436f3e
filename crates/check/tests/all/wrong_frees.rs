//! A block that nobody was ever handed is freed while another CPU's refill takes it from the zone, or its drain
//! gives it back.

use std::sync::Arc;

use framewright::config::{Config, Engine, Experiment, PcpFixed, PcpOrders};
use framewright::platform::Platform;
use framewright::units::{CpuId, Migratetype, Order, Pfn, ZoneId};
use framewright_check::fixture::{Spec, World};
use framewright_check::platform::loom::{self, Bounds, Loom, full};
use framewright_check::platform::pin::OwnedPin;
use framewright_check::platform::plain::Plain;
use framewright_check::platform::shuttle::{self, Shuttle};

const FORMS: [Engine; 2] = [Engine::Framewright, Engine::Compact];

fn world<P: Platform<Pin = OwnedPin>>(engine: Engine) -> World<P> {
    let config = Config {
        engine,
        experiment: Experiment {
            pcp_orders: PcpOrders::Zero,
            pcp_slots: 4,
            pcp_fixed: Some(PcpFixed { batch: 2, high: 4 }),
            remote_drain_spins: 1,
            ..Experiment::default()
        },
        ..Config::default()
    };
    Spec::one_zone(4, 2).config(config).build()
}

fn alloc<P: Platform<Pin = OwnedPin>>(world: &World<P>, cpu: usize) -> Pfn {
    world.on(cpu, |cpu| cpu.alloc(Order::ZERO, Migratetype::Movable)).expect("memory is left")
}

/// CPU 0's first refill brings two blocks; the second one waits on its list, and is nobody's.
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
        let on = |cpu| world.allocator().pcp(ZoneId(0), CpuId(cpu)).count();
        panic!(
            "one CPU alone freed {block:?}, which was handed to nobody, and that was accepted; on the lists of CPU 0 \
             and 1: {} and {} pages; free: {}, of 4; verify: {verdict:?}",
            on(0),
            on(1),
            world.allocator().free_pages()
        );
    }
}

#[test]
fn the_free_is_refused_whenever_it_is_made() {
    for form in FORMS {
        let block = second(form);
        let world = world::<Plain>(form);
        assert!(!wrong_free(&world, block), "before the refill");
        alloc(&world, 0);
        assert!(!wrong_free(&world, block), "after it");
    }
}

#[test]
fn loom_sees_the_free_refused_during_the_refill() {
    for form in FORMS {
        let block = second(form);
        let executions = loom::model(Bounds { preemptions: 2, spins: 4 }, move || {
            let world = Arc::new(world::<Loom>(form));
            let other = world.clone();
            let thread = ::loom::thread::spawn(move || wrong_free(&other, block));
            alloc(&world, 0);
            let accepted = thread.join().expect("the thread did not panic");
            must_be_refused(&world, accepted, block);
        });
        println!("{executions} executions");
    }
}

/// Here every ordering counts as sequentially consistent: not a matter of stale reads.
#[test]
fn shuttle_sees_the_free_refused_during_the_refill() {
    for form in FORMS {
        let block = second(form);
        shuttle::random(if full() { 20_000 } else { 500 }, move || {
            let world = Arc::new(world::<Shuttle>(form));
            let other = world.clone();
            // One attempt ends long before the refill begins.
            let thread = ::shuttle::thread::spawn(move || (0..20).any(|_| wrong_free(&other, block)));
            alloc(&world, 0);
            let accepted = thread.join().expect("the thread did not panic");
            must_be_refused(&world, accepted, block);
        });
    }
}

/// The same while CPU 0 gives the block back.
#[test]
fn loom_sees_the_free_refused_during_a_drain() {
    for form in FORMS {
        let block = second(form);
        let executions = loom::model(Bounds { preemptions: 2, spins: 4 }, move || {
            let world = Arc::new(world::<Loom>(form));
            alloc(&world, 0);
            let other = world.clone();
            let thread = ::loom::thread::spawn(move || wrong_free(&other, block));
            world.on(0, |cpu| cpu.drain());
            let accepted = thread.join().expect("the thread did not panic");
            must_be_refused(&world, accepted, block);
        });
        println!("{executions} executions");
    }
}

#[test]
fn shuttle_sees_the_free_refused_during_a_drain() {
    for form in FORMS {
        let block = second(form);
        shuttle::pct(3, if full() { 20_000 } else { 500 }, move || {
            let world = Arc::new(world::<Shuttle>(form));
            alloc(&world, 0);
            let other = world.clone();
            let thread = ::shuttle::thread::spawn(move || (0..20).any(|_| wrong_free(&other, block)));
            world.on(0, |cpu| cpu.drain());
            let accepted = thread.join().expect("the thread did not panic");
            must_be_refused(&world, accepted, block);
        });
    }
}

/// How often, with real threads and the default configuration: CPU 0 refills and drains; CPU 1 frees a block again and
/// again that a refill brings and nobody is ever handed.
#[test]
fn real_threads_see_the_free_refused() {
    FORMS.into_iter().for_each(real_threads);
}

fn real_threads(engine: Engine) {
    use core::sync::atomic::AtomicBool;
    use core::sync::atomic::Ordering::{Acquire, Release};
    const ROUNDS: u32 = 10_000;
    let config = Config { engine, ..Config::default() };
    let world: World<Plain> = Spec::one_zone(1 << 16, 2).config(config).build();
    let first = alloc(&world, 0);
    let account = world.settled();
    assert!(account.on_pcp >= 7, "a refill brings many: {account:?}");
    world.on(0, |cpu| {
        cpu.free(first, Order::ZERO).expect("it is allocated");
        cpu.drain();
    });
    // Carved from one block: the first is handed out, the fifth is not.
    let block = first.add(4);
    let stop = AtomicBool::new(false);
    let (rounds, attempts) = std::thread::scope(|scope| {
        let freer = scope.spawn(|| {
            let mut attempts = 0_u64;
            while !stop.load(Acquire) {
                attempts += 1;
                if wrong_free(&world, block) {
                    stop.store(true, Release);
                    return Some(attempts);
                }
            }
            None
        });
        let mut rounds = 0;
        while rounds < ROUNDS && !stop.load(Acquire) {
            world.on(0, |cpu| {
                let got = cpu.alloc(Order::ZERO, Migratetype::Movable).expect("memory is left");
                assert_ne!(got, block);
                if !stop.load(Acquire) {
                    cpu.free(got, Order::ZERO).expect("it is allocated");
                    cpu.drain();
                }
            });
            rounds += 1;
        }
        stop.store(true, Release);
        (rounds, freer.join().expect("no panic"))
    });
    assert_eq!(attempts, None, "attempt at which CPU 1 could free what it never had, in refill {rounds}");
}
