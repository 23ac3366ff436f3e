//! Spans of time of each virtual CPU, and a run as a file that Perfetto and Chrome open.
//!
//! Spans of one CPU nest: a run holds waits for the zone lock and holds of it, and these hold transfers of single
//! lines. What no span covers is the CPU's own work.

use core::fmt::Write;

use crate::clock::Ps;

/// Kind of work of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// A program, from its start to its end.
    Run,
    /// Getting the zone lock.
    LockWait,
    /// Holding the zone lock, until it is given back.
    LockHold,
    /// Asleep until a line of this name is written.
    Poll(Option<usize>),
    /// Waiting for a line of this name, from another CPU or a cache of its own.
    Transfer(Option<usize>),
    /// Waiting for a line of this name, from memory.
    Memory(Option<usize>),
    /// Writing zeroes over lines of this name.
    Clear(Option<usize>),
}

/// A span of one CPU's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The CPU.
    pub cpu: u16,
    /// Beginning.
    pub start: Ps,
    /// End.
    pub end: Ps,
    /// Kind of work.
    pub doing: Doing,
}

/// Spans as they come. Once full it takes no more of them but runs.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) spans: Vec<Span>,
    most: usize,
    /// The times at which each CPU has looked at its clock since it last gave a lock back.
    clocks: Vec<Vec<Ps>>,
    /// Time at which each CPU went to sleep.
    asleep: Vec<Ps>,
}

impl Recorder {
    pub(crate) fn new(cpus: usize, most: usize) -> Self {
        Self { spans: Vec::new(), most, clocks: vec![Vec::new(); cpus], asleep: vec![Ps(0); cpus] }
    }

    pub(crate) fn add(&mut self, cpu: u16, start: Ps, end: Ps, doing: Doing) {
        if end > start && (self.spans.len() < self.most || doing == Doing::Run) {
            self.spans.push(Span { cpu, start, end, doing });
        }
    }

    /// The CPU looks at its clock. A CPU that takes the zone lock with [`Config::lock_timing`](framewright::Config)
    /// does so three times: before, when it has it, and when it has given it back.
    pub(crate) fn clock(&mut self, cpu: u16, at: Ps) {
        let clocks = &mut self.clocks[usize::from(cpu)];
        clocks.push(at);
        if let &[asked, got, gave_back] = clocks.as_slice() {
            clocks.clear();
            self.add(cpu, asked, got, Doing::LockWait);
            self.add(cpu, got, gave_back, Doing::LockHold);
        }
    }

    /// Shortens the CPU's last span by `time`, if it was waiting for a line until `until`.
    pub(crate) fn take_back(&mut self, cpu: u16, until: Ps, time: Ps) {
        let last = self.spans.iter_mut().rev().take(64).find(|span| span.cpu == cpu);
        if let Some(span) = last
            .filter(|span| span.end == until && matches!(span.doing, Doing::Transfer(_) | Doing::Memory(_)))
        {
            span.end = Ps(span.end.0 - time.0);
        }
    }

    pub(crate) fn sleeps(&mut self, cpu: u16, at: Ps) {
        self.asleep[usize::from(cpu)] = at;
    }

    pub(crate) fn wakes(&mut self, cpu: u16, at: Ps, name: Option<usize>) {
        self.add(cpu, self.asleep[usize::from(cpu)], at, Doing::Poll(name));
    }
}

/// One run to be shown: its title, its spans, and what their lines are called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// Title.
    pub title: String,
    /// Spans in the order in which they ended.
    pub spans: Vec<Span>,
    /// Names of lines, by the numbers in the spans.
    pub names: Vec<String>,
}

/// Runs as Chrome's trace events (JSON): a process for each run, a thread for each virtual CPU, times in µs of virtual
/// time.
#[must_use]
pub fn chrome(runs: &[Recorded]) -> String {
    let mut out = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    let mut comma = "\n";
    let mut event = |text: core::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = write!(out, "{comma}{text}");
        comma = ",\n";
    };
    for (run, pid) in runs.iter().zip(1..) {
        let title = quoted(&format!("{} (simulated)", run.title));
        event(format_args!(
            "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{pid},\"args\":{{\"name\":{title}}}}}"
        ));
        let mut cpus: Vec<u16> = run.spans.iter().map(|span| span.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        for cpu in cpus {
            event(format_args!(
                "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{pid},\"tid\":{cpu},\
                 \"args\":{{\"name\":\"CPU {cpu}\"}}}}"
            ));
        }
        let mut spans = run.spans.clone();
        // A span that holds others comes first.
        spans.sort_by_key(|span| (span.cpu, span.start, core::cmp::Reverse(span.end)));
        for Span { cpu, start, end, doing } in spans {
            let (category, name) = described(doing, &run.names);
            let [start, length] = [start.0, end.since(start).0].map(|ps| ps as f64 / 1e6);
            event(format_args!(
                "{{\"ph\":\"X\",\"pid\":{pid},\"tid\":{cpu},\"ts\":{start:.6},\"dur\":{length:.6},\
                 \"cat\":\"{category}\",\"name\":{}}}",
                quoted(&name)
            ));
        }
    }
    out.push_str("\n]}\n");
    out
}

/// A span's category and name.
fn described(doing: Doing, names: &[String]) -> (&'static str, String) {
    let line = |place: Option<usize>| place.and_then(|n| names.get(n)).map_or("other lines", String::as_str);
    match doing {
        Doing::Run => ("work", "run".to_owned()),
        Doing::LockWait => ("lock wait", "zone lock: wait".to_owned()),
        Doing::LockHold => ("lock hold", "zone lock: hold".to_owned()),
        Doing::Poll(name) => ("poll", format!("polls {}", line(name))),
        Doing::Transfer(name) => ("transfer", format!("transfer of {}", line(name))),
        Doing::Memory(name) => ("memory", format!("memory: {}", line(name))),
        Doing::Clear(name) => ("clear", format!("clears {}", line(name))),
    }
}

/// Text as a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_written_as_chrome_reads_them() {
        let span = |start, end, doing| Span { cpu: 3, start: Ps(start), end: Ps(end), doing };
        let run = Recorded {
            title: "a \"title\"".to_owned(),
            spans: vec![span(1_500_000, 1_750_001, Doing::Transfer(Some(0))), span(0, 2_000_000, Doing::Run)],
            names: vec!["zone lock".to_owned()],
        };
        assert_eq!(
            chrome(&[run]),
            "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n\
             {\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":\"a \\\"title\\\" (simulated)\"}},\n\
             {\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":3,\"args\":{\"name\":\"CPU 3\"}},\n\
             {\"ph\":\"X\",\"pid\":1,\"tid\":3,\"ts\":0.000000,\"dur\":2.000000,\"cat\":\"work\",\"name\":\"run\"},\n\
             {\"ph\":\"X\",\"pid\":1,\"tid\":3,\"ts\":1.500000,\"dur\":0.250001,\"cat\":\"transfer\",\
             \"name\":\"transfer of zone lock\"}\n]}\n"
        );
    }

    #[test]
    fn a_full_recorder_still_takes_runs() {
        let mut recorder = Recorder::new(1, 1);
        recorder.add(0, Ps(1), Ps(2), Doing::LockWait);
        recorder.add(0, Ps(2), Ps(3), Doing::LockHold);
        recorder.add(0, Ps(0), Ps(4), Doing::Run);
        let kinds: Vec<Doing> = recorder.spans.iter().map(|span| span.doing).collect();
        assert_eq!(kinds, [Doing::LockWait, Doing::Run]);
    }
}
