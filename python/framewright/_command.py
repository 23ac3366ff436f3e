"""Running the ``framewright`` command."""

from __future__ import annotations

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
        raise CommandError(done.stderr.strip() or f"framewright ended with {done.returncode}")
    return done.stdout


def run_json(arguments: Sequence[str]) -> Any:
    """What the command prints, as a document."""
    return json.loads(run([*arguments, "--format", "json"]))
