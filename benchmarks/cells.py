"""The cells of the throughput benchmark: how many keys, how they are spread, how many rows a batch has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.data import UNIFORM, ZIPF, Events

EVENTS = 10_000_000
FILES_PER_BATCH = 2
"""One for each core: a Parquet file of one row group is read by one task."""


@dataclass(frozen=True)
class Cell:
    """One line of the table.

    Attributes:
        distribution: `UNIFORM` or `ZIPF`.
    """

    rows_per_batch: int
    keys: int
    distribution: str
    events: int = EVENTS

    @property
    def name(self) -> str:
        return f"{_short(self.rows_per_batch)}-{_short(self.keys)}-{self.distribution}"

    @property
    def batches(self) -> int:
        return self.events // self.rows_per_batch

    def data(self) -> Events:
        """What to write for it."""
        return Events(
            files=self.batches * FILES_PER_BATCH,
            rows_per_file=self.rows_per_batch // FILES_PER_BATCH,
            keys=self.keys,
            distribution=self.distribution,
        )


GOAL = Cell(1_000_000, 100_000, UNIFORM)
"""The cell that the goals are for."""
CELLS = [
    Cell(rows, keys, distribution)
    for rows, keys, distribution in itertools.product((1_000_000, 200_000), (100_000, 5_000_000), (UNIFORM, ZIPF))
]


def selected(names: Sequence[str], events: int = EVENTS) -> list[Cell]:
    """The cells of these names, or all. Raises ValueError for a name that there is not."""
    known = {cell.name: cell for cell in CELLS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no such cell: {', '.join(unknown)}; known: {', '.join(known)}")
    return [replace(known[name], events=events) for name in names or known]


def _short(number: int) -> str:
    for unit, letter in ((1_000_000, "m"), (1_000, "k")):
        if number % unit == 0:
            return f"{number // unit}{letter}"
    return str(number)
