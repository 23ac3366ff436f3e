"""Results of studies and replays: running them, reading them, tables and plots of them."""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from . import _native, _toml
from ._command import CommandError, run_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Results:
    """A result document: every sample of every metric of every part."""

    document: Mapping[str, Any]

    def frame(self) -> pd.DataFrame:
        """One row per sample.

        Columns: ``study``, ``part``, ``kind`` (measured, simulated or derived), ``machine``, ``seed``, ``metric``, ``unit``
        (of ``value``: "s", "ns", "1" for counts), ``better`` (lower, higher or none), ``variant``, ``sample`` (from 0; in
        simulated parts, the model of the machine), ``value``.
        """
        columns = "study part kind machine seed metric unit better variant sample value".split()
        return pd.DataFrame(list(self._rows()), columns=columns)

    def _rows(self) -> Iterable[tuple[Any, ...]]:
        for result in self.document["results"]:
            of = [result.get(key) for key in ("study", "part", "kind", "machine", "seed")]
            for metric in result["metrics"]:
                what = [metric["name"], metric["unit"], metric["better"]]
                for variant in result["variants"]:
                    for n, value in enumerate(metric["samples"].get(variant, ())):
                        yield (*of, *what, variant, n, value)

    def medians(self) -> pd.DataFrame:
        """The median of each metric (rows) and variant (columns), in the metric's unit."""
        frame = self.frame()
        index = ["study", "part", "machine", "metric", "unit"]
        return frame.pivot_table(index=index, columns="variant", values="value", aggfunc="median", dropna=False).dropna(how="all")

    def plot(self, metric: str | None = None, ax: Axes | None = None) -> Axes:
        """The samples of one metric, a point each, by variant: those of the first part that has it.

        ``metric``: its name, or what stands before its brackets for the first of several; by default the headline of the
        first part.
        """
        import matplotlib.pyplot as plt

        part, metric = self._find(metric)
        frame = Results({"results": [part]}).frame()
        rows = frame[frame["metric"] == metric]
        if ax is None:
            _, ax = plt.subplots()
        variants = list(dict.fromkeys(rows["variant"]))
        for at, variant in enumerate(variants):
            values = rows[rows["variant"] == variant]["value"]
            ax.plot([at] * len(values), values, "o", alpha=0.6)
            ax.plot([at - 0.2, at + 0.2], [values.median()] * 2, "k-")
        ax.set_xticks(range(len(variants)), variants)
        ax.set_ylabel(f"{metric} ({rows['unit'].iloc[0]})")
        ax.set_ylim(bottom=0)
        return ax

    def _find(self, metric: str | None) -> tuple[Mapping[str, Any], str]:
        """The first part that has a metric, and the metric's whole name there."""
        parts = self.document["results"] if metric is not None else self.document["results"][:1]
        named = [(part, found["name"]) for part in parts for found in part["metrics"] if any(found["samples"].values())]
        wanted = metric if metric is not None or not parts else parts[0].get("headline")
        whole = [(part, name) for part, name in named if name == wanted]
        family = [(part, name) for part, name in named if name.split("[")[0] == wanted]
        # A headline may be what could not be measured.
        found = whole or family or (named if metric is None else [])
        if not found:
            if not named:
                raise KeyError("the results have no sample")
            raise KeyError(f"no metric {metric}: there are {', '.join(sorted({name for _, name in named}))}")
        return found[0]

    def save(self, path: str | Path) -> None:
        """Writes the document as ``framewright -o`` does; ``framewright compare`` reads it."""
        Path(path).write_text(json.dumps(self.document, indent=2), encoding="utf-8")


def read_results(path: str | Path) -> Results:
    """Reads what ``framewright … -o FILE`` has written."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError:
        document = None
    parts = document.get("results") if isinstance(document, dict) and "framewright" in document else None
    known = isinstance(parts, list) and all(isinstance(part, dict) and {"metrics", "variants"} <= part.keys() for part in parts)
    if not known:
        raise ValueError(f"{path} holds no results of framewright")
    return Results(document)


def studies() -> list[str]:
    """The names of the studies."""
    return sorted(_native.studies())


def machines() -> dict[str, dict[str, Any]]:
    """The machines that can be simulated, by name: cores, nodes, latencies in ns, bandwidths in GB/s."""
    return {name: tomllib.loads(text) for name, text in sorted(_native.machines().items())}


def simulate(
    study: str | Mapping[str, Any],
    part: str | None = None,
    *,
    machine: str | Mapping[str, Any] | None = None,
    settings: Mapping[str, Settings] | None = None,
    samples: int | None = None,
    seed: int = 1,
    kind: str | None = None,
    quick: bool | None = None,
) -> Results:
    """Runs a study, or one part of it.

    ``study``: a name (see :func:`studies`), or a study as its TOML file has it. ``machine``: a name, or a machine as its
    file has it. ``settings``: for each variant what it changes, the baseline first, such as
    ``{"old": {"pcp_reset": False}, "new": {"pcp_reset": True}}``; by default the study's own. ``samples``: measurements
    of each variant, or models of the machine. ``kind``: only ``simulated``, ``derived`` or ``measured`` parts. ``quick``: a short
    run. By default, two samples and a short run, of parts that have such; what is asked for and changes nothing is an error.
    """
    with tempfile.TemporaryDirectory(prefix="framewright-") as folder:
        if settings is not None or not isinstance(study, str):
            study = _changed(study, settings)
            path = Path(folder, "study.toml")
            path.write_text(_toml.dumps(study), encoding="utf-8")
            study = str(path)
        if machine is not None and not isinstance(machine, str):
            path = Path(folder, "machine.toml")
            path.write_text(_toml.dumps(machine), encoding="utf-8")
            machine = str(path)
        arguments = ["study", study, "--seed", str(seed)]
        for flag, value in (("--part", part), ("--machine", machine), ("--kind", kind)):
            arguments += [flag, value] if value is not None else []
        if samples is not None:
            arguments += ["--samples", str(samples)]
        if quick:
            arguments += ["--quick"]
        usual = {"--samples": ["2"]} if samples is None else {}
        usual |= {"--quick": []} if quick is None else {}
        return Results(_run_as_usual(arguments, usual))


def _run_as_usual(arguments: list[str], usual: dict[str, list[str]]) -> Any:
    """Runs the command with the usual flags, without those of which it says that they change nothing."""
    while True:
        try:
            return run_json([*arguments, *(word for flag, value in usual.items() for word in [flag, *value])])
        except CommandError as error:
            useless = [flag for flag in usual if f"{flag} changes nothing of what is run" in str(error)]
            if not useless:
                raise
            del usual[useless[0]]


def _changed(study: str | Mapping[str, Any], settings: Mapping[str, Settings] | None) -> dict[str, Any]:
    if isinstance(study, str):
        known = _native.studies()
        if study not in known:
            raise CommandError(f"no study {study}: there are {', '.join(sorted(known))}")
        study = tomllib.loads(known[study])
    study = dict(study)
    if settings is not None:
        if not settings:
            raise ValueError("settings: name at least one variant, the baseline first")
        study["baseline"] = next(iter(settings))
        study["variant"] = [
            {"name": name, "about": "Chosen in Python.", "config": dict(config)} for name, config in settings.items()
        ]
        # What its authors published is about their variants.
        parts = [dict(part) for part in study.get("part", [])]
        for part in parts:
            part["metric"] = [
                {k: v for k, v in metric.items() if k not in ("published", "changed")} for metric in part.get("metric", [])
            ]
            part.pop("published", None)
        study["part"] = parts
    return study


def replay(
    trace: str | Path,
    *,
    base: str = "preset=linux_v5_4",
    new: str | Sequence[str] = ("preset=framewright",),
    threads: int | None = None,
    memory_mib: int | None = None,
    samples: int = 10,
    seed: int = 1,
) -> Results:
    """Replays a trace on real threads under two or more configurations, and measures them interleaved.

    ``new``: one configuration, or several. ``memory_mib``: memory of each allocator in MiB; by default the largest zone of the
    trace's machine, and for huge pages 1.3 times what the trace uses.
    """
    arguments = ["replay", str(trace), "--base", base, "--samples", str(samples), "--seed", str(seed)]
    for config in [new] if isinstance(new, str) else new:
        arguments += ["--new", config]
    for flag, value in (("--threads", threads), ("--memory", memory_mib)):
        arguments += [flag, str(value)] if value is not None else []
    return Results(run_json(arguments))
