"""Batches whose tasks read the files of a source: which jobs do, and what happens to files that only Spark can read."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from stateflow import FileSource, StreamExecutionEnvironment
from stateflow.api.input_files import file_uri
from stateflow.api.streams.data_stream import DataStream
from stateflow.checkpoint.barriers import TaskReport
from stateflow.clock import ManualClock
from stateflow.connectors.files.parquet_files import ParquetFormat
from stateflow.environment import declare
from stateflow.errors import UserCodeError
from stateflow.runtime.executor import BatchId, BatchInfo, BatchWork, Executed, TaskEnvironment, TaskSettings
from stateflow.runtime.planning.physical_plan import plan_job
from stateflow.runtime.spark.errors import to_stateflow_error
from stateflow.runtime.spark.executor import SparkExecutor
from stateflow.runtime.spark.inputs import BatchFiles, Inputs, SourceRows, useful_partitions


class Row(msgspec.Struct):
    number: int
    text: str


class Count(msgspec.Struct):
    number: int
    rows: int


Build = Callable[[DataStream], object]
COUNT = 30


def even(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.filter(pc.equal(pc.bit_wise_and(rows.column("number"), 1), 0))


def written(rows: DataStream) -> None:
    rows.print(limit=COUNT)


def odd(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.filter(pc.equal(pc.bit_wise_and(rows.column("number"), 1), 1))


def selected(rows: DataStream) -> None:
    written(rows.transform_columns(even))


def counted(rows: DataStream) -> None:
    by_number = rows.transform_columns(even).key_by("number")
    written(by_number.aggregate_columns({"rows": ("count", "number")}, output=Count, uid="counts"))


def read_twice(rows: DataStream) -> None:
    both = rows.transform_columns(even).union(rows.transform_columns(odd))
    both.map(lambda row: Row(row.number, "")).print(limit=1000)


def failing(rows: DataStream) -> None:
    def divide(row: Row) -> Row:
        return Row(1 // (row.number - row.number), row.text)

    written(rows.map(divide))


class Batch:
    """Files of one batch, and what an executor makes of them.

    Args:
        by_spark: the numbers of the rows that Spark reads; None if Spark must not read.
    """

    def __init__(self, spark: SparkSession, folder: Path, by_spark: int | None = None) -> None:
        self.folder = folder / "in"
        self.folder.mkdir()
        for at in range(3):
            pq.write_table(pa.table(_columns(10 * at, 10)), self.folder / f"{at}.parquet")
        # Rows that no task may compute.
        self.frame: DataFrame = spark.range(1).selectExpr("CAST(raise_error('read') AS BIGINT) AS number", "'' AS text")
        if by_spark is not None:
            self.frame = spark.createDataFrame([(n, f"{n}") for n in range(by_spark)], "number bigint, text string")
        self.executor = SparkExecutor()
        self._environment = TaskEnvironment((folder / "root").as_uri(), folder / "local")
        self._ordinal = 0

    @property
    def files(self) -> list[str]:
        return sorted(map(str, self.folder.iterdir()))

    @property
    def batch_files(self) -> BatchFiles:
        return BatchFiles([file_uri(Path(file)) for file in self.files], ParquetFormat(), lambda: self.frame)

    def run(self, build: Build, parallelism: int = 2) -> list[TaskReport]:
        self._ordinal += 1

        def declared(env: StreamExecutionEnvironment) -> None:
            build(env.from_source(FileSource(self.folder, schema=Row), uid="rows"))

        plan = plan_job(declare(declared, "job", ({},))[0].graph, parallelism)
        of = BatchId(ManualClock(1).new_id(), 1, self._ordinal, datetime.now(UTC))
        work = BatchWork(plan, BatchInfo(of, TaskSettings(128), self._environment), {})
        return self.executor.execute(SourceRows(self.frame, lambda: {"rows": self.batch_files}), work).reports


def _columns(first: int, count: int) -> dict[str, Any]:
    return {"number": pa.array(range(first, first + count), pa.int64()), "text": [f"{n}" for n in range(count)]}


def printed(reports: list[TaskReport]) -> list[int]:
    lines = "".join(c.stats for report in reports for files in report.output.values() for c in files).splitlines()
    return sorted(int(line.strip("()").split(",")[0]) for line in lines)


EVEN = list(range(0, COUNT, 2))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("build", "expected", "parallelism"),
    [(written, list(range(COUNT)), 2), (selected, EVEN, 2), (selected, EVEN, 3), (counted, EVEN, 2)],
)
def test_tasks_read_the_files_whose_rows_only_functions_and_sinks_take(
    spark_session: SparkSession, tmp_path: Path, build: Build, expected: list[int], parallelism: int
) -> None:
    assert printed(Batch(spark_session, tmp_path).run(build, parallelism)) == expected


@pytest.mark.spark
def test_two_passes_over_files_in_several_partitions_have_all_rows(spark_session: SparkSession, tmp_path: Path) -> None:
    batch = Batch(spark_session, tmp_path)
    columns = _columns(COUNT, 2) | {"text": [random.Random(n).randbytes(1 << 22).hex() for n in range(2)]}
    for at in range(2):
        pq.write_table(pa.table(columns).slice(at, 1), batch.folder / f"large{at}.parquet")
    # The tasks of the second pass are numbered after those of the first.
    assert useful_partitions(batch.batch_files, spark_session.sparkContext.defaultParallelism) > 1
    assert printed(batch.run(read_twice)) == list(range(COUNT + 2))


@pytest.mark.spark
@pytest.mark.parametrize("damage", ["type", "gone", "crash"])
def test_spark_reads_the_files_that_tasks_cannot_read(
    spark_session: SparkSession, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch(spark_session, tmp_path, by_spark=4)
    if damage == "type":
        other = {**_columns(0, 10), "number": pa.array([0.5] * 10)}
        pq.write_table(pa.table(other), batch.folder / "2.parquet")
    elif damage == "gone":
        monkeypatch.setattr(Batch, "files", [*batch.files, str(tmp_path / "gone.parquet")])
    else:
        monkeypatch.setattr(SparkExecutor, "_run", _crashing(SparkExecutor._run))
    assert printed(batch.run(selected)) == [0, 2]
    monkeypatch.undo()
    # The next batch of the run tries again, unless it would read files of the same kind.
    assert printed(batch.run(selected)) == ([0, 2] if damage == "type" else EVEN)


def _crashing(run: Callable[..., Executed]) -> Callable[..., Executed]:
    def crashed(self: SparkExecutor, inputs: Inputs, work: BatchWork) -> Executed:
        if inputs.read_by_tasks:
            raise RuntimeError("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)")
        return run(self, inputs, work)

    return crashed


@pytest.mark.spark
@pytest.mark.slow(reason="Spark tries a task four times")
def test_errors_of_functions_are_not_taken_for_unreadable_files(spark_session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception) as raised:
        Batch(spark_session, tmp_path).run(failing)
    assert isinstance(to_stateflow_error(raised.value), UserCodeError)
