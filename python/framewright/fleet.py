"""Traces and snapshots of many machines as one Parquet data set, to be asked with SQL.

One file per trace or snapshot, in a folder that DuckDB, pandas and Spark read as one table:
``select * from read_parquet('fleet/*.parquet')``. :data:`SCHEMA` is the schema of all of them: a trace has a row per order, a
snapshot of ``framewright doctor`` has one row, and what a row has nothing to say about is null.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ._command import needed, run_json
from .traces import open_trace

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS: list[tuple[str, pa.DataType, str]] = [
    ("kind", pa.string(), "`trace` or `doctor`"),
    ("host", pa.string(), "the machine's name, as it was added"),
    ("kernel", pa.string(), "release of its Linux"),
    ("recorded_at", pa.string(), "when, RFC 3339; a snapshot that does not say, when it was added"),
    ("machine", pa.string(), "trace: what kind of machine, as recorded"),
    ("command", pa.string(), "trace: what ran"),
    ("seconds", pa.float64(), "trace: its length"),
    ("zone_lock_share", pa.float64(), "trace: blocks taken under the zone lock per allocation, of the whole trace; see `Trace.zone_lock_share`"),
    ("order", pa.uint8(), "trace: which blocks this row counts"),
    ("allocations", pa.uint64(), "trace: blocks of the order that were allocated"),
    ("frees", pa.uint64(), "trace: blocks of the order that were freed"),
    ("pages", pa.uint64(), "trace: base pages allocated in blocks of the order, 4 KiB each"),
    ("cpus", pa.uint32(), "doctor: CPUs online"),
    ("errors", pa.uint32(), "doctor: findings that are faults"),
    ("warnings", pa.uint32(), "doctor: findings that cost time or memory"),
    ("infos", pa.uint32(), "doctor: findings worth knowing"),
    ("findings", pa.list_(pa.field("element", pa.string())), "doctor: their names, one per zone that has it"),
]

#: The schema of every file: a field's metadata says what it is.
SCHEMA = pa.schema([pa.field(name, kind, metadata={"doc": doc}) for name, kind, doc in _COLUMNS])


def schema_table() -> str:
    """The schema as a Markdown table: what the guide shows."""
    rows = [f"| `{name}` | {kind} | {doc} |" for name, kind, doc in _COLUMNS]
    return "\n".join(["| column | type | what |", "|---|---|---|", *rows])


def _check_host(host: Any) -> None:
    if not isinstance(host, str):
        raise TypeError(f"host: the machine's name, not {type(host).__name__}")
    if not host:
        raise ValueError("host: the machine's name is empty")


def _is_snapshot(read: Any) -> bool:
    findings = read.get("findings") if isinstance(read, dict) else None
    if not isinstance(findings, list):
        return False
    cpus = read.get("cpus")
    return (cpus is None or (isinstance(cpus, int) and 0 <= cpus < 2**32)) and all(
        isinstance(finding, dict) and all(isinstance(finding.get(key), str) for key in ("id", "severity")) for finding in findings
    )


def _write(folder: str | Path, rows: list[dict[str, Any]], *identity: str) -> Path:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    name = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
    path = Path(folder, f"{name}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".part-{os.getpid()}")
    pq.write_table(table, part)
    os.replace(part, path)
    return path


def add(folder: str | Path, trace: str | Path, *, host: str) -> Path:
    """Adds a trace of ``host``. Adding it again replaces it. Returns the file."""
    _check_host(host)
    opened = open_trace(trace)
    of = {key: opened.metadata.get(key, "") for key in ("machine", "kernel", "command", "recorded_at")}
    of |= {"kind": "trace", "host": host, "seconds": opened.seconds, "zone_lock_share": opened.zone_lock_share()}
    rows = [of | row for row in opened.by_order().reset_index().to_dict("records")]
    # An imported trace says neither when it was recorded nor what ran.
    moment = of["recorded_at"] or hashlib.sha256(Path(trace).read_bytes()).hexdigest()
    return _write(folder, rows, host, moment, of["command"])


def add_snapshot(
    folder: str | Path,
    snapshot: str | Path | Mapping[str, Any] | None = None,
    *,
    host: str,
    recorded_at: str | None = None,
) -> Path:
    """Adds what ``framewright doctor`` says of ``host``. Adding one of the same moment replaces it. Returns the file.

    ``snapshot``: a file with the output of ``framewright doctor --format json``, or that output as a dictionary; an archive
    of ``framewright doctor --save`` (``.tar``, ``.tar.gz``) or a copy of a machine's files, which the command examines now;
    ``None``: this machine.
    """
    _check_host(host)
    recorded_at = datetime.now(timezone.utc).isoformat(timespec="seconds") if recorded_at is None else recorded_at
    if not isinstance(recorded_at, str):
        raise TypeError(f"recorded_at: a text, not {type(recorded_at).__name__}")
    try:
        datetime.fromisoformat(recorded_at)
    except ValueError:
        raise ValueError(f"recorded_at: {recorded_at!r} is no time as RFC 3339 has it") from None
    if isinstance(snapshot, Mapping):
        read = dict(snapshot)
    elif snapshot is not None and Path(snapshot).suffix == ".json":
        try:
            read = json.loads(Path(snapshot).read_text(encoding="utf-8"))
        except ValueError:
            read = None
    else:
        root = [] if snapshot is None else ["--root", str(snapshot)]
        read = run_json(["doctor", *root])
    if not _is_snapshot(read):
        what = "the dictionary" if isinstance(snapshot, Mapping) else snapshot
        raise ValueError(f"{what} is no output of `framewright doctor --format json`")
    findings = read["findings"]
    severities = [finding["severity"] for finding in findings]
    row = {
        "kind": "doctor",
        "host": host,
        "kernel": read.get("kernel") or "",
        "recorded_at": recorded_at,
        "cpus": read.get("cpus"),
        "errors": severities.count("error"),
        "warnings": severities.count("warning"),
        "infos": severities.count("info"),
        "findings": [finding["id"] for finding in findings],
    }
    return _write(folder, [row], host, recorded_at, "doctor")


def query(folder: str | Path, sql: str) -> pd.DataFrame:
    """Answers a query over the table ``fleet`` with DuckDB."""
    if not any(Path(folder).glob("*.parquet")):
        raise FileNotFoundError(f"{folder} holds no machine yet: fleet.add puts them there")
    with needed("duckdb", "fleet").connect() as connection:
        files = str(Path(glob.escape(str(folder)), "*.parquet")).replace("'", "''")
        connection.execute(f"create view fleet as select * from read_parquet('{files}')")
        return connection.execute(sql).df()
