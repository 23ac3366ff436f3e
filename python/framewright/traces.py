"""Recorded traces of the page allocator, as Arrow tables.

A trace is one Parquet table, so it is read by any reader of Parquet.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ._command import path_of

#: The columns of a trace. ``time_ns``: nanoseconds on the recording's clock; ``pfn``: frame number, of pages of 4 KiB;
#: ``order``: the block is ``2**order`` frames; ``migratetype``: as the kernel numbers them, -1 for frees.
SCHEMA = pa.schema(
    [
        pa.field("time_ns", pa.uint64(), nullable=False),
        pa.field("cpu", pa.uint16(), nullable=False),
        pa.field("pid", pa.int32(), nullable=False),
        pa.field("comm", pa.string(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("pfn", pa.uint64(), nullable=False),
        pa.field("order", pa.uint8(), nullable=False),
        pa.field("migratetype", pa.int8(), nullable=False),
        pa.field("gfp", pa.uint64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Trace:
    """A trace: its events, in order of time, and where it comes from."""

    path: Path
    table: pa.Table
    #: ``source``, ``command``, ``machine``, ``kernel``, ``cpus``, ``recorded_at``, …
    metadata: dict[str, str]

    @property
    def seconds(self) -> float:
        """From the first event to the last, in seconds."""
        if self.table.num_rows == 0:
            return 0.0
        ends = pc.min_max(self.table["time_ns"]).as_py()
        return (ends["max"] - ends["min"]) / 1e9

    def _free(self) -> str:
        """The event that is a free: ``mm_page_free_batched`` accompanies ``mm_page_free``, but where there is none of those."""
        batched = not pc.any(pc.equal(self.table["event"], "mm_page_free")).as_py()
        return "mm_page_free_batched" if batched else "mm_page_free"

    def by_order(self) -> pd.DataFrame:
        """For each order: ``allocations``, ``frees`` (blocks), and ``pages`` allocated (4 KiB each)."""
        counts = self.table.group_by(["order", "event"]).aggregate([("pfn", "count")]).to_pandas()
        wide = counts.pivot_table(index="order", columns="event", values="pfn_count", fill_value=0)
        frame = pd.DataFrame(index=pd.RangeIndex(11, name="order"))
        frame["allocations"] = wide.get("mm_page_alloc", pd.Series(dtype=int)).reindex(frame.index, fill_value=0).astype(int)
        frame["frees"] = wide.get(self._free(), pd.Series(dtype=int)).reindex(frame.index, fill_value=0).astype(int)
        frame["pages"] = frame["allocations"] * 2**frame.index
        return frame

    def zone_lock_share(self) -> float:
        """Which share of the allocations took the zone lock: events ``mm_page_alloc_zone_locked`` per ``mm_page_alloc``.

        Refills of a per-CPU list are counted block by block, so it may exceed 1.
        """
        counts = pc.value_counts(self.table["event"]).to_pylist()
        by_name = {entry["values"]: entry["counts"] for entry in counts}
        return by_name.get("mm_page_alloc_zone_locked", 0) / max(1, by_name.get("mm_page_alloc", 0))

    def live_pages(self, points: int = 500) -> pd.DataFrame:
        """Pages allocated and not freed again over time: ``seconds`` since the first event, ``pages`` (4 KiB each).

        A free of what was allocated before the trace began counts for nothing.
        """
        if not isinstance(points, Integral):
            raise TypeError(f"points: a whole number, not {type(points).__name__}")
        if points < 1:
            raise ValueError(f"points: at least 1, not {points}")
        used = pc.is_in(self.table["event"], pa.array(["mm_page_alloc", self._free()]))
        events = self.table.filter(used).select(["time_ns", "event", "order", "pfn"]).to_pandas()
        # Blocks may be freed in parts: each counts as so many of the smallest that occur in its 1,024 frames.
        unit = 2 ** events.groupby(events["pfn"] // 1024)["order"].transform("min").astype("int64")
        parts = events.index.repeat(2 ** events["order"].astype("int64") // unit)
        frame = events["pfn"][parts] + unit[parts] * pd.Series(parts).groupby(parts).cumcount().to_numpy()
        held = unit[parts].where(events["event"][parts] == "mm_page_alloc", 0).reset_index(drop=True)
        change = held - held.groupby(frame.reset_index(drop=True)).shift(fill_value=0)
        pages = change.groupby(parts).sum().cumsum()
        seconds = (events["time_ns"] - events["time_ns"].min()) / 1e9
        step = max(1, len(events) // points)
        return pd.DataFrame({"seconds": seconds, "pages": pages}).iloc[::step].reset_index(drop=True)


def open_trace(path: str | Path) -> Trace:
    """Opens a trace that ``framewright record`` or ``import`` has written; refuses other tables."""
    path = Path(path_of(path, "trace"))
    # What cannot be opened is told as Python does; of a folder, its files would be read as one table.
    with open(path, "rb"):
        pass
    try:
        table = pq.read_table(path, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no trace, or is damaged: {' '.join(str(error).split())}") from error
    for field in SCHEMA:
        at = table.schema.get_field_index(field.name)
        if at < 0 or table.schema.field(at).type not in (field.type, pa.dictionary(pa.int32(), field.type)):
            raise ValueError(f"{path} is no trace: no column {field.name} of type {field.type}")
    times = table["time_ns"]
    row = 1 + pc.index(pc.less(times[1:], times[:-1]), True).as_py() if len(times) > 1 else 0
    if row > 0:
        raise ValueError(f"{path} is no trace: time_ns of row {row} is before that of the row above it; sort the rows by time_ns")
    raw = table.schema.metadata or {}
    prefix = b"framewright."
    metadata = {key[len(prefix) :].decode(errors="replace"): value.decode(errors="replace") for key, value in raw.items() if key.startswith(prefix)}
    return Trace(path, table, metadata)
