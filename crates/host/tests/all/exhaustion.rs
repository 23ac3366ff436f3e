//! Memory that the last of sixteen CPUs gets when it runs out: what the others have on their lists comes back to it.

use core::alloc::Layout;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::thread;

use framewright_host::{Arena, Backing, Cpu, Migratetype, Order, Pfn};

const CPUS: usize = 16;
const PAGES: u64 = 1 << 18;
const HUGE: Order = Order::new(9).expect("an order");

fn arena() -> Arena {
    let builder = Arena::builder().pages(PAGES).backing(Backing::Described).cpus(CPUS);
    builder.build().expect("frames without memory")
}

fn all_of(cpu: &Cpu<'_>, order: Order) -> Vec<Pfn> {
    core::iter::from_fn(|| cpu.alloc(order, Migratetype::Movable).ok()).collect()
}

fn free(cpu: &Cpu<'_>, blocks: &[Pfn], order: Order) {
    // SAFETY: frames without memory, each allocated above.
    blocks.iter().for_each(|&pfn| unsafe { cpu.free(pfn, order) }.expect("it is allocated"));
}

/// Every CPU but the first takes a fifteenth of the memory in blocks of an order, frees it and makes no call any more.
/// The first one takes all that it gets.
#[test]
fn what_idle_cpus_keep_comes_back() {
    for order in Order::all().filter(|&order| order <= HUGE) {
        for (wanted, least) in
            [(Order::ZERO, PAGES - PAGES / 100), (HUGE, PAGES - 2 * CPUS as u64 * HUGE.pages())]
        {
            let arena = arena();
            let cpus: Vec<_> = (0..CPUS).map(|_| arena.attach().expect("a slot")).collect();
            let (first, others) = cpus.split_first().expect("sixteen");
            let mut held = vec![Vec::new(); others.len()];
            'full: loop {
                for (cpu, held) in others.iter().zip(&mut held) {
                    let Ok(pfn) = cpu.alloc(order, Migratetype::Movable) else { break 'full };
                    held.push(pfn);
                }
            }
            others.iter().zip(&held).for_each(|(cpu, held)| free(cpu, held, order));
            let got = all_of(first, wanted).len() as u64 * wanted.pages();
            assert!(got >= least, "{order} freed by 15: {got} of {PAGES} in {wanted}");
        }
    }
}

/// One page of each pageblock is on the list of an idle CPU, all others are free: a range has them, and so does a run.
#[test]
fn what_idle_cpus_keep_is_part_of_a_range() {
    let arena = arena();
    let cpus: Vec<_> = (0..CPUS).map(|_| arena.attach().expect("a slot")).collect();
    let (first, others) = cpus.split_first().expect("sixteen");
    let leave_one_of_each = || {
        let held = all_of(first, Order::ZERO);
        let (kept, rest): (Vec<_>, Vec<_>) = held.into_iter().partition(|pfn| pfn.0 % HUGE.pages() == 7);
        assert_eq!(kept.len() as u64, PAGES / HUGE.pages());
        free(first, &rest, Order::ZERO);
        kept.into_iter().zip(others.iter().cycle()).for_each(|(pfn, cpu)| free(cpu, &[pfn], Order::ZERO));
    };
    leave_one_of_each();
    let layout = Layout::from_size_align(PAGES as usize * 4096, 4096).expect("a layout");
    let range = first.alloc_layout(layout, Migratetype::Movable).expect("all of it is free");
    // SAFETY: frames without memory, allocated just now.
    unsafe { first.free_range(range.clone()) }.expect("it is allocated");
    leave_one_of_each();
    let mut out = [const { Pfn(0)..Pfn(0) }; 4];
    assert_eq!(first.alloc_runs(PAGES, Migratetype::Movable, &mut out), &[range]);
}

/// The other CPUs allocate and free a page over and over in the meantime. Threads that another program has stopped in
/// a call keep what their lists hold until they go on: a request that fails is repeated once each has.
#[test]
fn what_running_cpus_keep_comes_back() {
    let arena = arena();
    let ends = AtomicBool::new(false);
    let turns = [const { AtomicU64::new(0) }; CPUS - 1];
    thread::scope(|scope| {
        for turns in &turns {
            let (arena, ends) = (&arena, &ends);
            scope.spawn(move || {
                let cpu = arena.attach().expect("a slot");
                while !ends.load(Relaxed) {
                    if let Ok(pfn) = cpu.alloc(Order::ZERO, Migratetype::Movable) {
                        free(&cpu, &[pfn], Order::ZERO);
                    }
                    turns.fetch_add(1, Relaxed);
                }
            });
        }
        let cpu = arena.attach().expect("a slot");
        let all_go_on = || {
            let before = turns.each_ref().map(|turns| turns.load(Relaxed));
            while turns.iter().zip(before).any(|(turns, before)| turns.load(Relaxed) < before + 2) {
                thread::sleep(Duration::from_millis(1));
            }
        };
        let least = PAGES - 64 * CPUS as u64;
        let mut got = all_of(&cpu, Order::ZERO).len() as u64;
        for _ in 0..3 {
            if got < least {
                all_go_on();
                got += all_of(&cpu, Order::ZERO).len() as u64;
            }
        }
        ends.store(true, Relaxed);
        assert!(got >= least, "{got} of {PAGES} while 15 run");
    });
}
