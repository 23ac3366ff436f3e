"""Running the ``framewright`` command."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any


class CommandError(RuntimeError):
    """The command is missing, or has failed: the text is what it said."""


def command() -> str:
    """The path of the command that is run."""
    chosen = os.environ.get("FRAMEWRIGHT_COMMAND") or shutil.which("framewright")
    if not chosen:
        raise CommandError(
            "the command framewright is not in PATH: build it with `cargo build --release`, and set "
            "FRAMEWRIGHT_COMMAND to its path"
        )
    return chosen


def run(arguments: Sequence[str]) -> str:
    """What the command prints."""
    try:
        done = subprocess.run([command(), *arguments], capture_output=True, encoding="utf-8", check=False)
    except OSError as error:
        raise CommandError(f"the command named by FRAMEWRIGHT_COMMAND, or in PATH, cannot be run: {error}") from error
    if done.returncode != 0:
        raise CommandError(_error(done.stderr) or f"framewright ended with {done.returncode}")
    return done.stdout


def _error(text: str) -> str:
    """What an error says, in one line: without the usage of the command line, which its caller does not see."""
    lines: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith(("Usage:", "For more information")):
            break
        lines += [line] if line else []
    return " ".join(lines)


def run_json(arguments: Sequence[str]) -> Any:
    """What the command prints, as a document."""
    text = run([*arguments, "--format", "json", "--quiet"])
    try:
        return json.loads(text)
    except ValueError:
        raise CommandError(f"{command()} printed no JSON: is it framewright?") from None


def path_of(given: Any, what: str) -> str:
    """The path that an argument is."""
    if not isinstance(given, (str, bytes, os.PathLike)):
        raise TypeError(f"{what}: a path, not {type(given).__name__}")
    return os.fsdecode(given)


def needed(module: str, extra: str) -> Any:
    """A module that only ``extra`` of this package brings."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = module.split(".")[0]
        raise ModuleNotFoundError(f"{name} is missing: pip install './python[{extra}]' brings it", name=name) from error
