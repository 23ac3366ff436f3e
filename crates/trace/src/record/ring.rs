//! The pages of the kernel's trace ring buffer, as `trace_pipe_raw` hands them out.
//!
//! A page has a header (time of its first event, length of its data, marks for lost events), described by
//! `events/header_page`. Its data are events: a 32-bit word of a type or length and the time since the event before,
//! then the payload. `events/header_event` gives the types' numbers; what each means is `include/linux/ring_buffer.h`
//! of Linux 6.18, unchanged since 4.17.

use crate::kmem::format::{Field, field};

/// Set in a page's length when events were lost before its first.
const MISSED: u64 = 1 << 31;
/// Set when the number of lost events follows the page's data.
const MISSED_STORED: u64 = 1 << 30;
/// Bits of a page's length that are the length.
const LENGTH: u64 = (1 << 20) - 1;
/// An absolute time has 59 bits; the others are those of the time before it.
const ABSOLUTE_BITS: u32 = 59;

/// Layout of the running kernel's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    time: Field,
    length: Field,
    data: Field,
    types: Types,
}

/// Numbers of the event types that are not plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Types {
    padding: u32,
    time_extend: u32,
    time_stamp: u32,
    longest_data: u32,
}

impl Layout {
    /// Parses `header_page` and `header_event`.
    pub(super) fn parse(page: &str, event: &str) -> Result<Self, String> {
        let mut fields = Vec::new();
        for line in page.lines().map(str::trim).filter(|line| line.starts_with("field:")) {
            fields.push(field(line)?);
        }
        let find = |name: &str| {
            let found = fields.iter().find(|(known, _)| known == name);
            found.map(|&(_, field)| field).ok_or_else(|| format!("header_page has no field {name}"))
        };
        let (time, length, data) = (find("timestamp")?, find("commit")?, find("data")?);
        Ok(Self { time, length, data, types: Types::parse(event)? })
    }

    /// Length in bytes of a whole page, header included.
    pub(super) const fn page_bytes(&self) -> usize {
        self.data.offset + self.data.size
    }

    /// Calls `each` with time in clock units and payload of all events of a page, in their order. Returns how
    /// many events were lost before the page, at least.
    pub(super) fn events(&self, page: &[u8], mut each: impl FnMut(u64, &[u8])) -> Result<u64, String> {
        let header = |field: Field| field.integer(page).ok_or("a page without a header");
        let (mut time, length) = (header(self.time)?, header(self.length)?);
        let used = usize::try_from(length & LENGTH).unwrap_or(usize::MAX);
        let data = page.get(self.data.offset..).unwrap_or_default();
        let (data, rest) = data.split_at_checked(used).ok_or("a page shorter than its length")?;

        let mut at = 0;
        while at < data.len() {
            let word = |index: usize| {
                data[at..]
                    .get(4 * index..)
                    .and_then(|rest| rest.first_chunk())
                    .map(|&four| u32::from_ne_bytes(four))
            };
            let cut = || format!("an event cut off at byte {at} of its page");
            let (kind, delta) = split(word(0).ok_or_else(cut)?);
            // The word after the header, for the types that have one.
            let extra = || word(1).ok_or_else(cut);
            let long_time = || Ok::<_, String>(u64::from(extra()?) << 27 | u64::from(delta));
            let (payload, size) = if kind == self.types.padding {
                if delta == 0 {
                    break;
                }
                (None, 4 + extra()? as usize)
            } else if kind == self.types.time_extend {
                time = time.wrapping_add(long_time()?);
                (None, 8)
            } else if kind == self.types.time_stamp {
                time = absolute(long_time()?, time);
                (None, 8)
            } else if kind == 0 {
                // The length counts the word that holds it.
                let length = extra()? as usize;
                (Some(8..4 + length), 4 + length.next_multiple_of(4))
            } else if kind <= self.types.longest_data {
                let size = 4 + 4 * kind as usize;
                (Some(4..size), size)
            } else {
                return Err(format!("an event of unknown type {kind} at byte {at} of its page"));
            };
            if let Some(range) = payload {
                time = time.wrapping_add(u64::from(delta));
                each(time, data[at..].get(range).ok_or_else(cut)?);
            }
            at += size.max(4);
        }
        Ok(lost(length, rest))
    }
}

impl Types {
    /// Parses lines such as `padding : type == 29` and `data max type_len == 28`.
    fn parse(text: &str) -> Result<Self, String> {
        let find = |name: &str| {
            text.lines()
                .find(|line| line.trim_start().starts_with(name))
                .and_then(|line| line.split_once("=="))
                .and_then(|(_, number)| number.trim().parse().ok())
                .ok_or_else(|| format!("header_event says nothing of {name}"))
        };
        Ok(Self {
            padding: find("padding")?,
            time_extend: find("time_extend")?,
            time_stamp: find("time_stamp")?,
            longest_data: find("data max type_len")?,
        })
    }
}

/// Type and time difference of an event's first word: bit fields of 5 and 27 bits, laid out as the machine's
/// C compiler does.
const fn split(word: u32) -> (u32, u32) {
    if cfg!(target_endian = "big") { (word >> 27, word & ((1 << 27) - 1)) } else { (word & 31, word >> 5) }
}

/// The full time of an absolute stamp that follows `before`.
const fn absolute(stamp: u64, before: u64) -> u64 {
    let high = before >> ABSOLUTE_BITS << ABSOLUTE_BITS;
    let time = high | stamp;
    // The low bits may have run over since.
    if time < before && before - time > 1 << (ABSOLUTE_BITS - 1) {
        time.wrapping_add(1 << ABSOLUTE_BITS)
    } else {
        time
    }
}

fn lost(length: u64, rest: &[u8]) -> u64 {
    if length & MISSED == 0 {
        return 0;
    }
    match rest.first_chunk() {
        Some(&count) if length & MISSED_STORED != 0 => u64::from_ne_bytes(count).max(1),
        _ => 1,
    }
}

#[cfg(test)]
mod tests;
