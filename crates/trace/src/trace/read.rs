//! Parquet bytes to a trace. Whatever the bytes are, the answer is a whole trace or one line that says why
//! not.
//!
//! Tools that people filter traces with write other encodings, codecs and integer widths, and nullable
//! columns without nulls: all are read. Columns that are not ours are ignored.

use core::any::Any;
use core::ops::Range;
use core::panic::AssertUnwindSafe;
use std::io::{Read as _, Seek as _};
use std::panic::catch_unwind;
use std::path::Path;

use bytes::Bytes;
use parquet::basic::{Compression, ConvertedType, Type as PhysicalType};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, FileReader, Length, RowGroupReader, SerializedFileReader};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

use super::pages::{Allowance, CheckedPages};
use super::{Comms, Event, EventKind, MAX_ORDER, Note, PFN_LIMIT, Trace, bounds, columns, fault};
use crate::error::{Error, Place};
use crate::input::{self, Input};

const MAGIC: &[u8] = b"PAR1";
/// After the metadata: its length in 4 bytes, then the magic.
const TAIL: u64 = 8;
/// Rows decoded at once.
const BATCH: usize = 1 << 13;
/// Bytes that are read together.
const PIECE: usize = 1 << 16;

const NOT_OURS: &str = "give a file written by `framewright record` or `framewright import`";
const DAMAGED: &str = "the file is damaged: copy or record it again";
const CODEC: &str = "write the file with zstd or snappy";
const RANGE: &str = "correct the value or record again";
const TOO_MUCH: &str = "no recorder writes such a file: record again";

/// Reads a trace file, and calls `each` with its bytes if it is one.
pub(super) fn from_file(path: &Path, each: &mut dyn FnMut(&[u8])) -> Result<Trace, Error> {
    let file = path.display().to_string();
    let input = input::open(path, input::MOST, begins)?;
    let trace = from(&input, &file)?;
    match input {
        Input::Memory(bytes) => each(&bytes),
        Input::File(open) => {
            let failed = |cause| Error::io("read", path, cause);
            let mut again = &*open;
            again.rewind().map_err(failed)?;
            let mut piece = vec![0; PIECE];
            loop {
                match again.read(&mut piece).map_err(failed)? {
                    0 => break,
                    length => each(&piece[..length]),
                }
            }
        }
    }
    Ok(trace)
}

pub(super) fn from_bytes(bytes: Bytes, file: &str) -> Result<Trace, Error> {
    begins(&bytes).map_err(|(what, fix)| Error::refused(file, Place::Byte(0), what, fix))?;
    from(&Input::Memory(bytes), file)
}

/// Refuses what begins like no trace.
fn begins(bytes: &[u8]) -> Result<(), (String, &'static str)> {
    let first = &MAGIC[..bytes.len().min(MAGIC.len())];
    let what = if bytes.is_empty() { "an empty file" } else { "no Parquet file: does not begin with PAR1" };
    if bytes.is_empty() || !bytes.starts_with(first) { Err((what.into(), NOT_OURS)) } else { Ok(()) }
}

fn from(bytes: &Input, file: &str) -> Result<Trace, Error> {
    check_frame(bytes, file)?;
    // The decoder checks most of what it reads, yet asserts some of it. No state outlives the unwinding.
    let decoded = catch_unwind(AssertUnwindSafe(|| decode(bytes, file)));
    decoded.unwrap_or_else(|panic| {
        Err(Error::refused(file, Place::Unknown, format!("cannot be decoded: {}", text(&*panic)), DAMAGED))
    })
}

/// The end of a Parquet file, checked first for the sake of clear messages.
fn check_frame(bytes: &Input, file: &str) -> Result<(), Error> {
    let refuse = |at: u64, what: String, fix| Err(Error::refused(file, Place::Byte(at), what, fix));
    let read = |at: u64, length: usize| {
        bytes.get_bytes(at, length).map_err(|cause| {
            Error::refused(file, Place::Byte(at), format!("cannot be read: {cause}"), DAMAGED)
        })
    };
    let end = bytes.len();
    let Some(tail) = end.checked_sub(TAIL).filter(|&tail| tail >= MAGIC.len() as u64) else {
        return refuse(end, format!("a Parquet file cut off after {end} bytes"), DAMAGED);
    };
    let last = read(tail, TAIL as usize)?;
    if &last[4..] != MAGIC {
        return refuse(end, format!("a Parquet file cut off after {end} bytes: no PAR1 at its end"), DAMAGED);
    }
    let length = last.first_chunk().map_or(0, |four| u32::from_le_bytes(*four));
    let Some(start) = tail.checked_sub(u64::from(length)).filter(|&start| start >= MAGIC.len() as u64) else {
        return refuse(tail, format!("metadata of {length} bytes do not fit into {end} bytes"), DAMAGED);
    };
    let fault = match bounds::metadata_length_fault(u64::from(length), end) {
        Some(what) => Some(what),
        None => bounds::metadata_fault(&read(start, length as usize)?),
    };
    fault.map_or(Ok(()), |what| refuse(start, what, TOO_MUCH))
}

fn decode(bytes: &Input, file: &str) -> Result<Trace, Error> {
    let reader = SerializedFileReader::new(bytes.clone()).map_err(|cause| {
        Error::refused(file, Place::Unknown, format!("metadata cannot be decoded: {cause}"), DAMAGED)
    })?;
    let metadata = reader.metadata();
    let table = Table::find(metadata.file_metadata().schema_descr(), file)?;
    check_rows(metadata.row_groups(), bytes.len(), file)?;

    let pairs = metadata.file_metadata().key_value_metadata();
    let meta = pairs.map(|pairs| columns::from_pairs(pairs)).unwrap_or_default();
    let mut reading =
        Reading { trace: Trace { meta, ..Trace::default() }, note_rows: Vec::new(), text_bytes: 0 };
    for (number, group) in metadata.row_groups().iter().enumerate() {
        // Some tools write a group for a table without rows; its columns lie nowhere.
        if group.num_rows() == 0 {
            continue;
        }
        let reader = reader
            .get_row_group(number)
            .map_err(|cause| Error::refused(file, Place::Unknown, cause.to_string(), DAMAGED))?;
        let first_row = reading.trace.events.len();
        let group = Group { file, bytes, first_row, metadata: group, reader: &*reader };
        group.append_to(&mut reading, &table)?;
    }
    Ok(reading.finish())
}

/// A trace that is being read: every row has an event, also those that are notes.
struct Reading {
    trace: Trace,
    note_rows: Vec<usize>,
    text_bytes: u64,
}

impl Reading {
    /// The trace, without the events that stand for notes. O(rows).
    fn finish(self) -> Trace {
        let Self { mut trace, note_rows, .. } = self;
        let mut notes = note_rows.into_iter().peekable();
        let mut row = 0;
        trace.events.retain(|_| {
            let is_note = notes.next_if_eq(&row).is_some();
            row += 1;
            !is_note
        });
        trace
    }
}

/// Refuses more rows than the file can have. They are claims of the file, which must agree with its size.
fn check_rows(groups: &[RowGroupMetaData], size: u64, file: &str) -> Result<(), Error> {
    let mut total = 0_u64;
    for group in groups {
        total = u64::try_from(group.num_rows()).map_or(u64::MAX, |rows| total.saturating_add(rows));
    }
    if bounds::may_hold_rows(size, total) {
        return Ok(());
    }
    let what = format!("metadata claim {total} rows in {size} bytes");
    Err(Error::refused(file, Place::Unknown, what, TOO_MUCH))
}

/// Where our columns are among the file's.
struct Table {
    columns: [usize; columns::NAMES.len()],
    /// Where the texts of notes are, if there are any.
    text: Option<usize>,
}

impl Table {
    fn find(schema: &SchemaDescriptor, file: &str) -> Result<Self, Error> {
        let refuse = |what: String| Error::refused(file, Place::Unknown, what, NOT_OURS);
        let mut found = [0; columns::NAMES.len()];
        for (slot, name) in found.iter_mut().zip(columns::NAMES) {
            let position = (0..schema.num_columns()).find(|&i| schema.column(i).path().parts() == [name]);
            let Some(position) = position else {
                let found: Vec<String> =
                    schema.columns().iter().take(12).map(|c| c.path().string()).collect();
                return Err(refuse(format!("no column {name}, only: {}", found.join(", "))));
            };
            let column = schema.column(position);
            let is_text = matches!(name, "comm" | "event");
            let fits = match column.physical_type() {
                PhysicalType::BYTE_ARRAY => is_text,
                PhysicalType::INT32 | PhysicalType::INT64 => !is_text,
                _ => false,
            };
            if !fits || column.max_rep_level() > 0 || column.max_def_level() > 1 {
                let wanted = if is_text { "strings" } else { "integers" };
                let found = column.physical_type();
                return Err(refuse(format!("column {name} holds {found}, not one of {wanted} per row")));
            }
            *slot = position;
        }
        let text = (0..schema.num_columns()).find(|&i| {
            let column = schema.column(i);
            column.path().parts() == [columns::TEXT]
                && column.physical_type() == PhysicalType::BYTE_ARRAY
                && column.max_rep_level() == 0
                && column.max_def_level() <= 1
        });
        Ok(Self { columns: found, text })
    }
}

/// Takes the value of a row, or says what is wrong with it.
type Put<'a, V> = &'a mut dyn FnMut(usize, &V) -> Result<(), String>;

/// One row group: a run of whole rows, kept column by column.
struct Group<'a> {
    file: &'a str,
    bytes: &'a Input,
    first_row: usize,
    metadata: &'a RowGroupMetaData,
    reader: &'a dyn RowGroupReader,
}

impl Group<'_> {
    /// Appends the group's rows. Each column is decoded into its field of the events, so that no more than one
    /// page of one column is held beside them.
    fn append_to(&self, reading: &mut Reading, table: &Table) -> Result<(), Error> {
        let [time_ns, cpu, pid, comm, event, pfn, order, migratetype, gfp] = table.columns;
        let limit = |bound: u64| 0..bound;
        let any = 0..u64::MAX;
        let Reading { trace: Trace { events, comms, notes, .. }, note_rows, text_bytes } = reading;
        let first_note = notes.len();
        let mut earlier = events.last().map_or(0, |event| event.time_ns);
        // Grows with what is there, not with what the file claims.
        self.integers(time_ns, &any, |_, time_ns| events.push(Event { time_ns, ..Event::default() }))?;
        let rows = &mut events[self.first_row..];

        // The columns' ranges make every `as` below exact.
        self.integers(cpu, &limit(1 << u16::BITS), |row, value| rows[row].cpu = value as u16)?;
        self.integers(pid, &limit(1 << 31), |row, value| rows[row].pid = value as u32)?;
        self.strings(comm, |row, name| {
            rows[row].comm = self.intern(comms, name)?;
            Ok(())
        })?;
        self.strings(event, |row, name| {
            let name = core::str::from_utf8(name).unwrap_or_default();
            if let Some(kind) = EventKind::from_name(name) {
                rows[row].kind = kind;
                return Ok(());
            }
            if table.text.is_none() || !bounds::is_name(name) {
                return Err(format!("unknown event {name:?}"));
            }
            note_rows.push(self.first_row + row);
            let Event { time_ns, cpu, pid, comm, .. } = rows[row];
            notes.push(Note { time_ns, cpu, pid, comm, name: name.to_owned(), text: String::new() });
            self.check_notes(notes.len(), *text_bytes)
        })?;
        if let Some(text) = table.text.filter(|_| notes.len() > first_note) {
            let mut places = note_rows[first_note..].iter().zip(&mut notes[first_note..]).peekable();
            self.strings(text, |row, text| {
                let Some((_, note)) = places.next_if(|&(&place, _)| place == self.first_row + row) else {
                    return Ok(());
                };
                if text.len() > bounds::LONGEST_TEXT {
                    return Err(format!("a text of {} bytes, above {}", text.len(), bounds::LONGEST_TEXT));
                }
                *text_bytes += text.len() as u64;
                note.text = String::from_utf8_lossy(text).into_owned();
                self.check_notes(0, *text_bytes)
            })?;
        }
        self.integers(pfn, &limit(PFN_LIMIT), |row, value| rows[row].pfn = value)?;
        self.integers(order, &limit(u64::from(MAX_ORDER) + 1), |row, value| rows[row].order = value as u8)?;
        self.migratetypes(migratetype, |row, value| rows[row].migratetype = value)?;
        self.integers(gfp, &any, |row, value| rows[row].gfp = value)?;

        for (row, event) in rows.iter().enumerate() {
            if let Some(what) = fault(event, earlier, comms.len()) {
                let fix = "sort the rows by time_ns";
                return Err(Error::refused(self.file, self.row(row), what, fix));
            }
            earlier = event.time_ns;
        }
        Ok(())
    }

    fn check_notes(&self, notes: usize, text_bytes: u64) -> Result<(), String> {
        if bounds::may_hold_notes(self.bytes.len(), notes as u64, text_bytes) {
            Ok(())
        } else {
            Err(format!("notes of more than {text_bytes} bytes"))
        }
    }

    /// Index of a name, if it is one that a trace may hold.
    fn intern(&self, comms: &mut Comms, name: &[u8]) -> Result<u32, String> {
        if name.len() > bounds::LONGEST_NAME {
            return Err(format!("comm has {} bytes, above {}", name.len(), bounds::LONGEST_NAME));
        }
        let index = comms.intern(&String::from_utf8_lossy(name));
        if bounds::may_hold_names(self.bytes.len(), comms.len() as u64) {
            Ok(index)
        } else {
            Err(format!("more than {} different names", comms.len() - 1))
        }
    }

    fn row(&self, row: usize) -> Place {
        Place::Row((self.first_row + row) as u64 + 1)
    }

    fn rows(&self) -> usize {
        usize::try_from(self.metadata.num_rows()).unwrap_or(0)
    }

    fn integers(
        &self,
        position: usize,
        range: &Range<u64>,
        mut put: impl FnMut(usize, u64),
    ) -> Result<(), Error> {
        let name = self.metadata.column(position).column_descr().name();
        let mut check = |row: usize, value: u64| {
            if range.contains(&value) || range.end == u64::MAX {
                put(row, value);
                Ok(())
            } else {
                Err(format!("{name} is {}, not one of 0 to {}", value.cast_signed(), range.end - 1))
            }
        };
        // An unsigned column keeps its bits in a signed type; a negative number of a signed one gets the bits
        // of a huge number, which is out of range.
        let column = self.metadata.column(position).column_descr();
        let unsigned = is_unsigned(column);
        if column.physical_type() == PhysicalType::INT32 {
            self.values::<Int32Type>(position, &mut |row, &value| {
                let narrow = u64::from(value.cast_unsigned());
                check(row, if unsigned { narrow } else { i64::from(value).cast_unsigned() })
            })
        } else {
            self.values::<Int64Type>(position, &mut |row, &value| check(row, value.cast_unsigned()))
        }
    }

    fn migratetypes(&self, position: usize, mut put: impl FnMut(usize, Option<u8>)) -> Result<(), Error> {
        let mut check = |row: usize, value: i64| {
            put(
                row,
                match i8::try_from(value) {
                    Ok(-1) => None,
                    Ok(number @ 0..) => Some(number.cast_unsigned()),
                    _ => return Err(format!("migratetype is {value}, not one of -1 to {}", i8::MAX)),
                },
            );
            Ok(())
        };
        if self.metadata.column(position).column_type() == PhysicalType::INT32 {
            self.values::<Int32Type>(position, &mut |row, &value| check(row, i64::from(value)))
        } else {
            self.values::<Int64Type>(position, &mut |row, &value| check(row, value))
        }
    }

    fn strings(
        &self,
        position: usize,
        mut put: impl FnMut(usize, &[u8]) -> Result<(), String>,
    ) -> Result<(), Error> {
        self.values::<ByteArrayType>(position, &mut |row, value| put(row, value.data()))
    }

    /// Opens a column whose values are of type `T`, which [`Table::find`] has made sure of.
    fn column<T: DataType>(
        &self,
        position: usize,
        allowance: &Allowance,
    ) -> Result<ColumnReaderImpl<T>, Error> {
        let chunk = self.metadata.column(position);
        let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
        let end = start.checked_add(chunk.compressed_size());
        let inside = start >= 0
            && chunk.data_page_offset() >= start
            && end.is_some_and(|end| end >= start && end.cast_unsigned() <= self.bytes.len());
        if !inside {
            let name = chunk.column_descr().name();
            let what = format!("column {name} is outside the file's {} bytes", self.bytes.len());
            return Err(Error::refused(self.file, Place::Byte(start.max(0).cast_unsigned()), what, DAMAGED));
        }
        if !matches!(
            chunk.compression(),
            Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::ZSTD(_)
        ) {
            let name = chunk.column_descr().name();
            let what = format!("column {name} is compressed as {}", chunk.compression());
            return Err(Error::refused(self.file, Place::Unknown, what, CODEC));
        }
        let head = |at: u64, length: usize| self.bytes.get_bytes(start.cast_unsigned() + at, length).ok();
        if let Some(what) = bounds::pages_fault(chunk.compressed_size().max(0).cast_unsigned(), head) {
            let what = format!("column {}: {what}", chunk.column_descr().name());
            return Err(Error::refused(self.file, Place::Byte(start.cast_unsigned()), what, TOO_MUCH));
        }
        let pages = self.reader.get_column_page_reader(position);
        let pages = pages.map_err(|cause| self.damaged(chunk, &cause))?;
        let column = chunk.column_descr_ptr();
        let nullable = column.max_def_level() > 0;
        let pages = CheckedPages::new(pages, column.physical_type(), nullable, allowance.clone());
        Ok(ColumnReaderImpl::new(column, Box::new(pages)))
    }

    /// Calls `put` with the number within the group and the value of each of the group's rows. Not generic over `put`:
    /// the decoder is compiled for each type of values, not for each column.
    fn values<T: DataType>(&self, position: usize, put: Put<'_, T::T>) -> Result<(), Error> {
        let allowance = Allowance::default();
        let mut reader = self.column::<T>(position, &allowance)?;
        let chunk = self.metadata.column(position);
        let name = chunk.column_descr().name();
        let rows = self.rows();
        let nullable = chunk.column_descr().max_def_level() > 0;
        let (mut done, mut batch, mut levels) = (0, Vec::new(), Vec::new());
        loop {
            batch.clear();
            levels.clear();
            allowance.renew();
            let (read, _, _) = reader
                .read_records(BATCH, nullable.then_some(&mut levels), None, &mut batch)
                .map_err(|cause| self.damaged(chunk, &cause))?;
            if let Some(null) = levels.iter().position(|&level| level == 0) {
                let what = format!("{name} is null");
                return Err(Error::refused(self.file, self.row(done + null), what, RANGE));
            }
            if read != batch.len() || done + read > rows || (read == 0 && done < rows) {
                let what = format!("has {} rows, not {rows}", done + read);
                return Err(self.damaged(chunk, &ParquetError::General(what)));
            }
            if read == 0 {
                return Ok(());
            }
            for value in &batch {
                put(done, value).map_err(|what| Error::refused(self.file, self.row(done), what, RANGE))?;
                done += 1;
            }
        }
    }

    fn damaged(&self, chunk: &ColumnChunkMetaData, cause: &ParquetError) -> Error {
        let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
        let place = Place::Byte(start.max(0).cast_unsigned());
        let what = format!("column {} that begins here: {cause}", chunk.column_descr().name());
        Error::refused(self.file, place, what, DAMAGED)
    }
}

fn is_unsigned(column: &ColumnDescriptor) -> bool {
    matches!(
        column.converted_type(),
        ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64
    )
}

/// What a panic said.
fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given")
}
