"""Traces, simulations and results of the Framewright page-frame allocator, as tables.

What runs is the ``framewright`` command: the one named by ``FRAMEWRIGHT_COMMAND``, or the first in ``PATH``. Its results
are JSON in one format, which only grows and changes less than the library behind it.
"""

from ._command import CommandError, command
from ._native import Arena, Block, WrongFree, __version__
from .results import Results, machines, read_results, replay, simulate, studies
from .traces import Trace, open_trace

__all__ = [
    "Arena",
    "Block",
    "CommandError",
    "Results",
    "Trace",
    "WrongFree",
    "__version__",
    "command",
    "machines",
    "open_trace",
    "read_results",
    "replay",
    "simulate",
    "studies",
]
