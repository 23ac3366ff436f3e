//! Trace files: what is written is read back, and nothing else is read at all.

use std::fs;
use std::sync::Arc;

use crate::common::{Folder, any_trace, meta, named, named_notes, small_trace};
use framewright_trace::error::{Error, Place};
use framewright_trace::trace::{Comms, Event, Meta, Note, Trace};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;

proptest! {
    #[test]
    fn what_is_written_is_read_back(trace in any_trace()) {
        let bytes = trace.to_bytes().unwrap();
        let read = Trace::read_bytes(&bytes, "t").unwrap();
        prop_assert_eq!(named(&read), named(&trace));
        prop_assert_eq!(named_notes(&read), named_notes(&trace));
        prop_assert_eq!(&read.meta, &trace.meta);
        // The second file is the first: order of names and all.
        prop_assert_eq!(read.to_bytes().unwrap(), Trace::read_bytes(&bytes, "t").unwrap().to_bytes().unwrap());
    }

    #[test]
    fn damage_is_refused_or_harmless(trace in any_trace(), hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = trace.to_bytes().unwrap();
        for (at, value) in hits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Err(error) = Trace::read_bytes(&bytes, "t") {
            prop_assert!(is_one_line(&error), "{}", error);
        }
    }

    #[test]
    fn other_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Trace::read_bytes(&bytes, "t").is_err_and(|error| is_one_line(&error)));
        let framed = [b"PAR1", &bytes[..], &u32::try_from(bytes.len()).unwrap().to_le_bytes(), b"PAR1"].concat();
        prop_assert!(Trace::read_bytes(&framed, "t").is_err_and(|error| is_one_line(&error)));
    }
}

/// One line that names the file and says what to do.
fn is_one_line(error: &Error) -> bool {
    let text = error.to_string();
    !text.contains('\n') && text.starts_with("t: ") && text.contains("; ")
}

/// It packs into far fewer bytes than a reader accepts for as many rows.
#[test]
fn a_trace_that_repeats_itself_is_read_back() {
    let small = small_trace();
    let first = small.events[0];
    let events = (0..600_000).map(|n| Event { time_ns: 1000 * n, ..first }).collect();
    let loops = Trace { events, ..small.clone() };
    let note = |n| Note { time_ns: n, cpu: 0, pid: 1, comm: 0, name: "tick".into(), text: "x".repeat(200) };
    let noted = Trace { notes: (0..40_000).map(note).collect(), ..small.clone() };
    // A thread with a name of its own for each event.
    let mut comms = Comms::default();
    let named_apart = |n| Event { time_ns: 1000 * n, comm: comms.intern(&format!("w{n}")), ..first };
    let events = (0_u64..60_000).map(named_apart).collect();
    let threads = Trace { events, comms, ..small };
    for trace in [loops, noted, threads] {
        let read = Trace::read_bytes(&trace.to_bytes().unwrap(), "t").unwrap();
        assert!(named(&read) == named(&trace) && named_notes(&read) == named_notes(&trace));
    }
}

/// As of a command with thousands of files, and of `/proc/zoneinfo` on a machine of a thousand CPUs.
#[test]
fn long_texts_are_read_back() {
    let small = small_trace();
    let long = |n: u64| {
        (0..200_000)
            .map(|at: u64| format!("{:x} ", (at + (n << 18)).wrapping_mul(0x9e37_79b9_7f4a)))
            .collect()
    };
    let note = |n| Note { time_ns: n, cpu: 0, pid: 1, comm: 0, name: "/proc/zoneinfo".into(), text: long(n) };
    let noted = Trace { notes: (0..5).map(note).collect(), ..small.clone() };
    assert!(noted.notes.iter().all(|note| note.text.len() > 3 << 20));
    let read = Trace::read_bytes(&noted.to_bytes().unwrap(), "t").unwrap();
    assert!(named_notes(&read) == named_notes(&noted));
    let command = "éa ".repeat(1 << 20);
    let called = Trace { meta: Meta { command: command.clone(), ..meta() }, ..small };
    let read = Trace::read_bytes(&called.to_bytes().unwrap(), "t").unwrap();
    let begin = read.meta.command.strip_suffix('…').unwrap();
    assert!(begin.len() > 10_000 && command.starts_with(begin));
}

#[test]
fn a_trace_of_nothing_is_a_trace() {
    let empty = Trace { meta: meta(), ..Trace::default() };
    let read = Trace::read_bytes(&empty.to_bytes().unwrap(), "t").unwrap();
    assert_eq!(read, empty);
    assert_eq!(read.duration_ns(), 0);
}

#[test]
fn what_is_unknown_stays_unknown() {
    let trace = Trace { meta: Meta::default(), ..small_trace() };
    let read = Trace::read_bytes(&trace.to_bytes().unwrap(), "t").unwrap();
    assert_eq!(read.meta, Meta { framewright: env!("CARGO_PKG_VERSION").into(), ..Meta::default() });
}

#[test]
fn more_than_one_row_group() {
    let event = small_trace().events[0];
    // Frames that do not repeat: a file of nothing but repetitions may not hold so many rows.
    let mixed = |n: u64| (n ^ n >> 15).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let pfn = |n: u64| mixed(mixed(n) >> 20) >> 56;
    let events = (0..(1 << 20) + 5).map(|n| Event { time_ns: n, pfn: pfn(n), ..event }).collect();
    let trace = Trace { events, ..small_trace() };
    let read = Trace::read_bytes(&trace.to_bytes().unwrap(), "t").unwrap();
    assert!(read.events == trace.events, "the events differ");
}

#[test]
fn every_cut_is_refused() {
    let bytes = small_trace().to_bytes().unwrap();
    for length in 0..bytes.len() {
        let error = Trace::read_bytes(&bytes[..length], "dir/t.parquet").unwrap_err();
        let Error::Refused { file, at, .. } = &error else { panic!("{error:?}") };
        assert_eq!(file, "dir/t.parquet");
        assert_eq!(*at, Place::Byte(length as u64), "cut to {length} bytes: {error}");
    }
}

#[test]
fn messages() {
    let bytes = small_trace().to_bytes().unwrap();
    let message = |bytes: &[u8]| Trace::read_bytes(bytes, "t").unwrap_err().to_string();
    assert_eq!(
        message(b"PERFILE2 and more"),
        "t: at byte 0: no Parquet file: does not begin with PAR1; \
         give a file written by `framewright record` or `framewright import`"
    );
    assert_eq!(
        message(b""),
        "t: at byte 0: an empty file; give a file written by `framewright record` or `framewright import`"
    );
    assert_eq!(
        message(&bytes[..100]),
        "t: at byte 100: a Parquet file cut off after 100 bytes: no PAR1 at its end; \
         the file is damaged: copy or record it again"
    );
    let mut long = bytes.clone();
    let tail = bytes.len() - 8;
    long[tail..tail + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(
        message(&long),
        format!(
            "t: at byte {tail}: metadata of 4294967295 bytes do not fit into {} bytes; \
             the file is damaged: copy or record it again",
            bytes.len()
        )
    );
}

#[test]
fn an_invalid_trace_is_not_written() {
    type Change = fn(&mut Event);
    let cases: [(Change, &str); 6] = [
        (|event| event.order = 14, "order 14 is above 13"),
        (|event| event.time_ns = 5, "time_ns 5 is before the row above it, 1001"),
        (|event| event.pfn = 1 << 52, "pfn 4503599627370496 is no frame number"),
        (|event| event.pid = 1 << 31, "pid 2147483648 is out of range"),
        (|event| event.migratetype = Some(128), "migratetype 128 is out of range"),
        (|event| event.comm = 2, "comm 2 is not in the table of names"),
    ];
    for (change, what) in cases {
        let mut trace = small_trace();
        change(&mut trace.events[2]);
        assert_eq!(trace.to_bytes().unwrap_err().to_string(), format!("trace not written: event 2: {what}"));
    }
}

#[test]
fn files_appear_whole_or_not_at_all() {
    let dir = Folder::new("trace-file");
    let path = dir.path().join("t.parquet");
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let mut invalid = small_trace();
    invalid.events[0].order = 99;
    invalid.write(&path).unwrap_err();
    assert_eq!(names(), Vec::<std::ffi::OsString>::new());

    small_trace().write(&path).unwrap();
    assert_eq!(names(), ["t.parquet"]);
    assert_eq!(Trace::read(&path).unwrap(), small_trace());

    // What was there stays if the new one cannot be written.
    invalid.write(&path).unwrap_err();
    assert_eq!(Trace::read(&path).unwrap(), small_trace());
    let taken = dir.path().join("taken");
    fs::create_dir(&taken).unwrap();
    let error = small_trace().write(&taken).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot write {}: ", taken.display())), "{error}");
    assert_eq!(names(), ["t.parquet", "taken"]);

    let missing = dir.path().join("missing/t.parquet");
    let error = small_trace().write(&missing).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("cannot write {}: ", missing.display()))
            && error.ends_with("; check the path")
    );
    let error = Trace::read(&missing).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("cannot read {}: ", missing.display()))
            && error.ends_with("; check the path")
    );
}

/// A table of any make: columns as `(declaration, values)`.
fn table(columns: &[(&str, Column)], compression: Compression) -> Vec<u8> {
    written(columns, WriterProperties::builder().set_compression(compression).build())
}

/// The same, however it is written.
pub(crate) fn written(columns: &[(&str, Column)], properties: WriterProperties) -> Vec<u8> {
    let declarations: Vec<&str> = columns.iter().map(|(declaration, _)| *declaration).collect();
    let schema = format!("message m {{ {}; }}", declarations.join("; "));
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for (_, column) in columns {
        let mut writer = group.next_column().unwrap().unwrap();
        // For optional columns: which of the rows are there.
        match column {
            Column::Narrow(values, there) => {
                writer.typed::<Int32Type>().write_batch(values, there.as_deref(), None).unwrap();
            }
            Column::Wide(values) => {
                writer.typed::<Int64Type>().write_batch(values, None, None).unwrap();
            }
            Column::Text(values) => {
                let values: Vec<ByteArray> = values.iter().map(|&text| text.into()).collect();
                writer.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
            }
        }
        writer.close().unwrap();
    }
    group.close().unwrap();
    writer.into_inner().unwrap()
}

#[derive(Clone)]
pub(crate) enum Column {
    Narrow(Vec<i32>, Option<Vec<i16>>),
    Wide(Vec<i64>),
    Text(Vec<&'static str>),
}

/// The columns of a trace of two rows, as another tool might write them: signed, wide, in another order, with
/// one more.
fn foreign() -> Vec<(&'static str, Column)> {
    vec![
        ("required int64 gfp", Column::Wide(vec![-1, 0])),
        ("required int64 order", Column::Wide(vec![0, 13])),
        ("optional int32 pid", Column::Narrow(vec![1, 2], Some(vec![1, 1]))),
        ("required binary comm (STRING)", Column::Text(vec!["a", "b"])),
        ("required binary event (STRING)", Column::Text(vec!["mm_page_alloc", "mm_page_free"])),
        ("required int32 time_ns (INTEGER(32, false))", Column::Narrow(vec![5, -1], None)),
        ("required int32 pfn", Column::Narrow(vec![7, 8], None)),
        ("required int64 migratetype", Column::Wide(vec![2, -1])),
        ("required int32 cpu", Column::Narrow(vec![65535, 0], None)),
        ("required int32 weight", Column::Narrow(vec![1, 2], None)),
    ]
}

#[test]
fn tables_of_other_tools_are_read() {
    for compression in [Compression::SNAPPY, Compression::UNCOMPRESSED, Compression::ZSTD(Default::default())]
    {
        let trace = Trace::read_bytes(&table(&foreign(), compression), "t").unwrap();
        let [first, second] = trace.events[..] else { panic!("{trace:?}") };
        assert_eq!((first.time_ns, first.gfp, first.cpu, first.migratetype), (5, u64::MAX, 65535, Some(2)));
        assert_eq!((second.time_ns, second.order, second.migratetype), (u64::from(u32::MAX), 13, None));
        assert_eq!(trace.comm(&second), "b");
        assert_eq!(trace.meta, Meta::default());
    }
}

#[test]
fn tables_that_are_no_traces_are_refused() {
    let message = |bytes: &[u8]| Trace::read_bytes(bytes, "t").unwrap_err().to_string();
    let give = "give a file written by `framewright record` or `framewright import`";
    let mut columns = foreign();
    columns.remove(0);
    assert_eq!(
        message(&table(&columns, Compression::SNAPPY)),
        format!(
            "t: no column gfp, only: order, pid, comm, event, time_ns, pfn, migratetype, cpu, weight; {give}"
        )
    );
    let narrow = |values: [i32; 2]| Column::Narrow(values.to_vec(), None);
    let null = Column::Narrow(vec![9], Some(vec![1, 0]));
    let fix = "correct the value or record again";
    for (declaration, values, what, then) in [
        (
            "binary pfn (STRING)",
            Column::Text(vec!["1", "2"]),
            "column pfn holds BYTE_ARRAY, not one of integers per row",
            give,
        ),
        ("int32 order", narrow([0, 14]), "row 2: order is 14, not one of 0 to 13", fix),
        ("int32 order", narrow([-1, 0]), "row 1: order is -1, not one of 0 to 13", fix),
        ("int32 cpu", narrow([0, 65536]), "row 2: cpu is 65536, not one of 0 to 65535", fix),
        (
            "binary event (STRING)",
            Column::Text(vec!["mm_page_free", "mm_page_move"]),
            "row 2: unknown event \"mm_page_move\"",
            fix,
        ),
        ("int32 migratetype", narrow([0, -2]), "row 2: migratetype is -2, not one of -1 to 127", fix),
        ("int32 pid", null, "row 2: pid is null", fix),
        (
            "int32 time_ns",
            narrow([2, 1]),
            "row 2: time_ns 1 is before the row above it, 2",
            "sort the rows by time_ns",
        ),
    ] {
        let presence = if declaration == "int32 pid" { "optional" } else { "required" };
        let declaration = format!("{presence} {declaration}");
        let mut columns = foreign();
        let same = |known: &str| known.split(' ').nth(2) == declaration.split(' ').nth(2);
        let place = columns.iter().position(|(known, _)| same(known)).expect("a column of that name");
        columns[place] = (&declaration, values);
        assert_eq!(message(&table(&columns, Compression::SNAPPY)), format!("t: {what}; {then}"));
    }
}

#[test]
fn a_table_of_another_tool_may_have_no_rows() {
    let empty = |(declaration, column): (&'static str, Column)| {
        let column = match column {
            Column::Narrow(_, there) => Column::Narrow(Vec::new(), there.map(|_| Vec::new())),
            Column::Wide(_) => Column::Wide(Vec::new()),
            Column::Text(_) => Column::Text(Vec::new()),
        };
        (declaration, column)
    };
    let columns: Vec<_> = foreign().into_iter().map(empty).collect();
    assert_eq!(Trace::read_bytes(&table(&columns, Compression::SNAPPY), "t").unwrap(), Trace::default());
}

#[test]
fn the_shipped_trace_is_as_its_page_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/compile.parquet");
    assert!(fs::metadata(path).unwrap().len() <= 4_000_000);
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/README.md")).unwrap();
    let trace = Trace::read(path.as_ref()).unwrap();
    let grouped = |count: usize| {
        let digits = count.to_string();
        let groups = digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).unwrap());
        groups.collect::<Vec<_>>().join(",")
    };
    assert!(page.contains(&grouped(trace.events.len())));
    for kind in framewright_trace::trace::EventKind::ALL {
        assert!(page.contains(&format!("`{kind}` {}", grouped(trace.count(kind)))), "{kind}");
    }
    assert!(trace.count(framewright_trace::trace::EventKind::PageAlloc) >= 300_000);
    assert!(page.contains(&trace.meta.command) && page.contains(&trace.meta.kernel));
    assert_eq!(trace.meta.lost_events, Some(0));
}
