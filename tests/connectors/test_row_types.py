"""Rows of random values of every type, through Spark's Python functions and through a Delta table."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.column_types import stored_type
from stateflow.runtime.task.row_conversion import to_batch, to_rows
from stateflow.types.columns.conversion import with_type
from tests.support.delta_tables import Colour, Every, Inner, context, put

pytestmark = pytest.mark.spark

ABOUT = context(Every)
SCHEMA = ABOUT.schema
_LONG = datetime.timedelta(99_000_000)


def _decimals(digits: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    largest = 10**digits - 1
    return st.integers(-largest, largest).map(lambda n: decimal.Decimal(n).scaleb(-scale, decimal.Context(prec=100)))


_prices, _durations = _decimals(12, 2), st.timedeltas(-_LONG, _LONG)
_inners = st.builds(Inner, st.integers(-9, 9), st.none() | _prices, st.lists(_durations, max_size=2))
ROWS = st.builds(
    Every,
    id=st.integers(-(1 << 63), (1 << 63) - 1),
    amount=st.none() | st.floats(allow_nan=False),
    text=st.none() | st.text(max_size=5),
    flag=st.none() | st.booleans(),
    raw=st.none() | st.binary(max_size=5),
    day=st.none() | st.dates(),
    local=st.none() | st.datetimes(),
    instant=st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
    price=st.none() | _prices,
    exact=st.none() | _decimals(38, 4),
    time=st.none() | st.times(),
    lasting=st.none() | _durations,
    uid=st.none() | st.uuids(),
    colour=st.none() | st.sampled_from(Colour),
    inner=st.none() | _inners,
    numbers=st.none() | st.lists(st.none() | st.floats(allow_nan=False), max_size=3),
    named=st.none() | st.dictionaries(st.text(max_size=2), st.none() | _inners, max_size=2),
)


@pytest.fixture(scope="module")
def rows() -> list[Any]:
    found: list[Any] = []

    @settings(max_examples=200, phases=[Phase.generate])
    @given(ROWS)
    def collect(row: Every) -> None:
        found.append(row)

    collect()
    assert len(found) > 100
    return found


def _in_order(rows: list[Any]) -> list[bytes]:
    return sorted(map(msgspec.msgpack.encode, rows))


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


def test_spark_and_pyarrow_read_what_a_sink_writes(spark: SparkSession, rows: list[Any], tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "out")
    sink.prepare(ABOUT)
    put(sink, ABOUT, 1, rows)
    stored = pa.schema([pa.field(c.name, stored_type(c.arrow_type)) for c in SCHEMA.columns])
    (file,) = DeltaTable(sink.table).file_uris()
    by_arrow = pq.read_table(file).cast(stored)
    by_spark = spark.read.format("delta").load(sink.table).toArrow().cast(stored)
    assert _in_order(by_spark.to_pylist()) == _in_order(by_arrow.to_pylist())
    columns = [_from_stored(by_arrow.column(c.name).combine_chunks(), c.arrow_type) for c in SCHEMA.columns]
    assert _in_order(to_rows(columns, SCHEMA)) == _in_order(rows)


def _from_stored(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column.cast(pa.time64("us")).cast(kind) if pa.types.is_time(kind) else column.cast(kind)
