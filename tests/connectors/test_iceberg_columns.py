"""Columns of Iceberg tables: every type of a row comes back, and tables that cannot have the rows are refused."""

from __future__ import annotations

import copy
import datetime
import pickle
import uuid
from enum import Enum
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from stateflow import IcebergSink
from stateflow.connectors.iceberg import target as sink_settings
from stateflow.errors import (
    ConfigError,
    EnvironmentUnsupported,
    JobDefinitionError,
    SchemaMismatch,
    SinkRefused,
    StorageError,
)
from tests.servers.running import CANARY
from tests.support.delta_tables import Every, Inner, Pair, every_row, pairs
from tests.support.errors import raises
from tests.support.iceberg_tables import IcebergTable

_ROWS = every_row(st.text(max_size=8), st.floats(allow_nan=False))


class Wider(msgspec.Struct):
    """A pair with further columns."""

    id: int
    text: str | None = None
    inner: Inner | None = None
    tags: list[str] | None = None


class Renamed(msgspec.Struct):
    """A pair whose second column has another name."""

    id: int
    note: str | None = None


class Exact(msgspec.Struct):
    """A pair with columns that must not be null."""

    id: int
    text: str


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    return IcebergTable.create(tmp_path, Pair)


def _stored(value: Any) -> Any:
    """A value as Iceberg has it."""
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(microseconds=1)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list):
        return [_stored(item) for item in value]
    if isinstance(value, dict):
        return [(key, _stored(item)) for key, item in value.items()]
    if isinstance(value, msgspec.Struct):
        return {name: _stored(getattr(value, name)) for name in value.__struct_fields__}
    return value


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> IcebergTable:
    return IcebergTable.create(tmp_path_factory.mktemp("every"), Every).prepare()


@settings(max_examples=30, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(rows=st.lists(_ROWS, min_size=1, max_size=4, unique_by=lambda row: row.id))
@example(rows=[Every(id=7)])
def test_every_type_comes_back(every: IcebergTable, rows: list[Every]) -> None:
    """As another library reads the files: PyIceberg reads a map that is null as an empty one."""
    token = (every.token or 0) + 1
    every.put(token, rows)
    [file] = [path for path in (every.folder / "lake").rglob("*.parquet") if f"-{token}-" in path.name]
    found = sorted(pq.read_table(file).to_pylist(), key=lambda row: row["id"])
    assert found == sorted((_stored(row) for row in rows), key=lambda row: row["id"])


def test_columns_have_the_nearest_types(every: IcebergTable) -> None:
    types = {field.name: str(field.field_type) for field in every.table.schema().fields}
    assert types["named"].startswith("map<string, struct<") and types["numbers"] == "list<double>"
    assert [types[name] for name in ("id", "time", "lasting", "local", "instant", "exact", "uid", "colour")] == [
        "long",
        "time",
        "long",
        "timestamp",
        "timestamptz",
        "decimal(38, 4)",
        "string",
        "string",
    ]


def test_columns_of_files_have_the_ids_of_the_table(table: IcebergTable) -> None:
    catalog = table.prepare().table.catalog
    catalog.drop_table(table.name)
    fields = [
        NestedField(1, "text", StringType()),
        NestedField(2, "more", LongType()),
        NestedField(3, "id", LongType()),
    ]
    catalog.create_table(table.name, Schema(*fields))
    table.prepare().put(1, pairs(0, 2))
    [file] = (table.folder / "lake").rglob("*.parquet")
    ids = {f.name: int(f.metadata[b"PARQUET:field_id"]) for f in pq.read_schema(file)}
    schema = table.table.schema()
    assert ids == {name: schema.find_field(name).field_id for name in ("id", "text")}
    with table.table.update_schema() as update:
        update.rename_column("text", "said")
    assert table.rows() == [{"said": f"row {n}", "more": None, "id": n} for n in range(2)]


def test_missing_columns_are_added_where_that_is_allowed(table: IcebergTable) -> None:
    table.prepare().put(1, pairs(0, 1))
    pending = table.stage(2, pairs(1, 1))
    with raises(SchemaMismatch, table=table.sink.location):
        table.of(Wider).prepare()
    wider = table.of(Wider, schema_evolution="add-columns")
    # Output of the version before is published first.
    assert wider.sink.open_table(wider.about).commit(2, pending) is None
    assert wider.sink.open_table(wider.about).commit(2, pending) is not None
    wider.prepare().put(3, [Wider(2, "row 2", Inner(7), ["a"])])
    inner: dict[str, object] = {"number": 7, "price": None, "lasting": []}
    missing: dict[str, object] = {"inner": None, "tags": None}
    assert wider.rows() == [
        {"id": 0, "text": "row 0", **missing},
        {"id": 1, "text": "row 1", **missing},
        {"id": 2, "text": "row 2", "inner": inner, "tags": ["a"]},
    ]
    # A rewind keeps the columns.
    handle = wider.sink.open_table(wider.about)
    assert handle.rewind(handle.plan_rewind(1).to_version, 4) is not None
    assert wider.rows() == [{"id": 0, "text": "row 0", **missing}]
    with raises(SchemaMismatch, column="text", renamed_to="note"):
        table.of(Renamed, schema_evolution="add-columns").prepare()


_ID, _TEXT_FIELD = NestedField(1, "id", LongType()), NestedField(2, "text", StringType())


@pytest.mark.parametrize(
    ("fields", "facts"),
    [([_ID, _TEXT_FIELD, NestedField(3, "more", LongType(), required=True)], {"column": "more"})],
    ids=["not-in-the-rows"],
)
def test_a_table_with_required_columns_is_refused(
    table: IcebergTable, fields: list[NestedField], facts: dict[str, object]
) -> None:
    _catalog(table).create_table(table.name, Schema(*fields))
    with raises(SinkRefused, table=table.sink.location, **facts):
        table.sink.check(table.about)


def test_a_required_column_is_written_by_rows_without_nulls(table: IcebergTable) -> None:
    exact = table.of(Exact)
    _catalog(table).create_table(table.name, Schema(_ID, NestedField(2, "text", StringType(), required=True)))
    exact.prepare().put(1, [Exact(1, "x")])
    assert exact.rows() == [{"id": 1, "text": "x"}]


def test_another_format_version_is_refused(table: IcebergTable) -> None:
    _catalog(table).create_table(table.name, Schema(_ID, _TEXT_FIELD), properties={"format-version": "1"})
    with raises(SinkRefused, format_version=1):
        table.prepare()


def test_a_table_that_had_another_format_version_is_rewound_to_its_newest_snapshot(table: IcebergTable) -> None:
    _catalog(table).create_table(table.name, Schema(_ID, _TEXT_FIELD), properties={"format-version": "1"})
    for first in (10, 20):
        table.append(first)
    with table.table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    table.prepare().put(1, pairs(0, 1))
    handle = table.sink.open_table(table.about)
    assert handle.rewind(handle.plan_rewind(0).to_version, 2) is not None
    assert table.ids() == [10, 20]


def test_a_column_of_another_type_is_refused(table: IcebergTable) -> None:
    _catalog(table).create_table(table.name, Schema(_ID, NestedField(2, "text", DoubleType())))
    with raises(SchemaMismatch, declared={"text": "string"}, found={"text": "double"}):
        table.prepare()


def _catalog(table: IcebergTable) -> Any:
    from tests.support.iceberg_tables import catalog_in

    return catalog_in(table.folder / "lake")


# -- settings ---------------------------------------------------------------------------------------------------------


def test_arguments_are_checked() -> None:
    for name in ("t", "db.", ".t", "db. t"):
        with raises(JobDefinitionError, table=name):
            IcebergSink(name)
    with pytest.raises(ConfigError):
        IcebergSink("db.t", schema_evolution="drop-columns")  # type: ignore[arg-type]


def test_a_missing_namespace_is_refused(table: IcebergTable) -> None:
    other = IcebergSink("other.t", catalog="tests", properties=dict(table.sink._settings.properties))
    with raises(SinkRefused, table="tests.other.t"):
        other.check(table.about)


def test_without_pyiceberg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(sink_settings, "find_spec", find_spec)
    with raises(EnvironmentUnsupported, package="pyiceberg") as caught:
        IcebergSink("db.t")
    assert "stateflow[iceberg]" in str(caught.value.hint)


def test_secrets_stay_on_the_driver(table: IcebergTable, tmp_path: Path) -> None:
    uri = f"sqlite://user:{CANARY}@host/{tmp_path}/none.db"
    sink = IcebergSink("db.t", catalog="tests", properties={"type": "sql", "uri": uri, "s3.secret-access-key": CANARY})
    assert CANARY not in repr(sink) + repr(sink._settings) + sink.location
    assert CANARY.encode() not in pickle.dumps(sink)
    assert copy.deepcopy(sink)._settings == sink._settings
    sent = pickle.loads(pickle.dumps(sink))
    assert (sent.location, sent._settings.properties) == (sink.location, ())
    with pytest.raises(StorageError) as caught:
        sink.check(table.about)
    assert CANARY not in str(caught.value) + repr(caught.value.facts)
