//! Trace files: whatever the bytes are, the answer is a whole trace or one line.

use framewright_trace::error::Error;
use framewright_trace::trace::{Event, EventKind, Meta, Trace};

use crate::check_refusal;

/// Reads `input` as a trace file. What was read must be the same after writing and reading it again.
///
/// # Panics
/// It is not.
pub fn run(input: &[u8]) -> bool {
    check(Trace::read_bytes(input, "input"))
}

/// Asserts that `read` is a whole trace or one line of words, and says which.
pub(crate) fn check(read: Result<Trace, Error>) -> bool {
    match read {
        Ok(trace) => {
            check_trace(trace);
            true
        }
        Err(error) => {
            check_refusal(&error.to_string());
            false
        }
    }
}

/// Asserts that a trace that was accepted keeps every rule of one: writing checks them all.
fn check_trace(mut trace: Trace) {
    let bytes = trace.to_bytes().expect("what was accepted can be written");
    let again = Trace::read_bytes(&bytes, "written").expect("what was written can be read");
    // Writing puts the version in.
    trace.meta.framewright.clone_from(&again.meta.framewright);
    assert_eq!(trace.meta, again.meta);
    assert_eq!(trace.events.len(), again.events.len());
    for (event, copy) in trace.events.iter().zip(&again.events) {
        assert_eq!(trace.comm(event), again.comm(copy));
        assert_eq!(Event { comm: 0, ..*event }, Event { comm: 0, ..*copy });
    }
}

/// An empty trace, a small one, and one whose columns need more than one page.
pub fn seeds() -> Vec<Vec<u8>> {
    [0, 12, 20_000].map(|events| sample(events).to_bytes().expect("a sample keeps the rules")).into()
}

/// A trace with every kind of event.
pub fn sample(events: u64) -> Trace {
    let mut trace = Trace {
        meta: Meta {
            source: "tracefs".into(),
            command: "cc -c x.c".into(),
            cpus: 2,
            lost_events: Some(0),
            ..Meta::default()
        },
        ..Trace::default()
    };
    for n in 0..events {
        let kind = EventKind::ALL[(n % 5) as usize];
        let is_free = matches!(kind, EventKind::PageFree | EventKind::PageFreeBatched);
        let comm = trace.comms.intern(["cc1", "as", "make"][(n % 3) as usize]);
        trace.events.push(Event {
            time_ns: 1000 + n * 37,
            pfn: 0x10_0000 + (n * 0x9E37 % 0x1_0000),
            gfp: if kind == EventKind::PageAlloc { 0x14_0CCA } else { 0 },
            pid: 100 + (n % 7) as u32,
            comm,
            cpu: (n % 2) as u16,
            order: if n.is_multiple_of(11) { 3 } else { 0 },
            migratetype: if is_free { None } else { Some((n % 3) as u8) },
            kind,
        });
    }
    trace
}
