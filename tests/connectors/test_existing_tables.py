"""Rows in tables that others have made: narrower numbers, NOT NULL, lengths, keys in partitions, and types of Arrow.

The tables are made, and read again, by deltalake, PyIceberg and psycopg; files of Delta tables also by pyarrow.
"""

from __future__ import annotations

import copy
import datetime
import math
import pickle
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import deltalake
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, DecimalType, FloatType, IntegerType, NestedField, StringType
from pyspark.sql import DataFrame, SparkSession

from stateflow import FileSink, KafkaSource
from stateflow.api.schema import RowSchema
from stateflow.config.settings import SourceSettings
from stateflow.connectors import DeltaSink
from stateflow.connectors.batch_table import BatchTable
from stateflow.connectors.column_policy import ColumnPolicy, check_source_columns, with_times
from stateflow.connectors.delta.maintenance import Compaction
from stateflow.connectors.kafka.formats import RecordLayout
from stateflow.connectors.spark import with_columns
from stateflow.errors import DataError, SchemaMismatch
from stateflow.runtime.task.row_conversion import to_batch, to_rows
from stateflow.state.handles import Committable
from stateflow.types.columns.conversion import with_type
from stateflow.types.columns.precision import precision
from tests.servers.postgres import Postgres
from tests.support.delta_tables import Colour, Every, Exact, Instant, Price, context, every_row, put, visible, write
from tests.support.errors import raises
from tests.support.job_fixture import mostly_slow
from tests.support.staged_tables import IcebergTable, PostgresTable, catalog_in


class Measured(msgspec.Struct, kw_only=True):
    """A row whose columns are wider than those of the tables."""

    id: int
    count: int | None = 0
    ratio: float | None = None
    price: Annotated[Decimal, precision(12, scale=2)] | None = None
    day: datetime.datetime | None = None
    name: str | None = ""


_DAY = datetime.datetime(2026, 1, 2)  # noqa: DTZ001 - without a zone, as its column
_GOOD = [
    Measured(id=(1 << 31) - 1, count=-(1 << 31), ratio=0.1, price=Decimal("9999.50"), day=_DAY, name="abc"),
    Measured(id=-(1 << 31), count=7, ratio=math.inf, name="äöü   "),
    Measured(id=3, count=8, ratio=math.nan),
]
_BAD: list[tuple[dict[str, Any], str]] = [
    ({"id": 1 << 31}, "id"), ({"count": None}, "count"), ({"count": -(1 << 31) - 1}, "count"),
    ({"ratio": 1e39}, "ratio"), ({"price": Decimal("1.25")}, "price"), ({"price": Decimal("10000.00")}, "price"),
    ({"day": _DAY.replace(hour=1)}, "day"),
]  # fmt: skip
_LENGTH = {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}


class _Delta:
    has_length = True

    def __init__(self, folder: Path, **settings_: Any) -> None:
        fields = [
            pa.field("id", pa.int32()), pa.field("count", pa.int32(), nullable=False), pa.field("ratio", pa.float32()),
            pa.field("price", pa.decimal128(5, 1)), pa.field("day", pa.date32()),
            pa.field("name", pa.string(), metadata=_LENGTH),
        ]  # fmt: skip
        self.path = folder / "t"
        DeltaTable.create(str(self.path), pa.schema(fields), partition_by=settings_.get("partition_by", []))
        self.sink: Any = DeltaSink(self.path, **settings_)
        self.about = context(Measured)
        self.sink.prepare(self.about)

    def put(self, token: int, rows: list[Measured]) -> None:
        put(self.sink, self.about, token, rows)

    def stage(self, rows: list[Measured]) -> list[Committable]:
        return write(self.sink, self.about, rows)

    def require_names(self) -> None:
        """Another writer makes a column NOT NULL, which has no null."""
        found = DeltaTable(str(self.path))
        kept, names = found.to_pyarrow_table(), found.metadata().partition_columns
        schema = pa.schema([field.with_nullable(field.name != "name") for field in kept.schema])
        cast = kept.cast(schema)
        deltalake.write_deltalake(found, cast, mode="overwrite", schema_mode="overwrite", partition_by=names)

    def rows(self) -> list[dict[str, Any]]:
        found = DeltaTable(str(self.path)).to_pyarrow_table()
        assert found.schema.field("id").type == pa.int32()
        return sorted(found.to_pylist(), key=lambda row: row["id"])


def _delta(folder: Path, _: Any) -> Any:
    return _Delta(folder)


def _delta_partitions(folder: Path, _: Any) -> Any:
    return _Delta(folder, mode="upsert", keys="id", partition_by=["count", "day"])


class _Iceberg(_Delta):
    has_length = False

    def __init__(self, folder: Path) -> None:
        self._table = IcebergTable.create(folder, Measured)
        catalog_in(folder / "lake").create_table(
            self._table.name,
            Schema(
                NestedField(1, "id", IntegerType(), required=False),
                NestedField(2, "count", IntegerType(), required=True),
                NestedField(3, "ratio", FloatType(), required=False),
                NestedField(4, "price", DecimalType(5, 1), required=False),
                NestedField(5, "day", DateType(), required=False),
                NestedField(6, "name", StringType(), required=False),
            ),
        )
        self._table.prepare()
        self.sink, self.about = self._table.sink, self._table.about

    def put(self, token: int, rows: list[Measured]) -> None:
        self._table.put(token, rows)

    def stage(self, rows: list[Measured]) -> list[Committable]:
        return self._table.stage(1, rows)

    def require_names(self) -> None:
        with self._table.table.update_schema(allow_incompatible_changes=True) as update:
            update.update_column("name", required=True)

    def rows(self) -> list[dict[str, Any]]:
        return self._table.rows()


class _Postgres(_Iceberg):
    has_length = True

    def __init__(self, folder: Path, server: Postgres, **settings_: Any) -> None:
        ddl = (
            "CREATE TABLE {table} (id integer PRIMARY KEY, count integer NOT NULL, ratio real, price numeric(5,1), "
            "day date, name varchar(3))"
        )
        self._table: Any = PostgresTable.create(server, folder, Measured, ddl, **settings_).prepare()
        self.sink, self.about = self._table.sink, self._table.about

    def require_names(self) -> None:
        self._table.server.execute(f"ALTER TABLE {self._table.name} ALTER COLUMN name SET NOT NULL")

    def rows(self) -> list[dict[str, Any]]:
        return list(self._table.rows("id"))


def _iceberg(folder: Path, _: Any) -> Any:
    return _Iceberg(folder)


def _postgres(folder: Path, request: pytest.FixtureRequest) -> Any:
    return _Postgres(folder, request.getfixturevalue("postgres"))


def _postgres_upsert(folder: Path, request: pytest.FixtureRequest) -> Any:
    undo = datetime.timedelta(days=1)
    return _Postgres(folder, request.getfixturevalue("postgres"), mode="upsert", keys="id", undo=undo)


@pytest.fixture(params=[_delta, _delta_partitions, _iceberg, _postgres, _postgres_upsert])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    make: Callable[[Path, Any], Any] = request.param
    return make(tmp_path, request)


@pytest.mark.long(reason="starts a PostgreSQL server")
def test_values_that_narrower_columns_have_are_written_and_others_end_the_batch_before_its_checkpoint(
    table: Any,
) -> None:
    table.put(1, _GOOD[:1])
    table.put(2, _GOOD[1:])
    first, third, second = table.rows()
    assert (second["id"], second["count"], second["name"]) == ((1 << 31) - 1, -(1 << 31), "abc")
    # As Spark, Flink and PostgreSQL cast: the nearest float of 32 bits.
    assert np.float32(second["ratio"]) == np.float32(0.1)
    assert (second["price"], second["day"]) == (Decimal("9999.5"), _DAY.date())
    assert (first["ratio"], math.isnan(third["ratio"]), first["price"]) == (math.inf, True, None)
    assert first["name"] == ("äöü" if table.has_length else "äöü   ")
    bad = [*_BAD, ({"name": "abcd"}, "name")] if table.has_length else _BAD
    for values, column in bad:
        rows = [*_GOOD, Measured(**{"id": 5, **values})]
        with raises(SchemaMismatch, column=column) as caught:
            table.stage(rows)
        assert repr(values[column]) in str(caught.value.facts["row"])
    assert len(table.rows()) == 3


def test_a_task_knows_the_columns_of_the_table_from_the_driver(table: Any) -> None:
    for copied in (pickle.loads(pickle.dumps(table.sink)), copy.deepcopy(table.sink)):
        with raises(SchemaMismatch, column="id"):
            write(copied, table.about, [Measured(id=1 << 40)])


def test_a_null_is_not_published_to_a_column_that_was_made_not_null_after_the_checkpoint(table: Any) -> None:
    table.put(1, _GOOD[:1])
    pending = table.stage([Measured(id=5, name=None)]), table.stage([Measured(id=6, name="b")])
    table.require_names()
    with raises(SchemaMismatch, column="name"):
        table.sink.open_table(table.about).commit(2, pending[0])
    assert table.sink.open_table(table.about).commit(2, pending[1]) is not None
    table.put(3, [Measured(id=7, name="c")])
    assert [row["name"] for row in table.rows()] == ["b", "c", "abc"]
    with raises(SchemaMismatch, column="name"):
        table.stage([Measured(id=8, name=None)])


# -- nested columns, changes of the table, partitions ------------------------------------------------------------------


class Place(msgspec.Struct):
    x: int | None
    y: float | None = None


class Nested(msgspec.Struct, kw_only=True):
    id: int
    place: Place | None = None
    tags: list[int | None] = []
    named: dict[str, int | None] = {}


def _nested_delta(folder: Path) -> Any:
    place = pa.struct([pa.field("y", pa.float32()), pa.field("x", pa.int16(), nullable=False)])
    tags = pa.list_(pa.field("element", pa.int8(), nullable=False))
    named = pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))
    columns = [("id", pa.int64()), ("place", place), ("tags", tags), ("named", named)]
    DeltaTable.create(str(folder / "t"), pa.schema(columns))
    about, sink = context(Nested), DeltaSink(folder / "t")
    sink.prepare(about)
    return sink, about, lambda: visible(folder / "t")


def test_parts_of_nested_columns_are_narrowed_and_checked(tmp_path: Path) -> None:
    sink, about, rows = _nested_delta(tmp_path)
    put(sink, about, 1, [Nested(id=1, place=Place(7, 0.5), tags=[1, 2], named={"a": 3}), Nested(id=2)])
    first, second = sorted(rows(), key=lambda row: row["id"])
    assert first == {"id": 1, "place": {"x": 7, "y": 0.5}, "tags": [1, 2], "named": [("a", 3)]}
    assert second == {"id": 2, "place": None, "tags": [], "named": []}
    for row, column in [
        (Nested(id=3, place=Place(1 << 31)), "place.x"),
        (Nested(id=3, place=Place(None)), "place.x"),
        (Nested(id=3, tags=[1, None]), "tags[]"),
        (Nested(id=3, tags=[1 << 31]), "tags[]"),
        (Nested(id=3, named={"a": None}), "named[]"),
        (Nested(id=3, named={"a": 1 << 31}), "named[]"),
    ]:
        with raises(SchemaMismatch, column=column):
            write(sink, about, [Nested(id=1), row])


def test_rows_that_were_written_before_the_table_became_narrower_are_not_published(tmp_path: Path) -> None:
    wide = pa.table({"id": pa.array([1], pa.int64())})
    deltalake.write_deltalake(str(tmp_path / "t"), wide)
    about = context(_OnlyId)
    files = write(DeltaSink(tmp_path / "t"), about, [_OnlyId(2)])
    narrow = wide.cast(pa.schema([("id", pa.int32())]))
    deltalake.write_deltalake(str(tmp_path / "t"), narrow, mode="overwrite", schema_mode="overwrite")
    sink = DeltaSink(tmp_path / "t")
    with raises(SchemaMismatch, file=files[0].path):
        sink.open_table(about).commit(1, files)
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist() == [{"id": 1}]


class _OnlyId(msgspec.Struct):
    id: int


def test_an_empty_text_is_null_in_a_partition_and_so_violates_not_null(tmp_path: Path) -> None:
    fields = [pa.field("id", pa.int64()), pa.field("text", pa.string(), nullable=False)]
    DeltaTable.create(str(tmp_path / "t"), pa.schema(fields), partition_by=["text"])
    upsert: dict[str, Any] = {"mode": "upsert", "keys": ["id", "text"]}
    for settings_ in ({}, upsert):
        sink = DeltaSink(tmp_path / "t", partition_by="text", **settings_)
        with raises(SchemaMismatch, column="text"):
            write(sink, context(_IdAndText), [_IdAndText(1, "")])


class _IdAndText(msgspec.Struct):
    id: int
    text: str


def test_a_value_too_long_for_a_partition_is_an_error_before_the_checkpoint_or_gets_a_shorter_folder(
    tmp_path: Path,
) -> None:
    long = ["x" * 300, "x" * 299 + "y", "\u00e9" * 300]
    upsert: dict[str, Any] = {"mode": "upsert", "keys": "text"}
    for settings_ in ({}, upsert):
        sink = DeltaSink(tmp_path / "t", partition_by="text", **settings_)
        sink.prepare(context(_IdAndText))
        with raises(DataError, column="text"):
            write(sink, context(_IdAndText), [_IdAndText(1, long[0])])
    table = IcebergTable.create(tmp_path, _IdAndText, partition_by="text").prepare()
    table.put(1, [_IdAndText(at, text) for at, text in enumerate(long)])
    assert [row["text"] for row in table.rows()] == long
    folders = {path.parent.name for path in (tmp_path / "lake").rglob("*.parquet")}
    assert len(folders) == 3 and max(len(name.encode()) for name in folders) <= 255


def test_nan_is_the_greatest_value_of_an_order_and_both_zeros_are_equal(tmp_path: Path) -> None:
    class Ordered(msgspec.Struct):
        id: int
        at: float | None
        number: int

    sink = DeltaSink(tmp_path / "t", mode="upsert", keys="id", order_by="at")
    sink.prepare(context(Ordered))
    nan = math.nan
    orders: list[list[float | None]] = [[1.0, nan, 2.0, None], [nan, -nan], [0.0, -0.0], [None, -math.inf]]
    rows = [Ordered(key, at, number) for key, order in enumerate(orders) for number, at in enumerate(order)]
    put(sink, context(Ordered), 1, rows)
    found = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()
    assert [row["number"] for row in sorted(found, key=lambda row: row["id"])] == [1, 1, 1, 1]


# -- Delta: files of other writers -------------------------------------------------------------------------------------


class Mixed(msgspec.Struct, kw_only=True):
    id: int
    text: str | None = None
    raw: bytes | None = None
    price: Annotated[Decimal, precision(12, scale=2)] | None = None
    at: datetime.datetime | None = None
    tags: list[str] | None = None
    ratio: float | None = None


class Followed(Mixed, kw_only=True):
    """The same row, as a table that is followed has it."""

    deleted: bool = False


_ROW = {"id": 1, "text": "x", "raw": b"y", "price": Decimal("1.25"), "at": _DAY, "tags": ["a"], "ratio": 0.5}
_FORMS: dict[str, dict[str, pa.DataType]] = {
    "large": {"text": pa.large_string(), "raw": pa.large_binary(), "tags": pa.large_list(pa.large_string())},
    "views": {"text": pa.string_view(), "raw": pa.binary_view(), "tags": pa.list_(pa.string_view())},
    "dictionary": {"text": pa.dictionary(pa.int32(), pa.string())}, "decimals": {"price": pa.decimal256(40, 2)},
    "short decimals": {"price": pa.decimal64(12, 2)}, "nanoseconds": {"at": pa.timestamp("ns")},
    "milliseconds": {"at": pa.timestamp("ms")}, "integers": {"id": pa.int32()},
    "short integers": {"id": pa.int16(), "ratio": pa.float32()}, "bytes": {"id": pa.int8()},
}  # fmt: skip


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    if kind == pa.timestamp("ns"):
        # Nanoseconds that no table has.
        return pc.add(column.cast(kind).cast(pa.int64()), 7).cast(kind)
    return pa.array(column.to_pylist(), kind) if "view" in str(kind) else column.cast(kind)


@pytest.mark.parametrize("form", [*_FORMS, "int96"])
def test_files_with_each_form_of_a_type_are_read_rewritten_and_restored(tmp_path: Path, form: str) -> None:
    table, about = tmp_path / "t", context(Mixed)
    sink = DeltaSink(table, mode="upsert", keys="id")
    sink.prepare(about)
    kinds = _FORMS.get(form, {})
    base = about.schema.arrow
    schema = pa.schema([pa.field(f.name, kinds.get(f.name, f.type)) for f in base])
    late = datetime.datetime(9999, 12, 31) if form == "int96" else _DAY  # noqa: DTZ001 - as its column
    rows = [{**_ROW, "id": number, "at": late} for number in (1, 2)]
    for number in (1, 2):
        plain = pa.Table.from_pylist(rows[number - 1 : number], base)
        made = pa.table([_as(column, f.type) for column, f in zip(plain.columns, schema, strict=True)], schema=schema)
        pq.write_table(made, table / f"{number}.parquet", use_deprecated_int96_timestamps=form == "int96")
        size = (table / f"{number}.parquet").stat().st_size
        opened = DeltaTable(str(table))
        opened.create_write_transaction(
            [AddAction(f"{number}.parquet", size, {}, 0, True, "{}")], "append", opened.schema()
        )
    source = BatchTable(table, schema=Followed, refresh=datetime.timedelta(minutes=1))
    followed = source.read(None, SourceSettings())
    assert followed is not None and [msgspec.structs.asdict(row) for row in followed.rows] == [  # type: ignore[arg-type]
        {**row, "deleted": False} for row in rows
    ]
    report = Compaction(sink.own_table(about)).run()
    assert (report.combined_files, report.skipped_files) == (2, 0)
    put(sink, about, 1, [Mixed(id=1, text="new")])
    found = sorted((row for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()), key=lambda row: row["id"])
    assert [row["text"] for row in found] == ["new", "x"]
    assert {**found[1], "at": late} == rows[1]
    handle = sink.open_table(about)
    assert handle.rewind(handle.plan_rewind(0).to_version, 2) is not None
    assert sorted(DeltaTable(str(table)).to_pyarrow_table().to_pylist(), key=lambda row: row["id"]) == rows


# -- rows of random values of every type, through Spark's Python functions, tables, files and records -----------------

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


@pytest.mark.spark
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


@pytest.mark.spark
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


@pytest.mark.spark
def test_fields_of_a_class_are_taken_by_name(spark: SparkSession) -> None:
    part = "named_struct('more', 1, 'second', 'b', 'first', 'a')"
    parts = "map('k', array(named_struct('first', 'c', 'more', 2)))"
    read = with_columns(spark.sql(f"SELECT {part} AS part, {parts} AS parts"), RowSchema.of(Whole))
    assert _declared(read, RowSchema.of(Whole)) == [Whole(Part("a", "b"), {"k": [Part("c", None)]})]


@pytest.mark.spark
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


@pytest.mark.spark
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
