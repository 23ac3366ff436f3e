"""Traces of many machines as one Parquet data set, to be asked with SQL.

One file per trace, one row per order, with the schema below; DuckDB, pandas and Spark read the folder as one table:
``select * from read_parquet('fleet/*.parquet')``.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from .traces import open_trace

if TYPE_CHECKING:
    import pandas as pd

#: ``seconds``: length of the trace; ``allocations``, ``frees``: blocks of the order; ``pages``: allocated, 4 KiB each;
#: ``zone_lock_share``: of the whole trace, see :meth:`Trace.zone_lock_share`.
SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("machine", pa.string()),
        ("kernel", pa.string()),
        ("command", pa.string()),
        ("recorded_at", pa.string()),
        ("seconds", pa.float64()),
        ("zone_lock_share", pa.float64()),
        ("order", pa.uint8()),
        ("allocations", pa.uint64()),
        ("frees", pa.uint64()),
        ("pages", pa.uint64()),
    ]
)


def add(folder: str | Path, trace: str | Path, *, host: str) -> Path:
    """Adds a trace of ``host``. Adding it again replaces it. Returns the file."""
    opened = open_trace(trace)
    rows = opened.by_order().reset_index()
    of = {key: opened.metadata.get(key, "") for key in ("machine", "kernel", "command", "recorded_at")}
    rows = rows.assign(host=host, seconds=opened.seconds, zone_lock_share=opened.zone_lock_share(), **of)
    table = pa.Table.from_pandas(rows[SCHEMA.names], schema=SCHEMA, preserve_index=False)
    name = hashlib.sha256(f"{host}\0{of['recorded_at']}\0{of['command']}".encode()).hexdigest()[:16]
    path = Path(folder, f"{name}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".part-{os.getpid()}")
    pq.write_table(table, part)
    os.replace(part, path)
    return path


def query(folder: str | Path, sql: str) -> pd.DataFrame:
    """Answers a query over the table ``fleet`` with DuckDB."""
    import duckdb

    with duckdb.connect() as connection:
        files = str(Path(folder, "*.parquet")).replace("'", "''")
        connection.execute(f"create view fleet as select * from read_parquet('{files}')")
        return connection.execute(sql).df()
