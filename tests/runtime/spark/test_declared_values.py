"""Rows of sources, transforms and functions have values of the declared types, on the way to each kind of step."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from stateflow import Context, FileSource, KeyedProcessFunction, StreamExecutionEnvironment
from stateflow.api.schema import RowSchema
from stateflow.api.streams.data_stream import DataStream
from stateflow.clock import ManualClock
from stateflow.environment import declare
from stateflow.errors import SchemaMismatch, StateflowError
from stateflow.runtime.executor import BatchWork
from stateflow.runtime.planning.physical_plan import plan_job
from stateflow.runtime.spark.errors import to_stateflow_error
from stateflow.runtime.spark.executor import SparkExecutor
from stateflow.runtime.task_spec import BatchId, BatchInfo, TaskEnvironment, TaskSettings

pytestmark = pytest.mark.spark
ID = str(uuid.UUID(int=7))


class Colour(enum.Enum):
    RED = "red"


class Order(msgspec.Struct):
    id: uuid.UUID
    colour: Colour
    number: Annotated[int, msgspec.Meta(ge=0)]
    tags: list[str]


class Counted(msgspec.Struct):
    colour: Colour
    n: int


class Repeat(KeyedProcessFunction[Order, Order]):
    def process_element(self, row: Order, ctx: Context) -> list[Order]:
        return [row]


def written(rows: DataStream) -> None:
    rows.print(limit=0)


def transformed(rows: DataStream) -> None:
    written(rows.transform(lambda frame: frame.where("true")))


def mapped(rows: DataStream) -> None:
    written(rows.map(lambda row: row))


def by_columns(rows: DataStream) -> None:
    written(rows.transform_columns(lambda batch: batch))


def united(rows: DataStream) -> None:
    written(rows.union(rows.transform(lambda frame: frame)))


def keyed(rows: DataStream) -> None:
    written(rows.key_by("id").process(Repeat(), output=Order, uid="op"))


def reduced(rows: DataStream) -> None:
    counted = rows.key_by("colour").aggregate_columns({"n": ("count", "number")}, output=Counted, uid="op")
    written(counted.as_append_only())


def looked_up(rows: DataStream) -> None:
    written(rows.lookup_join(lambda spark: spark.range(9).toDF("number"), on="number", output=Order))


def found(build: Callable[[DataStream], object], frame: DataFrame, folder: Path) -> StateflowError | None:
    """Returns the error of a batch."""

    def declared(env: StreamExecutionEnvironment) -> None:
        build(env.from_source(FileSource(folder, schema=Order), uid="rows"))

    plan = plan_job(declare(declared, "job", ({},))[0].graph, 2)
    environment = TaskEnvironment((folder / "root").as_uri(), folder / "local")
    batch = BatchInfo(BatchId(ManualClock(1).new_id(), 1, 1, datetime.now(UTC)), TaskSettings(128), environment)
    try:
        reports = SparkExecutor().execute(frame, BatchWork(plan, batch, {}))
    except Exception as e:
        return e if isinstance(e, StateflowError) else to_stateflow_error(e)
    failures = [report.failure for report in reports.reports if report.failure is not None]
    return failures[0].to_error() if failures else None


GOOD: dict[str, Any] = {"id": ID, "colour": "red", "number": 1, "tags": ["a"]}
MISFITS: list[tuple[dict[str, Any], str, str]] = [
    ({"id": "x"}, "id", "UUID"),
    ({"colour": "pink"}, "colour", "Colour"),
    ({"number": None}, "number", "bigint, ge=0"),
    ({"number": -1}, "number", "bigint, ge=0"),
    ({"tags": ["a", None]}, "tags[]", "array<string>"),
]


@pytest.mark.slow
@pytest.mark.parametrize("build", [written, transformed, mapped, by_columns, united, keyed, reduced, looked_up])
def test_a_value_that_is_not_of_its_declared_type_fails_the_batch(
    spark_session: SparkSession, tmp_path: Path, build: Callable[[DataStream], object]
) -> None:
    def frame(*rows: dict[str, Any]) -> DataFrame:
        values = [tuple(row.values()) for row in rows]
        return spark_session.createDataFrame(values, RowSchema.of(Order).ddl).repartition(2)

    assert found(build, frame(GOOD, GOOD, GOOD), tmp_path) is None
    for changed, column, declared in MISFITS:
        if build is looked_up and "number" in changed:
            continue  # such a row has no number of the table
        error = found(build, frame(GOOD, GOOD | changed, GOOD), tmp_path)
        assert isinstance(error, SchemaMismatch), (changed, error)
        assert {"column": column, "declared": declared}.items() <= error.facts.items()
        assert "row" in error.facts


@pytest.mark.parametrize("changed", [{"id": "x"}, {"number": None}], ids=str)
def test_columns_that_a_function_returns_are_checked(
    spark_session: SparkSession, tmp_path: Path, changed: dict[str, Any]
) -> None:
    def replaced(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = [row | changed for row in batch.to_pylist()]
        return pa.RecordBatch.from_pylist(rows, batch.schema)

    frame = spark_session.createDataFrame([tuple(GOOD.values())], RowSchema.of(Order).ddl)
    error = found(lambda rows: written(rows.transform_columns(replaced)), frame, tmp_path)
    assert isinstance(error, SchemaMismatch) and error.facts["column"] in changed
