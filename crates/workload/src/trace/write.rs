//! A trace to Parquet, atomically.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::{Comms, Event, EventKind, Trace, columns};
use crate::error::Error;

pub(super) fn to_file(trace: &Trace, path: &Path) -> Result<(), Error> {
    let bytes = to_bytes(trace)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = File::create(&part)
        .and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&part, path));
    written.map_err(|cause| {
        // Whatever is there is incomplete; if even removing it fails, the first cause is the one to tell.
        let _ = fs::remove_file(&part);
        Error::io("write", path, cause)
    })
}

pub(super) fn to_bytes(trace: &Trace) -> Result<Vec<u8>, Error> {
    if let Some((row, what)) = trace.first_fault() {
        return Err(Error::Invalid { row, what });
    }
    let bytes = encode(trace).expect("a valid trace has the columns' types, and memory takes every write");
    Ok(bytes)
}

fn encode(trace: &Trace) -> Result<Vec<u8>, ParquetError> {
    let schema = Arc::new(parse_message_type(columns::SCHEMA)?);
    let properties = Arc::new(columns::properties(&trace.meta));
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties)?;
    for events in trace.events.chunks(columns::ROWS_PER_GROUP) {
        let mut group = writer.next_row_group()?;
        rows(&mut group, events, &trace.comms)?;
        group.close()?;
    }
    writer.into_inner()
}

/// One row group, column by column in the order of [`columns::NAMES`].
fn rows(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    events: &[Event],
    comms: &Comms,
) -> Result<(), ParquetError> {
    let comms: Vec<ByteArray> = comms.names().iter().map(|name| name.as_str().into()).collect();
    let kinds = EventKind::ALL.map(|kind| ByteArray::from(kind.name()));
    column::<Int64Type>(group, events, |event| event.time_ns.cast_signed())?;
    column::<Int32Type>(group, events, |event| i32::from(event.cpu))?;
    column::<Int32Type>(group, events, |event| event.pid.cast_signed())?;
    column::<ByteArrayType>(group, events, |event| comms[event.comm as usize].clone())?;
    column::<ByteArrayType>(group, events, |event| kinds[event.kind as usize].clone())?;
    column::<Int64Type>(group, events, |event| event.pfn.cast_signed())?;
    column::<Int32Type>(group, events, |event| i32::from(event.order))?;
    column::<Int32Type>(group, events, |event| event.migratetype.map_or(-1, i32::from))?;
    column::<Int64Type>(group, events, |event| event.gfp.cast_signed())
}

/// Writes the group's next column: `value` of each event.
fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    events: &[Event],
    value: impl Fn(&Event) -> T::T,
) -> Result<(), ParquetError> {
    let values: Vec<T::T> = events.iter().map(value).collect();
    let mut column = group.next_column()?.expect("the schema has as many columns as are written");
    column.typed::<T>().write_batch(&values, None, None)?;
    column.close()
}
