"""Peak memory of Spark's Python workers while the state of a query grows far beyond the limits of the workers."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.memory import MIB, WorkerLimits
from benchmarks.nexmark.programs import Load, grown

_WINDOWS = ("q5", "q7", "q8", "q11", "q12")
_AGGREGATES = ("q15", "q16", "q17")
_JOINS = ("q3", "q4", "q6", "q9", "q20", "q23")
STATEFUL = (*_WINDOWS, *_AGGREGATES, *_JOINS, "q18", "q19", "cep0", "cep1", "cep2", "cep3")
"""Queries with state."""
_BY_ROWS = ("q6", "q7", "q9", "cep0", "cep1", "cep2", "cep3")
"""Those whose operators call functions for rows and timers, and hold no columns."""


@dataclass(frozen=True)
class Limits(WorkerLimits):
    """The settings that bound the memory of a worker, and the rows that an operator holds.

    Attributes:
        held_bytes: rows that a join, a ranking or a window holds at once, and what it computes of them; for functions,
            a row group of a file and the state of due timers as objects.
        row_bytes: a row as Python objects, with the state of its key.
    """

    rows_per_arrow_batch: int = 5000
    held_bytes: int = 128 * MIB
    row_bytes: int = 1500

    @property
    def bound(self) -> int:
        """The documented sum."""
        return self.bound_without_rows + self.rows_per_arrow_batch * self.row_bytes + self.held_bytes


def bounded(query: str, load: Load) -> dict[str, object]:
    """Runs a query and compares the peak of the worker that had the highest with the sum. Raises ProgramFailed."""
    limits = Limits(held_bytes=68 * MIB) if query in _BY_ROWS else Limits()
    with tempfile.TemporaryDirectory(prefix="nexmark-memory-") as folder:
        steps = grown(query, load, limits.settings(), Path(folder))
    state = max(state for state, _ in steps)
    peak = max(peak for _, peak in steps)
    return {
        "bounded": peak <= limits.bound,
        "peak_mib": _mib(peak),
        "bound_mib": _mib(limits.bound),
        "state_mib": _mib(state),
        "growth_in_second_half": round(peak / steps[len(steps) // 2][1], 3),
        "peak_mib_by_state_mib": [(_mib(state), _mib(peak)) for state, peak in steps],
    }


def _mib(size: int) -> float:
    return round(size / MIB, 1)
