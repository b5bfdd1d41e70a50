"""Rows of sources, transforms and functions have values of the declared types, on the way to each kind of step."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from stateflow import Context, FileSource, KeyedProcessFunction, StreamExecutionEnvironment
from stateflow.api.schema import RowSchema
from stateflow.api.source import LocalSource, Source
from stateflow.api.streams.data_stream import DataStream
from stateflow.clock import ManualClock
from stateflow.config.settings import SourceSettings
from stateflow.connectors.delta.source import DeltaSource
from stateflow.connectors.partitioned.spark_reader import as_spark_reads
from stateflow.environment import declare
from stateflow.errors import CorruptInput, SchemaMismatch, StateflowError
from stateflow.runtime.executor import BatchId, BatchInfo, BatchWork, TaskEnvironment, TaskSettings
from stateflow.runtime.planning.physical_plan import JobPlan, plan_job
from stateflow.runtime.spark.batch_input import BatchInput
from stateflow.runtime.spark.checkpoint_location import SparkLocation
from stateflow.runtime.spark.errors import to_stateflow_error
from stateflow.runtime.spark.executor import SparkExecutor
from stateflow.runtime.spark.frames import source_frame
from stateflow.runtime.spark.inputs import SourceRows
from stateflow.storage.memory import MemoryStorage
from tests.support.delta_tables import damage_one
from tests.support.job_fixture import mostly_slow

pytestmark = pytest.mark.spark
ID = str(uuid.UUID(int=7))


class Colour(enum.Enum):
    RED = "red"


class Order(msgspec.Struct):
    id: uuid.UUID
    colour: Colour
    number: Annotated[int, msgspec.Meta(ge=0)]
    tags: list[str]
    day: date | None = None


class Counted(msgspec.Struct):
    colour: Colour
    n: int


class Repeat(KeyedProcessFunction[Order, Order]):
    def process_element(self, row: Order, ctx: Context) -> list[Order]:
        assert ctx.get_current_key() == (row.id, row.colour)
        return [row]


def written(rows: DataStream) -> None:
    rows.print(limit=0)


def mapped(rows: DataStream) -> None:
    written(rows.map(lambda row: row))


def by_columns(rows: DataStream) -> None:
    written(rows.transform_columns(lambda batch: batch))


def keyed(rows: DataStream) -> None:
    written(rows.key_by("id", "colour").process(Repeat(), output=Order, uid="op"))


def reduced(rows: DataStream) -> None:
    counted = rows.key_by("colour").aggregate_columns({"n": ("count", "number")}, output=Counted, uid="op")
    written(counted.as_append_only())


def looked_up(rows: DataStream) -> None:
    written(rows.lookup_join(lambda spark: spark.range(9).toDF("number"), on="number", output=Order))


def _plan(build: Callable[[DataStream], object], source: Source) -> JobPlan:
    def declared(env: StreamExecutionEnvironment) -> None:
        build(env.from_source(source, uid="rows"))

    return plan_job(declare(declared, "job", ({},))[0].graph, 2)


def _error(plan: JobPlan, rows: DataFrame | SourceRows, folder: Path) -> StateflowError | None:
    environment = TaskEnvironment((folder / "root").as_uri(), folder / "local")
    batch = BatchInfo(BatchId(ManualClock(1).new_id(), 1, 1, datetime.now(UTC)), TaskSettings(128), environment)
    try:
        reports = SparkExecutor().execute(rows, BatchWork(plan, batch, {}))
    except Exception as e:
        return e if isinstance(e, StateflowError) else to_stateflow_error(e)
    failures = [report.failure for report in reports.reports if report.failure is not None]
    return failures[0].to_error() if failures else None


def found(build: Callable[[DataStream], object], frame: DataFrame, folder: Path) -> StateflowError | None:
    """Returns the error of a batch of rows as a source of files has them."""
    return _error(_plan(build, FileSource(folder, schema=Order)), frame, folder)


def found_in(source: Source | LocalSource, spark: SparkSession, folder: Path) -> StateflowError | None:
    """Returns the error of the only batch of a source that Spark reads, whose rows go to a sink at once."""
    reads = as_spark_reads(source)
    plan = _plan(written, reads)
    location = SparkLocation(folder / "location", MemoryStorage("memory://x"))
    errors: list[StateflowError | None] = []

    def run(frame: DataFrame, batch_id: int) -> None:
        batch = BatchInput(plan.sources, {"rows": reads}, location, batch_id=batch_id, frame=frame)
        errors.append(_error(plan, batch.rows(), folder))

    frame = source_frame([(plan.sources[0], reads.stream(spark, SourceSettings()))])
    query = frame.writeStream.foreachBatch(run).option("checkpointLocation", str(location.folder))
    query.trigger(availableNow=True).start().awaitTermination()
    (error,) = errors
    return error


GOOD: dict[str, Any] = {"id": ID, "colour": "red", "number": 1, "tags": ["a"], "day": date(2026, 1, 2)}
MISFITS: list[tuple[dict[str, Any], str, str]] = [
    ({"id": "x"}, "id", "UUID"), ({"colour": "pink"}, "colour", "Colour"), ({"number": None}, "number", "bigint, ge=0"),
    ({"number": -1}, "number", "bigint, ge=0"), ({"tags": ["a", None]}, "tags[]", "array<string>"),
]  # fmt: skip


@pytest.mark.parametrize(
    "build",
    mostly_slow(
        [written, mapped, by_columns, keyed, reduced, looked_up], [written, keyed], reason="runs a job on Spark"
    ),
)
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


WRONG = {"'x' AS id": "id", "array(CAST(NULL AS STRING)) AS tags": "tags[]", "DATE '+12345-01-01' AS day": "day"}


def test_a_wrong_value_that_a_transform_makes_reaches_no_sink(spark_session: SparkSession, tmp_path: Path) -> None:
    frame = spark_session.createDataFrame([tuple(GOOD.values())], RowSchema.of(Order).ddl)
    for expression in WRONG:
        selected = [expression if expression.endswith(f" AS {name}") else name for name in GOOD]

        def made(rows: DataStream, selected: list[str] = selected) -> None:
            written(rows.transform(lambda given: given.selectExpr(*selected)))

        error = found(made, frame, tmp_path)
        assert isinstance(error, SchemaMismatch) and error.facts["column"] == WRONG[expression], (expression, error)


def test_a_value_of_a_delta_table_is_checked(spark_session: SparkSession, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.Table.from_pylist([GOOD, GOOD | {"id": "x"}]))
    error = found_in(DeltaSource(tmp_path / "t", schema=Order), spark_session, tmp_path / "run")
    assert isinstance(error, SchemaMismatch) and error.facts["column"] == "id"


class Text(msgspec.Struct):
    text: str


@pytest.mark.parametrize("damage", ["checksum", "text", "truncated"])
def test_a_damaged_file_of_a_delta_table_ends_the_run(spark_session: SparkSession, tmp_path: Path, damage: str) -> None:
    write_deltalake(tmp_path / "t", pa.table({"text": ["right"]}))
    damage_one(tmp_path / "t", damage)
    error = found_in(DeltaSource(tmp_path / "t", schema=Text), spark_session, tmp_path / "run")
    assert isinstance(error, CorruptInput) and not error.retryable, error


def test_columns_that_a_function_returns_are_checked(spark_session: SparkSession, tmp_path: Path) -> None:
    def replaced(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = [row | {"id": "x"} for row in batch.to_pylist()]
        return pa.RecordBatch.from_pylist(rows, batch.schema)

    frame = spark_session.createDataFrame([tuple(GOOD.values())], RowSchema.of(Order).ddl)
    error = found(lambda rows: written(rows.transform_columns(replaced)), frame, tmp_path)
    assert isinstance(error, SchemaMismatch) and error.facts["column"] == "id"
