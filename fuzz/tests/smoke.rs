//! A short run of every target on a stable toolchain: seeds, regressions, and mutations of both.
//!
//! The mutations are the same in every run. This finds what is shallow; libFuzzer, which sees which branches an
//! input takes, finds the rest.
#![cfg(any(feature = "readers", feature = "allocator"))]

use std::panic::catch_unwind;
use std::{env, fs};

use framewright_fuzz::{TARGETS, Target, regressions};

/// Mutations per target; a hundred times as many with `FRAMEWRIGHT_FULL=1`, a tenth with `FRAMEWRIGHT_QUICK=1`.
const MUTATIONS: u64 = 3_000;

fn run(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a known target");
    let mut pool = (target.seeds)();
    assert!(pool.len() > 1, "{name} has hardly a seed");
    let seeds = pool.len();
    let taken = pool.iter().filter(|input| try_one(target, input)).count();
    assert!(taken > seeds / 2, "{name}: of {seeds} seeds only {taken} are taken, the others lead nowhere");
    pool.extend(regressions(target));
    for input in &pool[seeds..] {
        try_one(target, input);
    }
    let mut random = fastrand::Rng::with_seed(1);
    let is_set = |name| env::var_os(name).is_some();
    let mutations = match () {
        () if is_set("FRAMEWRIGHT_FULL") => 100 * MUTATIONS,
        () if is_set("FRAMEWRIGHT_QUICK") => MUTATIONS / 10,
        () => MUTATIONS,
    };
    let mut taken = 0;
    for _ in 0..mutations {
        let mut input = pool[random.usize(..pool.len())].clone();
        for _ in 0..=random.usize(..4) {
            mutate(&mut input, &pool, &mut random);
        }
        taken += u64::from(try_one(target, &input));
    }
    println!("{name}: {taken} of {mutations} mutations were taken");
    assert!(taken > 0 && taken < mutations, "{name}: {taken} of {mutations} mutations were taken");
}

#[track_caller]
fn try_one(target: &Target, input: &[u8]) -> bool {
    catch_unwind(|| (target.run)(input)).unwrap_or_else(|_| {
        let name = target.name;
        let file = env::temp_dir().join(format!("framewright-{name}-{:016x}", hash(input)));
        fs::write(&file, input).expect("a temporary file can be written");
        panic!(
            "see it again: cargo run -p framewright-fuzz --all-features --bin {name} -- {}",
            file.display()
        );
    })
}

/// Changes `input` as a fuzzer without insight does.
fn mutate(input: &mut Vec<u8>, pool: &[Vec<u8>], random: &mut fastrand::Rng) {
    const NUMBERS: [u64; 8] =
        [0, 1, 0x7F, 0xFF, 0x7FFF_FFFF, 0xFFFF_FFFF, i64::MAX.cast_unsigned(), u64::MAX];
    let at = random.usize(..input.len() + 1);
    match random.usize(..8) {
        0 => input.truncate(at),
        1 => input.insert(at, random.u8(..)),
        // Half of all positions lie in the last sixteenth: formats keep their tables at the end.
        2 | 3 if !input.is_empty() => {
            let window = if random.bool() { input.len() } else { input.len().div_ceil(16) };
            let at = input.len() - 1 - random.usize(..window);
            input[at] ^= 1 << random.usize(..8);
        }
        4 => {
            let number = NUMBERS[random.usize(..NUMBERS.len())].to_le_bytes();
            let width = [1, 2, 4, 8][random.usize(..4)].min(input.len() - at);
            input[at..at + width].copy_from_slice(&number[..width]);
        }
        5 => {
            let end = (at + random.usize(..64)).min(input.len());
            let piece = input[at..end].to_vec();
            let to = random.usize(..input.len() + 1);
            input.splice(to..to, piece);
        }
        // Numbers in text.
        6 => {
            if let Some(digit) = input[at..].iter_mut().find(|byte| byte.is_ascii_digit()) {
                *digit = b'0' + random.usize(..10) as u8;
            }
        }
        _ => {
            let donor = &pool[random.usize(..pool.len())];
            let from = random.usize(..donor.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&donor[from..]);
        }
    }
}

/// FNV-1a, 64 bits.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

#[cfg(feature = "readers")]
#[test]
fn trace() {
    run("trace");
}

#[cfg(feature = "readers")]
#[test]
fn import() {
    run("import");
}

#[cfg(feature = "readers")]
#[test]
fn documents() {
    run("documents");
}

#[cfg(feature = "readers")]
#[test]
fn commands() {
    run("commands");
}

#[cfg(feature = "allocator")]
#[test]
fn allocator() {
    run("allocator");
}

#[cfg(feature = "allocator")]
#[test]
fn maps() {
    run("maps");
}

/// A folder of another name would be read by no target.
#[test]
fn every_regression_is_a_targets() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in here.join("regressions").read_dir().expect("the checkout has it") {
        let name = folder.expect("it is listed").file_name().into_string().expect("text");
        assert!(here.join("fuzz_targets").join(format!("{name}.rs")).exists(), "regressions/{name}");
    }
}

#[test]
fn a_target_that_breaks_is_seen() {
    let run = |input: &[u8]| {
        assert!(!input.starts_with(b"b"));
        true
    };
    let broken = Target { name: "broken", run, seeds: Vec::new };
    assert!(try_one(&broken, b"a"));
    let panic = catch_unwind(|| try_one(&broken, b"b")).expect_err("it breaks");
    let message = panic.downcast_ref::<String>().expect("words");
    let (_, file) = message.split_once("--bin broken -- ").expect("how to see it again");
    assert_eq!(fs::read(file).expect("the input is kept"), b"b");
    fs::remove_file(file).expect("it is ours");
}
