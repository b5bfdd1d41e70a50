"""The queries' jobs on Spark: a driver that is killed, and measured runs of this project and of Spark SQL."""

from __future__ import annotations

import pytest

from benchmarks.nexmark.correctness import KILLED_AT, Variant, result
from benchmarks.nexmark.flink_tables import write_side_input
from benchmarks.nexmark.generate import Slices, write_slice
from benchmarks.nexmark.generator import generate
from benchmarks.nexmark.plain import RESULTS, Events
from benchmarks.nexmark.programs import OURS, SPARK, Load, measure_ours, measure_spark
from benchmarks.nexmark.rules import Stream

pytestmark = [pytest.mark.slow, pytest.mark.spark]
FEW = Slices(Stream(events_per_second=40), 3_000, 500)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    folder = tmp_path_factory.mktemp("nexmark")
    (folder / "events").mkdir()
    for number in range(FEW.files):
        write_slice(FEW, folder / "events", number)
    return Load(folder / "events", write_side_input(folder), files_per_batch=2)


@pytest.mark.parametrize("query", [query for query in OURS if query != "q12"])
def test_final_rows_after_a_kill_are_those_of_plain_python(load: Load, query: str) -> None:
    expected = RESULTS[query](Events(generate(FEW.stream, 0, FEW.events)))
    assert expected or query == "q23"
    assert result(query, load, Variant(3, 2, KILLED_AT)) == expected


@pytest.mark.parametrize("query", ["q10", "q14", "q11"])
def test_a_measured_run_takes_time_of_the_clock_and_of_processors(load: Load, query: str) -> None:
    for taken in (measure_ours(query, load), measure_spark(query, load)):
        assert taken.seconds > 0
        assert taken.cpu_seconds > 0


@pytest.mark.parametrize("query", SPARK)
def test_spark_runs_each_of_its_queries(load: Load, query: str) -> None:
    assert measure_spark(query, load).seconds > 0
