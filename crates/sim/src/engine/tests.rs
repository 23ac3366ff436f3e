use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use framewright::{Platform, Word};

use super::*;
use crate::memory::Room;
use crate::model::testing::round;
use crate::model::{Caches, Shape};
use crate::platform::{Sim, SimWord};

mod polled;

/// Caches so small that tests fill them: sets of four lines in the first level, of 16 in the second, and a last level
/// of 64.
fn model(cpus: u16) -> Model {
    let sets = SETS as u32;
    Model { caches: Caches { l1: 4 * sets, l2: 16 * sets, l3: 64 }, ..round(cpus) }
}

/// Words from one of a set to the next.
const APART: usize = SETS / 2;

/// A word with a line, and the next, to itself.
#[repr(C, align(128))]
struct Own(SimWord);

/// A machine whose memory is `words` words on lines of their own.
fn machine(model: Model, words: usize) -> (Simulator, &'static [Own]) {
    machine_of(model, words)
}

/// A machine whose memory is `words` words in a row.
fn packed(model: Model, words: usize) -> (Simulator, &'static [SimWord]) {
    machine_of(model, words)
}

fn machine_of<T>(model: Model, words: usize) -> (Simulator, &'static [T]) {
    let mut room = Room::default();
    let place = room.add::<T>(words);
    let memory = Mapping::new(room.bytes()).expect("memory");
    // SAFETY: zeroes are words, and every test drops its machine last.
    let words = unsafe { place.slice(&memory) };
    (Simulator::new(model, memory, 1).expect("memory"), words)
}

/// A machine with one CPU whose page walks take 40 ns. It knows where `known` pages of 32 words are.
fn walking(pages: usize, caches: Option<[u32; 3]>, known: f64) -> (Simulator, &'static [Own]) {
    let walks = Model { fitted: crate::Fitted { walk_ns: 40.0, ..model(1).fitted }, ..model(1) };
    let (mut simulator, words) = machine(walks, pages << 5);
    let end = simulator.memory().bytes();
    simulator.set_regions(vec![Region { end, node: 0, caches }]);
    simulator.limit_translations(known / TRANSLATIONS as f64);
    (simulator, words)
}

fn load(word: &SimWord) {
    word.load(Relaxed);
}

/// Time that something takes on the CPU that does it, in ns.
fn took<T>(work: impl FnOnce() -> T) -> f64 {
    let before = now();
    work();
    now().since(before).as_ns()
}

fn programs<'a>(cpus: usize, program: &'a dyn Fn(usize)) -> Vec<Box<dyn FnOnce() + 'a>> {
    (0..cpus).map(|n| -> Box<dyn FnOnce() + 'a> { Box::new(move || program(n)) }).collect()
}

/// Cost of each of `accesses` for the one CPU that makes them, in ns.
fn costs(simulator: &mut Simulator, accesses: &[&dyn Fn()]) -> Vec<f64> {
    let spent = core::cell::RefCell::new(Vec::new());
    simulator.run(
        programs(1, &|_| {
            for access in accesses {
                spent.borrow_mut().push(took(access));
            }
        }),
        Ps(0),
    );
    spent.into_inner()
}

#[test]
fn a_line_ages_from_level_to_level() {
    let (mut simulator, words) = machine(model(1), 200 * APART);
    let read = |n: usize| load(&words[n * APART].0);
    let touch = |from: usize, lines: usize| (from..from + lines).for_each(read);
    // What falls into other sets leaves it where it is.
    let elsewhere = || (0..200).for_each(|n| load(&words[n * APART + 1].0));
    let again = || read(0);
    let found = costs(
        &mut simulator,
        &[
            &again,
            &elsewhere,
            &again,
            &|| touch(1, 5),
            &again,
            &|| touch(6, 20),
            &again,
            &|| touch(30, 100),
            &again,
        ],
    );
    // Memory, first level; after 5 others second level, after 20 the last, after 100 memory again.
    let found = [found[0], found[2], found[4], found[6], found[8]].map(f64::round);
    assert_eq!(found, [101.0, 1.0, 7.0, 31.0, 101.0]);
}

#[test]
fn a_copy_beside_others_ages_as_well() {
    let (mut simulator, words) = machine(model(2), 20 * APART);
    let found = Cell::new([0.0; 2]);
    let program = |n: usize| {
        let read = |n: usize| load(&words[n * APART].0);
        if n == 0 {
            return read(0);
        }
        spend(Ps::from_ns(1000.0));
        read(0);
        found.set([1, 7].map(|others| {
            (0..others).for_each(read);
            took(|| read(0))
        }));
    };
    simulator.run(programs(2, &program), Ps(0));
    assert_eq!(found.get(), [1.0, 7.0], "the first level, the second");
}

#[test]
fn a_line_that_a_core_finds_in_its_own_caches_has_not_moved() {
    let (mut simulator, words) = machine(model(2), 6 * APART);
    let start = core::ptr::from_ref(&words[0]).addr() - simulator.memory().start().addr().get();
    simulator.name(start, start + LINE, "line");
    let read = |n: usize| load(&words[n * APART].0);
    let program = |n: usize| match n {
        // Out of memory, and after five others out of the second level.
        0 => [0, 1, 2, 3, 4, 5, 0].into_iter().for_each(read),
        _ => {
            spend(Ps::from_ns(10_000.0));
            read(0);
        }
    };
    simulator.run(programs(2, &program), Ps(0));
    let moved = simulator.moved();
    let line = &moved.lines[0];
    assert_eq!((line.fetches, line.transfers, line.waited), (1, 1, Ps::from_ns(100.0 + 6.0 + 50.0)));
}

#[test]
fn a_cpu_adds_what_it_has_counted_to_the_totals_when_it_is_too_much() {
    // Line 0 is counted in; lines 2 and 4 are the totals.
    let (mut simulator, words) = machine(model(2), 4);
    let offset = |n: usize| core::ptr::from_ref(&words[n]).addr() - simulator.memory().start().addr().get();
    let [word, counts, all] = [0, 1, 2].map(offset);
    simulator.keep_apart(word, word + LINE);
    simulator.sum_up(word, [counts, all], 8);
    simulator.name(counts, counts + LINE, "own");
    simulator.name(all, all + LINE, "all");
    let count = |by: i64, times: usize| {
        (0..times).for_each(|_| {
            let word = &words[0].0;
            word.store(word.load(Relaxed).wrapping_add_signed(by), Relaxed);
        });
    };
    let moves = |simulator: &Simulator| -> Vec<u64> {
        simulator.moved().lines.iter().map(|line| line.transfers + line.fetches).collect()
    };
    simulator.run(
        programs(1, &|_| (0..50).for_each(|_| [4, 4, -4, -4].iter().for_each(|&by| count(by, 1)))),
        Ps(0),
    );
    assert_eq!(moves(&simulator), [0, 0], "8 up and 8 down are not too much");
    // Three make more than 8. Each total comes from the other CPU, in 50 ns, one after the other; no CPU waits for them
    // but who wants the buffer to be empty.
    let found = Cell::new([0.0; 2]);
    simulator.run(programs(1, &|_| count(4, 3)), Ps(0));
    let program = |n: usize| {
        if n == 1 {
            words[3].0.load(Relaxed);
            count(4, 2);
            found.set([took(|| count(4, 1)), took(|| words[3].0.swap(1, Acquire))]);
        }
    };
    simulator.run(programs(2, &program), Ps(0));
    assert_eq!(moves(&simulator), [2, 2]);
    let [counts, waits] = found.get();
    assert!(counts < 5.0 && (95.0..105.0).contains(&waits), "{counts} {waits}");
    assert_eq!(words[0].0.load(Relaxed), 24);
}

#[test]
fn a_core_knows_where_some_pages_are() {
    // 32 words to a page; 32 pages fit.
    let (mut simulator, words) = walking(40, Some([20_480, 20_480, 640_000]), 32.0);
    let read = |page: usize, word: usize| load(&words[page << 5 | word].0);
    let found = costs(
        &mut simulator,
        &[
            &|| read(0, 0),
            &|| read(0, 16),
            &|| (1..31).for_each(|page| read(page, 0)),
            &|| read(0, 8),
            &|| (31..40).for_each(|page| read(page, 0)),
            &|| read(0, 24),
        ],
    );
    let found = [found[0], found[1], found[3], found[5]].map(f64::round);
    assert_eq!(found, [141.0, 101.0, 101.0, 141.0]);
}

#[test]
fn what_a_cache_holds_takes_the_walk_as_well() {
    // Lines of one set, each in a page of its own; the first level has four of them.
    let again = [32.0, 256.0].map(|known| {
        let (mut simulator, words) = walking(200, Some([16 * SETS as u32, 0, 640_000]), known);
        let read = |page: usize| load(&words[page << 5].0);
        let near = || (1..10).for_each(read);
        let far = || (10..110).for_each(read);
        let found = costs(&mut simulator, &[&|| read(0), &|| read(0), &near, &|| read(0), &far, &|| read(0)]);
        [found[0], found[1], found[3], found[5]].map(f64::round)
    });
    // Memory, first level, second level while its page is known, last level.
    assert_eq!(again[0], [141.0, 1.0, 7.0, 71.0], "32 pages are known");
    assert_eq!(again[1], [141.0, 1.0, 7.0, 31.0], "all are");
}

#[test]
fn one_line_of_a_page_table_is_for_eight_pages() {
    let (mut simulator, words) = walking(64, None, TRANSLATIONS as f64);
    // Not neighbours that would make a stream, and each in another set.
    let walked = Cell::new(0);
    let program = |_: usize| {
        let read = |page: usize| took(|| words[page << 5 | page].0.load(Relaxed));
        let pages = [7, 10, 8, 14, 15, 40, 9].into_iter();
        walked.set(pages.fold(0, |all, page| all << 1 | u8::from(read(page) > 140.0)));
    };
    simulator.run(programs(1, &program), Ps(0));
    // Pages 7 to 14 share a line, as the first page of this memory is not the first that a line is for.
    assert_eq!(walked.get(), 0b100_0110, "{:b}", walked.get());
}

#[test]
fn another_cpus_read_brings_no_line_into_this_cpus_first_level() {
    let (mut simulator, words) = machine(model(2), 20 * APART);
    let found = Cell::new([0.0; 2]);
    let program = |n: usize| {
        let read = |n: usize| load(&words[n * APART].0);
        read(0);
        if n == 1 {
            // Between the first CPU's reads of others and its next read of this one.
            spend(Ps::from_ns(5000.0));
            return read(0);
        }
        spend(Ps::from_ns(1000.0));
        read(0);
        let repeated = took(|| read(0));
        (1..8).for_each(read);
        spend(Ps::from_ns(10_000.0));
        found.set([repeated, took(|| read(0))]);
    };
    simulator.run(programs(2, &program), Ps(0));
    assert_eq!(found.get(), [1.0, 7.0], "the first level, the second");
}

#[test]
fn work_that_takes_about_so_long_keeps_no_cpus_in_step() {
    let (mut simulator, _) = machine(model(1), 1);
    let report = simulator.run(programs(1, &|_| (0..1000).for_each(|_| spend_about(Ps(100_000)))), Ps(0));
    let mean = report.mean().as_ns() / 1000.0;
    assert!((99.0..101.0).contains(&mean) && mean != 100.0, "{mean}");
}

#[test]
fn neighbours_stream_at_the_bandwidth_of_a_core() {
    let (mut simulator, words) = packed(model(1), 8 * 10_000);
    let read = || words.iter().step_by(8).for_each(load);
    let report = simulator.run(programs(1, &|_| read()), Ps(0));
    // 64 bytes at 12.8 GB/s are 5 ns.
    let per_line = report.mean().as_ns() / 10_000.0;
    assert!((4.9..5.2).contains(&per_line), "{per_line}");
}

#[test]
fn lines_in_a_row_stream_out_of_a_cache_as_well() {
    // Twice a first level; and lines too far apart for a stream.
    let found = [1, 24].map(|apart: usize| {
        const LINES: usize = 512;
        let caches = Caches { l2: 128 * SETS as u32, ..model(1).caches };
        let (mut simulator, words) = packed(Model { caches, ..model(1) }, 8 * LINES * apart);
        let read = || words.iter().step_by(8 * apart).for_each(load);
        costs(&mut simulator, &[&read, &read])[1] / LINES as f64
    });
    assert!(found[0] < 1.1 && found[1] == 7.0, "{found:?}");
}

#[test]
fn a_line_moves_at_the_cost_of_a_transfer() {
    let (mut simulator, words) = machine(model(2), 1);
    let word = &words[0].0;
    let costs = core::cell::RefCell::new([0.0; 4]);
    let timed = |index: usize, access: &dyn Fn() -> u64| costs.borrow_mut()[index] = took(access);
    let program = |n: usize| {
        if n == 0 {
            word.store(1, Relaxed);
            spend(Ps::from_ns(1000.0));
            timed(2, &|| word.swap(3, Acquire));
        } else {
            spend(Ps::from_ns(500.0));
            timed(0, &|| word.load(Relaxed));
            timed(1, &|| word.load(Relaxed));
            spend(Ps::from_ns(1000.0));
            timed(3, &|| word.load(Relaxed));
        }
    };
    simulator.run(programs(2, &program), Ps(0));
    // Modified, own copy, taking away a clean copy, modified again.
    assert_eq!(costs.into_inner(), [61.0, 1.0, 51.0, 61.0]);
}

#[test]
fn a_line_stays_where_it_is_until_the_question_arrives() {
    let (mut simulator, words) = machine(model(2), 1);
    let word = &words[0].0;
    let asked = Cell::new(0.0);
    let costs = core::cell::RefCell::new(Vec::new());
    let program = |n: usize| {
        if n == 0 {
            word.store(0, Relaxed);
            spend(Ps::from_ns(500.0));
            for _ in 0..8 {
                spend(Ps::from_ns(4.0));
                costs.borrow_mut().push(took(|| word.fetch_add(1, Relaxed)));
            }
        } else {
            spend(Ps::from_ns(500.0));
            asked.set(took(|| {
                assert_eq!(word.fetch_add(100, Relaxed), 5, "what the owner did meanwhile came first");
            }));
        }
    };
    simulator.run(programs(2, &program), Ps(0));
    assert_eq!(asked.get(), 51.0, "a question and an answer");
    // The question arrives at 526 ns; the answer is there at 551, and this CPU's own question has waited since 531.
    let costs = costs.into_inner();
    assert_eq!(costs[..5], [1.0; 5]);
    assert_eq!((costs[5], &costs[6..]), (601.0 - 530.0, &[1.0; 2][..]), "{costs:?}");
}

#[test]
fn an_exchange_costs_more_than_a_load_where_it_finds_the_line() {
    let (mut simulator, words) = machine(Model { exchange_ns: 8.0, ..model(2) }, 1);
    let word = &words[0].0;
    let found = Cell::new([0.0; 3]);
    let program = |n: usize| {
        if n == 0 {
            word.store(1, Relaxed);
        } else {
            spend(Ps::from_ns(500.0));
            found.set([
                took(|| word.swap(2, Acquire)),
                took(|| word.swap(3, Acquire)),
                took(|| word.load(Acquire)),
            ]);
        }
    };
    simulator.run(programs(2, &program), Ps(0));
    assert_eq!(found.get(), [51.0, 9.0, 1.0], "what was measured as a transfer has an exchange in it");
}

#[test]
fn stores_do_not_wait_but_become_visible_in_order() {
    let (mut simulator, words) = machine(model(2), 2);
    let program = |n: usize| {
        if n == 0 {
            words[0].0.store(1, Relaxed);
            words[1].0.store(1, Release);
            assert_eq!(now().as_ns(), 2.0, "the buffer took them");
            assert_eq!(words[0].0.swap(2, Acquire), 1);
            assert!(now().as_ns() >= 101.0, "an exchange waits for them: {:?}", now());
        } else {
            spend(Ps::from_ns(3.0));
            assert_eq!(words[1].0.load(Acquire), 1);
            assert!(
                now().as_ns() >= 161.0,
                "visible when it has come from memory, then one transfer: {:?}",
                now()
            );
        }
    };
    simulator.run(programs(2, &program), Ps(0));
}

#[test]
fn requests_for_one_line_queue() {
    let (mut simulator, words) = machine(model(8), 1);
    let report = simulator.run(
        programs(8, &|_| {
            words[0].0.fetch_add(1, Relaxed);
        }),
        Ps(0),
    );
    let mut ends: Vec<f64> = report.ends.iter().map(|end| end.as_ns().round()).collect();
    ends.sort_by(f64::total_cmp);
    let expected: Vec<f64> = (0..8).map(|n| 101.0 + 50.0 * f64::from(n)).collect();
    assert_eq!(ends, expected);
    assert_eq!(words[0].0.load(Relaxed), 8);
}

#[test]
fn a_poller_sleeps_until_the_line_is_written() {
    let (mut simulator, words) = machine(model(5), 1);
    let word = &words[0].0;
    let program = |n: usize| {
        if n == 0 {
            spend(Ps::from_ns(1e6));
            word.store(1, Release);
        } else {
            while word.load(Acquire) == 0 {
                Sim::relax();
            }
        }
    };
    let report = simulator.run(programs(5, &program), Ps(0));
    let events = simulator.events();
    assert!(events.shared < 40, "a millisecond of polling is no event: {events}");
    for end in &report.ends[1..] {
        let late = end.as_ns() - 1e6;
        assert!((60.0..400.0).contains(&late), "one pause and a queue of four reads: {late}");
    }
}

#[test]
fn a_cpu_that_waits_for_none_is_found() {
    let result = std::panic::catch_unwind(|| {
        let (mut simulator, words) = machine(model(1), 1);
        simulator.run(
            programs(1, &|_| {
                while words[0].0.load(Acquire) == 0 {
                    Sim::relax();
                }
            }),
            Ps(0),
        );
    });
    let panic = result.expect_err("it never ends");
    assert!(panic.downcast_ref::<&str>().is_some_and(|text| text.starts_with("deadlock")));
    // And the thread can run others.
    let (mut simulator, words) = machine(model(1), 1);
    simulator.run(programs(1, &|_| words[0].0.store(1, Relaxed)), Ps(0));
}

#[test]
fn whoever_waits_in_vain_again_and_again_is_no_deadlock() {
    let (mut simulator, words) = machine(model(2), 3);
    let program = |n: usize| {
        if n == 1 {
            while words[0].0.load(Acquire) == 0 {
                Sim::relax();
            }
            return;
        }
        // As an allocation that fails: it asks the other CPU, which does not answer, for some pauses, and goes on.
        for round in 1..=300 {
            words[1].0.store(round, Relaxed);
            for _ in 0..1000 {
                if words[2].0.load(Acquire) != 0 {
                    break;
                }
                Sim::relax();
            }
        }
        words[0].0.store(1, Release);
    };
    simulator.run(programs(2, &program), Ps(0));
    assert_eq!(words[1].0.load(Relaxed), 300);
}

#[test]
fn a_busy_sibling_slows_and_a_waiting_one_does_not() {
    let mut smt = model(1);
    smt.shape.threads_per_core = 2;
    let time = |sibling_polls: bool| {
        let (mut simulator, words) = machine(smt.clone(), 2);
        let program = |n: usize| {
            if n == 0 {
                for _ in 0..1000 {
                    spend(Ps::from_ns(100.0));
                    words[1].0.store(1, Relaxed);
                }
                words[0].0.store(1, Release);
            } else if sibling_polls {
                while words[0].0.load(Acquire) == 0 {
                    Sim::relax();
                }
            } else {
                for _ in 0..1000 {
                    spend(Ps::from_ns(1000.0));
                    words[0].0.store(0, Relaxed);
                }
            }
        };
        simulator.run(programs(2, &program), Ps(0)).ends[0].as_ns()
    };
    assert!((1.5..1.7).contains(&(time(false) / time(true))), "{} {}", time(false), time(true));
}

#[test]
fn thousands_of_cpus_and_terabytes_of_memory() {
    let mut wide = model(1);
    wide.shape = Shape { sockets: 2, nodes: 8, cores_per_node: 250, cores_per_l3: 10, threads_per_core: 2 };
    let (mut simulator, words) = packed(wide, 1 << 38);
    simulator.run(
        programs(4000, &|n| {
            words[(n + 1) << 25].store(1, Relaxed);
            words[0].fetch_add(1, Relaxed);
        }),
        Ps(0),
    );
    assert_eq!(words[0].load(Relaxed), 4000);
}

#[test]
fn a_core_hides_a_time_and_not_a_share() {
    let mut model = model(2);
    model.fitted.dependent = 0.5;
    // Half of the reads hide all that fits into a window of 60 ns: of 30 ns half, of 200 ns thirty.
    for (far, exposed) in [(30.0, 15.0), (60.0, 30.0), (200.0, 170.0)] {
        model.latency.same_l3 = [far; 2];
        let (mut simulator, words) = machine(model.clone(), 1);
        let found = Cell::new(0.0);
        let program = |n: usize| {
            if n == 0 {
                words[0].0.store(1, Relaxed);
                spend(Ps::from_ns(1000.0));
            } else {
                spend(Ps::from_ns(500.0));
                found.set(took(|| words[0].0.load(Relaxed)));
            }
        };
        simulator.run(programs(2, &program), Ps(0));
        assert_eq!(found.get(), 1.0 + exposed, "{far}");
    }
}

#[test]
fn what_is_only_changed_and_stored_again_is_not_waited_for() {
    let (mut simulator, words) = machine(model(2), 2);
    let found = Cell::new([0.0; 2]);
    let program = |n: usize| {
        if n == 0 {
            words.iter().for_each(|word| word.0.store(1, Relaxed));
            spend(Ps::from_ns(1000.0));
        } else {
            spend(Ps::from_ns(500.0));
            let changed = took(|| words[0].0.store(words[0].0.load(Relaxed) + 1, Relaxed));
            // The CPU that looks at it first needs it.
            let used = took(|| {
                words[1].0.load(Relaxed);
                words[0].0.load(Relaxed);
                words[1].0.store(2, Relaxed);
            });
            found.set([changed, used]);
        }
    };
    simulator.run(programs(2, &program), Ps(0));
    let [changed, used] = found.get();
    assert_eq!(changed, 2.0);
    assert!(used > 61.0, "{used}");
}

#[test]
fn a_core_writes_slower_to_memory_that_is_far() {
    let mut model = model(1);
    (model.shape.sockets, model.shape.nodes) = (2, 2);
    let (mut simulator, _) = machine(model, 1);
    let ns = costs(&mut simulator, &[&|| super::stream(0, 1 << 20), &|| super::stream(1, 1 << 20)]);
    assert!((ns[1] / ns[0] - 1.5).abs() < 0.02, "150 ns instead of 100: {ns:?}");
}

#[test]
fn a_core_gets_less_of_memory_that_is_busy_or_far() {
    // What one core clears in the time in which others do.
    let gbps = |cpus: u16, remote: bool| {
        let mut model = model(cpus);
        model.shape.sockets = 2;
        model.shape.nodes = 2;
        model.shape.cores_per_node = cpus;
        let bytes = 1 << 20;
        let mut room = Room::default();
        let all = room.add::<[u64; 8]>(usize::from(cpus) * bytes / 64);
        let memory = Mapping::new(room.bytes()).expect("memory");
        let start = memory.start().addr().get() + all.offset();
        let mut simulator = Simulator::new(model, memory, 1).expect("a machine");
        let node = u16::from(remote);
        simulator.set_regions(vec![Region { end: room.bytes(), node, caches: None }]);
        let report = simulator.run(programs(cpus.into(), &|n| super::clear(start + n * bytes, bytes)), Ps(0));
        bytes as f64 / report.mean().as_ns()
    };
    let alone = gbps(1, false);
    assert!((6.2..6.4).contains(&alone), "half of 12.8 GB/s come in: {alone}");
    let far = gbps(1, true);
    assert!((alone / far - 1.5).abs() < 0.02, "150 ns instead of 100: {far}");
    let each = [4, 8, 12, 16].map(|cpus| gbps(cpus, false));
    assert!(each.is_sorted_by(|more, less| more > less), "bends long before it is full: {each:?}");
    assert!(each[0] < 0.98 * alone, "{each:?}");
    assert!(16.0 * each[3] * 2.0 < 130.0 / 0.9, "{each:?}");
}

#[test]
fn what_is_kept_apart_moves_nowhere() {
    let (mut simulator, words) = machine(model(4), 2);
    let start = core::ptr::from_ref(&words[0]).addr() - simulator.memory().start().addr().get();
    simulator.keep_apart(start, start + 64);
    let report = simulator.run(
        programs(4, &|_| {
            for _ in 0..100 {
                words[0].0.fetch_add(1, Relaxed);
            }
        }),
        Ps(0),
    );
    assert!(report.mean().as_ns() < 300.0, "one fetch and a hundred hits: {report:?}");
    assert_eq!(words[0].0.load(Relaxed), 400);
}
