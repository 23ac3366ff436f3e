//! Traces in the hands of other tools: DuckDB and pandas open what we write, and we read what they write.

use std::path::{Path, PathBuf};
use std::process::Command;

use framewright_trace::trace::{EventKind, Trace};

use crate::common::{Folder, named, small_trace};

/// Opens a trace twice, says what it sees, and writes it again as each tool does unless told otherwise.
const SCRIPT: &str = r#"
import sys
import duckdb, pandas
trace, by_duckdb, by_pandas = sys.argv[1:]
frame = pandas.read_parquet(trace)
print(",".join(f"{name}:{kind}" for name, kind in zip(frame.columns, frame.dtypes)).replace(":object", ":str"))
print(";".join(",".join(map(str, row)) for row in frame.itertuples(index=False)))
rows = duckdb.execute("select * from read_parquet(?)", [trace]).fetchall()
print(";".join(",".join(map(str, row)) for row in rows))
lost = duckdb.execute("select value from parquet_kv_metadata(?) where key = 'framewright.lost_events'", [trace])
print(lost.fetchone()[0].decode())
frame[frame["event"] == "mm_page_alloc"].to_parquet(by_pandas, index=False)
duckdb.execute("copy (select * from read_parquet($1) where event = 'mm_page_alloc') to '%s'" % by_duckdb, [trace])
"#;

/// A Python that has both: `FRAMEWRIGHT_PYTHON`, else that of `target/venv`, where `./test` puts them.
fn python() -> PathBuf {
    let venv = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin/python");
    std::env::var_os("FRAMEWRIGHT_PYTHON").map_or_else(venv, PathBuf::from)
}

#[test]
#[ignore = "takes a Python with DuckDB and pandas; ./test installs and runs it"]
fn duckdb_and_pandas_open_a_trace_and_theirs_is_read() {
    let dir = Folder::new("second-reader");
    let path = |name: &str| dir.path().join(name);
    let trace = small_trace();
    trace.write(&path("t.parquet")).unwrap();
    let python = python();
    let output = Command::new(&python)
        .args(["-c", SCRIPT])
        .args(["t.parquet", "duckdb.parquet", "pandas.parquet"].map(path))
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}; {HELP}", python.display()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}\n{HELP}");

    let output = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<String> = named(&trace)
        .iter()
        .map(|(event, comm)| {
            format!(
                "{},{},{},{comm},{},{},{},{},{},",
                event.time_ns,
                event.cpu,
                event.pid,
                event.kind,
                event.pfn,
                event.order,
                event.migratetype.map_or(-1, i16::from),
                event.gfp
            )
        })
        .collect();
    let rows = rows.join(";");
    let types = "time_ns:uint64,cpu:uint16,pid:int32,comm:str,event:str,pfn:uint64,order:uint8,migratetype:int8,gfp:uint64,text:str";
    assert_eq!(output.lines().collect::<Vec<_>>(), [types, &rows, &rows, "3"]);

    let allocations = Trace {
        events: trace.events.iter().filter(|event| event.kind == EventKind::PageAlloc).copied().collect(),
        ..trace
    };
    for name in ["duckdb.parquet", "pandas.parquet"] {
        assert_eq!(named(&Trace::read(&path(name)).unwrap()), named(&allocations), "{name}");
    }
}

const HELP: &str = "install them with `python3 -m venv target/venv && target/venv/bin/pip install duckdb pandas pyarrow`, \
    or set FRAMEWRIGHT_PYTHON to a Python that has them";
