//! Result of a scenario, as a few digests, and the file that has their last values.

use core::fmt::{self, Write as _};
use std::collections::BTreeMap;
use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use framewright_check::platform::checked::{Tally, tally};

/// A digest of everything that is written to it: 64-bit FNV-1a, which is the same on every machine.
#[derive(Clone, Copy)]
pub(crate) struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    pub(crate) fn word(&mut self, word: u64) {
        self.bytes(&word.to_le_bytes());
    }

    pub(crate) fn of(&mut self, value: &dyn fmt::Debug) {
        writeln!(self, "{value:?}").expect("a digest takes everything");
    }
}

impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}

/// Result of a scenario.
#[derive(Default)]
pub(crate) struct Trail {
    /// Calls of the allocator.
    calls: u64,
    /// Results of the calls, and calls to helpers: frames, refusals, asks of reclaimers.
    pub(crate) returned: Digest,
    /// Places of free memory, and types of pageblocks.
    pub(crate) free: Digest,
    /// Counters, sizes of lists, watermarks.
    pub(crate) counted: Digest,
    /// Accesses to shared words and cells during calls.
    touched: Tally,
}

impl Trail {
    /// Makes one call and counts what it touches. What it returns is noted.
    pub(crate) fn call<R: fmt::Debug>(&mut self, f: impl FnOnce() -> R) -> R {
        let (result, touched) = tally(f);
        self.note(&result);
        self.add(touched);
        result
    }

    /// Notes what a call returned.
    pub(crate) fn note(&mut self, value: &dyn fmt::Debug) {
        self.returned.of(value);
    }

    /// Notes what a call touched.
    pub(crate) fn add(&mut self, touched: Tally) {
        self.calls += 1;
        let all = &mut self.touched;
        all.loads += touched.loads;
        all.stores += touched.stores;
        all.rmws += touched.rmws;
        all.cell_reads += touched.cell_reads;
        all.cell_writes += touched.cell_writes;
        all.relaxes += touched.relaxes;
    }

    fn seen(&self) -> String {
        format!(
            "{} calls, returned {:016x}, free {:016x}, counted {:016x}",
            self.calls, self.returned.0, self.free.0, self.counted.0
        )
    }
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/behaviour/digests.txt")
}

/// The file, by scenario: what was seen, and what was touched.
fn read() -> BTreeMap<String, (String, String)> {
    let text = fs::read_to_string(path()).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &str| {
        let (name, rest) = line.split_once(": ")?;
        let (seen, touched) = rest.split_once("; ")?;
        Some((name.to_owned(), (seen.to_owned(), touched.to_owned())))
    };
    lines.map(|line| entry(line).unwrap_or_else(|| panic!("no line of digests: {line}"))).collect()
}

const HEAD: &str = "\
# What each scenario of tests/all/behaviour does: see behaviour.rs. Written by
#
#   FRAMEWRIGHT_REFRESH=all cargo test -p framewright-check --test all behaviour
#
# or, for the scenarios only whose names contain a text, FRAMEWRIGHT_REFRESH=TEXT. What changes here has changed on purpose, and
# the commit says why.

";

static WRITING: Mutex<()> = Mutex::new(());

fn write(name: &str, seen: String, touched: String) {
    let _guard = WRITING.lock().expect("no scenario panics here");
    let mut all = read();
    all.retain(|name, _| super::NAMES.contains(&name.as_str()));
    all.insert(name.to_owned(), (seen, touched));
    let mut text = HEAD.to_owned();
    for (name, (seen, touched)) in all {
        writeln!(text, "{name}: {seen}; {touched}").expect("a string takes everything");
    }
    fs::write(path(), text).expect("the file can be written");
}

/// Runs a scenario on a thread of its own, whose clock begins at 0, and compares what it shows with the file.
pub(crate) fn check(name: &str, scenario: impl FnOnce(&mut Trail) + Send) {
    let run = || {
        let mut trail = Trail::default();
        scenario(&mut trail);
        trail
    };
    let joined = std::thread::scope(|scope| scope.spawn(run).join());
    let trail = joined.unwrap_or_else(|panic| resume_unwind(panic));
    let (seen, touched) = (trail.seen(), format!("{:?}", trail.touched));
    // Assertions touch shared words, too.
    let counts = cfg!(debug_assertions);
    if let Some(which) = std::env::var_os("FRAMEWRIGHT_REFRESH") {
        let which = which.to_string_lossy();
        if which == "all" || name.contains(&*which) {
            assert!(counts, "refreshed with debug assertions only, which the counts of accesses include");
            return write(name, seen, touched);
        }
    }
    let how =
        "if this is meant, FRAMEWRIGHT_REFRESH=all cargo test -p framewright-check --test all behaviour";
    let known = read().remove(name);
    let (known, accesses) = known.unwrap_or_else(|| panic!("{name} is not in {}; {how}", path().display()));
    assert_eq!(seen, known, "{name} behaves in another way; {how}");
    if counts {
        assert_eq!(touched, accesses, "{name} does the same with other accesses to shared words; {how}");
    }
}
