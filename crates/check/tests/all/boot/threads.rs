//! Initialising memory by several threads together, and allocating from it during that time. loom: two threads, two
//! units. shuttle: workers that stop anywhere, CPUs that allocate all there is.
#![expect(unsafe_code, reason = "a user slot vouches for itself, and its owner reaches it")]

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use ::shuttle::rand::{Rng, thread_rng};
use framewright::boot::deferred::{UnitStep, Worker};
use framewright_check::platform::loom::{self, Flaw};
use framewright_check::platform::shuttle;
use framewright_check::prelude::*;
use framewright_check::refute::must_fail;

const BOUNDS: Bounds = Bounds { preemptions: 2, spins: 4 };
const START: u64 = 0x1000;

/// Slot of a unit's first frame before it is initialised: its owner never finds it.
const UNREADY: Slot = Slot(7);

/// A zone of `units` max-order blocks, with `each` frames at the start of each; none is initialised by boot.
fn spec(split: Split, units: u64, each: u64, slots: usize, cpus: usize) -> Spec {
    let spec = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(START), pages: units * 1024 };
    let free =
        (0..units).map(|unit| START + unit * 1024).map(|start| Pfn(start)..Pfn(start + each)).collect();
    let rest = RestSpec { spec, present: units * each, free, deferred_from: spec.start, cpus: slots as u64 };
    // Sections of two units: what growth takes.
    Spec::deferred(How { split, section: 2048 }, [rest], slots, cpus).config(few_pages(4, 2, 4, 1))
}

/// The slot that a frame has before boot. loom clears the first of a unit only.
fn unready(pfn: Pfn) -> Slot {
    if pfn.is_aligned(MAX_ORDER) { UNREADY } else { Slot(0) }
}

/// Allocates up to `most` units as `cpu`, looks whether their first frames are ready, and gives them back.
fn use_some<P: Platform<Pin = OwnedPin>>(world: &World<P, Slot>, cpu: usize, most: usize) {
    world.on(cpu, |cpu| {
        let alloc = |_| {
            let pfn = cpu.alloc(MAX_ORDER, M).ok()?;
            // SAFETY: the frame was just handed out to us.
            let found =
                unsafe { cpu.allocator().frames().with_user(pfn, |slot| core::mem::replace(slot, Slot(0))) };
            assert_eq!(found, Some(Slot(0)), "{pfn:?} was handed out before it was ready");
            Some(pfn)
        };
        let held: Vec<_> = (0..most).map_while(alloc).collect();
        held.into_iter().for_each(|pfn| cpu.must_free(pfn, MAX_ORDER));
    });
}

/// Two workers, one of which stops after a step: what one leaves the other or a third one does.
#[test]
fn two_workers_initialise_each_unit_once() {
    two_workers(Split::AllCpus, 1);
    // As many executions each, with other meetings at the cursor: left to a full run.
    if full() {
        two_workers(Split::OneThread, 2);
        two_workers(Split::OneThread, 1);
    }
}

/// The models are not blind: they fail where words keep no order, and where a read-modify-write is a load and a store.
#[test]
fn claims_over_flawed_words_are_found() {
    const FOUND: [&str; 4] =
        ["Causality violation", "each frame once", "before it was ready", "number of branches"];
    for flaw in [Flaw::Relaxed, Flaw::Torn] {
        must_fail(&format!("claims, {flaw:?}"), &FOUND, move || {
            loom::lack(flaw);
            two_workers(Split::OneThread, 1);
        });
    }
    must_fail("an allocation, relaxed", &FOUND, || {
        loom::lack(Flaw::Relaxed);
        hand_out(1);
    });
}

fn two_workers(split: Split, most: u64) {
    let executions = loom::model(Bounds { preemptions: 1, ..BOUNDS }.widened_if_full(), move || {
        let world = Arc::new(spec(split, 2, 1024, 2, 1).build_to_clear::<Loom, Slot>(unready));
        let booting = world.allocator().begin().expect("it is the first time");
        let shared = world.clone();
        let thread = ::loom::thread::spawn(move || {
            let mut worker = Worker::new(shared.allocator(), NodeId(0)).expect("there is a slot");
            worker.step()
        });
        let mut worker = booting.worker(NodeId(0)).expect("there is a slot");
        let mut pages = 0;
        while let UnitStep::Unit(_, done) = worker.steps(most) {
            pages += done;
        }
        let others = match thread.join().expect("the thread did not panic") {
            UnitStep::Unit(_, pages) => pages,
            UnitStep::Idle => 0,
        };
        let rest = worker.run();
        assert_eq!(pages + others + rest, 2048, "each frame once");
        drop(worker);
        booting.finish().expect("nothing is left");
        assert_eq!(world.allocator().free_pages(), 2048);
    });
    println!("{split:?}, {most} at a time: {executions} executions");
}

/// Memory that becomes ready between two looks counts once, but for what one hold of the lock makes ready: two units.
#[test]
fn watermarks_do_not_count_memory_twice_while_it_grows() {
    shuttle::random(if full() { 20_000 } else { 500 }, || {
        let world = Arc::new(spec(Split::OneThread, 6, 1024, 0, 1).build::<Shuttle>());
        world.allocator().begin().expect("it is the first time").stay_lazy();
        let all = world.allocator().watermarks(ZoneId(0));
        let shared = world.clone();
        let thread = ::shuttle::thread::spawn(move || {
            shared.on(0, |cpu| while cpu.alloc(MAX_ORDER, M).is_ok() {});
        });
        for _ in 0..20 {
            let marks = world.allocator().watermarks(ZoneId(0));
            assert!(marks.low <= all.low * 8 / 6, "{marks:?} of six units, all of which have {all:?}");
        }
        thread.join().expect("the thread did not panic");
        assert_eq!(world.allocator().watermarks(ZoneId(0)), all);
    });
}

/// A worker claims all of the zone, and initialises one unit of it. Another CPU that needs a unit gets one of the other
/// three, also while the worker has the claim and its slot does not show it yet.
#[test]
fn an_allocation_finds_what_a_worker_has_just_claimed() {
    shuttle::random(if full() { 20_000 } else { 300 }, || {
        let world = Arc::new(spec(Split::OneThread, 4, 1024, 1, 1).build::<Shuttle>());
        let booting = world.allocator().begin().expect("it is the first time");
        let shared = world.clone();
        let thread =
            ::shuttle::thread::spawn(move || shared.on(0, |cpu| cpu.alloc(MAX_ORDER, M)).map(|_| ()));
        let mut worker = booting.worker(NodeId(0)).expect("there is a slot");
        worker.step();
        let allocated = thread.join().expect("the thread did not panic");
        assert!(allocated.is_ok(), "three units are left: {}", allocated.expect_err("an error"));
        worker.run();
        drop(worker);
        booting.finish().expect("nothing is left");
    });
}

/// A frame is found bad while a worker makes it ready: until it is ready, the caller is told to report it again.
#[test]
fn a_frame_goes_bad_while_a_worker_makes_it_ready() {
    shuttle::random(if full() { 20_000 } else { 500 }, || {
        let world = Arc::new(spec(Split::OneThread, 2, 40, 1, 1).build::<Shuttle>());
        let booting = world.allocator().begin().expect("it is the first time");
        let shared = world.clone();
        let thread = ::shuttle::thread::spawn(move || {
            let report = |_| shared.on(0, |cpu| cpu.hwpoison(Pfn(START + 1024 + 9)));
            (0..30).map(report).find(|found| *found != Err(HwpoisonError::NotReady))
        });
        booting.run();
        let found = thread.join().expect("the thread did not panic");
        assert!(matches!(found, None | Some(Ok(Hwpoisoned::Withdrawn))), "{found:?}");
        booting.finish().expect("nothing is left");
    });
}

/// A CPU allocates, and grows the zone if it must, while a worker initialises it; another guesses frame numbers. The
/// worker does one unit after the other, and growth takes what it is not at.
#[test]
fn no_frame_is_handed_out_before_it_is_ready() {
    hand_out(1);
}

/// The worker does both units together, and the CPU takes all.
#[test]
fn no_frame_of_a_batch_is_handed_out_before_it_is_ready() {
    hand_out(2);
}

fn hand_out(most: u64) {
    // The CPU waits for a worker that is claiming: each turn of that loop multiplies the executions. One preemption
    // makes 100,000 of them, a minute's work for a full run; `crowd` draws schedules with many at random.
    let bounds = Bounds { preemptions: 0, spins: 1 }.widened_if_full();
    let executions = loom::model(bounds, move || {
        let world = Arc::new(spec(Split::OneThread, 2, 1024, 1, 2).build_to_clear::<Loom, Slot>(unready));
        let booting = world.allocator().begin().expect("it is the first time");
        let shared = world.clone();
        let thread = ::loom::thread::spawn(move || {
            // It multiplies the executions by twelve: `crowd` guesses in other runs.
            if full() {
                let error = shared.on(1, |cpu| cpu.free(Pfn(START + 1), Order::ZERO));
                assert!(error.is_err(), "no CPU has allocated it");
            }
            use_some(&shared, 0, most as usize);
        });
        let mut worker = booting.worker(NodeId(0)).expect("there is a slot");
        while worker.steps(most) != UnitStep::Idle {}
        thread.join().expect("the thread did not panic");
        worker.run();
        drop(worker);
        booting.finish().expect("nothing is left");
        assert_eq!((world.allocator().free_pages(), world.allocator().pcp_pages()), (2048, 0));
    });
    println!("{most} at a time: {executions} executions");
}

/// Four workers that stop anywhere, and three CPUs that want more than there is until all is initialised.
fn crowd(split: Split) {
    const UNITS: u64 = 6;
    const EACH: u64 = 40;
    let world = Arc::new(spec(split, UNITS, EACH, 4, 3).build_to_clear::<Shuttle, Slot>(|_| UNREADY));
    let booting = world.allocator().begin().expect("it is the first time");
    let oracle = Arc::new(SharedOracle::new(Pfn(START), UNITS * 1024));
    let initialised = Arc::new(AtomicU64::new(0));
    let workers = (0..4).map(|_| {
        let (world, initialised) = (world.clone(), initialised.clone());
        ::shuttle::thread::spawn(move || {
            for _ in 0..3 {
                let Some(mut worker) = Worker::new(world.allocator(), NodeId(0)) else { continue };
                for _ in 0..thread_rng().gen_range(0..3) {
                    if let UnitStep::Unit(_, pages) = worker.steps(thread_rng().gen_range(1..4)) {
                        initialised.fetch_add(pages, Ordering::Relaxed);
                    }
                }
            }
        })
    });
    let cpus = (0..3).map(|cpu| {
        let (world, oracle) = (world.clone(), oracle.clone());
        ::shuttle::thread::spawn(move || {
            let pin = world.pin(cpu);
            let cpu = world.cpu(&pin);
            let mut held = vec![];
            for _ in 0..60 {
                let order = Order::new(thread_rng().gen_range(0..4)).expect("it exists");
                if let Ok(pfn) = cpu.alloc(order, M) {
                    oracle.handed_out(Block { pfn, order });
                    held.push(Block { pfn, order });
                }
                // Beyond the memory of a unit.
                let guess = Pfn(START + thread_rng().gen_range(0..UNITS) * 1024 + EACH);
                assert!(cpu.free(guess, Order::ZERO).is_err(), "no CPU has allocated it");
                if held.len() > 20 {
                    let block = held.swap_remove(thread_rng().gen_range(0..held.len()));
                    oracle.giving_back(block);
                    cpu.must_free(block.pfn, block.order);
                }
            }
            for block in held {
                oracle.giving_back(block);
                cpu.must_free(block.pfn, block.order);
            }
            cpu.drain();
            world.unpin(pin);
        })
    });
    let threads: Vec<_> = workers.chain(cpus).collect();
    for thread in threads {
        thread.join().expect("the thread did not panic");
    }
    let grown = world.allocator().deferred().expect("it is deferred").growth().pages;
    let last = booting.run();
    let all = initialised.load(Ordering::Relaxed) + grown + last;
    assert_eq!(all, UNITS * EACH, "each frame once");
    booting.finish().expect("nothing is left");
    assert_eq!(world.settled().free, UNITS * EACH);
}

#[test]
fn workers_that_stop_and_cpus_that_cannot_wait() {
    let executions = if full() { 5000 } else { 20 };
    for split in [Split::OneThread, Split::AllCpus, Split::AllCpusBySection] {
        shuttle::random(executions, move || crowd(split));
        shuttle::pct(3, executions, move || crowd(split));
    }
}
