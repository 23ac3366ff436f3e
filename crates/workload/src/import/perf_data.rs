//! The binary file of `perf record`.
//!
//! Laid out as `tools/perf/Documentation/perf.data-file-format.txt` of Linux says: a header that names the
//! sections of the file, the attributes of the recorded events, the records, and sections that describe the
//! machine. Of the records, samples of kmem tracepoints are taken, names of threads, and counts of what was
//! lost.
//!
//! Crates that read this format were looked at (linux-perf-data 0.13): they do not say where a file breaks,
//! allocate what a broken file asks for, and bring a protobuf decoder for another tool's files.

use std::collections::HashMap;

use super::cursor::{Cursor, Fault};
use super::samples::Samples;
use super::{tracing_data, whole};
use crate::kmem::format::ByteOrder;
use crate::kmem::report::{Report, What, name};
use crate::kmem::{self, Decoded};
use crate::record::quote;
use crate::trace::{Meta, Trace};

const MAGIC: &[u8; 8] = b"PERFILE2";
const MAGIC_SWAPPED: &[u8; 8] = b"2ELIFREP";
/// Before 2010: no record of how its samples are laid out.
const MAGIC_OLD: &[u8; 8] = b"PERFFILE";

const NOT_DONE: &str = "let `perf record` end by itself or interrupt it, but do not kill it";
const NO_PIPE: &str = "record with `perf record -o FILE`, not into a pipe";
const NO_COMPRESSION: &str = "record without -z, or import the text of `perf script`";
const PLAIN: &str = "record with `perf record -a -e 'kmem:mm_page_*'`";

/// Header, attribute and record formats: numbers from `include/uapi/linux/perf_event.h` and perf's
/// `header.h`.
const HEADER_BYTES: u64 = 104;
const PIPE_HEADER_BYTES: u64 = 16;
const SECTION_BYTES: u64 = 16;

/// Whether bytes begin as this format does, or are the beginning of that beginning.
pub(super) fn has_magic(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(MAGIC.len())];
    !start.is_empty() && [MAGIC, MAGIC_SWAPPED, MAGIC_OLD].iter().any(|magic| magic.starts_with(start))
}

/// Imports a whole file.
pub(super) fn parse(bytes: &[u8]) -> Result<Trace, Fault> {
    let file = File::parse(bytes)?;
    let mut reports = Vec::new();
    let mut lost = Lost::default();
    let mut records = file.data;
    while records.left() > 0 {
        file.record(&mut records, &mut reports, &mut lost)?;
    }
    let meta = Meta { lost_events: Some(lost.events()), ..file.meta };
    Ok(whole(reports, meta))
}

/// What must be known to read the records.
struct File<'a> {
    data: Cursor<'a>,
    meta: Meta,
    samples: Samples,
    /// By the number that marks events of the kind.
    layouts: HashMap<u16, kmem::Layout>,
    /// Order of the bytes in the events' own fields.
    event_order: ByteOrder,
}

/// Events that did not make it into the file.
#[derive(Default)]
struct Lost {
    /// Counted in the stream where they are missing.
    in_stream: u64,
    /// Counted by the kernel's counters, at the end.
    in_total: u64,
}

impl Lost {
    /// The two count the same events; older kernels and tools know only the first.
    fn events(&self) -> u64 {
        self.in_stream.max(self.in_total)
    }
}

impl<'a> File<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor::new(bytes, ByteOrder::Little, "the header");
        match cursor.take(MAGIC.len())? {
            magic if magic == MAGIC => {}
            magic if magic == MAGIC_SWAPPED => cursor.set_order(ByteOrder::Big),
            _ => return Err(with_fix(Fault::new(0, "a perf.data file of an outdated version"), PLAIN)),
        }
        let at = cursor;
        match cursor.u64()? {
            HEADER_BYTES => {}
            PIPE_HEADER_BYTES => {
                return Err(with_fix(at.fault("a stream, not a file, of perf record"), NO_PIPE));
            }
            other => return Err(at.fault(format!("a header of {other} bytes instead of {HEADER_BYTES}"))),
        }
        let attr_bytes = cursor.u64()?;
        let whole = Cursor::new(bytes, cursor.order(), "the file");
        let attrs = section(&mut cursor, &whole, "the attributes")?;
        let at = cursor;
        let data = section(&mut cursor, &whole, "the records")?;
        if data.left() == 0 {
            return Err(with_fix(at.fault("no records: perf record did not finish the file"), NOT_DONE));
        }
        let _event_types = section(&mut cursor, &whole, "the event types")?;
        let mut features = [0; 4];
        for word in &mut features {
            *word = cursor.u64()?;
        }

        let samples = Samples::parse(attrs, attr_bytes, &whole)?;
        let table = (data.at() + data.left()) as u64;
        let Features { meta, tracing } = Features::parse(table, features, &whole)?;
        let Some(tracing) = tracing else {
            return Err(with_fix(Fault::new(0, "a recording without tracepoints"), PLAIN));
        };
        let (formats, event_order) = tracing_data::parse(tracing)?;
        let mut layouts = HashMap::new();
        for format in &formats {
            if let Some(layout) = kmem::Layout::new(format).map_err(|what| tracing.fault(what))? {
                layouts.insert(format.id, layout);
            }
        }
        Ok(Self { data, meta, samples, layouts, event_order })
    }

    /// Reads one record.
    fn record(
        &self,
        records: &mut Cursor<'a>,
        reports: &mut Vec<Report>,
        lost: &mut Lost,
    ) -> Result<(), Fault> {
        const LOST: u32 = 2;
        const COMM: u32 = 3;
        const FORK: u32 = 7;
        const SAMPLE: u32 = 9;
        const LOST_SAMPLES: u32 = 13;
        const AUXTRACE: u32 = 71;
        const COMPRESSED: u32 = 81;
        const COMPRESSED_2: u32 = 83;
        const HEADER: u64 = 8;
        /// Of `LOST_SAMPLES`: a filter dropped them on purpose.
        const FILTERED: u16 = 1 << 15;

        let start = *records;
        let (kind, flags, size) = (records.u32()?, records.u16()?, u64::from(records.u16()?));
        if size < HEADER {
            return Err(start.fault(format!("a record of {size} bytes")));
        }
        let mut body = records
            .section(records.at() as u64, size - HEADER, "a record")
            .map_err(|fault| Fault { at: start.at() as u64, ..fault })?;
        records.take_counted(size - HEADER)?;
        match kind {
            SAMPLE => reports.extend(self.sample(body)?),
            COMM => {
                let pid = body.thread()?;
                let what = What::Rename { pid, name: name(body.text()?) };
                reports.push(Report { time_ns: self.samples.time_of_other(body)?, cpu: 0, pid, what });
            }
            FORK => {
                let (_process, _parent) = (body.u32()?, body.u32()?);
                let numbers = body;
                let (child, pid) = (body.u32()?, body.u32()?);
                if i32::try_from(child.max(pid)).is_err() {
                    return Err(numbers.fault(format!("a fork of {child} from {pid}, which no kernel has")));
                }
                reports.push(Report { time_ns: body.u64()?, cpu: 0, pid, what: What::Fork { child } });
            }
            LOST => {
                let _id = body.u64()?;
                lost.in_stream = lost.in_stream.saturating_add(body.u64()?);
            }
            LOST_SAMPLES if flags & FILTERED == 0 => {
                lost.in_total = lost.in_total.saturating_add(body.u64()?)
            }
            // The data of a processor's trace unit follow the record that announces them.
            AUXTRACE => records.take_counted(body.u64()?).map(|_| ())?,
            COMPRESSED | COMPRESSED_2 => {
                return Err(with_fix(start.fault("compressed records"), NO_COMPRESSION));
            }
            _ => {}
        }
        Ok(())
    }

    /// What a sample reports, if it is one of our events.
    fn sample(&self, body: Cursor<'a>) -> Result<Option<Report>, Fault> {
        let Some(sample) = self.samples.read(body)? else { return Ok(None) };
        let id = sample.raw.first_chunk().map(|&two| match self.event_order {
            ByteOrder::Little => u16::from_le_bytes(two),
            ByteOrder::Big => u16::from_be_bytes(two),
        });
        let Some(layout) = id.and_then(|id| self.layouts.get(&id)) else { return Ok(None) };
        let what = match layout.decode(sample.raw, self.event_order).map_err(|what| body.fault(what))? {
            Decoded::Page(page) => What::Page(page),
            Decoded::NoPage => What::NoPage,
        };
        let cpu =
            u16::try_from(sample.cpu).map_err(|_| body.fault(format!("a CPU of number {}", sample.cpu)))?;
        Ok(Some(Report { time_ns: sample.time_ns, cpu, pid: sample.pid, what }))
    }
}

/// A section of the file that the header names here.
fn section<'a>(cursor: &mut Cursor<'a>, whole: &Cursor<'a>, part: &'static str) -> Result<Cursor<'a>, Fault> {
    let at = cursor.at() as u64;
    let (start, length) = (cursor.u64()?, cursor.u64()?);
    whole.section(start, length, part).map_err(|fault| Fault { at, ..fault })
}

fn with_fix(fault: Fault, fix: &'static str) -> Fault {
    Fault { fix: Some(fix), ..fault }
}

/// What the sections after the records say.
#[derive(Default)]
struct Features<'a> {
    meta: Meta,
    tracing: Option<Cursor<'a>>,
}

impl<'a> Features<'a> {
    /// Reads the table at `table`, which has an entry for each bit that is set, lowest first.
    fn parse(table: u64, bits: [u64; 4], whole: &Cursor<'a>) -> Result<Self, Fault> {
        const TRACING_DATA: u32 = 1;
        const OS_RELEASE: u32 = 4;
        const CPUS: u32 = 7;
        const CPU_MODEL: u32 = 8;
        const TOTAL_MEMORY: u32 = 10;
        const COMMAND: u32 = 11;

        let count: u32 = bits.iter().map(|word| word.count_ones()).sum();
        let mut entries = whole.section(table, u64::from(count) * SECTION_BYTES, "the table of features")?;
        let mut found = Self {
            meta: Meta {
                source: "perf.data".into(),
                attribution: "all events of the imported file".into(),
                clock: "perf".into(),
                ..Meta::default()
            },
            tracing: None,
        };
        let (mut model, mut kib) = (String::new(), None);
        for bit in (0..256).filter(|&bit| bits[bit as usize / 64] >> (bit % 64) & 1 == 1) {
            let mut feature = section(&mut entries, whole, "a feature")?;
            match bit {
                TRACING_DATA => found.tracing = Some(feature),
                OS_RELEASE => found.meta.kernel = string(&mut feature)?,
                CPUS => {
                    let _available = feature.u32()?;
                    found.meta.cpus = feature.u32()?;
                }
                CPU_MODEL => model = string(&mut feature)?,
                TOTAL_MEMORY => kib = Some(feature.u64()?),
                COMMAND => {
                    let words = feature.u32()?;
                    let words: Result<Vec<_>, _> = (0..words).map(|_| string(&mut feature)).collect();
                    found.meta.command = quote(&words?);
                }
                _ => {}
            }
        }
        found.meta.machine = match kib {
            Some(kib) if !model.is_empty() => format!("{model}, {} MiB", kib >> 10),
            _ => model,
        };
        Ok(found)
    }
}

/// A string after the length of its padded form.
fn string(cursor: &mut Cursor<'_>) -> Result<String, Fault> {
    let length = cursor.u32()?;
    let bytes = cursor.take_counted(u64::from(length))?;
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}
