//! What reading costs: memory at most 64 times the input and 64 MiB, time in proportion to it, whatever the input
//! is.
//!
//! Each input is read by a process of its own, which is this test again: its largest resident size is then the
//! reader's, and its CPU time is not that of other tests.

use std::fs;
use std::path::Path;
use std::process::Command;

use framewright_trace::import;
use framewright_trace::trace::Trace;
use parquet::basic::Compression;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use rustix::time::{ClockId, clock_gettime};

use crate::common::Folder;
use crate::trace_file::{Column, written};

const MIB: usize = 1 << 20;
/// Memory that reading may take beside 64 times its input, in bytes.
const FREE_MEMORY: u64 = 64 << 20;
const PER_BYTE: u64 = 64;
/// Reading eight times as much may take so many times as long: 8 if it is linear, 64 if it is quadratic.
const MOST_RATIO: u64 = 24;
/// Times below this say nothing, in nanoseconds.
const NOISE_NS: u64 = 3_000_000;

/// Set for the process that reads: the input's path.
const READ: &str = "FRAMEWRIGHT_TEST_READ";

/// What reading an input took.
#[derive(Clone, Copy, Debug)]
struct Cost {
    memory: u64,
    cpu_ns: u64,
    accepted: bool,
}

#[test]
fn every_reader_is_bounded_by_its_input() {
    if let Some(path) = std::env::var_os(READ) {
        return read_and_tell(path.as_ref());
    }
    let dir = Folder::new("bounds");
    let path = dir.path().join("input");
    let cost = |name: &str, input: &[u8]| {
        fs::write(&path, input).unwrap();
        let cost = read_elsewhere(&path);
        let bound = PER_BYTE * input.len() as u64 + FREE_MEMORY;
        assert!(cost.memory <= bound, "{name}: {cost:?} for {} bytes", input.len());
        cost
    };

    // Inputs of every size.
    type Input = fn(usize) -> Vec<u8>;
    let growing: [(&str, Input, bool); 5] = [
        ("a trace", trace, true),
        ("a trace of names", names, false),
        ("lines", lines, true),
        ("a line of brackets", brackets, false),
        ("a line of fields", fields, true),
    ];
    for (name, input, accepted) in growing {
        let costs = [1, 8].map(|mib| cost(name, &input(mib * MIB)));
        assert!(costs.iter().all(|cost| cost.accepted == accepted), "{name}: {costs:?}");
        let ratio = costs[1].cpu_ns / costs[0].cpu_ns.max(NOISE_NS);
        assert!(ratio <= MOST_RATIO, "{name}: {costs:?}");
    }

    // Small files that claim much.
    for (name, input) in
        [("rows", many_rows()), ("a page", long_page()), ("columns", wide()), ("texts", texts())]
    {
        assert!(input.len() < MIB, "{name}: {} bytes", input.len());
        assert!(!cost(name, &input).accepted, "{name}");
    }
}

/// Reads a file and prints what that took.
fn read_and_tell(path: &Path) {
    let bytes = fs::read(path).unwrap();
    let is_trace = bytes.starts_with(b"PAR1");
    let read = || if is_trace { Trace::read_bytes(&bytes, "t") } else { import::from_bytes(&bytes, "f") };
    let now = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
    };
    let before = resident_peak();
    let mut best = u64::MAX;
    let mut accepted = false;
    for _ in 0..3 {
        let start = now();
        accepted = read().is_ok();
        best = best.min(now() - start);
        if best > 50 * NOISE_NS {
            break;
        }
    }
    println!("\ncost {} {best} {accepted}", resident_peak() - before);
}

/// The largest resident size that this process ever had, in bytes.
fn resident_peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    1024 * line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap()
}

fn read_elsewhere(path: &Path) -> Cost {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "--nocapture", "bounds::every_reader_is_bounded_by_its_input"]);
    let output = again.env(READ, path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("cost "));
    let Some(line) = line else { panic!("{text}{}", String::from_utf8_lossy(&output.stderr)) };
    let words: Vec<&str> = line.split(' ').collect();
    let [memory, cpu_ns, accepted] = words[..] else { panic!("{line}") };
    Cost { memory: memory.parse().unwrap(), cpu_ns: cpu_ns.parse().unwrap(), accepted: accepted == "true" }
}

/// A table of so many rows, in Snappy or as `properties` say: frames that do not repeat if `rich`.
fn rows(rows: usize, rich: bool, comms: Vec<&'static str>, properties: WriterPropertiesBuilder) -> Vec<u8> {
    written(&columns(rows, rich, "mm_page_free", comms), properties.build())
}

fn columns(
    rows: usize,
    rich: bool,
    event: &'static str,
    comms: Vec<&'static str>,
) -> Vec<(&'static str, Column)> {
    let numbers = || (0..rows as i64).collect::<Vec<_>>();
    let zero = || Column::Narrow(vec![0; rows], None);
    let frames = |n: &i64| (n.wrapping_mul(0x5851_f42d_4c95_7f2d) as u64 >> 13) as i64;
    let pfn = if rich { numbers().iter().map(frames).collect() } else { vec![7; rows] };
    let time = if rich { numbers() } else { vec![1; rows] };
    vec![
        ("required int64 time_ns", Column::Wide(time)),
        ("required int32 cpu", zero()),
        ("required int32 pid", zero()),
        ("required binary comm (STRING)", Column::Text(comms)),
        ("required binary event (STRING)", Column::Text(vec![event; rows])),
        ("required int64 pfn", Column::Wide(pfn)),
        ("required int32 order", zero()),
        ("required int32 migratetype", Column::Narrow(vec![-1; rows], None)),
        ("required int64 gfp", Column::Wide(vec![0; rows])),
    ]
}

fn snappy() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_compression(Compression::SNAPPY)
}

/// Rows of 14 to 16 bytes.
fn trace(bytes: usize) -> Vec<u8> {
    rows(bytes / 16, true, vec!["cc1"; bytes / 16], snappy())
}

/// A name of its own for each row.
fn names(bytes: usize) -> Vec<u8> {
    let names = (0..bytes / 24).map(|n| &*format!("n{n:x}").leak()).collect();
    rows(bytes / 24, true, names, snappy())
}

fn many_rows() -> Vec<u8> {
    rows(1_200_000, false, vec!["a"; 1_200_000], snappy())
}

/// One page of 12 MB, compressed to almost nothing.
fn long_page() -> Vec<u8> {
    const ROWS: usize = 500_000;
    let all = WriterProperties::builder()
        .set_compression(Compression::ZSTD(Default::default()))
        .set_dictionary_enabled(false)
        .set_data_page_size_limit(1 << 30)
        .set_write_batch_size(ROWS)
        .set_data_page_row_count_limit(ROWS);
    rows(ROWS, false, vec!["twenty bytes of name"; ROWS], all)
}

fn wide() -> Vec<u8> {
    let columns: Vec<_> =
        (0..300).map(|n| (&*format!("required int32 c{n}").leak(), Column::Narrow(vec![0], None))).collect();
    written(&columns, snappy().build())
}

/// Notes of 4 MiB each, compressed to almost nothing.
fn texts() -> Vec<u8> {
    const NOTES: usize = 24;
    let text: &str = "a".repeat(4 << 20).leak();
    let mut columns = columns(NOTES, false, "/proc/zoneinfo", vec!["cc1"; NOTES]);
    columns.push(("required binary text (STRING)", Column::Text(vec![text; NOTES])));
    written(&columns, snappy().set_compression(Compression::ZSTD(Default::default())).build())
}

fn lines(bytes: usize) -> Vec<u8> {
    let line = "cc1 4562 [001] 1397.840348: kmem:mm_page_free: page=0x1 pfn=0x12dc61 order=0\n";
    line.repeat(bytes / line.len()).into_bytes()
}

fn brackets(bytes: usize) -> Vec<u8> {
    [" [".repeat(bytes / 2).as_bytes(), b"\n"].concat()
}

fn fields(bytes: usize) -> Vec<u8> {
    let start = "a 1 [000] 1.0: kmem:mm_page_alloc: ";
    let end = "pfn=1 order=0 migratetype=0 gfp_flags=GFP_KERNEL\n";
    [start, &"x=1 [y] ".repeat(bytes / 8), end].concat().into_bytes()
}
