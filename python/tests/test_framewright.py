"""The package as it is installed: traces, studies, results, sweeps, fleets. Run by python/test."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import framewright as fw
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from framewright import fleet
from framewright import sweep as sweeps

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "traces" / "compile.parquet"
STRUCTURE = {"study": "pcp-reset", "part": "structure"}


def test_an_arena_splits_merges_and_refuses():
    arena = fw.Arena(4096, preset="linux_v6_7")
    frames = [arena.alloc() for _ in range(100)] + [arena.alloc(9), arena.alloc(3, "unmovable")]
    assert arena.free_pages == 4096 - 100 - 512 - 8 and len(set(frames)) == 102
    assert "Normal" in arena.buddyinfo()
    for frame in frames:
        arena.free(frame)
    assert arena.free_blocks() == [0] * 10 + [4]
    with pytest.raises(fw.WrongFree):
        arena.free(frames[0])
    for frame in (-1, 2**64 - 1, 2**64):
        with pytest.raises(fw.WrongFree):
            arena.free(frame)
    for order in (-1, 11, 300, 2**64):
        with pytest.raises(ValueError, match="0 to 10"):
            arena.alloc(order)
    assert len({arena.alloc(10) for _ in range(4)}) == 4
    with pytest.raises(MemoryError, match="largest usable block none"):
        arena.alloc()
    with pytest.raises(ValueError, match="no such preset; there are framewright, linux_v3_0"):
        fw.Arena(4096, preset="linux")


def test_both_ways_to_see_free_blocks_agree():
    with fw.Arena(pages=1 << 12) as arena:
        for order in (0, 3, 9):
            frames = [arena.alloc(order) for _ in range(3)]
            arena.free(frames[0])
            # Whichever is asked first.
            assert [int(number) for number in arena.buddyinfo().split()[4:]] == arena.free_blocks()


def test_a_block_is_a_writable_buffer():
    arena = fw.Arena(1024)
    with arena.block(2) as block:
        assert len(block) == 16384 and block.order == 2 and repr(block).endswith("16384 bytes>")
        numbers = np.frombuffer(block, dtype=np.uint32)
        assert len(numbers) == 4096 and not numbers.any()
        numbers[:] = np.arange(4096)
        with memoryview(block) as view:
            assert view[4:8] == b"\x01\0\0\0" and not view.readonly
        with pytest.raises(BufferError, match="1 views"):
            block.free()
        assert arena.free_pages == 1020
        del numbers
    assert arena.free_pages == 1024 and "freed" in repr(block)
    for use in (memoryview, lambda block: block.__enter__()):
        with pytest.raises(ValueError, match="freed"):
            use(block)
    other = arena.block(2)
    assert other.pfn == block.pfn and bytes(other) == bytes(16384), "zeroes, though its last owner wrote to it"


def test_a_view_keeps_block_and_arena():
    arena = fw.Arena(1024)
    view = memoryview(arena.block(10))
    view[-1] = 7
    arena.close()
    assert view[-1] == 7 and repr(arena) == "<framewright.Arena: closed>"


def test_a_closed_arena_says_so():
    with fw.Arena(1024) as arena:
        block = arena.block()
        assert repr(arena) == "<framewright.Arena: 1024 pages, 1023 free>"
    calls = (arena.alloc, arena.block, arena.free_blocks, arena.buddyinfo, arena.__enter__, lambda: arena.free_pages)
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()
    memoryview(block)[0] = 1
    block.free()


def test_a_frame_number_that_prints_the_arena_is_a_wrong_free():
    # In a process of its own: both waited for the arena for ever.
    program = """
import framewright as fw
arena = fw.Arena(1024)
class Frame(int):
    def __str__(self):
        return f"{int(self)} of {arena!r}"
try:
    arena.free(Frame(7))
except fw.WrongFree as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "frame 7 of <framewright.Arena: 1024 pages, 1024 free>" in done.stdout


def test_a_wrong_size_is_a_value_error():
    for pages in (-1, 0, 2**62, 2**64):
        with pytest.raises(ValueError, match=f"{pages} pages"):
            fw.Arena(pages)


def test_a_wrong_argument_of_an_arena_is_named():
    arena = fw.Arena(1024)
    one_line(lambda: fw.Arena("8"), TypeError, "pages: an integer, not str")
    one_line(lambda: fw.Arena(8, preset=5), TypeError, "preset: a name, not int")
    one_line(lambda: arena.alloc(1.5), TypeError, "order: an integer, not float")
    one_line(lambda: arena.block(None), TypeError, "order: an integer, not NoneType")
    one_line(lambda: arena.alloc(0, 3), TypeError, "migratetype: a name, not int")
    one_line(lambda: arena.block(migratetype=b"movable"), TypeError, "migratetype: a name, not bytes")
    one_line(lambda: arena.free("7"), TypeError, "pfn: an integer, not str")


def test_every_exception_comes_back_from_another_process():
    for kind in (fw.WrongFree, fw.CommandError):
        back = pickle.loads(pickle.dumps(kind("what it says")))
        assert type(back) is kind and str(back) == "what it says"


def test_every_use_in_a_forked_child_raises():
    arena = fw.Arena(1024)
    frame, block = arena.alloc(), arena.block()
    calls = [
        arena.alloc,
        arena.block,
        arena.free_blocks,
        lambda: arena.free(frame),
        block.free,
        block.__enter__,
        lambda: memoryview(block),
    ]
    child = os.fork()
    if child == 0:
        raised = 0
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                raised += "child" in str(error)
        os._exit(raised)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
    arena.free(frame)
    block.free()


def test_a_trace_is_a_table(tmp_path):
    trace = fw.open_trace(TRACE)
    assert trace.table.num_rows == pq.ParquetFile(TRACE).metadata.num_rows
    assert trace.metadata["cpus"] == "2" and trace.seconds > 1
    orders = trace.by_order()
    kinds = trace.table["event"].to_pylist()
    assert orders["allocations"].sum() == kinds.count("mm_page_alloc")
    assert orders["frees"].sum() == kinds.count("mm_page_free")
    assert (orders["pages"] == orders["allocations"] * 2**orders.index).all()
    assert 0 < trace.zone_lock_share() < 2
    live = trace.live_pages()
    assert len(live) >= 500 and live["pages"].max() > 1000 and live["seconds"].is_monotonic_increasing
    live = {}
    for pfn, order, event in trace.table.select(["pfn", "order", "event"]).to_pandas().itertuples(index=False):
        if event == "mm_page_alloc":
            live[pfn] = 1 << order
        elif event == "mm_page_free":
            live.pop(pfn, None)
    pages = trace.live_pages(points=trace.table.num_rows)["pages"]
    assert pages.min() >= 0 and pages.iloc[-1] == sum(live.values())
    # A huge page that is freed in parts, not the first one first, beside a block of order 3 and a free of what was there before.
    steps = [("alloc", 512, 9), ("free", 513, 0), ("alloc", 2048, 3), ("free", 3000, 0), ("free", 514, 1), ("free", 768, 8)]
    rows = pa.Table.from_pylist([
        trace.table.slice(0, 1).to_pylist()[0] | {"time_ns": n, "event": f"mm_page_{what}", "pfn": pfn, "order": order}
        for n, (what, pfn, order) in enumerate(steps)
    ]).cast(trace.table.schema)
    split = fw.traces.Trace(TRACE, rows, {})
    assert split.live_pages()["pages"].tolist() == [512, 511, 519, 519, 517, 261]
    # As the command: frees in batches accompany others, but where there are no others.
    batched = pa.Table.from_pylist([
        row | {"event": row["event"].replace("mm_page_free", "mm_page_free_batched")} for row in rows.to_pylist()
    ]).cast(rows.schema)
    alone, both = (fw.traces.Trace(TRACE, table, {}) for table in (batched, pa.concat_tables([rows, batched])))
    assert alone.live_pages()["pages"].tolist() == split.live_pages()["pages"].tolist()
    assert alone.by_order().equals(split.by_order()) and both.by_order()["frees"].equals(split.by_order()["frees"])
    pq.write_table(trace.table.slice(0, 0), tmp_path / "empty.parquet")
    empty = fw.open_trace(tmp_path / "empty.parquet")
    assert empty.live_pages().empty and empty.seconds == 0 and not empty.by_order()["pages"].any()
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"time_ns": [1]}), other)
    with pytest.raises(ValueError, match="no trace: no column time_ns"):
        fw.open_trace(other)


def one_line(call, kind, *words):
    """A call fails with one line of text that has all of `words`."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert len(text.splitlines()) == 1 and all(word in text for word in words), text


def test_what_is_no_trace_is_refused_in_one_line(tmp_path):
    whole = TRACE.read_bytes()
    wrong = {"empty": b"", "text": b"PAR1 or not", "cut": whole[:100_000], "end": whole[100:]}
    for name, content in wrong.items():
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(content)
        one_line(lambda: fw.open_trace(path), ValueError, str(path))
    one_line(lambda: fw.open_trace(tmp_path / "none.parquet"), FileNotFoundError, "No such file", "none.parquet")
    # Not as one table of all the files in it.
    one_line(lambda: fw.open_trace(tmp_path), IsADirectoryError, str(tmp_path))
    one_line(lambda: fw.open_trace(5), TypeError, "path")
    rows = fw.open_trace(TRACE).table.slice(0, 3)
    pq.write_table(rows.take([0, 2, 1]), tmp_path / "disordered.parquet")
    one_line(lambda: fw.open_trace(tmp_path / "disordered.parquet"), ValueError, "disordered.parquet", "row 2", "time_ns")
    pq.write_table(rows.replace_schema_metadata({b"framewright.kernel": b"6.1 \xff"}), tmp_path / "latin.parquet")
    trace = fw.open_trace(tmp_path / "latin.parquet")
    assert trace.metadata["kernel"].startswith("6.1 ")
    for points in (0, -1, "5", 1.5):
        one_line(lambda: trace.live_pages(points), TypeError if isinstance(points, (str, float)) else ValueError, "points")


def test_what_is_no_result_is_refused_when_it_is_read(tmp_path):
    metric = {"name": "n", "unit": "1", "better": "lower", "samples": {"a": [1]}}
    path = tmp_path / "r.json"

    def write(**changes):
        part = {"variants": ["a"], "metrics": [metric]} | changes
        path.write_text(json.dumps({"framewright": "0.1.0", "results": [part]}))

    write()
    assert len(fw.read_results(path).frame()) == 1
    write(metrics=[metric | {"samples": {}}])
    assert fw.read_results(path).frame().empty and fw.read_results(path).medians().empty
    for changes in (
        {"metrics": None},
        {"variants": "a"},
        {"metrics": [{}]},
        *({"metrics": [metric | {"samples": samples}]} for samples in (None, [1], {"a": 1}, {"a": ["1"]})),
        {"metrics": [metric | {"name": 5}]},
    ):
        write(**changes)
        one_line(lambda: fw.read_results(path), ValueError, "r.json holds no results")


def test_wrong_arguments_are_named_in_one_line(tmp_path):
    machine = fw.machines()["epyc-7742-2s"]

    def simulate(**changes):
        return lambda: fw.simulate(**(STRUCTURE | changes))

    for study in (5, None, [1]):
        one_line(simulate(study=study), TypeError, "study", type(study).__name__)
    for settings in (5, ["a"], {"a": 5}, {"a": None}):
        one_line(simulate(settings=settings), TypeError, "settings")
    one_line(simulate(settings={"a": {5: 5}}), TypeError, "5")
    one_line(simulate(settings={"a": {"batch": None}}), TypeError, "batch", "NoneType")
    one_line(simulate(machine=5), TypeError, "machine", "int")
    # Of a file that was written for the command alone, a line number says nothing.
    one_line(simulate(machine=machine | {"nodse": 2}), fw.CommandError, "framewright: the machine: ", "`nodse`")
    one_line(simulate(settings={"a": {"bach": 1}}), fw.CommandError, "framewright: the study: bach = 1: no such setting")
    one_line(simulate(kind="derive"), fw.CommandError, "'derive'", "derived")
    one_line(lambda: fw.simulate("pcp-reset", "kernbench", samples=-1), fw.CommandError, "'-1'", "--samples", "whole number")
    one_line(simulate(seed="x"), fw.CommandError, "--seed")
    one_line(lambda: fw.replay(TRACE, new=5), TypeError, "new", "int")
    one_line(lambda: fw.replay(TRACE, new=[5]), TypeError, "new", "int")
    one_line(lambda: fw.replay(TRACE, base=5), TypeError, "base", "int")
    one_line(lambda: fw.replay(None), TypeError, "path")
    one_line(lambda: fw.replay("--help"), fw.CommandError, "cannot read ./--help")
    one_line(lambda: fw.replay(TRACE, samples=0), fw.CommandError, "'0'", "--samples")


def test_a_study_and_a_machine_may_be_files(tmp_path):
    (tmp_path / "study").write_text(fw._native.studies()["pcp-reset"])
    (tmp_path / "machine").write_text(fw._native.machines()["epyc-7742-2s"])
    of_files = {"study": tmp_path / "study", "part": "structure", "machine": tmp_path / "machine"}
    usual = fw.simulate(**STRUCTURE, machine="epyc-7742-2s").medians()
    assert fw.simulate(**of_files).medians().to_numpy().tolist() == usual.to_numpy().tolist()
    ours = fw.simulate(**of_files, settings={"old": {"pcp_reset": False}, "new": {"pcp_reset": True}})
    assert ours.medians()["old"].tolist() == usual["vanilla"].tolist()
    one_line(lambda: fw.simulate(tmp_path / "none", settings={"a": {}}), FileNotFoundError, "none")


def test_what_is_shipped_is_what_the_project_has():
    assert fw.studies() == sorted(path.stem for path in (ROOT / "studies").glob("*.toml"))
    assert list(fw.machines()) == sorted(path.stem for path in (ROOT / "machines").glob("*.toml"))
    assert fw.machines()["epyc-7742-2s"]["nodes"] == 2


def test_a_study_runs_with_other_settings_and_machines(tmp_path):
    results = fw.simulate(**STRUCTURE, machine="epyc-7742-2s")
    frame = results.frame()
    assert set(frame["variant"]) == {"vanilla", "reset"} and set(frame["kind"]) == {"derived"}
    ours = fw.simulate(**STRUCTURE, machine="epyc-7742-2s", settings={"old": {"pcp_reset": False}, "new": {"pcp_reset": True}})
    medians = ours.medians()
    assert list(medians.columns) == ["new", "old"]
    assert medians["old"].tolist() == results.medians()["vanilla"].tolist()
    machine = dict(fw.machines()["epyc-7742-2s"], name="ours")
    machine.pop("aliases", None)
    assert set(fw.simulate(**STRUCTURE, machine=machine).frame()["machine"]) == {"ours"}
    with pytest.raises(fw.CommandError, match="the zones of node 0 have 125.7 of gib_per_node = 256; change both"):
        fw.simulate(**STRUCTURE, machine=machine | {"gib_per_node": 256})
    results.save(tmp_path / "r.json")
    assert fw.read_results(tmp_path / "r.json").frame().equals(frame)
    for text in ("", "3", "{}", '{"framewright": "0.1.0", "results": 1}', '{"framewright": "0.1.0", "results": [{}]}'):
        (tmp_path / "no.json").write_text(text)
        with pytest.raises(ValueError, match="no.json holds no results"):
            fw.read_results(tmp_path / "no.json")
    with pytest.raises(ValueError, match="at least one variant"):
        fw.simulate(**STRUCTURE, settings={})
    with pytest.raises(fw.CommandError, match="--samples changes nothing"):
        fw.simulate(**STRUCTURE, samples=3)
    with pytest.raises(fw.CommandError, match="no study"):
        fw.simulate("none", settings={})
    with pytest.raises(fw.CommandError):
        fw.simulate("pcp-reset", "none")


def test_names_and_numbers_may_be_of_any_kind():
    study = tomllib.loads(fw._native.studies()["pcp-reset"]) | {"name": "ours"}
    settings = {"old \x7f": {"pcp_reset": False}, "new 😀": {"pcp_reset": np.bool_(True), "min_free_kib": np.int64(0)}}
    machine = fw.machines()["epyc-7742-2s"]
    machine = {key: np.float64(value) if isinstance(value, float) else value for key, value in machine.items()}
    ours = fw.simulate(study, "structure", machine=machine, settings=settings)
    assert set(ours.frame()["variant"]) == set(settings)


def test_a_command_that_cannot_be_run_is_a_command_error(monkeypatch, tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        monkeypatch.setenv("FRAMEWRIGHT_COMMAND", str(path))
        with pytest.raises(fw.CommandError, match="cannot be run"):
            fw.simulate(**STRUCTURE)
    monkeypatch.setenv("FRAMEWRIGHT_COMMAND", "/bin/true")
    one_line(lambda: fw.simulate(**STRUCTURE), fw.CommandError, "/bin/true", "no JSON")


def test_a_trace_is_replayed_and_plotted(tmp_path):
    import matplotlib

    matplotlib.use("agg")
    results = fw.replay(TRACE, samples=1, threads=1)
    frame = results.frame()
    assert set(frame["kind"]) == {"measured"} and frame["variant"].nunique() == 2
    axes = results.plot()
    axes.figure.savefig(tmp_path / "plot.png")
    assert fw.replay(TRACE, new="preset=linux_v6_7", samples=1, threads=1).frame()["variant"].nunique() == 2
    assert (tmp_path / "plot.png").stat().st_size > 5000
    with pytest.raises(KeyError, match="no metric"):
        results.plot("none")


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "validation").glob("*.json")), ids=lambda file: file.stem)
def test_what_any_commit_has_written_is_read_and_plotted(file):
    import matplotlib

    matplotlib.use("agg")
    if file.stem.endswith("-scores"):
        with pytest.raises(ValueError, match="holds no results"):
            fw.read_results(file)
        return
    results = fw.read_results(file)
    assert not results.medians().empty
    first = results.document["results"][0]
    axes = results.plot()
    assert axes.get_ylabel().startswith(first.get("headline", first["metrics"][0]["name"]))
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert set(shown) <= set(first["variants"])
    axes.figure.clear()


def test_a_plot_has_the_samples_of_one_part():
    metric = {"name": "n[cpus=1]", "unit": "1", "better": "lower", "samples": {"a": [1.0, 2.0]}}
    part = {"study": "s", "part": "p", "kind": "measured", "machine": "host", "seed": 1, "headline": "n"}
    part |= {"variants": ["a"], "metrics": [{**metric, "name": "m", "samples": {}}, metric]}
    results = fw.Results({"framewright": "0.1.0", "results": [part, {**part, "machine": "other"}]})
    for name in (None, "n", "n[cpus=1]"):
        axes = results.plot(name)
        assert [len(line.get_xdata()) for line in axes.lines] == [2, 2] and axes.get_ylabel() == "n[cpus=1] (1)"
    with pytest.raises(KeyError, match="no sample"):
        fw.Results({"framewright": "0.1.0", "results": []}).plot()


def test_texts_are_utf_8_in_every_locale(tmp_path):
    study = tomllib.loads(fw._native.studies()["pcp-reset"]) | {"question": "größer −?"}
    (tmp_path / "study.json").write_text(json.dumps(study))
    program = """import json, sys, framewright as fw
results = fw.simulate(json.load(open(sys.argv[1] + "/study.json")), "structure")
results.save(sys.argv[1] + "/r.json")
assert not fw.read_results(sys.argv[1] + "/r.json").frame().empty"""
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, check=True)


def test_points_of_a_sweep():
    points = sweeps.grid(study="a", seed=range(3), machine=["x", "y"])
    assert len(points) == 6 and points[0] == {"study": "a", "seed": 0, "machine": "x"}
    points = sweeps.latin_hypercube(10, seed=3, share=(0.0, 1.0), machine=["x", "y"])
    assert sorted(int(point["share"] * 10) for point in points) == list(range(10))
    assert sum(point["machine"] == "x" for point in points) == 5
    assert points == sweeps.latin_hypercube(10, seed=3, share=(0.0, 1.0), machine=["x", "y"])
    # Axes of numpy and pandas, too.
    plain = sweeps.grid(seed=range(3), machine=["x"])
    for axis in (np.arange(3), pd.Series(range(3)), pd.Index(range(3))):
        assert sweeps.grid(seed=axis, machine=["x"]) == plain
    one_line(lambda: sweeps.latin_hypercube(3, machine=[]), ValueError, "machine")
    one_line(lambda: sweeps.latin_hypercube(3, machine=5), TypeError, "machine", "int")


def test_what_is_no_point_or_client_is_refused(tmp_path):
    one_line(lambda: sweeps.sweep([5], tmp_path, "serial"), TypeError, "point", "int")
    one_line(lambda: sweeps.sweep([STRUCTURE], tmp_path, "parallel"), ValueError, "client", "'parallel'")


def test_a_point_may_have_numbers_of_numpy(tmp_path):
    plain, numpy = ([STRUCTURE | {"seed": kind(seed)} for seed in (1, 2)] for kind in (int, np.int64))
    assert [sweeps.name_of(point) for point in numpy] == [sweeps.name_of(point) for point in plain]
    assert sweeps.sweep(numpy, tmp_path, "serial").equals(sweeps.sweep(plain, tmp_path, "serial"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_sweep_survives_a_worker_and_equals_the_serial_run(tmp_path):
    from distributed import Client, LocalCluster

    full = bool(os.environ.get("FRAMEWRIGHT_FULL"))
    points = sweeps.grid(**STRUCTURE, machine=["epyc-7742-2s", "xeon-gold-5320"], seed=range(100 if full else 20))
    begin = time.monotonic()
    serial = sweeps.sweep(points, tmp_path / "serial", "serial")
    serial_s = time.monotonic() - begin
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        first = next(iter(client.run(os.getpid).values()))
        killed = threading.Event()

        def progress(done: int, of: int) -> None:
            if done >= of // 3 and not killed.is_set():
                killed.set()
                os.kill(first, signal.SIGKILL)

        begin = time.monotonic()
        frame = sweeps.sweep(points, tmp_path / "dask", client, progress=progress)
        dask_s = time.monotonic() - begin
        assert killed.is_set()
        assert first not in client.run(os.getpid).values(), "the worker was killed"
    assert frame.equals(serial) and files(tmp_path / "dask") == files(tmp_path / "serial")
    print(f"{len(points)} tasks: {serial_s:.1f} s in turn, {dask_s:.1f} s on two workers of which one was killed")
    # A second run does only what is missing.
    gone = next(iter(files(tmp_path / "dask")))
    (tmp_path / "dask" / gone).unlink()
    seen: list[int] = []
    again = sweeps.sweep(points, tmp_path / "dask", "serial", progress=lambda done, of: seen.append(done))
    assert seen == [len(points) - 1, len(points)] and again.equals(serial)


SNAPSHOT = {
    "kernel": "6.1.0-test",
    "cpus": 64,
    "root": "/",
    "findings": [
        {"id": "zone-not-managed", "severity": "warning", "zone": "node 0 Normal"},
        {"id": "zone-not-managed", "severity": "warning", "zone": "node 1 Normal"},
        {"id": "pcp-high", "severity": "error"},
    ],
}


def test_a_fleet_is_asked_with_sql(tmp_path):
    folder = tmp_path / "fleet"
    for host in ["a", "b"]:
        fleet.add(folder, TRACE, host=host)
    fleet.add(folder, TRACE, host="b")
    # Two that do not say when they were recorded are two, as often as each is added.
    table = pq.read_table(TRACE)
    for rows in (100, 200, 100):
        pq.write_table(table.slice(0, rows).replace_schema_metadata(None), tmp_path / "imported.parquet")
        fleet.add(tmp_path / "imported", tmp_path / "imported.parquet", host="c")
    assert len(list((tmp_path / "imported").iterdir())) == 2
    fleet.add_snapshot(folder, SNAPSHOT, host="a", recorded_at="2026-01-01T00:00:00+00:00")
    worse = {**SNAPSHOT, "findings": SNAPSHOT["findings"][2:] * 3}
    (tmp_path / "doctor.json").write_text(json.dumps(worse))
    fleet.add_snapshot(folder, tmp_path / "doctor.json", host="a", recorded_at="2026-01-02T00:00:00+00:00")
    fleet.add_snapshot(folder, tmp_path / "doctor.json", host="a", recorded_at="2026-01-02T00:00:00+00:00")
    (tmp_path / "other.json").write_text("[]")
    (tmp_path / "empty.json").write_text("")
    for other in (tmp_path / "other.json", tmp_path / "empty.json", {"results": []}):
        with pytest.raises(ValueError, match="is no output of"):
            fleet.add_snapshot(folder, other, host="a")
    here = fleet.add_snapshot(folder, host="here")
    row = pq.read_table(here).to_pylist()
    assert len(row) == 1 and row[0]["kernel"] == os.uname().release and row[0]["cpus"] == len(os.sched_getaffinity(0))
    rows = fleet.query(folder, "select host, sum(pages) as pages from fleet where \"order\" > 0 group by host order by host")
    assert rows["host"].tolist() == ["a", "b"] and rows["pages"].nunique() == 1
    for path in folder.glob("*.parquet"):
        written = pq.read_schema(path)
        assert written.equals(fleet.SCHEMA)
        assert [field.metadata[b"doc"] for field in written] == [field.metadata[b"doc"] for field in fleet.SCHEMA]
    rows = fleet.query(folder, "select * from fleet where kind = 'doctor' and host = 'a' order by recorded_at")
    assert rows[["cpus", "errors", "warnings", "infos"]].values.tolist() == [[64, 1, 2, 0], [64, 3, 0, 0]]
    assert rows["findings"][0].tolist() == ["zone-not-managed", "zone-not-managed", "pcp-high"]


def test_what_is_no_machine_of_a_fleet_is_refused(tmp_path):
    for host in (None, 5):
        one_line(lambda: fleet.add(tmp_path, TRACE, host=host), TypeError, "host", type(host).__name__)
    one_line(lambda: fleet.add(tmp_path, TRACE, host=""), ValueError, "host")
    for read in ({"findings": [5]}, {"findings": [{}]}, {"findings": [], "cpus": "two"}, {"findings": [], "cpus": -1}):
        one_line(lambda: fleet.add_snapshot(tmp_path, read, host="a"), ValueError, "the dictionary is no output of")
    sound = {"findings": [], "cpus": 2}
    one_line(lambda: fleet.add_snapshot(tmp_path, sound, host="a", recorded_at="yesterday"), ValueError, "recorded_at")
    one_line(lambda: fleet.add_snapshot(tmp_path, sound, host="a", recorded_at=5), TypeError, "recorded_at")
    one_line(lambda: fleet.query(tmp_path, "select 1"), FileNotFoundError, str(tmp_path))


def test_a_folder_of_a_fleet_is_no_pattern(tmp_path):
    for folder in ("fleet", "f[l]*", "fl?et'"):
        fleet.add_snapshot(tmp_path / folder, {"findings": [], "cpus": 2}, host=folder)
    for folder in ("f[l]*", "fl?et'", "fleet"):
        assert fleet.query(tmp_path / folder, "select host from fleet")["host"].tolist() == [folder]


def test_a_package_that_is_missing_is_named_with_what_brings_it(monkeypatch, tmp_path):
    metric = {"name": "n", "unit": "1", "better": "lower", "samples": {"a": [1.0]}}
    results = fw.Results({"results": [{"study": "s", "part": "p", "headline": "n", "variants": ["a"], "metrics": [metric]}]})
    fleet.add_snapshot(tmp_path, {"findings": []}, host="a")
    for module, extra, call in (
        ("matplotlib", "plot", results.plot),
        ("duckdb", "fleet", lambda: fleet.query(tmp_path, "select 1 from fleet")),
        ("distributed", "sweep", lambda: sweeps.sweep([STRUCTURE], tmp_path / "s")),
    ):
        for name in [name for name in sys.modules if name.split(".")[0] == module]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, module, None)
        one_line(call, ModuleNotFoundError, module, f"python[{extra}]")
        monkeypatch.undo()


def test_the_guide_says_what_the_fleet_has(tmp_path, monkeypatch):
    import duckdb

    guide = (ROOT / "python" / "README.md").read_text()
    assert fleet.schema_table() in guide, "python/README.md has another table of the schema"
    monkeypatch.chdir(tmp_path)
    for host in ["a", "b"]:
        fleet.add("fleet", TRACE, host=host)
    fleet.add_snapshot("fleet", SNAPSHOT, host="a")
    queries = guide.split("```sql\n")[1].split("```")[0].strip().split(";\n")
    answers = [duckdb.sql(query).fetchall() for query in queries]
    assert len(answers) == 5
    shares, large, busy, findings, both = answers
    assert [host for host, _ in sorted(shares)] == ["a", "b"] and all(0 < share < 2 for _, share in shares)
    assert all(0 <= share < 1 for _, share in large) and len(busy) == 1
    assert sorted(findings) == [("pcp-high", 1), ("zone-not-managed", 1)]
    assert [(host, errors) for host, errors, _ in both] == [("a", 1)]


def test_figures_of_a_sweep():
    got = sweeps.figures(tasks=2, workers=1)
    assert got["serial_s"] > 0 and got["speed_up"] > 0
    assert got["overhead_s_per_task"] == (got["one_worker_s"] - got["serial_s"]) / 2


@pytest.mark.parametrize("notebook", sorted(path.name for path in (ROOT / "python" / "notebooks").glob("*.ipynb")))
def test_notebooks_run(notebook):
    import nbclient
    import nbformat

    document = nbformat.read(ROOT / "python" / "notebooks" / notebook, as_version=4)
    nbclient.NotebookClient(document, timeout=300, resources={"metadata": {"path": str(ROOT)}}).execute()
    printed = json.dumps([cell.get("outputs") for cell in document.cells if cell.cell_type == "code"])
    assert "text/plain" in printed
