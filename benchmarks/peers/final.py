"""What every competitor must end with: counts and sums of keys, computed with numpy from the same files, or a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet


@dataclass(frozen=True)
class Final:
    """Columns of equal length: each key once, in any order."""

    keys: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]
    totals: np.ndarray[Any, Any]


def check_final(found: Final, events: Path) -> int:
    """The number of keys. Raises AssertionError when counts differ, or sums by more than rounding explains."""
    wanted = _computed(events)
    at = np.argsort(found.keys)
    assert np.array_equal(found.keys[at], wanted.keys), "other keys than the events have"
    assert np.array_equal(found.counts[at], wanted.counts), "a key's count is wrong"
    # Sums depend on the order of rows, which is each competitor's own; and a sum that is what remains of a larger one,
    # as `EveryMean` computes it, has the larger one's rounding. Values are below 1.
    assert np.allclose(found.totals[at], wanted.totals, rtol=1e-9, atol=1e-9), "a key's sum is wrong"
    return len(at)


def _computed(events: Path) -> Final:
    table = parquet.read_table(events)
    keys, positions = np.unique(table["key"].to_numpy(), return_inverse=True)
    totals = np.bincount(positions, weights=table["value"].to_numpy())
    return Final(keys, np.bincount(positions), totals)


def check_table(found: pa.Table, expected: Path) -> int:
    """The number of rows. Raises AssertionError if a table does not have the rows of a Parquet file, in any order."""
    wanted = parquet.read_table(expected).sort_by("key")
    # Fields may be declared as never null in one of them only.
    same = found.select(wanted.column_names).cast(wanted.schema).sort_by("key")
    assert same.equals(wanted), "the table does not have the rows that it should have"
    return len(wanted)
