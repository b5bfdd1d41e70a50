"""The queries' jobs on Spark, with a driver that is killed; Spark's own queries; and measured runs of both."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from benchmarks.nexmark.correctness import KILLED_AT, Variant, result, result_of_spark
from benchmarks.nexmark.flink_tables import write_side_input
from benchmarks.nexmark.generate import Slices, write_slice
from benchmarks.nexmark.generator import generate
from benchmarks.nexmark.plain import RESULTS, Events
from benchmarks.nexmark.programs import OURS, SPARK, Load
from benchmarks.nexmark.rules import PERSON, Stream
from tests.benchmarks.nexmark.test_queries import at, auction, bid, table

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="each query is a job on Spark, with a driver that is killed")]
FEW = Slices(Stream(events_per_second=40), 3_000, 500)
CLOSED_BY_WATERMARKS = ("q4", "q5", "q6", "q7", "q8", "q11")
"""Queries of Spark that emit rows when a watermark has passed them."""


def written(slices: Slices, folder: Path) -> Load:
    (folder / "events").mkdir()
    for number in range(slices.files):
        write_slice(slices, folder / "events", number)
    return Load(folder / "events", write_side_input(folder), files_per_batch=2)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    return written(FEW, tmp_path_factory.mktemp("nexmark"))


@pytest.fixture(scope="module")
def load_with_an_end(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """The same events, and then two batches of events a day later: the second has a watermark after all others."""
    load = written(FEW, tmp_path_factory.mktemp("nexmark"))
    day = 86_400
    person = {"event_type": PERSON, "dateTime": at(day), "extra": "", "person_id": 0}
    # No bid is for the auction: the rows that are open at the end have nothing to emit.
    events = table(person, auction(1, 0, day, 2 * day), bid(2, 1, day))
    for number in range(3):
        _write(events, load.events, FEW.files + number)
    return load


def _write(events: pa.Table, folder: Path, number: int) -> None:
    """Writes a file that Spark reads after those of lower numbers, because it is newer."""
    path = folder / f"{number:05d}.parquet"
    parquet.write_table(events, path)
    os.utime(path, (1_700_000_000 + number,) * 2)


@pytest.mark.parametrize("query", [query for query in OURS if query != "q12"])
def test_final_rows_after_a_kill_are_those_of_plain_python(load: Load, query: str) -> None:
    expected = RESULTS[query](Events(generate(FEW.stream, 0, FEW.events)))
    assert expected or query == "q23"
    assert result(query, load, Variant(3, 2, KILLED_AT)) == expected


@pytest.mark.parametrize("query", [query for query in SPARK if query not in ("q12", "q23")])
def test_final_rows_of_spark_are_those_of_plain_python(load: Load, load_with_an_end: Load, query: str) -> None:
    expected = RESULTS[query](Events(generate(FEW.stream, 0, FEW.events)))
    assert expected
    assert result_of_spark(query, load_with_an_end if query in CLOSED_BY_WATERMARKS else load) == expected
