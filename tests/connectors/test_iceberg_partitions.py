"""Partitioned Iceberg tables: each row is in its partition, for new tables and for those of others."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, StructType

from stateflow.connectors.iceberg import table as iceberg_table
from stateflow.errors import JobDefinitionError
from tests.support.delta_tables import Inner, Pair, pairs
from tests.support.errors import raises
from tests.support.iceberg_tables import IcebergTable, create_catalog


class Event(msgspec.Struct):
    """A row with columns that tables are often partitioned by."""

    id: int
    at: datetime.datetime | None = None
    place: str | None = None
    weight: float | None = None
    named: dict[str, Inner] | None = None


_DAY = datetime.datetime.fromisoformat("2017-11-16T22:31:08")
_ROWS = [
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
    table.put(1, _ROWS[:3], _ROWS[3:])
    assert [field.name for field in table.table.spec().fields] == [name]
    assert _partitions(table) == expected
    assert table.table.scan("at >= '2017-11-17T00:00:00'").to_arrow()["id"].to_pylist() == [35]
    assert len(table.table.scan("id = 34").to_arrow()) == 2


def test_buckets_are_those_of_the_specification(tmp_path: Path) -> None:
    """It has the hashes of 34 (2017239379) and of "iceberg" (1210000089)."""
    table = _create(tmp_path, ["bucket(16, id)", "bucket(16, place)"])
    table.put(1, [_ROWS[0]])
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
    "term", ["days(at)", "bucket(0, id)", "day(id)", "missing", "named", "day(place)", "place, id"]
)
def test_malformed_partitions_are_refused_before_a_run(tmp_path: Path, term: str) -> None:
    table = IcebergTable.create(tmp_path, Event, partition_by=term)
    with pytest.raises(JobDefinitionError):
        table.sink.check(table.about)


def test_a_repeated_partition_is_refused(tmp_path: Path) -> None:
    table = IcebergTable.create(tmp_path, Event, partition_by=["place", "place"])
    with raises(JobDefinitionError, partition_by=["place", "place"]):
        table.sink.check(table.about)
