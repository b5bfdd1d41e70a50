"""State as Spark DataFrames."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.functions import spark_partition_id

import stateflow
from stateflow.checkpoint.log.job_root import LEASE
from stateflow.query.reader import table_names
from stateflow.query.snapshot import describe_snapshot
from stateflow.types.key_groups import key_group, range_of
from tests.query.summed_job import SummedJob, totals
from tests.support.local_jobs import LocalJobs
from tests.support.moved_state import Row, build_job
from tests.support.processes import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="queries of Spark take seconds")]


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


@pytest.mark.matrix
def test_a_dataframe_has_the_state(session: SparkSession, ran: SummedJob, tmp_path: Path) -> None:
    frame = _frame(session, ran)
    assert _totals(frame) == totals(12)
    parts = frame.select(spark_partition_id(), "key_group").collect()
    assert all(group in range_of(part, 2, 16) for part, group in parts) and {part for part, _ in parts} == {0, 1}
    assert _totals(_frame(session, ran, snapshot="canonical")) == totals(12)
    assert _frame(session, ran, columns="value, key").columns == ["value", "key"]
    # The driver renews the pin that all queries share: Spark has no hook at the end of a query.
    (pin,) = ran.root.head().entry.pinned
    assert datetime.fromisoformat(pin.until) <= datetime.now(UTC) + LEASE


@pytest.mark.matrix
def test_filters_reduce_what_is_read(session: SparkSession, ran: SummedJob) -> None:
    frame = _frame(session, ran)
    wanted = {key: total for key, total in totals(12).items() if key in ("a", "b")}
    assert _totals(frame.where("key in ('a', 'b', 'none')")) == wanted
    one = frame.where("key = 'a'")
    # Before Spark 4.1, a reader in Python gets no filters, and Spark filters all rows.
    parts = 1 if hasattr(DataSourceReader, "pushFilters") else 2
    assert _totals(one) == {"a": totals(12)["a"]} and one.rdd.getNumPartitions() == parts
    group = key_group(["a"], ["string"], 16)
    found = frame.where(f"key_group >= {group} and key_group < {group + 1}")
    assert {row["key_group"] for row in found.collect()} == {group}
    assert found.rdd.getNumPartitions() == parts
    assert frame.where("key_group < 0").count() == 0


_ACTIONS = ["update", "put", "add", "tag", "collect", "rate", "timer", "event timer"]


def test_state_of_every_kind_is_a_dataframe(session: SparkSession, tmp_path: Path) -> None:
    jobs = LocalJobs(tmp_path, max_parallelism=32, parallelism=2, checkpoints__asynchronous="no")
    rows = [Row(n, "abc"[n % 3], n % 2, action, "x", n, -1) for n, action in enumerate(_ACTIONS * 3)]
    jobs.run(build_job(jobs, rows, 32))
    root = str(tmp_path / "root")
    operators = {each.uid: table_names(each) for each in describe_snapshot(root).manifest.operators}
    empty = []
    for operator, states in operators.items():
        for state in states:
            frame = session.read.format("stateflow").options(path=root, operator=operator, state=state).load()
            found, wanted = frame.toArrow(), stateflow.read_state(root, operator, state).read_all()
            assert _sorted_rows(found) == _sorted_rows(wanted) and found.schema.names == wanted.schema.names
            empty += [] if wanted.num_rows else [(operator, state)]
    assert len(operators["every"]) == 14
    assert empty == [("rates", name) for name in ("_timers", "_raw", "_raw_keyed")]


def _sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("table", ["snapshots", "operators", "states", "files"])
def test_tables_of_metadata_are_dataframes(session: SparkSession, ran: SummedJob, table: str) -> None:
    frame = session.read.format("stateflow").options(path=ran.uri, table=table).load()
    assert frame.toArrow().to_pylist() == stateflow.read_metadata(ran.uri, table).to_pylist()


_READ = """
import sys
from pyspark.sql import SparkSession
import stateflow

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
stateflow.register_spark_reader(spark)
frame = spark.read.format("stateflow").options(path=sys.argv[1], operator="sum", state="total").load()
assert frame.count() == 5 and frame.where("key = 'a'").count() == 1
print(len(stateflow.read_metadata(sys.argv[1], "snapshots").to_pylist()[-1]["pins"]))
"""


def test_the_pins_of_queries_end_with_the_driver(tmp_path: Path) -> None:
    job = SummedJob(tmp_path)
    job.run(12, parallelism=2)
    done = subprocess.run(
        [sys.executable, "-c", _READ, job.uri], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr[-4000:]
    assert job.root.head().entry.pinned == []
