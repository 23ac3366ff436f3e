//! Traces for tests.

use std::fs;
use std::path::{Path, PathBuf};

use framewright_trace::trace::{Comms, Event, EventKind, Meta, Note, Trace};
use proptest::prelude::*;

/// What may be in a file: every field over its whole range, times that do not decrease, names of all sorts.
pub(crate) fn any_trace() -> impl Strategy<Value = Trace> {
    let kind = prop::sample::select(&EventKind::ALL[..]);
    let event = (
        (0..1_u64 << 40, any::<u16>(), 0..=i32::MAX.unsigned_abs(), 0..4_u32, kind),
        (0..1_u64 << 52, 0..=10_u8, prop::option::of(0..=127_u8), any::<u64>()),
    );
    let names = prop::collection::btree_set("\\PC{0,15}", 4);
    let note =
        (0..1_u64 << 42, any::<u16>(), 0..=i32::MAX.unsigned_abs(), 0..4_u32, "[!-~]{1,64}", "\\PC{0,50}");
    let notes = prop::collection::vec(note, 0..5);
    (names, prop::collection::vec(event, 0..200), notes).prop_map(|(names, events, notes)| {
        let mut comms = Comms::default();
        let names: Vec<u32> = names.iter().map(|name| comms.intern(name)).collect();
        let note = |(time_ns, cpu, pid, comm, name, text)| Note {
            time_ns,
            cpu,
            pid,
            comm: names[comm as usize],
            name,
            text,
        };
        let mut notes: Vec<Note> = notes.into_iter().map(note).collect();
        notes.sort_by_key(|note| note.time_ns);
        let mut time_ns = 0;
        let events =
            events.into_iter().map(|((wait, cpu, pid, name, kind), (pfn, order, migratetype, gfp))| {
                time_ns += wait;
                let comm = names[name as usize];
                Event { time_ns, pfn, gfp, pid, comm, cpu, order, migratetype, kind }
            });
        Trace { meta: meta(), events: events.collect(), comms, notes }
    })
}

/// Metadata with something in every field.
pub(crate) fn meta() -> Meta {
    Meta {
        source: "tracefs".into(),
        command: "cc 'a b.c'".into(),
        machine: "a CPU, 1024 MiB".into(),
        kernel: "6.18.0".into(),
        cpus: 2,
        page_kib: 64,
        recorded_at: "2026-01-31T12:00:00Z".into(),
        clock: "mono".into(),
        attribution: "the command's".into(),
        lost_events: Some(3),
        failed_allocations: 1,
        unknown_flags: "__GFP_NEW".into(),
        cut: true,
        reading_ns: 5,
        framewright: env!("CARGO_PKG_VERSION").into(),
    }
}

/// A trace of a few events, two names and two CPUs.
pub(crate) fn small_trace() -> Trace {
    let mut comms = Comms::default();
    let (cc, kworker) = (comms.intern("cc"), comms.intern("kworker/0:1"));
    let alloc = Event {
        time_ns: 1_000,
        pfn: 0x1_0000,
        gfp: 0xcc0,
        pid: 42,
        comm: cc,
        order: 3,
        migratetype: Some(1),
        ..Event::default()
    };
    let free = Event { time_ns: 2_000, gfp: 0, migratetype: None, kind: EventKind::PageFree, ..alloc };
    let events = vec![
        alloc,
        Event { time_ns: 1_001, kind: EventKind::PageAllocZoneLocked, gfp: 0, ..alloc },
        Event { time_ns: 1_001, pfn: 0x2_0000, order: 0, cpu: 1, ..alloc },
        free,
        Event { time_ns: 2_500, pfn: 0x2_0000, order: 0, pid: 7, comm: kworker, cpu: 1, ..free },
        Event { time_ns: 2_501, pfn: 0x2_0000, order: 0, kind: EventKind::PageFreeBatched, ..free },
        Event { time_ns: 9_999, kind: EventKind::PagePcpuDrain, migratetype: Some(1), ..free },
    ];
    Trace { meta: meta(), comms, events, notes: Vec::new() }
}

/// A trace's events with their names, which say the same in any order of the table of names.
pub(crate) fn named(trace: &Trace) -> Vec<(Event, String)> {
    let name = |event: &Event| (Event { comm: 0, ..*event }, trace.comm(event).to_owned());
    trace.events.iter().map(name).collect()
}

/// A trace's notes, likewise.
pub(crate) fn named_notes(trace: &Trace) -> Vec<(Note, String)> {
    let name = |note: &Note| (Note { comm: 0, ..note.clone() }, trace.comms.name(note.comm).to_owned());
    trace.notes.iter().map(name).collect()
}

/// A folder of a test's own, empty at first, removed with it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}
