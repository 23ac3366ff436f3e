//! How the samples of a `perf.data` file are laid out: each event's attributes say which fields its samples
//! have.

use std::collections::HashMap;

use super::cursor::{Cursor, Fault};

/// Fields of a sample, by their bit in `sample_type`: `include/uapi/linux/perf_event.h`, `PERF_SAMPLE_…`.
mod bit {
    pub(super) const IP: u64 = 1 << 0;
    pub(super) const TID: u64 = 1 << 1;
    pub(super) const TIME: u64 = 1 << 2;
    pub(super) const ADDR: u64 = 1 << 3;
    pub(super) const READ: u64 = 1 << 4;
    pub(super) const CALLCHAIN: u64 = 1 << 5;
    pub(super) const ID: u64 = 1 << 6;
    pub(super) const CPU: u64 = 1 << 7;
    pub(super) const PERIOD: u64 = 1 << 8;
    pub(super) const STREAM_ID: u64 = 1 << 9;
    pub(super) const RAW: u64 = 1 << 10;
    pub(super) const IDENTIFIER: u64 = 1 << 16;
}

/// What a counter's reading consists of, by its bit in `read_format`: `PERF_FORMAT_…`.
mod read {
    pub(super) const TIME_ENABLED: u64 = 1 << 0;
    pub(super) const TIME_RUNNING: u64 = 1 << 1;
    pub(super) const ID: u64 = 1 << 2;
    pub(super) const GROUP: u64 = 1 << 3;
    pub(super) const LOST: u64 = 1 << 4;
}

/// Bit of `perf_event_attr`'s flags: records other than samples end in the fields that identify a sample.
const SAMPLE_ID_ALL: u32 = 18;
/// Length of the oldest `perf_event_attr`.
const SHORTEST_ATTR: u64 = 64;
/// After each attribute: where the event's numbers are.
const IDS_BYTES: u64 = 16;

/// What is taken from a sample.
#[derive(Debug)]
pub(super) struct Sample<'a> {
    pub(super) time_ns: u64,
    pub(super) pid: u32,
    pub(super) cpu: u32,
    /// The tracepoint's own fields.
    pub(super) raw: &'a [u8],
}

/// The layouts of all recorded events.
#[derive(Debug)]
pub(super) struct Samples {
    layouts: Vec<Layout>,
    /// Which event a number stands for.
    by_id: HashMap<u64, usize>,
    /// Whether the samples of all events have the same layout.
    same_samples: bool,
    /// Whether the records that are no samples end in the same fields, whichever event they are of.
    same_tails: bool,
    /// Whether every sample says first which event it is of.
    identified: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    sample_type: u64,
    read_format: u64,
    sample_id_all: bool,
}

impl Samples {
    /// Reads the attributes, each `attr_bytes` long with what follows it.
    pub(super) fn parse(mut attrs: Cursor<'_>, attr_bytes: u64, whole: &Cursor<'_>) -> Result<Self, Fault> {
        let total = attrs.left() as u64;
        if attr_bytes < SHORTEST_ATTR + IDS_BYTES || total == 0 || !total.is_multiple_of(attr_bytes) {
            return Err(attrs.fault(format!("{total} bytes of attributes of {attr_bytes} bytes each")));
        }
        let (mut layouts, mut by_id) = (Vec::<Layout>::new(), HashMap::new());
        let mut numbers = 0_u64;
        while attrs.left() > 0 {
            let mut attr = attrs.section(attrs.at() as u64, attr_bytes, "an attribute")?;
            attrs.take_counted(attr_bytes)?;
            let mut ids = {
                let mut tail = attr;
                tail.take_counted(attr_bytes - IDS_BYTES)?;
                let at = tail;
                let (start, length) = (tail.u64()?, tail.u64()?);
                // Events share no numbers: were they all of a file's, many attributes would read it many times.
                numbers = length.saturating_add(numbers);
                if numbers > whole.left() as u64 {
                    return Err(at.fault("attributes whose events share their numbers"));
                }
                whole.section(start, length, "the events' numbers")?
            };
            while ids.left() >= 8 {
                by_id.insert(ids.u64()?, layouts.len());
            }
            layouts.push(Layout::parse(&mut attr)?);
        }
        // Looked at once, not with each record: a file may have as many attributes as records.
        let first = layouts[0];
        Ok(Self {
            same_samples: layouts.iter().all(|layout| layout.same_samples(&first)),
            same_tails: layouts.iter().all(|layout| layout.tail() == first.tail()),
            identified: layouts.iter().all(|layout| layout.sample_type & bit::IDENTIFIER != 0),
            layouts,
            by_id,
        })
    }

    /// Reads a sample; `None` if its event is no tracepoint.
    pub(super) fn read<'a>(&self, body: Cursor<'a>) -> Result<Option<Sample<'a>>, Fault> {
        self.layout_of(body)?.read(body)
    }

    /// When a record that is no sample was written; 0 if it does not say so, as those that perf makes up of
    /// what was there before.
    pub(super) fn time_of_other(&self, body: Cursor<'_>) -> Result<u64, Fault> {
        // Fields that identify the sample are the last of the record, so they are found from its end.
        let left = body.left() as u64;
        let from_end = |back: u64| -> Result<u64, Fault> {
            let mut field = body;
            field.take_counted(
                left.checked_sub(back).ok_or_else(|| body.fault("a record without its time"))?,
            )?;
            field.u64()
        };
        let first = self.layouts[0];
        let layout = if self.same_tails {
            first
        } else {
            let event = self.by_id.get(&from_end(8)?);
            event.map_or(Layout { sample_id_all: false, ..first }, |&event| self.layouts[event])
        };
        match layout.tail() {
            Some(tail) if tail & bit::TIME != 0 => {
                let after = tail & (bit::ID | bit::STREAM_ID | bit::CPU | bit::IDENTIFIER);
                from_end(8 * (1 + u64::from(after.count_ones())))
            }
            _ => Ok(0),
        }
    }

    fn layout_of(&self, mut body: Cursor<'_>) -> Result<&Layout, Fault> {
        let first = &self.layouts[0];
        if self.same_samples {
            return Ok(first);
        }
        if !self.identified {
            return Err(body.fault("samples that differ in layout and do not say which event they are of"));
        }
        let at = body;
        let id = body.u64()?;
        let event =
            self.by_id.get(&id).ok_or_else(|| at.fault(format!("a sample of an unknown event {id}")))?;
        Ok(&self.layouts[*event])
    }
}

impl Layout {
    /// Reads the attribute's beginning: `type`, `size`, `config`, `sample_period`, `sample_type`,
    /// `read_format`, flags.
    fn parse(attr: &mut Cursor<'_>) -> Result<Self, Fault> {
        attr.skip_u64s(3)?;
        let (sample_type, read_format, flags) = (attr.u64()?, attr.u64()?, attr.u64()?);
        // Bit fields count from the lowest bit on little-endian machines and from the highest on the others.
        let bit = if attr.is_big_endian() { 63 - SAMPLE_ID_ALL } else { SAMPLE_ID_ALL };
        Ok(Self { sample_type, read_format, sample_id_all: flags >> bit & 1 == 1 })
    }

    const fn same_samples(&self, other: &Self) -> bool {
        self.sample_type == other.sample_type && self.read_format == other.read_format
    }

    /// Fields at the end of records that are no samples.
    fn tail(&self) -> Option<u64> {
        let fields = bit::TID | bit::TIME | bit::ID | bit::STREAM_ID | bit::CPU | bit::IDENTIFIER;
        self.sample_id_all.then_some(self.sample_type & fields)
    }

    /// Reads the fields in the order in which the kernel writes them, up to the tracepoint's own.
    fn read<'a>(&self, mut body: Cursor<'a>) -> Result<Option<Sample<'a>>, Fault> {
        let has = |bit: u64| self.sample_type & bit != 0;
        if !has(bit::RAW) {
            return Ok(None);
        }
        if !(has(bit::TID) && has(bit::TIME) && has(bit::CPU)) {
            return Err(body.fault("samples without thread, time or CPU"));
        }
        body.skip_u64s(u64::from(has(bit::IDENTIFIER)) + u64::from(has(bit::IP)))?;
        let pid = body.thread()?;
        let time_ns = body.u64()?;
        let skipped = [bit::ADDR, bit::ID, bit::STREAM_ID];
        body.skip_u64s(skipped.iter().map(|&bit| u64::from(has(bit))).sum())?;
        let (cpu, _reserved) = (body.u32()?, body.u32()?);
        body.skip_u64s(u64::from(has(bit::PERIOD)))?;
        if has(bit::READ) {
            self.skip_reading(&mut body)?;
        }
        if has(bit::CALLCHAIN) {
            let frames = body.u64()?;
            body.skip_u64s(frames)?;
        }
        let length = body.u32()?;
        let raw = body.take_counted(u64::from(length))?;
        Ok(Some(Sample { time_ns, pid, cpu, raw }))
    }

    fn skip_reading(&self, body: &mut Cursor<'_>) -> Result<(), Fault> {
        let count = |bits: u64| u64::from((self.read_format & bits).count_ones());
        let times = count(read::TIME_ENABLED | read::TIME_RUNNING);
        let each = 1 + count(read::ID | read::LOST);
        if self.read_format & read::GROUP == 0 {
            return body.skip_u64s(times + each);
        }
        let values = body.u64()?;
        body.skip_u64s(times.saturating_add(values.saturating_mul(each)))
    }
}
