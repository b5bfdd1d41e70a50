"""Columns of Iceberg tables: every type of a row comes back, and tables that cannot have the rows are refused."""

from __future__ import annotations

import copy
import datetime
import pickle
import uuid
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from importlib.machinery import ModuleSpec
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, StructType

from stateflow import IcebergSink
from stateflow.connectors.iceberg import table as iceberg_table
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
from tests.support.iceberg_tables import IcebergTable, catalog_in, create_catalog

_ROWS = every_row(st.text(max_size=8), st.floats(allow_nan=False))


class Wider(msgspec.Struct):
    id: int
    text: str | None = None
    inner: Inner | None = None
    tags: list[str] | None = None


class Renamed(msgspec.Struct):
    id: int
    note: str | None = None


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


@pytest.mark.long(reason="draws many rows, each in a table of its own")
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
        "long", "time", "long", "timestamp", "timestamptz", "decimal(38, 4)", "string", "string",
    ]  # fmt: skip


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


def test_a_required_column_that_rows_lack_is_refused(table: IcebergTable) -> None:
    more = NestedField(3, "more", LongType(), required=True)
    _catalog(table).create_table(table.name, Schema(_ID, _TEXT_FIELD, more))
    with raises(SinkRefused, table=table.sink.location, column="more"):
        table.sink.check(table.about)


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


def _catalog(table: IcebergTable) -> Any:
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


# -- partitioned iceberg tables ---------------------------------------------------------------------------------------


class Event(msgspec.Struct):
    id: int
    at: datetime.datetime | None = None
    place: str | None = None
    weight: float | None = None
    named: dict[str, Inner] | None = None


_DAY = datetime.datetime.fromisoformat("2017-11-16T22:31:08")
_EVENTS = [
    Event(34, _DAY, "iceberg", 0.5, {"a": Inner(1)}),
    Event(35, _DAY + datetime.timedelta(hours=2), "a/b=c é", None, None),
    Event(36, None, None, 1.5, {}),
    Event(37, datetime.datetime.fromisoformat("1969-12-31T23:59:59"), "", None, None),
    Event(34, _DAY, "iceberg", 2.5, None),
]


def _partitions(table: IcebergTable) -> dict[tuple[object, ...], list[int]]:
    """The ids of each partition, as the files have them, which another library reads."""
    found: dict[tuple[object, ...], list[int]] = {}
    width = len(table.table.spec().fields)
    for task in table.table.scan().plan_files():
        values = tuple(task.file.partition[at] for at in range(width))
        ids = pq.read_table(task.file.file_path.removeprefix("file://"))["id"].to_pylist()
        found.setdefault(values, []).extend(ids)
    return {values: sorted(ids) for values, ids in found.items()}


def _create(folder: Path, partition_by: str | Sequence[str]) -> IcebergTable:
    return IcebergTable.create(folder, Event, partition_by=partition_by).prepare()


@pytest.mark.parametrize(
    ("term", "name", "expected"),
    [
        ("place", "place", {("iceberg",): [34, 34], ("a/b=c é",): [35], (None,): [36], ("",): [37]}),
        ("day(at)", "at_day", {(17486,): [34, 34], (17487,): [35], (None,): [36], (-1,): [37]}),
        ("year(at)", "at_year", {(47,): [34, 34, 35], (None,): [36], (-1,): [37]}),
        ("truncate(3, place)", "place_trunc", {("ice",): [34, 34], ("a/b",): [35], (None,): [36], ("",): [37]}),
    ],
)
def test_each_row_is_in_its_partition(
    tmp_path: Path, term: str, name: str, expected: dict[tuple[object, ...], list[int]]
) -> None:
    """The numbers are those of Iceberg's specification: days and years since 1970."""
    table = _create(tmp_path, term)
    table.put(1, _EVENTS[:3], _EVENTS[3:])
    assert [field.name for field in table.table.spec().fields] == [name]
    assert _partitions(table) == expected
    assert table.table.scan("at >= '2017-11-17T00:00:00'").to_arrow()["id"].to_pylist() == [35]
    assert len(table.table.scan("id = 34").to_arrow()) == 2


def test_buckets_are_those_of_the_specification(tmp_path: Path) -> None:
    """It has the hashes of 34 (2017239379) and of "iceberg" (1210000089)."""
    table = _create(tmp_path, ["bucket(16, id)", "bucket(16, place)"])
    table.put(1, [_EVENTS[0]])
    assert _partitions(table) == {(2017239379 % 16, 1210000089 % 16): [34]}


def test_many_partitions_need_few_open_files_and_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_table, "_OPEN_FILES", 2)
    monkeypatch.setattr(iceberg_table, "_ROW_GROUP_BYTES", 1)
    table = _create(tmp_path, "place")
    rows = [Event(n, place=f"p{n % 5}") for n in range(40)]
    table.put(1, rows[:20], rows[20:])
    assert _partitions(table) == {(f"p{k}",): [n for n in range(40) if n % 5 == k] for k in range(5)}
    assert Counter(row["id"] for row in table.rows()) == Counter(range(40))
    assert len(table.table.snapshots()) == 2


def test_a_table_keeps_its_own_partitions_and_those_of_columns_that_rows_lack(tmp_path: Path) -> None:
    catalog = create_catalog(tmp_path / "lake")
    inner = StructType(NestedField(5, "number", LongType()))
    fields = [NestedField(1, "id", LongType()), NestedField(2, "text", StringType()), NestedField(3, "more", inner)]
    spec = PartitionSpec(
        PartitionField(5, 1000, IdentityTransform(), "number"), PartitionField(1, 1001, BucketTransform(2), "half")
    )
    catalog.create_table("db.t", Schema(*fields), partition_spec=spec)
    table = IcebergTable.existing(tmp_path, Pair, partition_by="text").prepare()
    table.put(1, pairs(0, 6))
    found = _partitions(table)
    assert {values[0] for values in found} == {None} and sorted(chain(*found.values())) == list(range(6))
    # Partitions can be replaced at any time.
    with table.table.update_spec() as update:
        update.remove_field("number")
    table.put(2, pairs(6, 2))
    handle = table.sink.open_table(table.about)
    assert table.ids() == list(range(8))
    assert handle.rewind(handle.plan_rewind(1).to_version, 3) is not None
    assert table.ids() == list(range(6))


@pytest.mark.parametrize(
    "term", ["days(at)", "bucket(0, id)", "day(id)", "missing", "named", "day(place)", "place, id", ["place", "place"]]
)
def test_malformed_partitions_are_refused_before_a_run(tmp_path: Path, term: str | list[str]) -> None:
    table = IcebergTable.create(tmp_path, Event, partition_by=term)
    with pytest.raises(JobDefinitionError):
        table.sink.check(table.about)
