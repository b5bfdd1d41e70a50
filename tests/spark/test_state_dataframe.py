"""State as Spark DataFrames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import stateflow
from stateflow.types.key_groups import key_group
from tests.query.summed_job import SummedJob, totals

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SummedJob]:
    job = SummedJob(tmp_path_factory.mktemp("summed"))
    job.run(12, parallelism=2)
    job.create_savepoint("canonical")
    yield job


@pytest.fixture
def session(spark_session: SparkSession) -> SparkSession:
    stateflow.register_spark_reader(spark_session)
    return spark_session


def _frame(session: SparkSession, job: SummedJob, **options: Any) -> DataFrame:
    wanted = {"path": job.uri, "operator": "sum", "state": "total", **options}
    return session.read.format("stateflow").options(**wanted).load()


def _totals(frame: DataFrame) -> dict[str, int]:
    return {row["key"]: row["value"] for row in frame.collect()}


def test_a_dataframe_has_the_state(session: SparkSession, ran: SummedJob, tmp_path: Path) -> None:
    frame = _frame(session, ran)
    assert _totals(frame) == totals(12)
    assert frame.rdd.getNumPartitions() == 2
    assert _totals(_frame(session, ran, snapshot="canonical")) == totals(12)
    assert _frame(session, ran, columns="value, key").columns == ["value", "key"]
    # Spark has no hook at the end of a query: the pins end with their leases.
    assert all(pin.until for pin in ran.root.head().entry.pinned)


def test_filters_reduce_what_is_read(session: SparkSession, ran: SummedJob) -> None:
    frame = _frame(session, ran)
    wanted = {key: total for key, total in totals(12).items() if key in ("a", "b")}
    assert _totals(frame.where("key in ('a', 'b', 'none')")) == wanted
    one = frame.where("key = 'a'")
    assert _totals(one) == {"a": totals(12)["a"]} and one.rdd.getNumPartitions() == 1
    group = key_group(["a"], ["string"], 16)
    found = frame.where(f"key_group >= {group} and key_group < {group + 1}")
    assert {row["key_group"] for row in found.collect()} == {group}
    assert found.rdd.getNumPartitions() == 1
    assert frame.where("key_group < 0").count() == 0


def test_tables_of_metadata_are_dataframes(session: SparkSession, ran: SummedJob) -> None:
    states = session.read.format("stateflow").options(path=ran.uri, table="states").load()
    assert [row["operator"] for row in states.collect()] == ["sum"]


def test_an_unknown_state_is_an_error_with_the_known_ones(session: SparkSession, ran: SummedJob) -> None:
    with pytest.raises(Exception, match="total"):
        _frame(session, ran, state="totals").collect()
