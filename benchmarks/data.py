"""Made input: events with random keys, in Parquet files of equal size that sort in time order."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet


@dataclass(frozen=True)
class Events:
    """How many files of how many rows with how many different keys."""

    files: int
    rows_per_file: int
    keys: int
    seed: int = 1

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return self.files * self.rows_per_file


def write_events(folder: Path, events: Events) -> None:
    """Writes the files, each a second younger than the one before."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(events.seed)
    for number in range(events.files):
        keys = random.integers(0, events.keys, events.rows_per_file)
        _write(folder, number, pa.table({"key": keys, "value": random.random(events.rows_per_file)}))


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
