"""Rows of random values of every type, through Spark's Python functions, tables, files and records of Kafka."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from stateflow import FileSink, KafkaSource
from stateflow.api.schema import RowSchema
from stateflow.connectors import DeltaSink
from stateflow.connectors.column_policy import ColumnPolicy, check_source_columns, with_times
from stateflow.connectors.kafka.formats import RecordLayout
from stateflow.connectors.spark import with_columns
from stateflow.runtime.task.row_conversion import to_batch, to_rows
from stateflow.types.columns.conversion import with_type
from tests.support.delta_tables import Colour, Every, Exact, Instant, Price, context, every_row, put
from tests.support.job_fixture import mostly_slow

pytestmark = pytest.mark.spark

ABOUT = context(Every)
SCHEMA = ABOUT.schema
ROWS = every_row(st.text(max_size=5), st.floats(allow_nan=False))


class Scalars(msgspec.Struct, kw_only=True):
    id: int
    amount: float | None
    text: str | None
    flag: bool | None
    day: datetime.date | None
    local: datetime.datetime | None
    instant: Instant | None
    price: Price | None
    exact: Exact | None
    time: datetime.time | None
    lasting: datetime.timedelta | None
    uid: uuid.UUID | None
    colour: Colour | None


@pytest.fixture(scope="module")
def rows() -> list[Any]:
    found: list[Any] = []

    @settings(max_examples=120, phases=[Phase.generate])
    @given(ROWS)
    def collect(row: Every) -> None:
        found.append(row)

    collect()
    assert len(found) > 100
    return found


def _in_order(rows: list[Any]) -> list[bytes]:
    return sorted(map(msgspec.msgpack.encode, rows))


@pytest.mark.slow(reason="Spark starts Python workers for every type")
def test_spark_passes_rows_to_functions_and_back(spark: SparkSession, rows: list[Any]) -> None:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [with_type(batch.column(c.name), c.arrow_type) for c in SCHEMA.columns]
            yield to_batch(to_rows(columns, SCHEMA), SCHEMA)

    frame = spark.createDataFrame(pa.Table.from_batches([to_batch(rows, SCHEMA)]), SCHEMA.ddl)
    assert dict(frame.dtypes) == {column.name: column.dtype for column in SCHEMA.columns}
    shuffled = frame.selectExpr("*", "CAST(pmod(id, 3) AS INT) AS target").repartitionById(3, "target")
    found = shuffled.drop("target").mapInArrow(same, SCHEMA.ddl).toArrow()
    columns = [with_type(found.column(c.name).combine_chunks(), c.arrow_type) for c in SCHEMA.columns]
    assert _in_order(to_rows(columns, SCHEMA)) == _in_order(rows)


@pytest.mark.slow(reason="Spark reads a table of every type")
def test_spark_reads_a_table_as_the_declared_rows(spark: SparkSession, rows: list[Any], tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "out")
    sink.prepare(ABOUT)
    put(sink, ABOUT, 1, rows)
    frame = spark.read.format("delta").load(sink.table)
    check_source_columns(with_times(frame.schema, SCHEMA), SCHEMA, ColumnPolicy(), "out")
    read = with_columns(frame, SCHEMA)
    assert dict(read.dtypes) == {column.name: column.dtype for column in SCHEMA.columns}
    assert _in_order(_declared(read, SCHEMA)) == _in_order(rows)


class Part(msgspec.Struct):
    first: str
    second: str | None


class Whole(msgspec.Struct):
    part: Part
    parts: dict[str, list[Part]]


def test_fields_of_a_class_are_taken_by_name(spark: SparkSession) -> None:
    part = "named_struct('more', 1, 'second', 'b', 'first', 'a')"
    parts = "map('k', array(named_struct('first', 'c', 'more', 2)))"
    read = with_columns(spark.sql(f"SELECT {part} AS part, {parts} AS parts"), RowSchema.of(Whole))
    assert _declared(read, RowSchema.of(Whole)) == [Whole(Part("a", "b"), {"k": [Part("c", None)]})]


@pytest.mark.parametrize("kind", mostly_slow(["parquet", "json", "csv"], ["parquet"], reason="Spark reads the files"))
def test_spark_reads_the_files_of_a_sink_as_the_declared_rows(
    spark: SparkSession, rows: list[Any], tmp_path: Path, kind: Any
) -> None:
    row_class = Scalars if kind == "csv" else Every
    about = context(row_class)
    if kind == "csv":
        # Spark reads an empty text as null.
        values = ({name: getattr(row, name) for name in Scalars.__struct_fields__} for row in rows)
        rows = [Scalars(**{**value, "text": value["text"] or None}) for value in values]
    sink = FileSink(tmp_path / "out", format=kind)
    sink.prepare(about)
    put(sink, about, 1, rows)
    options = {"header": "true", "escape": '"', "multiLine": "true"} if kind == "csv" else {}
    read = spark.read.schema(about.schema.ddl).options(**options).format(kind).load(sink.path)
    assert _in_order(_declared(read, about.schema)) == _in_order(rows)


def test_a_source_reads_the_records_that_a_sink_makes_of_rows(spark: SparkSession, rows: list[Any]) -> None:
    layout = RecordLayout("t")
    layout.check(SCHEMA)
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    values = [record.value for record in layout.records(to_batch(rows, SCHEMA))]
    records: list[tuple[Any, ...]] = [(None, value, "t", 0, n, at, 0, []) for n, value in enumerate(values)]
    frame = spark.createDataFrame(
        records,
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
        "timestampType int, headers array<struct<key: string, value: binary>>",
    )
    read = KafkaSource("localhost:1", schema=Every, topics="t").rows(frame)
    assert _in_order(_declared(read, SCHEMA)) == _in_order(rows)


def _declared(frame: DataFrame, schema: RowSchema) -> list[Any]:
    found = frame.toArrow()
    return to_rows([with_type(found.column(c.name).combine_chunks(), c.arrow_type) for c in schema.columns], schema)
