//! `framewright trace export`: writes a recorded trace in the format of a tool that draws it.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use clap::ValueEnum;
use framewright_trace::trace::{Event, EventKind};

use crate::command::*;
use crate::profile::{Ended, follow, type_name};

const EXAMPLES: &str = "\
Examples:
  framewright trace export compile.parquet --to perfetto -o compile.json
  framewright trace export compile.parquet --to folded -o compile.folded
  framewright trace export compile.parquet --to folded \\
      --weight page-milliseconds | inferno-flamegraph >held.svg

perfetto: for ui.perfetto.dev. A track for each CPU shows when each thread
allocated; counters show the pages in use, in all and by the threads that hold
most. folded: for flame graphs, a line for each thread, type and order.
Events have no call sites; `trace summary` names those of the samples.";

/// Write a trace for ui.perfetto.dev, or for flame graphs
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A trace that was recorded or imported
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// The tool's format
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: To,

    /// Meaning of the widths of a flame graph [default: pages]
    #[arg(long, value_enum, value_name = "WEIGHT")]
    weight: Option<Weight>,

    /// The file; without it, standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Format of another tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum To {
    /// Chrome's trace events (JSON)
    Perfetto,
    /// Folded stacks
    Folded,
}

impl To {
    const fn what(self) -> &'static str {
        match self {
            Self::Perfetto => "A trace for ui.perfetto.dev",
            Self::Folded => "Folded stacks",
        }
    }
}

/// Weight of a flame graph's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Weight {
    /// Pages that were allocated
    #[default]
    Pages,
    /// Allocations
    Allocations,
    /// Pages times the milliseconds that they were in use
    #[value(alias = "page-seconds")]
    PageMilliseconds,
}

/// Writes a trace in another tool's format.
///
/// # Errors
/// It cannot be read or written, or `--weight` changes nothing.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    if args.weight.is_some() && args.to == To::Perfetto {
        return Err(Error::usage("--weight is for flame graphs: leave it out with --to perfetto"));
    }
    let output = args.output.as_deref().map(|path| open_beside(path, &[&args.trace])).transpose()?;
    let (trace, _) = shipped::read(&args.trace)?;
    let write = |out: &mut dyn Write| match args.to {
        To::Perfetto => perfetto(&trace, out),
        To::Folded => out.write_all(folded(&trace, args.weight.unwrap_or_default()).as_bytes()),
    };
    match output {
        Some(output) => {
            let path = output.path().display().to_string();
            output.finish_with(write).map_err(Error::failed)?;
            session.terminal.print(&format!("{} written to {path}.\n", args.to.what()))
        }
        None => session.terminal.print_pieces(write),
    }
}

/// A CPU's events of one thread belong to one burst if the pause between them is no longer than this, in ns.
const PAUSE: u64 = 100_000;
/// Values of a counter at most.
const STEPS: u64 = 4000;
/// Threads whose pages have a counter of their own.
const HOLDERS: usize = 8;

/// Events of one thread on a CPU without a pause.
struct Burst {
    pid: u32,
    comm: u32,
    start: u64,
    end: u64,
    allocations: u64,
    frees: u64,
    pages: u64,
}

/// Writes Chrome's trace events, times in µs from the first event. Piece by piece: they can be longer than the trace.
fn perfetto(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut comma = "\n";
    let mut event = |text: core::fmt::Arguments<'_>| {
        write!(out, "{comma}{text}")?;
        comma = ",\n";
        Ok::<(), io::Error>(())
    };
    let origin = trace.events.first().map_or(0, |event| event.time_ns);
    let us = |time: u64| (time - origin) as f64 / 1e3;
    event(format_args!(
        "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{{\"name\":\"page allocator\"}}}}"
    ))?;
    let mut cpus: Vec<u16> = trace.events.iter().map(|event| event.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    for cpu in cpus {
        event(format_args!(
            "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":{cpu},\"args\":{{\"name\":\"CPU {cpu}\"}}}}"
        ))?;
    }
    bursts(trace, |cpu, burst| {
        // What has no length cannot be seen: an event takes at least 100 ns.
        let length = (burst.end - burst.start).max(100) as f64 / 1e3;
        event(format_args!(
            "{{\"ph\":\"X\",\"pid\":1,\"tid\":{cpu},\"ts\":{:.3},\"dur\":{length:.3},\"cat\":\"burst\",\"name\":{},\
             \"args\":{{\"pid\":{},\"allocations\":{},\"frees\":{},\"pages allocated\":{}}}}}",
            us(burst.start),
            quoted(trace.comms.name(burst.comm)),
            burst.pid,
            burst.allocations,
            burst.frees,
            burst.pages
        ))
    })?;
    for (name, points) in counters(trace) {
        for (time, pages) in points {
            event(format_args!(
                "{{\"ph\":\"C\",\"pid\":1,\"ts\":{:.3},\"name\":{},\"args\":{{\"pages\":{pages}}}}}",
                us(time),
                quoted(&name)
            ))?;
        }
    }
    out.write_all(b"\n]}\n")
}

/// Calls `each` with every burst and its CPU.
fn bursts(trace: &Trace, mut each: impl FnMut(u16, &Burst) -> io::Result<()>) -> io::Result<()> {
    let mut open: BTreeMap<u16, Burst> = BTreeMap::new();
    for event in trace.allocations_and_frees() {
        let &Event { pid, comm, time_ns, .. } = event;
        let new = || Burst { pid, comm, start: time_ns, end: time_ns, allocations: 0, frees: 0, pages: 0 };
        let burst = open.entry(event.cpu).or_insert_with(new);
        if burst.pid != event.pid || event.time_ns - burst.end > PAUSE {
            each(event.cpu, &core::mem::replace(burst, new()))?;
        }
        burst.end = event.time_ns;
        if event.kind == EventKind::PageAlloc {
            burst.allocations += 1;
            burst.pages += 1 << event.order;
        } else {
            burst.frees += 1;
        }
    }
    open.iter().try_for_each(|(cpu, burst)| each(*cpu, burst))
}

/// Pages in use: of all, and of the threads that held most at a time.
fn counters(trace: &Trace) -> Vec<(String, Vec<(u64, u64)>)> {
    let mut held: HashMap<u32, (u64, u64)> = HashMap::new();
    let mut series: HashMap<Option<u32>, Vec<(u64, u64)>> = HashMap::new();
    let mut all = 0_u64;
    let apart = (trace.duration_ns() / STEPS).max(1);
    follow(trace, |event, ended| {
        let mut change = |comm: u32, pages: i64| {
            let (now, most) = held.entry(comm).or_default();
            *now = now.saturating_add_signed(pages);
            *most = (*most).max(*now);
            all = all.saturating_add_signed(pages);
            for (holder, value) in [(None, all), (Some(comm), *now)] {
                let points = series.entry(holder).or_default();
                match points.last_mut() {
                    // At most one value in each step of time.
                    Some((time, last)) if event.time_ns / apart == *time / apart => *last = value,
                    _ => points.push((event.time_ns, value)),
                }
            }
        };
        for Ended { block, pages, .. } in ended {
            change(block.comm, -pages.cast_signed());
        }
        if event.kind == EventKind::PageAlloc {
            change(event.comm, 1 << event.order);
        }
    });
    let mut holders: Vec<(u64, u32)> = held.into_iter().map(|(comm, (_, most))| (most, comm)).collect();
    holders.sort_unstable_by_key(|(most, comm)| (core::cmp::Reverse(*most), *comm));
    let curve = |(_, comm): &(u64, u32)| (Some(*comm), format!("pages of {}", trace.comms.name(*comm)));
    let wanted =
        core::iter::once((None, "pages in use".to_owned())).chain(holders.iter().take(HOLDERS).map(curve));
    wanted.map(|(holder, name)| (name, series.remove(&holder).unwrap_or_default())).collect()
}

/// Folded stacks: thread, type, order, and their weight.
fn folded(trace: &Trace, weight: Weight) -> String {
    let mut sums: BTreeMap<(String, String, u8), f64> = BTreeMap::new();
    let mut add = |event: &Event, amount: f64| {
        // Semicolons separate frames, and lines stacks: a thread's name may hold both.
        let plain = |c: char| if c.is_control() { '?' } else { c };
        let comm = trace.comm(event).replace(';', ":").chars().map(plain).collect();
        *sums.entry((comm, type_name(event.migratetype), event.order)).or_default() += amount;
    };
    let end = trace.events.last().map_or(0, |event| event.time_ns);
    if weight == Weight::PageMilliseconds {
        let mut held = |ended: &[Ended<'_>], until: u64| {
            for Ended { block, pages, .. } in ended {
                add(block, *pages as f64 * (until - block.time_ns) as f64 / 1e6);
            }
        };
        let kept = follow(trace, |event, ended| held(ended, event.time_ns));
        held(&kept, end);
    } else {
        for event in trace.events.iter().filter(|event| event.kind == EventKind::PageAlloc) {
            add(event, if weight == Weight::Pages { (1_u64 << event.order) as f64 } else { 1.0 });
        }
    }
    let mut out = String::new();
    for ((comm, migratetype, order), sum) in sums.into_iter().filter(|(_, sum)| *sum >= 0.5) {
        out += &format!("{comm};{migratetype};order {order} {sum:.0}\n");
    }
    out
}

/// Text as a JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use framewright_trace::trace::Comms;

    use super::*;

    /// Two threads on two CPUs; times in ms.
    fn trace() -> Trace {
        let mut comms = Comms::default();
        let names = [comms.intern("cc1"), comms.intern("a;b\"\n")];
        let event = |ms: u64, cpu: u16, who: usize, kind, pfn, order| Event {
            time_ns: ms * 1_000_000,
            pfn,
            pid: 10 + who as u32,
            comm: names[who],
            cpu,
            order,
            migratetype: (kind == EventKind::PageAlloc).then_some(1),
            kind,
            ..Event::default()
        };
        let events = vec![
            event(0, 0, 0, EventKind::PageAlloc, 8, 3),
            event(0, 0, 0, EventKind::PageAlloc, 16, 0),
            event(1, 1, 1, EventKind::PageAlloc, 32, 0),
            event(3, 1, 1, EventKind::PageFree, 8, 3),
            event(4, 0, 0, EventKind::PageFree, 99, 0),
        ];
        Trace { comms, events, ..Trace::default() }
    }

    #[test]
    fn stacks_are_folded_by_thread_type_and_order() {
        let all = "a:b\"?;movable;order 0 1\ncc1;movable;order 0 1\ncc1;movable;order 3 ";
        assert_eq!(folded(&trace(), Weight::Pages), format!("{all}8\n"));
        assert_eq!(folded(&trace(), Weight::Allocations), format!("{all}1\n"));
        // 8 pages for 3 ms; what is not freed is in use until the end.
        assert_eq!(
            folded(&trace(), Weight::PageMilliseconds),
            "a:b\"?;movable;order 0 3\ncc1;movable;order 0 4\ncc1;movable;order 3 24\n"
        );
    }

    #[test]
    fn perfetto_gets_bursts_by_cpu_and_pages_in_use() {
        let json: serde_json::Value = {
            let mut written = Vec::new();
            perfetto(&trace(), &mut written).expect("memory takes all");
            serde_json::from_slice(&written).expect("JSON")
        };
        let events = json["traceEvents"].as_array().expect("events");
        let in_phase = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
        let bursts = in_phase("X");
        assert_eq!(bursts.len(), 4, "a pause of a millisecond ends a burst");
        let first = bursts.iter().find(|burst| burst["ts"] == 0.0).expect("the first");
        assert_eq!((&first["name"], &first["args"]["pages allocated"]), (&"cc1".into(), &9.into()));
        assert!(bursts.iter().any(|burst| burst["name"] == "a;b\"\n" && burst["tid"] == 1));
        let values = |name: &str| {
            let all = in_phase("C").into_iter().filter(|event| event["name"] == name);
            all.map(|event| event["args"]["pages"].as_u64().expect("a number")).collect::<Vec<_>>()
        };
        assert_eq!(values("pages in use"), [9, 10, 2]);
        assert_eq!(values("pages of cc1"), [9, 1]);
    }
}
