//! The part of a `perf.data` file that says how the recording kernel lays out its events.
//!
//! It is what `trace-event-info.c` of perf writes: a mark, the machine's number formats, two descriptions of
//! the ring buffer, the `format` files of the events by group, and tables that only printing needs.

use super::cursor::{Cursor, Fault};
use crate::kmem::format::{ByteOrder, Format};

const MARK: &[u8] = b"\x17\x08\x44tracing";

/// Formats of all recorded events, and the byte order of the machine that recorded them.
pub(super) fn parse(mut cursor: Cursor<'_>) -> Result<(Vec<Format>, ByteOrder), Fault> {
    let start = cursor;
    if cursor.take(MARK.len())? != MARK {
        return Err(start.fault("the description of the events does not begin with its mark"));
    }
    let _version = cursor.text()?;
    let order = if cursor.u8()? == 0 { ByteOrder::Little } else { ByteOrder::Big };
    cursor.set_order(order);
    let (_long_size, _page_size) = (cursor.u8()?, cursor.u32()?);
    for wanted in [&b"header_page"[..], b"header_event"] {
        let name = cursor;
        if cursor.text()? != wanted {
            return Err(name.fault(format!("no {} where one belongs", String::from_utf8_lossy(wanted))));
        }
        counted(&mut cursor)?;
    }

    let mut formats = Vec::new();
    let ftrace_events = cursor.u32()?;
    for _ in 0..ftrace_events {
        counted(&mut cursor)?;
    }
    let groups = cursor.u32()?;
    for _ in 0..groups {
        let group = cursor.text()?;
        let events = cursor.u32()?;
        for _ in 0..events {
            let at = cursor;
            let text = counted(&mut cursor)?;
            if group == b"kmem" {
                let format = Format::parse(&String::from_utf8_lossy(text));
                formats.push(format.map_err(|what| at.fault(what))?);
            }
        }
    }
    Ok((formats, order))
}

/// Bytes after their number.
fn counted<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], Fault> {
    let length = cursor.u64()?;
    cursor.take_counted(length)
}
