//! Page-allocator events of a real run, and the file that keeps them.
//!
//! | module | what it holds |
//! |---|---|
//! | `comms` | command names, each kept once |
//! | `columns` | the table: names, types and encodings of its columns, keys of its metadata |
//! | `write`, `read` | a trace to Parquet bytes and back |
//! | `pages`, `bounds` | checks of a damaged or crafted file that its decoder does not make |
//!
//! A trace holds what the kernel's `kmem` tracepoints report, in order of time. It is one Parquet table,
//! so any tool that reads Parquet opens it.

mod bounds;
pub(crate) mod columns;
mod comms;
mod pages;
mod read;
mod write;

pub use comms::Comms;

use core::fmt;
use std::path::Path;

use crate::error::Error;
use crate::output::Output;

/// Largest order a trace may hold: that of a huge page where base pages have 64 KiB.
pub const MAX_ORDER: u8 = 13;

/// Frame numbers lie below this: 64-bit addresses of frames of 4 KiB.
pub const PFN_LIMIT: u64 = 1 << 52;

/// The tracepoint that an event comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// `mm_page_alloc`: a block was handed to a caller.
    #[default]
    PageAlloc,
    /// `mm_page_free`: a caller gave a block back, or a part of one that it had split.
    PageFree,
    /// `mm_page_free_batched`: a frame that is being freed as one of a list. The same frame's `PageFree`
    /// comes as well: count only one of them.
    PageFreeBatched,
    /// `mm_page_alloc_zone_locked`: a block left the buddy lists under the zone lock, for a caller or to refill
    /// a per-CPU list.
    PageAllocZoneLocked,
    /// `mm_page_pcpu_drain`: a block went from a per-CPU list back to the buddy lists.
    PagePcpuDrain,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::PageAlloc,
        Self::PageFree,
        Self::PageFreeBatched,
        Self::PageAllocZoneLocked,
        Self::PagePcpuDrain,
    ];

    /// The kernel's name of the tracepoint, without its group: `mm_page_alloc`, …
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PageAlloc => "mm_page_alloc",
            Self::PageFree => "mm_page_free",
            Self::PageFreeBatched => "mm_page_free_batched",
            Self::PageAllocZoneLocked => "mm_page_alloc_zone_locked",
            Self::PagePcpuDrain => "mm_page_pcpu_drain",
        }
    }

    /// The kind of that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One event of the page allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds on the recording's clock ([`Meta::clock`]); only differences have a meaning.
    pub time_ns: u64,
    /// First frame of the block.
    pub pfn: u64,
    /// Allocation flags, as the recording kernel numbers them; 0 for kinds other than
    /// [`PageAlloc`](EventKind::PageAlloc).
    pub gfp: u64,
    /// Thread in which it happened, 0 for an idle CPU.
    pub pid: u32,
    /// Name of that thread: an index into [`Trace::comms`].
    pub comm: u32,
    /// CPU on which it happened, as the kernel numbers them.
    pub cpu: u16,
    /// The block is `2^order` frames.
    pub order: u8,
    /// Migratetype, as the recording kernel numbers them (0 unmovable, 1 movable, 2 reclaimable, 3
    /// high-atomic, then what it is built with); `None` for the two kinds of free, which do not report one.
    pub migratetype: Option<u8>,
    /// The tracepoint.
    pub kind: EventKind,
}

/// Order of a pageblock.
const PAGEBLOCK_ORDER: u8 = 9;

impl Event {
    /// Whether this allocation's flags are those of a page of a file: of the page cache. Such a page stays until a
    /// program needs the memory, long after the program that read or wrote it has ended.
    #[must_use]
    pub const fn is_page_cache(&self) -> bool {
        matches!((self.kind, self.migratetype), (EventKind::PageAlloc, Some(1)))
            && self.order < PAGEBLOCK_ORDER
            && crate::kmem::gfp::is_page_cache(self.gfp)
    }
}

/// Something else that the kernel reported: an event that is not about one block, or a file of `/proc` at that
/// time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// As an event's.
    pub time_ns: u64,
    /// CPU on which it happened.
    pub cpu: u16,
    /// Thread in which it happened.
    pub pid: u32,
    /// Name of that thread: an index into [`Trace::comms`].
    pub comm: u32,
    /// The tracepoint, without its group (`mm_page_alloc_extfrag`), or the file's path (`/proc/zoneinfo`). Not one
    /// of [`EventKind`]'s names; printable ASCII without spaces, at most 64 bytes.
    pub name: String,
    /// The tracepoint's fields as `NAME=VALUE` with spaces between them, or what the file held. At most 4 MiB.
    pub text: String,
}

/// Origin of a trace. All of it is information: nothing here changes how events are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Source of the events: `tracefs`, `perf.data` or `perf script`.
    pub source: String,
    /// The command that was recorded, quoted for a shell; empty if unknown.
    pub command: String,
    /// CPU model and memory of the machine; empty if unknown.
    pub machine: String,
    /// Kernel release; empty if unknown.
    pub kernel: String,
    /// CPUs of the machine; 0 if unknown.
    pub cpus: u32,
    /// Size of its base pages in KiB; 0 if unknown. Frames and orders of events count such pages.
    pub page_kib: u32,
    /// Start of the recording, UTC, `2026-01-31T12:00:00Z`; empty if unknown.
    pub recorded_at: String,
    /// Clock that timed the events: `mono`, …; empty if unknown.
    pub clock: String,
    /// Whose events these are, in words: `process tree of the command, …`, `whole system`.
    pub attribution: String,
    /// Events that the kernel dropped because a buffer was full; `None` if unknown.
    pub lost_events: Option<u64>,
    /// `mm_page_alloc` events that reported no page. They have no frame, so they are not among the events.
    pub failed_allocations: u64,
    /// Allocation flags that an import knew no number of, and counts as 0, with spaces between them; empty if
    /// there were none.
    pub unknown_flags: String,
    /// Whether recording stopped before the command did, because it had become too long.
    pub cut: bool,
    /// CPU time that the recorder took to empty the kernel's buffers, in nanoseconds; 0 if unknown.
    pub reading_ns: u64,
    /// Version of framewright that wrote the file; set by writing.
    pub framewright: String,
}

impl Meta {
    /// Bytes of so many base pages: of 4 KiB, if it is not known.
    #[must_use]
    pub const fn bytes(&self, pages: u64) -> u64 {
        let kib = if self.page_kib == 0 { 4 } else { self.page_kib };
        (pages << 10).saturating_mul(kib as u64)
    }
}

/// Events in order of time, and where they come from.
///
/// What holds, and what reading and writing check: times of events do not decrease, nor do those of notes; every `comm`
/// is an index into `comms`; orders are at most [`MAX_ORDER`]; frames are below [`PFN_LIMIT`]; pids and migratetypes
/// are not negative as the signed 32-bit and 8-bit numbers that the file keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Origin of the events.
    pub meta: Meta,
    /// Names that the events refer to.
    pub comms: Comms,
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// Other records, oldest first.
    pub notes: Vec<Note>,
}

impl Trace {
    /// Reads a trace file.
    ///
    /// # Errors
    /// The file cannot be read, is no Parquet file, is truncated or damaged, lacks a column, or holds a value
    /// out of range: one line with the place. Nothing is half-read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::read_with(path, |_| ())
    }

    /// Like [`read`](Self::read), but calls `each` with the bytes of a file that is a trace, piece by piece.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_with(path: &Path, mut each: impl FnMut(&[u8])) -> Result<Self, Error> {
        read::from_file(path, &mut each)
    }

    /// Reads a trace from the bytes of a file; `name` is what errors call it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_bytes(bytes: &[u8], name: &str) -> Result<Self, Error> {
        read::from_bytes(bytes.to_vec().into(), name)
    }

    /// Writes a trace file. It appears whole or not at all.
    ///
    /// # Errors
    /// The trace breaks a rule of [`Trace`], or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        self.write_to(Output::open(path)?)
    }

    /// Writes a trace to a place that was opened before the events were recorded.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_to(&self, output: Output) -> Result<(), Error> {
        output.finish(&self.to_bytes()?)
    }

    /// The bytes of the trace's file.
    ///
    /// # Errors
    /// The trace breaks a rule of [`Trace`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        write::to_bytes(self)
    }

    /// Name of the thread that an event happened in.
    ///
    /// # Panics
    /// If the event is not one of this trace.
    #[must_use]
    pub fn comm(&self, event: &Event) -> &str {
        self.comms.name(event.comm)
    }

    /// Events of one kind. O(n).
    #[must_use]
    pub fn count(&self, kind: EventKind) -> usize {
        self.events.iter().filter(|event| event.kind == kind).count()
    }

    /// The kind of event that is a free: where single frees were not traced, those of lists are all there is. O(n).
    #[must_use]
    pub fn free_kind(&self) -> EventKind {
        if self.count(EventKind::PageFree) > 0 { EventKind::PageFree } else { EventKind::PageFreeBatched }
    }

    /// The events that are an allocation or a free. O(n).
    pub fn allocations_and_frees(&self) -> impl Iterator<Item = &Event> {
        let free = self.free_kind();
        self.events.iter().filter(move |event| event.kind == EventKind::PageAlloc || event.kind == free)
    }

    /// From the first event to the last, in nanoseconds.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        match (self.events.first(), self.events.last()) {
            (Some(first), Some(last)) => last.time_ns - first.time_ns,
            _ => 0,
        }
    }

    /// The first event that breaks a rule of [`Trace`], with the rule. O(n).
    fn first_fault(&self) -> Option<(usize, String)> {
        first_fault(
            &self.events,
            |event| event.time_ns,
            |event, earlier| fault(event, earlier, self.comms.len()),
        )
    }

    /// The first note that breaks a rule of [`Trace`], with the rule. O(n).
    fn first_note_fault(&self) -> Option<(usize, String)> {
        first_fault(
            &self.notes,
            |note| note.time_ns,
            |note, earlier| note_fault(note, earlier, self.comms.len()),
        )
    }
}

fn first_fault<T>(
    rows: &[T],
    time: impl Fn(&T) -> u64,
    fault: impl Fn(&T, u64) -> Option<String>,
) -> Option<(usize, String)> {
    let earlier = core::iter::once(0).chain(rows.iter().map(time));
    rows.iter().zip(earlier).enumerate().find_map(|(n, (row, earlier))| Some((n, fault(row, earlier)?)))
}

/// What is wrong with the thread of an event or a note, if anything.
fn thread_fault(pid: u32, comm: u32, comms: usize) -> Option<String> {
    if pid > i32::MAX.unsigned_abs() {
        return Some(format!("pid {pid} is out of range"));
    }
    let is_unknown = usize::try_from(comm).is_ok_and(|comm| comm >= comms);
    is_unknown.then(|| format!("comm {comm} is not in the table of names"))
}

/// What is wrong with a note that follows one at `earlier`, if anything.
fn note_fault(note: &Note, earlier: u64, comms: usize) -> Option<String> {
    if note.time_ns < earlier {
        return Some(format!("time_ns {} is before the note above it, {earlier}", note.time_ns));
    }
    if !bounds::is_name(&note.name) {
        return Some(format!("{:?} is no name of a note", note.name));
    }
    if note.text.len() > bounds::LONGEST_TEXT {
        return Some(format!("a text of {} bytes, above {}", note.text.len(), bounds::LONGEST_TEXT));
    }
    thread_fault(note.pid, note.comm, comms)
}

/// What is wrong with an event that follows one at `earlier`, if anything.
fn fault(event: &Event, earlier: u64, comms: usize) -> Option<String> {
    if event.time_ns < earlier {
        return Some(format!("time_ns {} is before the row above it, {earlier}", event.time_ns));
    }
    if event.order > MAX_ORDER {
        return Some(format!("order {} is above {MAX_ORDER}", event.order));
    }
    if event.pfn >= PFN_LIMIT {
        return Some(format!("pfn {} is no frame number", event.pfn));
    }
    if let Some(number @ 128..) = event.migratetype {
        return Some(format!("migratetype {number} is out of range"));
    }
    thread_fault(event.pid, event.comm, comms)
}
