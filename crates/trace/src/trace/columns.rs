//! The table that keeps a trace: one row per event or note, ten columns, none of them ever null.

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use super::Meta;

/// Names of the columns, in their order in the file.
pub(super) const NAMES: [&str; 9] =
    ["time_ns", "cpu", "pid", "comm", "event", "pfn", "order", "migratetype", "gfp"];

/// Name of the last column, which tables of older versions and of other tools need not have.
pub(super) const TEXT: &str = "text";

/// The columns' types.
///
/// `migratetype` is -1 and `gfp` is 0 where the tracepoint reports none: columns without nulls keep their
/// integer types in every reader.
pub(super) const SCHEMA: &str = "
    message trace {
        required int64 time_ns (INTEGER(64, false));
        required int32 cpu (INTEGER(16, false));
        required int32 pid (INTEGER(32, true));
        required byte_array comm (STRING);
        required byte_array event (STRING);
        required int64 pfn (INTEGER(64, false));
        required int32 order (INTEGER(8, false));
        required int32 migratetype (INTEGER(8, true));
        required int64 gfp (INTEGER(64, false));
        required byte_array text (STRING);
    }";

/// Rows per row group. A reader holds one group in memory at a time.
pub(super) const ROWS_PER_GROUP: usize = 1 << 20;

/// Whether a file is made small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Packed,
    /// A row has at least the 16 bytes of its time and its frame.
    Plain,
    /// Nor is a value of several rows kept once for all: an event's row has at least 64 bytes.
    Whole,
}

/// Encodings: times grow by little, so their differences are packed; frames recur soon after they were freed,
/// in runs that the compressor sees best when they are left plain; all else has few values, so a dictionary
/// holds them.
pub(super) fn properties(meta: &Meta, packing: Packing) -> WriterProperties {
    let path = |name: &str| ColumnPath::from(name);
    let level = ZstdLevel::try_new(9).expect("9 is a level of zstd");
    let (compression, times) = match packing {
        Packing::Packed => (Compression::ZSTD(level), Encoding::DELTA_BINARY_PACKED),
        Packing::Plain | Packing::Whole => (Compression::UNCOMPRESSED, Encoding::PLAIN),
    };
    WriterProperties::builder()
        .set_created_by(concat!("framewright ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(compression)
        .set_dictionary_enabled(packing != Packing::Whole)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_max_row_group_row_count(Some(ROWS_PER_GROUP))
        .set_column_dictionary_enabled(path("time_ns"), false)
        .set_column_encoding(path("time_ns"), times)
        .set_column_dictionary_enabled(path("pfn"), false)
        .set_column_encoding(path("pfn"), Encoding::PLAIN)
        .set_key_value_metadata(Some(to_pairs(meta)))
        .build()
}

/// Keys of the file's metadata, all under this prefix.
const PREFIX: &str = "framewright.";
/// Longest value in bytes, without the mark of a longer one: far less than what a reader accepts of all metadata.
const LONGEST: usize = 1 << 14;

pub(crate) fn to_pairs(meta: &Meta) -> Vec<KeyValue> {
    let mut pairs = Vec::new();
    let mut put = |key: &str, mut value: String| {
        // Of a command with thousands of files, say.
        if value.len() > LONGEST {
            value.truncate(value.floor_char_boundary(LONGEST));
            value.push('…');
        }
        if !value.is_empty() {
            pairs.push(KeyValue::new(format!("{PREFIX}{key}"), value));
        }
    };
    put("version", env!("CARGO_PKG_VERSION").to_owned());
    put("source", meta.source.clone());
    put("command", meta.command.clone());
    put("machine", meta.machine.clone());
    put("kernel", meta.kernel.clone());
    put("cpus", if meta.cpus == 0 { String::new() } else { meta.cpus.to_string() });
    put("page_kib", if meta.page_kib == 0 { String::new() } else { meta.page_kib.to_string() });
    put("recorded_at", meta.recorded_at.clone());
    put("clock", meta.clock.clone());
    put("attribution", meta.attribution.clone());
    put("lost_events", meta.lost_events.map_or_else(String::new, |lost| lost.to_string()));
    put("failed_allocations", meta.failed_allocations.to_string());
    put("cut", if meta.cut { "yes".to_owned() } else { String::new() });
    put("reading_ns", if meta.reading_ns == 0 { String::new() } else { meta.reading_ns.to_string() });
    put("unknown_flags", meta.unknown_flags.clone());
    pairs
}

/// What the metadata says. A tool that rewrote the table may have dropped keys; their values are then unknown.
pub(crate) fn from_pairs(pairs: &[KeyValue]) -> Meta {
    let get = |key: &str| {
        pairs
            .iter()
            .find(|pair| pair.key.strip_prefix(PREFIX) == Some(key))
            .and_then(|pair| pair.value.clone())
            .unwrap_or_default()
    };
    Meta {
        source: get("source"),
        command: get("command"),
        machine: get("machine"),
        kernel: get("kernel"),
        cpus: get("cpus").parse().unwrap_or_default(),
        page_kib: get("page_kib").parse().unwrap_or_default(),
        recorded_at: get("recorded_at"),
        clock: get("clock"),
        attribution: get("attribution"),
        lost_events: get("lost_events").parse().ok(),
        failed_allocations: get("failed_allocations").parse().unwrap_or_default(),
        unknown_flags: get("unknown_flags"),
        cut: get("cut") == "yes",
        reading_ns: get("reading_ns").parse().unwrap_or_default(),
        framewright: get("version"),
    }
}
