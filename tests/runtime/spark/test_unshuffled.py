"""Sinks on a source's rows: which input needs no shuffle, and what its tasks receive."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from stateflow import FileSource, StreamExecutionEnvironment
from stateflow.api.functions.process import TaskInfo
from stateflow.api.streams.data_stream import DataStream
from stateflow.clock import ManualClock
from stateflow.environment import declare
from stateflow.runtime.executor import (
    BARRIER_ORDER,
    CONTROL,
    ORDER,
    PHASE_SHIFT,
    SOURCE_PHASE,
    BatchId,
    BatchInfo,
    BatchWork,
    TaskEnvironment,
    TaskSettings,
    input_prefix,
)
from stateflow.runtime.planning.physical_plan import JobPlan, plan_job
from stateflow.runtime.spark.executor import SparkExecutor
from stateflow.runtime.spark.inputs import Inputs
from stateflow.runtime.spark.observations import Observations, SeenByTasks
from stateflow.runtime.spark.shuffle import find_unshuffled_input, find_written_rows, with_order
from stateflow.runtime.task.outputs import BarrierMessage

INFO = TaskInfo("", 0, 0, 0, datetime.min.replace(tzinfo=UTC))
ROWS = [(number, f"text {number}") for number in range(10)]


class Row(msgspec.Struct):
    number: int
    text: str


Build = Callable[[DataStream], object]


def planned(build: Build, folder: Path, parallelism: int = 2) -> JobPlan:
    def declared(env: StreamExecutionEnvironment) -> None:
        build(env.from_source(FileSource(folder, schema=Row), uid="rows"))

    return plan_job(declare(declared, "job", ({},))[0].graph, parallelism)


def of_spark(spark: SparkSession, partitions: int) -> DataFrame:
    rows = spark.sparkContext.parallelize(ROWS, partitions)
    return spark.createDataFrame(rows, "number bigint, text string")


def unshuffled(build: Build, folder: Path, frame: DataFrame, parallelism: int = 2) -> DataFrame | None:
    plan = planned(build, folder, parallelism)
    counter = Observations(plan, *SeenByTasks().next_attempt(frame.sparkSession.sparkContext))
    found = find_written_rows(plan, Inputs(plan.sources, frame, counter=counter), INFO)
    return None if found is None else find_unshuffled_input(plan, found)


def written(rows: DataStream) -> None:
    rows.print(limit=0)


@pytest.mark.spark
@pytest.mark.parametrize("partitions", [2, 3, 7])
def test_each_task_takes_whole_partitions(spark_session: SparkSession, tmp_path: Path, partitions: int) -> None:
    found = unshuffled(written, tmp_path, of_spark(spark_session, partitions))
    assert found is not None
    tasks = found.rdd.glom().collect()
    assert len(tasks) == 2 and all(tasks)
    assert found.columns == [input_prefix(0) + name for name in ("number", "text")]
    assert [tuple(row) for rows in tasks for row in rows] == ROWS


@pytest.mark.spark
def test_transforms_that_compute_columns_and_filter_need_no_shuffle(
    spark_session: SparkSession, tmp_path: Path
) -> None:
    def even(rows: DataFrame) -> DataFrame:
        return rows.where("number % 2 = 0").selectExpr("number + 1 AS number", "upper(text) AS text")

    found = unshuffled(lambda rows: written(rows.transform(even)), tmp_path, of_spark(spark_session, 3))
    assert found is not None
    assert found.rdd.getNumPartitions() == 2
    assert {tuple(row) for row in found.collect()} == {(n + 1, f"TEXT {n}") for n in range(0, 10, 2)}


def grouped(rows: DataStream) -> None:
    written(rows.transform(lambda frame: frame.groupBy("number").agg({"text": "max"}).toDF("number", "text")))


def repartitioned(rows: DataStream) -> None:
    written(rows.transform(lambda frame: frame.repartition(1)))


def joined(rows: DataStream) -> None:
    written(rows.transform(lambda frame: frame.join(frame.sparkSession.range(3).toDF("number"), "number")))


def mapped(rows: DataStream) -> None:
    written(rows.map(lambda row: row))


def keyed(rows: DataStream) -> None:
    written(rows.key_by("number").reduce(lambda _, row: row, uid="last"))


def written_twice(rows: DataStream) -> None:
    written(rows)
    rows.print(limit=0, uid="second")


@pytest.mark.spark
@pytest.mark.parametrize("build", [grouped, repartitioned, joined, mapped, keyed, written_twice])
def test_other_jobs_are_shuffled(spark_session: SparkSession, tmp_path: Path, build: Build) -> None:
    assert unshuffled(build, tmp_path, of_spark(spark_session, 3)) is None


@pytest.mark.spark
def test_a_batch_with_fewer_partitions_than_tasks_is_shuffled(spark_session: SparkSession, tmp_path: Path) -> None:
    assert unshuffled(written, tmp_path, of_spark(spark_session, 1)) is None


@pytest.mark.spark
def test_a_batch_that_more_cores_can_read_than_there_are_tasks_is_shuffled(
    spark_session: SparkSession, tmp_path: Path
) -> None:
    assert spark_session.sparkContext.defaultParallelism == 2
    assert unshuffled(written, tmp_path, of_spark(spark_session, 3), 1) is None
    assert unshuffled(written, tmp_path, of_spark(spark_session, 3), 3) is not None


@pytest.mark.spark
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_batch_calls_a_transform_once_and_takes_all_rows(
    spark_session: SparkSession, tmp_path: Path, partitions: int
) -> None:
    calls = []

    def counted(frame: DataFrame) -> DataFrame:
        calls.append(frame)
        return frame

    plan = planned(lambda rows: written(rows.transform(counted)), tmp_path)
    environment = TaskEnvironment((tmp_path / "root").as_uri(), tmp_path / "local")
    batch = BatchInfo(BatchId(ManualClock(1).new_id(), 1, 1, datetime.now(UTC)), TaskSettings(128), environment)
    reports = SparkExecutor().execute(of_spark(spark_session, partitions), BatchWork(plan, batch, {})).reports
    assert len(calls) == 1
    assert sum(report.rows_in for report in reports) == len(ROWS)


@pytest.mark.spark
def test_the_choice_runs_no_subquery(spark_session: SparkSession, tmp_path: Path) -> None:
    spark_session.range(5).createOrReplaceTempView("limits")

    def limited(rows: DataStream) -> None:
        written(rows.transform(lambda frame: frame.where("number > (SELECT min(id) FROM limits)")))

    context = spark_session.sparkContext
    group = str(tmp_path)
    context.setJobGroup(group, "the choice")
    try:
        assert unshuffled(limited, tmp_path, of_spark(spark_session, 3)) is None
    finally:
        context.setLocalProperty("spark.jobGroup.id", "")
    assert list(context.statusTracker().getJobIdsForGroup(group)) == []


@pytest.mark.parametrize("batches", [0, 2])
def test_a_task_reads_rows_of_the_source_and_then_one_barrier(batches: int) -> None:
    rows = pa.RecordBatch.from_pydict({"number": [1, 2]})
    *before, last = with_order(BarrierMessage(7, 3), [rows] * batches)
    assert [batch.column("number").to_pylist() for batch in before] == [[1, 2]] * batches
    assert all(batch.column(ORDER).to_pylist() == [SOURCE_PHASE << PHASE_SHIFT] * 2 for batch in before)
    assert last.column(ORDER).to_pylist() == [BARRIER_ORDER]
    assert [msgspec.msgpack.decode(data, type=BarrierMessage) for data in last.column(CONTROL).to_pylist()] == [
        BarrierMessage(7, 3)
    ]
