//! The hit path costs what a hand-written twin costs, instruction by instruction, and touches nothing shared.
//!
//! Counts instructions under callgrind and reads the disassembly, so it speaks only of optimised code:
//! `cargo test --release -p framewright-host --test fastpath -- --nocapture` prints what it finds.
#![cfg(not(debug_assertions))]

mod past;
mod runs;
mod twin;
mod whole;

use core::hint::black_box;
use std::env;
use std::fs;
use std::process::Command;

use framewright_host::{Arena, Backing, Cpu, Migratetype, Order, Pfn};

// Called by name in the disassembly and under callgrind. Not inlined, so that each is one way in and out.

#[unsafe(no_mangle)]
#[inline(never)]
fn generic_alloc(cpu: &Cpu<'_>) -> Option<u64> {
    cpu.alloc(Order::ZERO, Migratetype::Movable).ok().map(|pfn| pfn.0)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn generic_free(cpu: &Cpu<'_>, pfn: u64) -> bool {
    // SAFETY: frames without memory.
    unsafe { cpu.free(Pfn(pfn), Order::ZERO) }.is_ok()
}

#[unsafe(no_mangle)]
#[inline(never)]
fn hand_alloc(cpu: &twin::Cpu<'_>) -> Option<u64> {
    cpu.alloc().ok()
}

#[unsafe(no_mangle)]
#[inline(never)]
fn hand_free(cpu: &twin::Cpu<'_>, pfn: u64) -> bool {
    cpu.free(pfn).is_ok()
}

const CALLS: u64 = 1000;
/// Instructions of a hit on x86-64, its return included.
const MOST_ALLOC: f64 = 15.0;
const MOST_FREE: f64 = 24.0;
const LISTED: u64 = 64;

/// Calls each of the four functions [`CALLS`] times, hits all.
fn hit() {
    let arena: Arena = Arena::builder().pages(4096).backing(Backing::Described).cpus(1).build().unwrap();
    let cpu = arena.attach().unwrap();
    let some: Vec<Pfn> = (0..LISTED).map(|_| cpu.alloc(Order::ZERO, Migratetype::Movable).unwrap()).collect();
    for pfn in some {
        // SAFETY: frames without memory.
        unsafe { cpu.free(pfn, Order::ZERO) }.unwrap();
    }
    // After a refill, some frees have more to do.
    for _ in 0..LISTED {
        let pfn = cpu.alloc(Order::ZERO, Migratetype::Movable).unwrap();
        // SAFETY: frames without memory.
        unsafe { cpu.free(pfn, Order::ZERO) }.unwrap();
    }
    let before = arena.allocator().totals().pcp;
    for _ in 0..CALLS {
        let pfn = generic_alloc(black_box(&cpu)).unwrap();
        assert!(generic_free(black_box(&cpu), black_box(pfn)));
    }
    assert_eq!(arena.allocator().totals().pcp, before, "all of it were hits");

    let memory = twin::Memory::new(4096, LISTED);
    let (allocator, pcp) = (memory.allocator(), memory.pcp(LISTED));
    let cpu = twin::Cpu::new(&allocator, &pcp);
    for _ in 0..CALLS {
        let pfn = hand_alloc(black_box(&cpu)).unwrap();
        assert!(hand_free(black_box(&cpu), black_box(pfn)));
    }
    assert_eq!(pcp.misses(), 0);
}

#[test]
fn the_hits_that_are_counted_hit() {
    hit();
}

/// Instructions of one call of `function`, those of what it calls included, of `calls` that a test makes.
fn count_in(test: &str, function: &str, calls: u64) -> f64 {
    let out = env::temp_dir().join(format!("framewright-callgrind.{}.{function}", std::process::id()));
    let run = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg("--collect-atstart=no")
        .arg(format!("--toggle-collect={function}"))
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1"])
        .output()
        .unwrap_or_else(|error| panic!("valgrind: {error}"));
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&run.stderr)
    );
    let profile = fs::read_to_string(&out).unwrap();
    let _ = fs::remove_file(&out);
    let total = profile.lines().find_map(|line| line.strip_prefix("summary:")).expect("a callgrind profile");
    let total: u64 = total.trim().parse().expect("one event, instructions");
    assert!(total >= calls, "{function} was not called: {total} instructions");
    total as f64 / calls as f64
}

/// Instructions of one call that [`hit`] makes.
fn count(function: &str) -> f64 {
    count_in("the_hits_that_are_counted_hit", function, CALLS)
}

fn disassemble(function: &str) -> String {
    let run = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn", &format!("--disassemble={function}")])
        .arg(env::current_exe().unwrap())
        .output()
        .unwrap_or_else(|error| panic!("objdump: {error}"));
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(text.contains(&format!("<{function}>:")), "{function} is not in the disassembly");
    text
}

/// Instructions that lock a line or order memory beyond what every x86 access does.
fn is_locked(line: &str) -> bool {
    let instruction = line.split('\t').nth(1).unwrap_or_default();
    instruction.starts_with("lock")
        || instruction.starts_with("mfence")
        || instruction.starts_with("xchg") && instruction.contains('(')
}

fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        assert!(
            env::var_os("CI").is_none(),
            "{tool} is not installed, and in CI this test must not be skipped"
        );
        println!("skipped: {tool} is not installed (apt-get install valgrind binutils)");
    }
    found
}

#[test]
fn the_platform_costs_no_instruction() {
    if !has("valgrind") {
        return;
    }
    let [alloc, free, hand_alloc, hand_free] =
        ["generic_alloc", "generic_free", "hand_alloc", "hand_free"].map(count);
    println!("instructions a hit: alloc {alloc}, by hand {hand_alloc}; free {free}, by hand {hand_free}");
    // One more is allowed, for a register that the compiler happens to choose otherwise.
    assert!(alloc <= hand_alloc + 1.0, "alloc: {alloc} instructions, by hand {hand_alloc}");
    assert!(free <= hand_free + 1.0, "free: {free} instructions, by hand {hand_free}");
    if cfg!(target_arch = "x86_64") {
        assert!(alloc <= MOST_ALLOC && free <= MOST_FREE, "alloc {alloc}, free {free}");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_hit_locks_nothing() {
    if !has("objdump") {
        return;
    }
    for function in ["generic_alloc", "generic_free"] {
        let text = disassemble(function);
        println!("{text}");
        let locked: Vec<&str> = text.lines().filter(|line| is_locked(line)).collect();
        assert!(locked.is_empty(), "{function}: {locked:?}");
        assert!(text.contains("ret"), "{function}: no way out");
    }
    assert!(is_locked("  401000:\tlock xadd %rax,(%rdi)"), "the test would notice");
}

/// Most instructions of 256 frames in few runs: some 48 runs of three blocks each, from three or four pageblocks.
const MOST_RUNS: f64 = 11_500.0;

#[test]
fn half_the_runs_of_single_frames() {
    let (runs, singles) = runs::runs_and_singles();
    println!("{:.1} runs a call, {singles} of single frames", runs as f64 / runs::CALLS as f64);
    assert!(
        2 * runs <= singles * runs::CALLS as usize,
        "{runs} runs of all calls, {singles} of single frames"
    );
}

#[test]
fn few_runs_cost_little() {
    if !has("valgrind") {
        return;
    }
    let instructions = count_in("half_the_runs_of_single_frames", "few_runs", runs::CALLS);
    println!("instructions of 256 frames in few runs: {instructions}");
    if cfg!(target_arch = "x86_64") {
        assert!(instructions <= MOST_RUNS, "{instructions} instructions, {MOST_RUNS} at most");
    }
}

#[test]
fn pairs_in_one_section() {
    past::pairs(1);
}

#[test]
fn pairs_in_sixteen_sections() {
    past::pairs(16);
}

#[test]
fn pairs_on_the_other_node() {
    past::pairs_elsewhere(2);
}

#[test]
fn pairs_on_the_last_of_four_nodes() {
    past::pairs_elsewhere(4);
}

#[test]
fn pairs_in_many_arenas() {
    past::pairs_in_turn();
}

/// A test, a function that it calls, the blocks or pairs of all its calls, and the most instructions of each on x86-64:
/// pairs past the lists; pairs on the second of two nodes, and on the last of four; pairs of a thread that uses 256
/// shared arenas in turn; frames in one section; huge pages in eight, as on two CPUs; pageblocks of new memory.
const MOST: [(&str, &str, u64, f64); 11] = [
    ("pairs_in_one_section", "pair_past_the_lists", past::PAIRS, 2_400.0),
    ("pairs_in_sixteen_sections", "pair_past_the_lists", past::PAIRS, 2_900.0),
    ("pairs_on_the_other_node", "pair_elsewhere", past::PAIRS, 390.0),
    ("pairs_on_the_last_of_four_nodes", "pair_elsewhere", past::PAIRS, 520.0),
    ("pairs_in_many_arenas", "pair_in_turn", past::PAIRS, 335.0),
    ("all_the_memory_is_had_and_given_back", "get_all_frames", 2 * whole::FRAMES, 50.0),
    ("all_the_memory_is_had_and_given_back", "put_in_order", whole::FRAMES, 160.0),
    ("all_the_memory_is_had_and_given_back", "put_at_random", whole::FRAMES, 345.0),
    ("all_huge_pages_are_had_and_given_back", "get_huge_pages", whole::HUGE_PAGES, 380.0),
    ("all_huge_pages_are_had_and_given_back", "put_huge_pages_at_random", whole::HUGE_PAGES, 610.0),
    ("memory_is_added", "add_pageblocks", whole::ADDED, 190.0),
];

#[test]
fn all_the_memory_is_had_and_given_back() {
    whole::get_and_put_all();
}

#[test]
fn all_huge_pages_are_had_and_given_back() {
    whole::get_and_put_huge_pages();
}

#[test]
fn memory_is_added() {
    whole::add();
}

/// What a compiler inlines, or does not, is as large a part of a refill as what the code says.
#[test]
fn calls_that_miss_cost_no_more_than_they_did() {
    if !has("valgrind") {
        return;
    }
    for (test, function, blocks, most) in MOST {
        let instructions = count_in(test, function, blocks);
        println!("{test}, {function}: {instructions:.1} instructions");
        if cfg!(target_arch = "x86_64") {
            assert!(instructions <= most, "{function}: {instructions} instructions, {most} at most");
        }
    }
}
