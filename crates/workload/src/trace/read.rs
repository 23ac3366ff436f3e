//! Parquet bytes to a trace. Whatever the bytes are, the answer is a whole trace or one line that says why
//! not.
//!
//! Tools that people filter traces with write other encodings, codecs and integer widths, and nullable
//! columns without nulls: all are read. Columns that are not ours are ignored.

use core::any::Any;
use core::ops::Range;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use bytes::Bytes;
use parquet::basic::{Compression, ConvertedType, Type as PhysicalType};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

use super::pages::CheckedPages;
use super::{Comms, Event, EventKind, MAX_ORDER, PFN_LIMIT, Trace, columns, fault};
use crate::error::{Error, Place};

const MAGIC: &[u8] = b"PAR1";
/// After the metadata: its length in 4 bytes, then the magic.
const TAIL: usize = 8;
/// Rows decoded at once.
const BATCH: usize = 1 << 13;
/// Rows that a byte of a real file may stand for. Compressed runs of equal values may claim any number of
/// rows: this bounds what a crafted file can cost.
const ROWS_PER_BYTE: u64 = 1 << 12;

const NOT_OURS: &str = "give a file written by `framewright record` or `framewright import`";
const DAMAGED: &str = "the file is damaged: copy or record it again";
const CODEC: &str = "write the file with zstd or snappy";
const RANGE: &str = "correct the value or record again";

pub(super) fn from_bytes(bytes: Vec<u8>, file: &str) -> Result<Trace, Error> {
    check_frame(&bytes, file)?;
    // The decoder checks most of what it reads, yet asserts some of it. No state outlives the unwinding.
    catch_unwind(AssertUnwindSafe(|| decode(bytes, file))).unwrap_or_else(|panic| {
        Err(Error::refused(file, Place::Unknown, format!("cannot be decoded: {}", text(&*panic)), DAMAGED))
    })
}

/// What a Parquet file begins and ends with, checked first for the sake of clear messages.
fn check_frame(bytes: &[u8], file: &str) -> Result<(), Error> {
    let refuse = |at: usize, what: String, fix| Err(Error::refused(file, Place::Byte(at as u64), what, fix));
    if !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]) {
        return refuse(0, "no Parquet file: does not begin with PAR1".into(), NOT_OURS);
    }
    let end = bytes.len();
    let Some(tail) = end.checked_sub(TAIL).filter(|&tail| tail >= MAGIC.len()) else {
        return refuse(end, format!("a Parquet file cut off after {end} bytes"), DAMAGED);
    };
    if &bytes[end - MAGIC.len()..] != MAGIC {
        return refuse(end, format!("a Parquet file cut off after {end} bytes: no PAR1 at its end"), DAMAGED);
    }
    let length = bytes[tail..].first_chunk().map_or(0, |four| u32::from_le_bytes(*four));
    if length as usize > tail - MAGIC.len() {
        return refuse(tail, format!("metadata of {length} bytes do not fit into {end} bytes"), DAMAGED);
    }
    Ok(())
}

fn decode(bytes: Vec<u8>, file: &str) -> Result<Trace, Error> {
    let size = bytes.len() as u64;
    let reader = SerializedFileReader::new(Bytes::from(bytes)).map_err(|cause| {
        Error::refused(file, Place::Unknown, format!("metadata cannot be decoded: {cause}"), DAMAGED)
    })?;
    let metadata = reader.metadata();
    let table = Table::find(metadata.file_metadata().schema_descr(), file)?;
    check_rows(metadata.row_groups(), size, file)?;

    let pairs = metadata.file_metadata().key_value_metadata();
    let mut trace = Trace {
        meta: pairs.map(|pairs| columns::from_pairs(pairs)).unwrap_or_default(),
        comms: Comms::default(),
        events: Vec::new(),
    };
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let reader = reader
            .get_row_group(number)
            .map_err(|cause| Error::refused(file, Place::Unknown, cause.to_string(), DAMAGED))?;
        let group = Group { file, size, first_row: trace.events.len(), metadata: group, reader: &*reader };
        group.append_to(&mut trace, &table)?;
    }
    Ok(trace)
}

/// Row counts are claims of the file: they must agree with themselves and with its size.
fn check_rows(groups: &[RowGroupMetaData], size: u64, file: &str) -> Result<(), Error> {
    let mut total = 0_u64;
    for group in groups {
        total = u64::try_from(group.num_rows()).map_or(u64::MAX, |rows| total.saturating_add(rows));
    }
    if total > size.saturating_mul(ROWS_PER_BYTE) {
        return Err(Error::refused(
            file,
            Place::Unknown,
            format!("metadata claim {total} rows in {size} bytes"),
            DAMAGED,
        ));
    }
    Ok(())
}

/// Where our columns are among the file's.
struct Table {
    columns: [usize; columns::NAMES.len()],
}

impl Table {
    fn find(schema: &SchemaDescriptor, file: &str) -> Result<Self, Error> {
        let refuse = |what: String| Error::refused(file, Place::Unknown, what, NOT_OURS);
        let mut found = [0; columns::NAMES.len()];
        for (slot, name) in found.iter_mut().zip(columns::NAMES) {
            let position = (0..schema.num_columns()).find(|&i| schema.column(i).path().parts() == [name]);
            let Some(position) = position else {
                let has: Vec<String> = schema.columns().iter().take(12).map(|c| c.path().string()).collect();
                return Err(refuse(format!("no column {name}, only: {}", has.join(", "))));
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
        Ok(Self { columns: found })
    }
}

/// One row group: a run of whole rows, kept column by column.
struct Group<'a> {
    file: &'a str,
    size: u64,
    first_row: usize,
    metadata: &'a RowGroupMetaData,
    reader: &'a dyn RowGroupReader,
}

impl Group<'_> {
    fn append_to(&self, trace: &mut Trace, table: &Table) -> Result<(), Error> {
        let [time_ns, cpu, pid, comm, event, pfn, order, migratetype, gfp] = table.columns;
        let limit = |bound: u64| 0..bound;
        let any = 0..u64::MAX;

        // The first column decides how many rows there are; the others must have as many.
        let time_ns = self.integers(time_ns, &any)?;
        let cpu = self.integers(cpu, &limit(1 << u16::BITS))?;
        let pid = self.integers(pid, &limit(1 << 31))?;
        let comm = self.strings(comm, |name| Ok(trace.comms.intern(&String::from_utf8_lossy(name))))?;
        let kind = self.strings(event, |name| {
            core::str::from_utf8(name)
                .ok()
                .and_then(EventKind::from_name)
                .ok_or_else(|| format!("unknown event {:?}", String::from_utf8_lossy(name)))
        })?;
        let pfn = self.integers(pfn, &limit(PFN_LIMIT))?;
        let order = self.integers(order, &limit(u64::from(MAX_ORDER) + 1))?;
        let migratetype = self.migratetypes(migratetype)?;
        let gfp = self.integers(gfp, &any)?;

        let mut earlier = trace.events.last().map_or(0, |event| event.time_ns);
        trace.events.reserve(time_ns.len());
        for row in 0..time_ns.len() {
            // The columns' ranges make every `as` below exact.
            let event = Event {
                time_ns: time_ns[row],
                pfn: pfn[row],
                gfp: gfp[row],
                pid: pid[row] as u32,
                comm: comm[row],
                cpu: cpu[row] as u16,
                order: order[row] as u8,
                migratetype: migratetype[row],
                kind: kind[row],
            };
            if let Some(what) = fault(&event, earlier, trace.comms.len()) {
                let fix = "sort the rows by time_ns";
                return Err(Error::refused(self.file, self.row(row), what, fix));
            }
            earlier = event.time_ns;
            trace.events.push(event);
        }
        Ok(())
    }

    fn row(&self, row: usize) -> Place {
        Place::Row((self.first_row + row) as u64 + 1)
    }

    fn rows(&self) -> usize {
        usize::try_from(self.metadata.num_rows()).unwrap_or(0)
    }

    fn integers(&self, position: usize, range: &Range<u64>) -> Result<Vec<u64>, Error> {
        let name = self.metadata.column(position).column_descr().name();
        let check = |value: u64| {
            if range.contains(&value) || range.end == u64::MAX {
                Ok(value)
            } else {
                Err(format!("{name} is {}, not one of 0 to {}", value.cast_signed(), range.end - 1))
            }
        };
        // An unsigned column keeps its bits in a signed type; a negative number of a signed one gets the bits
        // of a huge number, which is out of range.
        let column = self.metadata.column(position).column_descr();
        let unsigned = is_unsigned(column);
        if column.physical_type() == PhysicalType::INT32 {
            self.values::<Int32Type, _>(position, |&value| {
                let narrow = u64::from(value.cast_unsigned());
                check(if unsigned { narrow } else { i64::from(value).cast_unsigned() })
            })
        } else {
            self.values::<Int64Type, _>(position, |&value| check(value.cast_unsigned()))
        }
    }

    fn migratetypes(&self, position: usize) -> Result<Vec<Option<u8>>, Error> {
        let check = |value: i64| match i8::try_from(value) {
            Ok(-1) => Ok(None),
            Ok(number @ 0..) => Ok(Some(number.cast_unsigned())),
            _ => Err(format!("migratetype is {value}, not one of -1 to {}", i8::MAX)),
        };
        if self.metadata.column(position).column_type() == PhysicalType::INT32 {
            self.values::<Int32Type, _>(position, |&value| check(i64::from(value)))
        } else {
            self.values::<Int64Type, _>(position, |&value| check(value))
        }
    }

    fn strings<V>(
        &self,
        position: usize,
        mut convert: impl FnMut(&[u8]) -> Result<V, String>,
    ) -> Result<Vec<V>, Error> {
        self.values::<ByteArrayType, _>(position, |value| convert(value.data()))
    }

    /// Opens a column whose values are of type `T`, which [`Table::find`] has made sure of.
    fn column<T: DataType>(&self, position: usize) -> Result<ColumnReaderImpl<T>, Error> {
        let chunk = self.metadata.column(position);
        let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
        let end = start.checked_add(chunk.compressed_size());
        let inside = start >= 0
            && chunk.data_page_offset() >= start
            && end.is_some_and(|end| end >= start && end.cast_unsigned() <= self.size);
        if !inside {
            let name = chunk.column_descr().name();
            let what = format!("column {name} lies outside the file's {} bytes", self.size);
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
        let pages = self.reader.get_column_page_reader(position);
        let pages = pages.map_err(|cause| self.damaged(chunk, &cause))?;
        let column = chunk.column_descr_ptr();
        let nullable = column.max_def_level() > 0;
        let pages = CheckedPages::new(pages, column.physical_type(), nullable);
        Ok(ColumnReaderImpl::new(column, Box::new(pages)))
    }

    /// All values of a column, converted; as many as the group has rows.
    fn values<T: DataType, V>(
        &self,
        position: usize,
        mut convert: impl FnMut(&T::T) -> Result<V, String>,
    ) -> Result<Vec<V>, Error> {
        let mut reader = self.column::<T>(position)?;
        let chunk = self.metadata.column(position);
        let name = chunk.column_descr().name();
        let rows = self.rows();
        let nullable = chunk.column_descr().max_def_level() > 0;
        let (mut values, mut batch, mut levels) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            batch.clear();
            levels.clear();
            let (read, _, _) = reader
                .read_records(BATCH, nullable.then_some(&mut levels), None, &mut batch)
                .map_err(|cause| self.damaged(chunk, &cause))?;
            if let Some(null) = levels.iter().position(|&level| level == 0) {
                let what = format!("{name} is null");
                return Err(Error::refused(self.file, self.row(values.len() + null), what, RANGE));
            }
            if read != batch.len() || values.len() + read > rows || (read == 0 && values.len() < rows) {
                let what = format!("has {} rows, not {rows}", values.len() + read);
                return Err(self.damaged(chunk, &ParquetError::General(what)));
            }
            if read == 0 {
                return Ok(values);
            }
            for value in &batch {
                let place = self.row(values.len());
                values.push(convert(value).map_err(|what| Error::refused(self.file, place, what, RANGE))?);
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
