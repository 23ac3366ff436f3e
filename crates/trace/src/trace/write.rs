//! A trace to Parquet.

use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::columns::{self, Packing};
use super::{Comms, Event, EventKind, Note, Trace, bounds};
use crate::error::Error;

pub(super) fn to_bytes(trace: &Trace) -> Result<Vec<u8>, Error> {
    if let Some((row, what)) = trace.first_fault() {
        return Err(Error::Invalid { row, what });
    }
    if let Some((note, what)) = trace.first_note_fault() {
        return Err(Error::InvalidNote { note, what });
    }
    let encoded = |packing| {
        encode(trace, packing).expect("a valid trace has the columns' types, and memory takes every write")
    };
    let mut bytes = encoded(Packing::Packed);
    // A trace that repeats itself packs into fewer bytes than a reader accepts for its rows; one whose threads have a
    // row each, for its names.
    for packing in [Packing::Plain, Packing::Whole] {
        if is_read_again(trace, bytes.len() as u64) {
            break;
        }
        bytes = encoded(packing);
    }
    Ok(bytes)
}

/// Whether a file of `size` bytes is large enough for a reader to accept all of the trace.
fn is_read_again(trace: &Trace, size: u64) -> bool {
    let [events, notes] = [trace.events.len(), trace.notes.len()].map(|rows| rows as u64);
    let text = trace.notes.iter().map(|note| note.text.len() as u64).sum();
    bounds::may_hold_rows(size, events + notes)
        && bounds::may_hold_notes(size, notes, text)
        && bounds::may_hold_names(size, names_in_use(trace))
}

/// Different names that events and notes have.
fn names_in_use(trace: &Trace) -> u64 {
    let mut is_used = vec![false; trace.comms.len()];
    let events = trace.events.iter().map(|event| event.comm);
    for comm in events.chain(trace.notes.iter().map(|note| note.comm)) {
        is_used[comm as usize] = true;
    }
    is_used.into_iter().filter(|&is_used| is_used).count() as u64
}

fn encode(trace: &Trace, packing: Packing) -> Result<Vec<u8>, ParquetError> {
    let schema = Arc::new(parse_message_type(columns::SCHEMA)?);
    let properties = Arc::new(columns::properties(&trace.meta, packing));
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties)?;
    let all = in_order(trace);
    for rows in all.chunks(columns::ROWS_PER_GROUP) {
        let mut group = writer.next_row_group()?;
        write_rows(&mut group, rows, &trace.comms)?;
        group.close()?;
    }
    writer.into_inner()
}

/// A row of the table.
#[derive(Clone, Copy)]
enum Row<'a> {
    Event(&'a Event),
    Note(&'a Note),
}

/// Events and notes in order of time; of the same time, notes come first: what the kernel said before.
fn in_order(trace: &Trace) -> Vec<Row<'_>> {
    let mut rows = Vec::with_capacity(trace.events.len() + trace.notes.len());
    let mut notes = trace.notes.iter().peekable();
    for event in &trace.events {
        while let Some(note) = notes.next_if(|note| note.time_ns <= event.time_ns) {
            rows.push(Row::Note(note));
        }
        rows.push(Row::Event(event));
    }
    rows.extend(notes.map(Row::Note));
    rows
}

/// One row group, column by column in the order of [`columns::NAMES`].
fn write_rows(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    rows: &[Row<'_>],
    comms: &Comms,
) -> Result<(), ParquetError> {
    let comms: Vec<ByteArray> = comms.names().iter().map(|name| name.as_str().into()).collect();
    let kinds = EventKind::ALL.map(|kind| ByteArray::from(kind.name()));
    let empty = ByteArray::from("");
    column::<Int64Type>(group, rows, |event| event.time_ns.cast_signed(), |note| note.time_ns.cast_signed())?;
    column::<Int32Type>(group, rows, |event| i32::from(event.cpu), |note| i32::from(note.cpu))?;
    column::<Int32Type>(group, rows, |event| event.pid.cast_signed(), |note| note.pid.cast_signed())?;
    column::<ByteArrayType>(
        group,
        rows,
        |event| comms[event.comm as usize].clone(),
        |note| comms[note.comm as usize].clone(),
    )?;
    column::<ByteArrayType>(
        group,
        rows,
        |event| kinds[event.kind as usize].clone(),
        |note| note.name.as_str().into(),
    )?;
    column::<Int64Type>(group, rows, |event| event.pfn.cast_signed(), |_| 0)?;
    column::<Int32Type>(group, rows, |event| i32::from(event.order), |_| 0)?;
    column::<Int32Type>(group, rows, |event| event.migratetype.map_or(-1, i32::from), |_| -1)?;
    column::<Int64Type>(group, rows, |event| event.gfp.cast_signed(), |_| 0)?;
    column::<ByteArrayType>(group, rows, |_| empty.clone(), |note| note.text.as_str().into())
}

/// Writes the group's next column: a value of each event and note.
fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    rows: &[Row<'_>],
    of_event: impl Fn(&Event) -> T::T,
    of_note: impl Fn(&Note) -> T::T,
) -> Result<(), ParquetError> {
    let value = |row: &Row<'_>| match row {
        Row::Event(event) => of_event(event),
        Row::Note(note) => of_note(note),
    };
    let values: Vec<T::T> = rows.iter().map(value).collect();
    let mut column = group.next_column()?.expect("the schema has as many columns as are written");
    column.typed::<T>().write_batch(&values, None, None)?;
    column.close()
}
