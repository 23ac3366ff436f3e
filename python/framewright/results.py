"""Results of studies and replays: running them, reading them, tables and plots of them."""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from . import _native, _toml
from ._command import CommandError, needed, path_of, run_json

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
        plt = needed("matplotlib.pyplot", "plot")
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
    if not (isinstance(parts, list) and all(map(_is_part, parts))):
        raise ValueError(f"{path} holds no results of framewright")
    return Results(document)


def _is_list(value: Any, *kinds: type) -> bool:
    return isinstance(value, list) and all(isinstance(entry, kinds) for entry in value)


def _is_part(part: Any) -> bool:
    """Whether a part of a result has what is read of it here."""
    is_dict = isinstance(part, dict) and _is_list(part.get("variants"), str) and _is_list(part.get("metrics"), dict)
    return is_dict and all(
        all(isinstance(metric.get(key), str) for key in ("name", "unit", "better"))
        and isinstance(metric.get("samples"), dict)
        and all(_is_list(samples, int, float) for samples in metric["samples"].values())
        for metric in part["metrics"]
    )


def studies() -> list[str]:
    """The names of the studies."""
    return sorted(_native.studies())


def machines() -> dict[str, dict[str, Any]]:
    """The machines that can be simulated, by name: cores, nodes, latencies in ns, bandwidths in GB/s."""
    return {name: tomllib.loads(text) for name, text in sorted(_native.machines().items())}


def simulate(
    study: str | os.PathLike[str] | Mapping[str, Any],
    part: str | None = None,
    *,
    machine: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    settings: Mapping[str, Settings] | None = None,
    samples: int | None = None,
    seed: int = 1,
    kind: str | None = None,
    quick: bool | None = None,
) -> Results:
    """Runs a study, or one part of it.

    ``study``: a name (see :func:`studies`), the path of a TOML file, or a study as such a file has it. ``machine``: likewise.
    ``settings``: for each variant what it changes, the baseline first, such as
    ``{"old": {"pcp_reset": False}, "new": {"pcp_reset": True}}``; by default the study's own. ``samples``: measurements
    of each variant, or models of the machine. ``kind``: only ``simulated``, ``derived`` or ``measured`` parts. ``quick``: a short
    run. By default, two samples and a short run, of parts that have such; what is asked for and changes nothing is an error.
    """
    with tempfile.TemporaryDirectory(prefix="framewright-") as folder:
        if settings is not None:
            study = _changed(study, settings)
        arguments = ["study", _argument("study", study, folder), f"--seed={seed}"]
        if machine is not None:
            arguments.append("--machine=" + _argument("machine", machine, folder))
        for flag, value in (("--part", part), ("--kind", kind), ("--samples", samples)):
            arguments += [f"{flag}={value}"] if value is not None else []
        if quick:
            arguments += ["--quick"]
        usual = {"--samples": ["2"]} if samples is None else {}
        usual |= {"--quick": []} if quick is None else {}
        try:
            return Results(_run_as_usual(arguments, usual))
        except CommandError as error:
            # The file was written for the command alone, and is gone: its lines say nothing.
            text = re.sub(rf"{re.escape(folder)}/(study|machine)\.toml(:\d+)?", r"the \1", str(error))
            raise CommandError(text) from None


def _argument(what: str, given: Any, folder: str) -> str:
    """A study or a machine as the command takes it: a name, or a file, which is written where it is a dictionary."""
    if isinstance(given, str):
        return given
    if isinstance(given, os.PathLike):
        return str(Path(given).absolute())
    if not isinstance(given, Mapping):
        raise TypeError(f"{what}: a name, a path or a dictionary, not {type(given).__name__}")
    path = Path(folder, f"{what}.toml")
    path.write_text(_toml.dumps(_placed(given, Path())), encoding="utf-8")
    return str(path)


def _placed(study: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """A study whose traces are found from anywhere: their paths are relative to ``folder``."""

    def workload(part: Any) -> Any:
        trace = part["workload"].get("trace") if isinstance(part, Mapping) and isinstance(part.get("workload"), Mapping) else None
        if not isinstance(trace, str) or trace == "compile":
            return part
        return {**part, "workload": {**part["workload"], "trace": str(Path(folder, trace).absolute())}}

    parts = study.get("part")
    return {**study, "part": [workload(part) for part in parts]} if isinstance(parts, list) else study


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


def _changed(study: Any, settings: Mapping[str, Settings]) -> Any:
    """A study with other variants."""
    known = _native.studies()
    if isinstance(study, str) and study in known:
        study = tomllib.loads(known[study])
    elif isinstance(study, os.PathLike) or (isinstance(study, str) and ("/" in study or study.endswith(".toml"))):
        study = _placed(tomllib.loads(Path(study).read_text(encoding="utf-8")), Path(study).parent)
    elif isinstance(study, str):
        raise CommandError(f"no study {study}: there are {', '.join(sorted(known))}")
    if not isinstance(settings, Mapping) or not all(isinstance(config, Mapping) for config in settings.values()):
        raise TypeError("settings: a dictionary with a dictionary of settings for each variant")
    if not settings:
        raise ValueError("settings: name at least one variant, the baseline first")
    if not isinstance(study, Mapping):
        return study
    study = dict(study)
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
    path = path_of(trace, "trace")
    configs = [new] if isinstance(new, str) or not isinstance(new, Iterable) else list(new)
    for what, config in (("base", base), *(("new", config) for config in configs)):
        if not isinstance(config, str):
            raise TypeError(f"{what}: a configuration such as 'batch=7', not {type(config).__name__}")
    arguments = ["replay", f"./{path}" if path.startswith("-") else path, f"--base={base}", f"--samples={samples}", f"--seed={seed}"]
    arguments += [f"--new={config}" for config in configs]
    for flag, value in (("--threads", threads), ("--memory", memory_mib)):
        arguments += [f"{flag}={value}"] if value is not None else []
    return Results(run_json(arguments))
