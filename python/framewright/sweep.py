"""Many simulations as tasks of a Dask cluster.

A point is a dictionary of what :func:`framewright.simulate` takes. Each point becomes one Parquet file, named by the point
and written whole, so a sweep that was interrupted goes on where it was, and the result does not depend on who computed it:
it is byte for byte that of one process.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ._command import needed
from .results import simulate

if TYPE_CHECKING:
    from distributed import Client

Point = Mapping[str, Any]


def grid(**axes: Any) -> list[dict[str, Any]]:
    """Every combination: lists, tuples, ranges, arrays and columns of frames are axes, anything else is the same at every
    point."""
    several = (list, tuple, range, np.ndarray, pd.Series, pd.Index)
    lists = {k: list(v) if isinstance(v, several) else [v] for k, v in axes.items()}
    return [dict(zip(lists, values)) for values in itertools.product(*lists.values())]


def latin_hypercube(points: int, seed: int = 1, **axes: Sequence[Any]) -> list[dict[str, Any]]:
    """So many points that cover each axis evenly. An axis is a list of choices, or a pair of floats: a range."""
    pick = random.Random(seed)
    columns: dict[str, list[Any]] = {}
    for name, axis in axes.items():
        if isinstance(axis, str) or not hasattr(axis, "__len__"):
            raise TypeError(f"{name}: an axis is a list of choices, or a pair of floats, not {type(axis).__name__}")
        axis = list(axis)
        if not axis:
            raise ValueError(f"{name}: an axis has at least one choice")
        places = [(n + pick.random()) / points for n in range(points)]
        pick.shuffle(places)
        if len(axis) == 2 and all(isinstance(end, float) for end in axis):
            low, high = axis
            columns[name] = [low + (high - low) * place for place in places]
        else:
            columns[name] = [axis[int(place * len(axis))] for place in places]
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def _plain(value: Any) -> Any:
    """A number of numpy's, as ``arange`` and frames have them, as the one of Python's that it is."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def name_of(point: Point) -> str:
    """The name of a point's file: the same wherever it is computed."""
    text = json.dumps(point, sort_keys=True, separators=(",", ":"), default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:24] + ".parquet"


def run_point(point: Point, folder: str) -> str:
    """Computes a point, unless its file is there, and writes it."""
    path = Path(folder, name_of(point))
    if not path.exists():
        frame = simulate(**point).frame()
        frame.insert(0, "point", json.dumps(point, sort_keys=True, default=_plain))
        table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        part = path.with_suffix(f".part-{os.getpid()}")
        pq.write_table(table, part)
        os.replace(part, path)
    return path.name


def sweep(
    points: Iterable[Point],
    folder: str | Path,
    client: Client | str | None = None,
    *,
    retries: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Computes every point whose file is not in ``folder`` yet, and returns all of them as one frame, in the points' order.

    ``client``: a ``distributed.Client`` of any cluster whose workers see ``folder`` and the command; ``"serial"``: here, one
    after the other; by default a local cluster with a worker per processor, each of which imports the program's main module:
    a script makes the call below ``if __name__ == "__main__":``. A worker that dies loses nothing: its tasks go to others.
    ``progress`` is called with how many are done, of how many.
    """
    points = list(points)
    for point in points:
        if not isinstance(point, Mapping):
            raise TypeError(f"a point is a dictionary of what simulate takes, not {type(point).__name__}")
    if client is not None and client != "serial" and not hasattr(client, "submit"):
        raise ValueError(f"client: a distributed.Client, 'serial' or None, not {client!r}")
    points = [dict(point) for point in points]
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    missing = [point for point in points if not (folder / name_of(point)).exists()]
    done = len(points) - len(missing)

    def count(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, len(points))

    count(0)
    if client == "serial":
        for point in missing:
            run_point(point, str(folder))
            count(1)
    elif missing:
        _on_cluster(missing, str(folder), client, retries, count)
    tables = [pq.read_table(folder / name_of(point)) for point in points]
    return pa.concat_tables(tables).to_pandas() if tables else pd.DataFrame()


def _on_cluster(missing: list[dict[str, Any]], folder: str, client: Any, retries: int, count: Callable[[int], None]) -> None:
    distributed = needed("distributed", "sweep")
    own = client is None
    if own:
        client = distributed.Client(distributed.LocalCluster(threads_per_worker=1, dashboard_address=None))
    try:
        futures = [
            client.submit(run_point, point, folder, key=f"framewright-{name_of(point)}", retries=retries, pure=False)
            for point in missing
        ]
        for future in distributed.as_completed(futures):
            future.result()
            # Else the scheduler warns of results that are lost, when the cluster ends.
            future.release()
            count(1)
    finally:
        if own:
            client.shutdown()


def figures(tasks: int = 40, workers: int = 2) -> dict[str, float]:
    """What a cluster costs and brings, measured here: the same sweep of ``tasks`` short tasks in turn, on one worker and on
    ``workers``, each into a folder of its own. Wants a quiet machine with as many processors. Keys, all but the last in seconds:

    - ``serial_s``, ``one_worker_s``, ``workers_s``: the three sweeps, clusters started before;
    - ``overhead_s_per_task``: what one worker takes longer than none, by task;
    - ``speed_up``: of ``workers`` against one.
    """
    from distributed import Client, LocalCluster

    points = grid(study="pcp-reset", part="structure", machine=["epyc-7742-2s"], seed=range(tasks))

    def timed(client: Client | str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            sweep(points, folder, client)
            return time.perf_counter() - begin

    def on_cluster(count: int) -> float:
        with (
            LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            # Workers have imported what tasks need.
            client.run(lambda: __import__("framewright"))
            return timed(client)

    timed("serial")  # what the system caches
    serial, one, all_of_them = timed("serial"), on_cluster(1), on_cluster(workers)
    return {
        "serial_s": serial,
        "one_worker_s": one,
        "workers_s": all_of_them,
        "overhead_s_per_task": (one - serial) / tasks,
        "speed_up": one / all_of_them,
    }


def main() -> None:
    """``python -m framewright.sweep``: prints :func:`figures`."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m framewright.sweep", description="Measures what a cluster costs and brings")
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    for name, value in figures(arguments.tasks, arguments.workers).items():
        print(f"{name:20} {value:.4f}")


if __name__ == "__main__":
    main()
