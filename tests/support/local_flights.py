"""The demo's job `flights` with a source that needs no Spark, over real flights: some of each file of January."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
from flights_demo.expected import expected_delays, expected_routes
from flights_demo.flights import prepare

from stateflow.api.schema import RowSchema
from stateflow.api.source import LocalSource, Slice
from stateflow.config.settings import SourceSettings
from tests.support.job_fixture import Row

FLIGHTS = Path(__file__).parents[2] / "dags" / "jobs" / "flights.py"
FILES = 4
_JANUARY = 27_004
_ROWS = 1000
_WITHOUT_SPARK = {
    "    FileSource,\n": "",
    "FileSource(env": "FlightFiles(env",
    ".transform(name_unknown)": "",
    "\n\nclass Flight(": "\nfrom tests.support.local_flights import FlightFiles\n\n\nclass Flight(",
}


class FlightFiles(LocalSource):
    """A source that reads a Parquet file per batch, in order of names. A position is a number of files."""

    limited_by = frozenset({"max_files_per_batch"})

    def __init__(self, folder: str, schema: type[object]) -> None:
        self.schema = RowSchema.of(schema)
        self._folder = Path(folder)

    @property
    def description(self) -> str:
        return f"FlightFiles[{self._folder}]"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        number = json.loads(position)["file"] if position else 0
        files = sorted(self._folder.glob("*.parquet"))[number:]
        if not files:
            return None
        return Slice([self.schema.row_class(**row) for row in rows_of(files[0])], json.dumps({"file": number + 1}))

    def holds(self, position: str) -> bool | None:
        return True


def job_text(*changes: tuple[str, str]) -> str:
    """The text of the demo's job with other texts in it."""
    text = FLIGHTS.read_text(encoding="utf-8")
    for right, wrong in [*_WITHOUT_SPARK.items(), *changes]:
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    return text


def stage(folder: Path) -> list[Path]:
    """Writes the files, which Spark reads in this order; returns them."""
    prepare(folder, _JANUARY)
    files = sorted(folder.iterdir())
    assert len(files) == FILES
    for file in files:
        times = file.stat()
        pq.write_table(pq.read_table(file).slice(0, _ROWS), file)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    return files


def rows_of(file: Path) -> list[Row]:
    return [{**row, "tailnum": row["tailnum"] or "UNKNOWN"} for row in pq.read_table(file).to_pylist()]


def expected(files: list[Path], skip: int = 0) -> dict[str, list[Row]]:
    """What the tables must hold, by plain Python.

    Args:
        files: those that were delivered, one of them a batch.
        skip: how many of them had been processed before, into other tables.
    """
    flights = [row for file in files for row in rows_of(file)]
    before = flights[: skip * _ROWS]
    return {
        "delays": expected_delays(flights)[len(before) :],
        "routes": expected_routes(flights)[len(expected_routes(before)) :],
    }
