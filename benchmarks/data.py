"""Made input: events with random keys, in Parquet files of equal size that sort in time order."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

UNIFORM = "uniform"
ZIPF = "zipf"


@dataclass(frozen=True)
class Events:
    """How many files of how many rows with how many different keys.

    Attributes:
        distribution: `UNIFORM`; or `ZIPF`, with exponent 1: the n-th key is n times as rare as the first.
    """

    files: int
    rows_per_file: int
    keys: int
    seed: int = 1
    distribution: str = UNIFORM

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return self.files * self.rows_per_file


def write_events(folder: Path, events: Events) -> None:
    """Writes the files, each a second younger than the one before."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(events.seed)
    draw = _zipf(events, random) if events.distribution == ZIPF else _uniform(events, random)
    for number in range(events.files):
        _write(folder, number, pa.table({"key": draw(), "value": random.random(events.rows_per_file)}))


def _uniform(events: Events, random: np.random.Generator) -> Callable[[], np.ndarray[Any, Any]]:
    return lambda: random.integers(0, events.keys, events.rows_per_file)


def _zipf(events: Events, random: np.random.Generator) -> Callable[[], np.ndarray[Any, Any]]:
    bounds = np.cumsum(1 / np.arange(1, events.keys + 1))
    return lambda: np.searchsorted(bounds, random.random(events.rows_per_file) * bounds[-1])


def write_keys(folder: Path, keys: np.ndarray[Any, Any], rows_per_file: int) -> None:
    """Writes given keys as events, in order."""
    folder.mkdir(parents=True)
    for number, start in enumerate(range(0, len(keys), rows_per_file)):
        some = keys[start : start + rows_per_file]
        _write(folder, number, pa.table({"key": some, "value": np.zeros(len(some))}))


def _write(folder: Path, number: int, table: pa.Table) -> None:
    path = folder / f"{number:05d}.parquet"
    parquet.write_table(table, path)
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
