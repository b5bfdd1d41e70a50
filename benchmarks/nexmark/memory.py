"""Peak memory of Spark's Python workers while the state of a query grows far beyond the limits of the workers."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.memory import MIB
from benchmarks.nexmark.programs import Load, grown

STATEFUL = ("q3", "q4", "q5", "q7", "q8", "q9", "q11", "q15", "q16", "q17", "q18", "q19", "q20", "q23")
"""Queries with state, by all kinds of operators."""


@dataclass(frozen=True)
class Limits:
    """The settings that bound the memory of a worker, and the sum that they allow.

    Attributes:
        base_bytes: Python, the libraries that a worker has loaded, and what memory allocators keep back.
        held_bytes: rows that a join, a ranking or a window holds at once, and what it computes of them.
        row_bytes: a row as Python objects, with the state of its key.
    """

    base_bytes: int = 190 * MIB
    write_buffer_bytes: int = 8 * MIB
    block_cache_bytes: int = 4 * MIB
    sort_memory_bytes: int = 4 * MIB
    rows_per_arrow_batch: int = 5000
    held_bytes: int = 128 * MIB
    row_bytes: int = 1500

    @property
    def bound(self) -> int:
        """The documented sum."""
        arrow = self.rows_per_arrow_batch * self.row_bytes + self.held_bytes
        return self.base_bytes + 2 * self.write_buffer_bytes + self.block_cache_bytes + self.sort_memory_bytes + arrow

    def settings(self) -> dict[str, str]:
        """Returns the settings of a job."""
        return {
            "rocksdb.write_buffer_bytes": str(self.write_buffer_bytes),
            "rocksdb.block_cache_bytes": str(self.block_cache_bytes),
            "shuffle.sort_memory_bytes": str(self.sort_memory_bytes),
            "checkpoints.retained": "1",
            "checkpoints.collect_every": "1",
            "spark.conf.spark.sql.execution.arrow.maxRecordsPerBatch": str(self.rows_per_arrow_batch),
        }


def bounded(query: str, load: Load, limits: Limits = Limits()) -> dict[str, object]:
    """Runs a query and compares the peak of the worker that had the highest with the sum. Raises ProgramFailed."""
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
