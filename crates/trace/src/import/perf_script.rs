//! The text of `perf script`, of ftrace's `trace` file and of `trace-cmd report`, in their default forms for
//! tracepoints: a line for each event, `…` being `migratetype=1 gfp_flags=GFP_KERNEL`.
//!
//! ```text
//!     cc1  4562 [001]  1397.840348: kmem:mm_page_alloc: page=0x12dc61 pfn=0x12dc61 order=0 …
//!     cc1-4562  [001] d..2.  1397.840348: mm_page_alloc: page=00000000f3a2b1c0 pfn=0x12dc61 order=0 …
//!     cc1-4562  [001]  1397.840348: mm_page_alloc:        page=0x12dc61 pfn=0x12dc61 order=0 …
//! ```
//!
//! Samples of perf's `cpu-clock` and `task-clock` with their call chains (`perf record -g`) become the trace's samples
//! of the kernel. Lines of other events are passed over, and so are comments, what `trace-cmd` says of its CPUs, and
//! the frames of other call chains. Everything else must parse.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, Read as _};

use super::ENDED_THREAD;
use crate::kernel_time;
use crate::kmem::report::{Report, What, name};
use crate::kmem::{self, gfp};
use crate::trace::{EventKind, Meta, Note, Trace};

/// Digits of a CPU's number, at most: `[00000]`.
const CPU_DIGITS: usize = 5;

/// Names of flags that are not known, at most, and their lengths.
const UNKNOWN_NAMES: usize = 16;
const UNKNOWN_LENGTH: usize = 64;

/// What is wrong with a text, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Counted from 1.
    pub(super) line: u64,
    /// Offset of the line's first byte.
    pub(super) byte: u64,
    pub(super) what: String,
}

/// Longest line: no event takes a thousandth of that.
const LONGEST: u64 = 16 << 20;

/// Imports a whole text, line by line: no more of it is kept than its events.
pub(super) fn parse(mut text: impl BufRead) -> Result<Trace, Fault> {
    let mut reports = Vec::new();
    let mut unknown = BTreeSet::new();
    let mut lost_events = None;
    let mut meta = Meta {
        source: "perf script".into(),
        attribution: "all events of the imported file".into(),
        clock: "perf".into(),
        ..Meta::default()
    };
    let (mut byte, mut whole) = (0, Vec::new());
    let (mut samples, mut begun) = (Samples::default(), false);
    for number in 1.. {
        let fault = |what: String| Fault { line: number, byte, what };
        whole.clear();
        let length = text.by_ref().take(LONGEST).read_until(b'\n', &mut whole);
        if length.map_err(|cause| fault(format!("it cannot be read: {cause}")))? == 0 {
            break;
        }
        // Half a number would still be a number.
        let Some(line) = whole.strip_suffix(b"\n") else {
            let is_long = whole.len() as u64 == LONGEST;
            return Err(fault(
                if is_long { "a line of more than 16 MiB" } else { "the text ends within this line" }
                    .to_owned(),
            ));
        };
        if line.contains(&0) {
            return Err(fault("a byte of 0, which no text has".to_owned()));
        }
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
        if line.starts_with('\t') && begun {
            samples.frame(&line);
        } else if !(line.trim().is_empty() || line.starts_with('#') || is_about_cpus(&line)) {
            begun = true;
            samples.end();
            match parse_line(&line, &mut unknown).map_err(fault)? {
                Line::Page(both) => reports.extend(both),
                Line::Sample { period_ns, frame } => samples.begin(period_ns, frame),
                Line::Other => {}
            }
        }
        if let Some(header) = line.strip_prefix("# ") {
            note_header(&mut meta, header);
        }
        if let Some(more) = lost(&line) {
            lost_events = Some(lost_events.unwrap_or(0_u64).saturating_add(more));
        }
        byte += whole.len() as u64;
    }
    meta.lost_events = lost_events;
    meta.unknown_flags = unknown.into_iter().collect::<Vec<_>>().join(" ");
    let mut trace = super::whole(reports, meta);
    samples.end();
    if samples.period_ns > 0 {
        let text = kernel_time::text(samples.period_ns, 0, None, samples.by_stack);
        let time_ns = trace.events.last().map_or(0, |event| event.time_ns);
        let name = kernel_time::NOTE.to_owned();
        trace.notes.push(Note { time_ns, cpu: 0, pid: 0, comm: 0, name, text });
    }
    Ok(trace)
}

/// Samples of a clock.
#[derive(Default)]
struct Samples {
    /// CPU time between two samples.
    period_ns: u64,
    by_stack: HashMap<String, u64>,
    /// Functions of the kernel of the sample that is being read, the innermost first.
    open: Option<Vec<String>>,
}

impl Samples {
    fn begin(&mut self, period_ns: u64, frame: &str) {
        self.period_ns = period_ns;
        self.open = Some(Vec::new());
        self.frame(frame);
    }

    /// A frame of a call chain, `ADDRESS FUNCTION+OFFSET (FILE)`, if a sample is being read and it is the kernel's.
    fn frame(&mut self, line: &str) {
        let Some(open) = &mut self.open else { return };
        let Some((before, file)) = line.trim().strip_suffix(')').and_then(|line| line.rsplit_once(" ("))
        else {
            return;
        };
        let module =
            |name: &str| !matches!(name, "unknown" | "vdso" | "vsyscall" | "heap" | "stack" | "uprobes");
        let in_kernel = file.strip_prefix('[').and_then(|file| file.strip_suffix(']')).is_some_and(module);
        if in_kernel || file.contains(".ko") || file.contains("vmlinux") {
            let function = before.split_whitespace().nth(1).unwrap_or("[unknown]");
            let function = function.rsplit_once("+0x").map_or(function, |(name, _)| name);
            open.push(if function == "[unknown]" { kernel_time::UNKNOWN } else { function }.to_owned());
        }
    }

    fn end(&mut self) {
        if let Some(functions) = self.open.take() {
            let stack = kernel_time::folded(functions.iter().map(String::as_str).collect());
            *self.by_stack.entry(stack).or_default() += 1;
        }
    }
}

/// Content of a line.
enum Line<'a> {
    /// The name of a thread and its event.
    Page([Report; 2]),
    /// A sample of a clock: the CPU time that it stands for, and its function if it has no call chain.
    Sample { period_ns: u64, frame: &'a str },
    /// Another event, or a sample of an idle CPU.
    Other,
}

/// Keeps a line of the header that `perf script --header` prints.
fn note_header(meta: &mut Meta, line: &str) {
    let Some((key, value)) = line.split_once(" : ") else { return };
    match key.trim_end() {
        "os release" => meta.kernel = value.trim().to_owned(),
        "nrcpus online" => meta.cpus = value.trim().parse().unwrap_or(0),
        "cpudesc" => meta.machine = value.trim().to_owned(),
        "total memory" => {
            let kib = value.strip_suffix(" kB").and_then(|kib| kib.trim().parse::<u64>().ok());
            kib.into_iter().for_each(|kib| meta.machine += &format!(", {} MiB", kib >> 10));
        }
        "cmdline" => meta.command = value.trim().to_owned(),
        _ => {}
    }
}

/// What `trace-cmd report` says of CPUs: `cpus=2`, `CPU 1 is empty`, `CPU:0 [12 EVENTS DROPPED]`.
fn is_about_cpus(line: &str) -> bool {
    // A thread of an emulator is called `CPU 0/KVM`.
    let empty = |rest: &&str| rest.ends_with("is empty");
    let number = line.strip_prefix("cpus=").or_else(|| line.strip_prefix("CPU ").filter(empty));
    let number = number.or_else(|| line.strip_prefix("CPU:").filter(|rest| rest.contains("EVENTS")));
    number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Events that a line says are missing here: `CPU:1 [LOST 37 EVENTS]` of ftrace, `CPU:1 [37 EVENTS DROPPED]` of
/// `trace-cmd`, `… 1.5: PERF_RECORD_LOST lost 37` of perf.
fn lost(line: &str) -> Option<u64> {
    if let Some((_, number)) = line.split_once(": PERF_RECORD_LOST lost ") {
        return number.trim().parse().ok();
    }
    let (_, inside) = line.strip_prefix("CPU:")?.split_once(" [")?;
    let inside = inside.strip_suffix(']')?;
    let number = inside.strip_prefix("LOST ").and_then(|rest| rest.strip_suffix(" EVENTS"));
    number.or_else(|| inside.strip_suffix(" EVENTS DROPPED"))?.trim().parse().ok()
}

fn parse_line<'a>(line: &'a str, unknown: &mut BTreeSet<String>) -> Result<Line<'a>, String> {
    let (thread, cpu, rest) =
        split(line).ok_or_else(|| format!("not a line of perf script or ftrace: {:?}", shorten(line)))?;
    let (time, rest) = rest.split_once(": ").ok_or("no time before the event")?;
    let time_ns = parse_time(time).ok_or_else(|| format!("the time {time:?} is not one"))?;
    let (comm, pid) = parse_thread(thread).ok_or_else(|| format!("no thread before the CPU: {thread:?}"))?;
    if let Some((period_ns, frame)) = clock_sample(rest) {
        return Ok(if comm == "swapper" { Line::Other } else { Line::Sample { period_ns, frame } });
    }
    let report = |what| Report { time_ns, cpu, pid, what };
    Ok(parse_event(rest, unknown)?.map_or(Line::Other, |event| {
        Line::Page([report(What::Rename { pid, name: name(comm.as_bytes()) }), report(event)])
    }))
}

/// `PERIOD cpu-clock: FRAME`: the period in ns, and the frame if there is no call chain.
fn clock_sample(text: &str) -> Option<(u64, &str)> {
    let (period, rest) = text.trim_start().split_once(char::is_whitespace)?;
    let event = rest.trim_start();
    let is_clock = matches!(event.split(':').next(), Some("cpu-clock" | "task-clock"));
    let frame = event.split_once(": ").map_or("", |(_, frame)| frame);
    Some((period.parse().ok().filter(|&period: &u64| period > 0 && is_clock)?, frame))
}

/// Splits at the CPU: what is before it, its number, what is after it. A thread's name may hold anything, so
/// the last thing that looks like a CPU with a time after it is the one. O(length).
fn split(line: &str) -> Option<(&str, u16, &str)> {
    line.rmatch_indices(" [").find_map(|(at, _)| {
        let rest = &line[at + 2..];
        // No further than a CPU's digits may reach: a line may hold any number of brackets.
        let digits = rest.bytes().take(CPU_DIGITS + 1).take_while(u8::is_ascii_digit).count();
        let number = rest[..digits].parse().ok()?;
        let rest = skip_state(rest[digits..].strip_prefix(']')?.trim_start());
        rest.starts_with(|c: char| c.is_ascii_digit()).then_some((line[..at].trim(), number, rest))
    })
}

/// What is behind ftrace's letters for interrupts, preemption and so on (`d..2.`), if they are there.
fn skip_state(text: &str) -> &str {
    const LETTERS: core::ops::RangeInclusive<usize> = 4..=6;
    let (letters, rest) = text.split_once(' ').unwrap_or((text, ""));
    let known = |byte: u8| byte == b'.' || byte.is_ascii_alphanumeric();
    let is_state = LETTERS.contains(&letters.len()) && letters.bytes().all(known);
    if is_state { rest.trim_start() } else { text }
}

/// `COMM PID`, `COMM PID/TID` or `COMM-PID`: the name and the thread's number.
fn parse_thread(text: &str) -> Option<(&str, u32)> {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // ftrace may put the process behind it: `cc1-4562 (4562)`.
    let text = match text.rsplit_once('(') {
        Some((before, behind))
            if behind.ends_with(')')
                && before.trim_end().rsplit_once('-').is_some_and(|(_, number)| is_digits(number)) =>
        {
            before.trim_end()
        }
        _ => text,
    };
    // Not the -1 of a thread that perf found ended: ` -1`, ` -1/-1`.
    let is_name = |comm: &str| !comm.ends_with(|c: char| c.is_whitespace() || c == '/');
    let dashed = text.rsplit_once('-').filter(|(comm, number)| is_digits(number) && is_name(comm));
    let (comm, number) = dashed.or_else(|| text.rsplit_once(char::is_whitespace))?;
    // The kernel's are positive 32-bit integers, and so is the trace's column.
    let pid = match number.rsplit('/').next()?.parse::<i32>().ok()? {
        -1 => ENDED_THREAD,
        number => number.try_into().ok()?,
    };
    Some((comm.trim(), pid))
}

/// `SECONDS.FRACTION` in nanoseconds.
fn parse_time(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanoseconds: u64 = format!("{fraction:0<9}").parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// `[PERIOD] [kmem:]NAME: KEY=VALUE …`; `None` if the event is not one of ours.
fn parse_event(text: &str, unknown: &mut BTreeSet<String>) -> Result<Option<What>, String> {
    let text = text.trim_start_matches(|c: char| c.is_ascii_digit() || c.is_whitespace());
    let (event, fields) = text.split_once(": ").unwrap_or((text.trim_end_matches(':'), ""));
    let name = event.strip_prefix("kmem:").unwrap_or(event);
    let Some(kind) = EventKind::from_name(name) else { return Ok(None) };
    let find =
        |key: &str| fields.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let need = |key: &str| find(key).ok_or_else(|| format!("{kind} without {key}"));
    let number = |key: &str| {
        let text = need(key)?;
        parse_number(text).ok_or_else(|| format!("{key}={text} is no number"))
    };

    let pfn = number("pfn")?;
    // A failed allocation prints a frame 0 beside a null page; no allocator hands out frame 0.
    if kind == EventKind::PageAlloc && pfn == 0 {
        return Ok(Some(What::NoPage));
    }
    let has_migratetype = !matches!(kind, EventKind::PageFree | EventKind::PageFreeBatched);
    let migratetype = has_migratetype.then(|| number("migratetype")).transpose()?;
    let flags = if kind == EventKind::PageAlloc {
        gfp::parse(need("gfp_flags")?, |name| note(unknown, name))?
    } else {
        0
    };
    kmem::page(kind, pfn, number("order")?, migratetype, flags).map(|page| page.map(What::Page))
}

/// Keeps the name of a flag that is not known, of the first few.
fn note(unknown: &mut BTreeSet<String>, name: &str) {
    if unknown.len() < UNKNOWN_NAMES && name.len() <= UNKNOWN_LENGTH {
        unknown.insert(name.to_owned());
    }
}

/// A decimal number, or a hexadecimal one after `0x`.
fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A text short enough for a message.
fn shorten(text: &str) -> String {
    text.chars().take(60).collect()
}
