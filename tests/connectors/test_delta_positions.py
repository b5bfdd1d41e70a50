"""Positions of a `DeltaSource`, the files between them, and tables and files that it refuses; without Spark."""

from __future__ import annotations

import base64
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from datetime import time as dt_time
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from stateflow import DeltaSource
from stateflow.api.source import FROM_START, StartKind, StartPosition
from stateflow.config.settings import SourceSettings
from stateflow.connectors.batch_table import BatchTable
from stateflow.connectors.delta import commits
from stateflow.connectors.delta.commits import Offset
from stateflow.connectors.delta.log import open_version
from stateflow.connectors.delta.rows import partition_scalar, vector_positions
from stateflow.errors import ConfigError, CorruptInput, DataError, EnvironmentUnsupported, InputLost, SchemaMismatch
from stateflow.storage import open_storage
from tests.support.delta_reads import batches_of
from tests.support.delta_tables import damage_one
from tests.support.errors import raises
from tests.support.object_stores import mirror

FEED = {"delta.enableChangeDataFeed": "true"}


class Numbered(msgspec.Struct):
    number: int


class Change(Numbered):
    change: str
    version: int


KINDS = {"change": "change", "version": "version"}


def _append(table: Path, *numbers: int, **more: Any) -> DeltaTable:
    rows = pa.table({"number": pa.array(numbers, pa.int64())})
    write_deltalake(str(table), rows, **{"mode": "append", **more})
    return DeltaTable(str(table))


def _log(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def _commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    _log(table, version).write_text("".join(json.dumps(action) + "\n" for action in actions))


def _read(source: DeltaSource, most: int = 1000, start: Offset | None = None) -> list[list[int]]:
    """Returns the numbers in each batch."""
    return [rows.column("number").to_pylist() for _, rows in batches_of(source, most, start)]


# -- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_ends_with_the_table_as_it_was_at_the_start_then_after_so_many_files(tmp_path: Path) -> None:
    for number in range(4):
        _append(tmp_path / "t", number)
    source = DeltaSource(tmp_path / "t", schema=Numbered)
    batches, found, positions = batches_of(source, 3), [], []
    for end, rows in batches:
        found.append(rows.column(0).to_pylist())
        positions.append(json.loads(end))
        if len(found) == 1:
            for number in range(4, 8):
                _append(tmp_path / "t", number)
    assert found == [[0, 1, 2], [3], [4, 5, 6], [7]]
    places = [(p["reservoirVersion"], p["index"], p["isStartingVersion"]) for p in positions]
    assert places == [(3, 2, True), (4, -1, False), (7, -1, False), (8, -1, False)]
    # A second look at the first batches, as after a failure or in a replay, has the same rows.
    again = DeltaSource(tmp_path / "t", schema=Numbered)
    texts = ["-", *map(json.dumps, positions)]
    for before, after in pairwise(texts):
        assert again.files_between(before, after).reads == source.files_between(before, after).reads


def test_a_version_that_removes_rows_ends_the_batch_before_it_and_then_the_run(tmp_path: Path) -> None:
    _append(tmp_path / "t", 1)
    _append(tmp_path / "t", 2)
    DeltaTable(str(tmp_path / "t")).delete("number = 1")
    _append(tmp_path / "t", 3)
    source, found = DeltaSource(tmp_path / "t", schema=Numbered, start=0), []
    with raises(DataError, version=2, operation="DELETE"):
        for end, _ in batches_of(source):
            found.append(json.loads(end)["reservoirVersion"])
    assert found == [2]
    assert _read(DeltaSource(tmp_path / "t", schema=Numbered, start=0, skip_changes=True)) == [[1, 2, 3]]


def test_a_version_whose_changes_would_be_in_another_order_is_not_divided(tmp_path: Path) -> None:
    _append(tmp_path / "t", 1, 2, configuration=FEED)
    _append(tmp_path / "t", 5)
    _append(tmp_path / "t", 7, 8, mode="overwrite")
    DeltaTable(str(tmp_path / "t")).update(updates={"number": "9"}, predicate="number = 7")
    source = DeltaSource(tmp_path / "t", schema=Change, start=0, changes=True, metadata=KINDS)
    found = [[tuple(row.values()) for row in rows.to_pylist()] for _, rows in batches_of(source, 1)]
    assert [len(rows) for rows in found] == [2, 1, 5, 2]
    assert [change for _, change, _ in found[2]] == ["delete"] * 3 + ["insert"] * 2
    assert found[3] == [(7, "update_preimage", 3), (9, "update_postimage", 3)]


def test_a_merge_that_changes_no_row_has_no_changes(tmp_path: Path) -> None:
    table = _append(tmp_path / "t", 1, configuration=FEED)
    (path,) = [Path(uri).name for uri in table.file_uris()]
    metrics = {f"numTargetRows{kind}": "0" for kind in ("Inserted", "Updated", "Deleted")}
    action = {"path": path, "partitionValues": {}, "size": 1, "dataChange": True, "modificationTime": 1}
    _commit(
        tmp_path / "t", 1,
        {"commitInfo": {"operation": "MERGE", "operationMetrics": metrics}}, {"remove": action}, {"add": action},
    )  # fmt: skip
    source = DeltaSource(tmp_path / "t", schema=Change, start=1, changes=True, metadata=KINDS)
    assert _read(source) == [[]]


@pytest.mark.slow(reason="writes ten thousand log entries")
def test_ten_thousand_versions_are_neither_listed_nor_read_for_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    _append(table, 1)
    for version in range(1, 10_000):
        _commit(table, version, {"commitInfo": {"operation": "WRITE"}})
    DeltaTable(str(table)).create_checkpoint()
    source = DeltaSource(table, schema=Numbered, start=9_990)
    source._log.head()
    opened: list[str] = []
    scan, own = os.scandir, os.open

    def list_folder(path: Any) -> Any:
        opened.append(f"list {path}")
        return scan(path)

    def open_file(path: Any, *rest: Any, **more: Any) -> int:
        opened.append(str(path))
        return own(path, *rest, **more)

    monkeypatch.setattr(os, "scandir", list_folder)
    monkeypatch.setattr(os, "open", open_file)
    assert _read(source) == [[]]
    _append_by_hand(table, 10_000)
    at = Offset(reservoirId=source._log.head().metadata.id, reservoirVersion=10_000)
    opened.clear()
    assert _read(source, start=at) == [[7]]
    assert not [each for each in opened if each.startswith("list")], opened
    assert len([each for each in opened if each.endswith(".json")]) <= 4, opened


def _append_by_hand(table: Path, version: int) -> None:
    pq.write_table(pa.table({"number": pa.array([7], pa.int64())}), table / "a.parquet")
    size = (table / "a.parquet").stat().st_size
    _commit(table, version, {"add": {"path": "a.parquet", "partitionValues": {}, "size": size, "dataChange": True}})


def test_a_table_in_a_store_has_the_same_batches_and_backlog_as_on_disk(tmp_path: Path, each_store: str) -> None:
    table = tmp_path / "a table"
    for numbers in ([1, 2], [3], [4, 5]):
        _append(table, *numbers, configuration=FEED)
    DeltaTable(str(table)).create_checkpoint()
    copied = mirror(table, open_storage(each_store))
    changes = DeltaSource(each_store, schema=Change, start=0, changes=True, metadata=KINDS)
    assert changes.backlog(FROM_START, ()).rows == 5
    DeltaTable(str(table)).update(updates={"number": "9"}, predicate="number = 3")
    mirror(table, open_storage(each_store), copied)
    # delta-rs writes no statistics of the changes of rows.
    waiting = changes.backlog(FROM_START, ())
    assert (waiting.rows, waiting.files) == (None, 4) and waiting.unknown
    cases: list[dict[str, Any]] = [
        {"schema": Numbered},
        {"schema": Numbered, "start": 0, "skip_changes": True},
        {"schema": Change, "start": 0, "changes": True, "metadata": KINDS},
    ]
    for case in cases:
        on_disk, in_store = (DeltaSource(at, **case) for at in (table, each_store))
        batches = [*batches_of(on_disk, 1)]
        assert [*batches_of(in_store, 1)] == batches and len(batches) > 1
        for offset in (FROM_START, *(end for end, _ in batches)):
            found, wanted = (source.backlog(offset, ()) for source in (in_store, on_disk))
            assert replace(found, oldest_at=None) == replace(wanted, oldest_at=None)
            assert (found.oldest_at is None) == (wanted.oldest_at is None)
        in_store.check_settings(SourceSettings())
        in_store.check_position(msgspec.json.encode(in_store._first_offset()).decode())


def test_a_position_at_the_first_version_of_a_table_is_not_lost(tmp_path: Path) -> None:
    for number in range(3):
        _append(tmp_path / "t", number)
    source = DeltaSource(tmp_path / "t", schema=Numbered)
    source.check_position(source.initial_position(StartPosition(StartKind.POSITION, position="0")).offset)


# -- input that is gone -----------------------------------------------------------------------------------------------


def test_a_replaced_table_a_vacuumed_file_and_a_missing_version_are_lost_input(tmp_path: Path) -> None:
    for number in range(3):
        _append(tmp_path / "t", number)
    source = DeltaSource(tmp_path / "t", schema=Numbered, start=0)
    first = source._first_offset()
    (file,) = [tmp_path / "t" / f.file.path for f in source.files_between("-", _at(first, 1)).reads]
    file.rename(tmp_path / "kept")
    with raises(InputLost, source=source.description, file=str(file)):
        _read(source)
    (tmp_path / "kept").rename(file)
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    _log(tmp_path / "t", 0).unlink()
    _log(tmp_path / "t", 1).unlink()
    with raises(InputLost, lost="version 0"):
        _read(DeltaSource(tmp_path / "t", schema=Numbered, start=0))
    shutil.rmtree(tmp_path / "t")
    for number in range(3):
        _append(tmp_path / "t", number)
    with raises(InputLost, before=first.reservoirId):
        _read(source, start=first)


def _at(offset: Offset, version: int) -> str:
    return msgspec.json.encode(msgspec.structs.replace(offset, reservoirVersion=version)).decode()


def test_a_feed_that_was_not_recorded_is_refused(tmp_path: Path) -> None:
    _append(tmp_path / "t", 1)
    table = _append(tmp_path / "t", 2)
    table.alter.set_table_properties(FEED)
    _append(tmp_path / "t", 3)
    with raises(DataError, version=0):
        _read(DeltaSource(tmp_path / "t", schema=Change, start=0, changes=True, metadata=KINDS))
    assert _read(DeltaSource(tmp_path / "t", schema=Change, start=2, changes=True, metadata=KINDS)) == [[3]]


def _without_feed(table: Path) -> DeltaTable:
    _append(table, 1, 2, 3)
    _append(table, 4)
    DeltaTable(str(table)).delete("number = 2")
    return DeltaTable(str(table))


def _changes(table: Path, start: Any) -> DeltaSource:
    return DeltaSource(table, schema=Change, start=start, changes=True, metadata=KINDS)


@pytest.mark.parametrize("start", [1, 2, "latest", datetime(2020, 1, 1, tzinfo=UTC), "earliest"])
def test_a_new_job_does_not_begin_where_a_table_records_no_changes(tmp_path: Path, start: Any) -> None:
    _without_feed(tmp_path / "t")
    source = _changes(tmp_path / "t", start)
    version = {"latest": 2, "earliest": 2}.get(start, 0) if not isinstance(start, int) else start
    with raises(DataError, version=version, source=source.description):
        source._positions(SourceSettings()).first_position()
    if start != "latest":
        with raises(DataError, version=version, source=source.description):
            _read(source)
        return
    first = source._first_offset()
    _append(tmp_path / "t", 5)
    with raises(DataError, version=3):
        _read(source, start=first)


def test_only_the_versions_that_a_feed_has_recorded_are_read(tmp_path: Path) -> None:
    _without_feed(tmp_path / "t").alter.set_table_properties(FEED)
    _append(tmp_path / "t", 5)
    _append(tmp_path / "t", 6)
    for version in (1, 2):
        with raises(DataError, version=version):
            _read(_changes(tmp_path / "t", version))
    DeltaTable(str(tmp_path / "t")).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    _append(tmp_path / "t", 7)
    for start in (3, 4):
        source, found = _changes(tmp_path / "t", start), []
        with raises(DataError, version=6):
            for _, rows in batches_of(source):
                found.append(rows.column(0).to_pylist())
        assert found == [[5, 6]]
    with raises(DataError, version=7):
        _read(_changes(tmp_path / "t", 7))


def test_a_feed_is_found_without_the_checkpoint_before_a_version(tmp_path: Path) -> None:
    for number in range(6):
        _append(tmp_path / "t", number, configuration=FEED)
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    _append(tmp_path / "t", 6)
    for version in range(3):
        _log(tmp_path / "t", version).unlink()
    assert _read(_changes(tmp_path / "t", 3)) == [[3, 4, 5, 6]]
    # The table as it was at the start of a first read no longer exists.
    source = DeltaSource(tmp_path / "t", schema=Numbered)
    with raises(InputLost, lost="version 4"):
        _read(source, start=msgspec.structs.replace(source._first_offset(), reservoirVersion=4))
    rows = [json.loads(line) for line in _log(tmp_path / "t", 4).read_text().splitlines()]
    about = {"id": str(DeltaTable(str(tmp_path / "t")).metadata().id), "schemaString": "{}", "configuration": FEED}
    _commit(tmp_path / "t", 4, *rows, {"metaData": about})
    with raises(DataError, version=3):
        _read(_changes(tmp_path / "t", 3))


def test_a_position_is_checked_without_a_checkpoint_once_its_feed_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    for number in range(12):
        _append(table, number, configuration=FEED)
    DeltaTable(str(table)).create_checkpoint()
    source, opened = _changes(table, 3), []

    def counted(*arguments: Any) -> Any:
        opened.append(arguments)
        return open_version(*arguments)

    monkeypatch.setattr(commits, "open_version", counted)
    for end, _ in batches_of(source, 2):
        source.check_position(end)
    assert len(opened) == 1
    for _ in range(3):
        _changes(table, 3).check_position(_at(source._first_offset(), 5))
    assert len(opened) == 4
    again = _changes(table, 3)
    for _ in range(3):
        again.check_position(_at(source._first_offset(), 5))
    assert len(opened) == 5


def test_kept_log_entries_have_a_bounded_number_of_files_together(tmp_path: Path) -> None:
    _append(tmp_path / "t", 1)
    log = DeltaSource(tmp_path / "t", schema=Numbered)._log
    log.head()
    file = {"path": "a", "partitionValues": {}, "size": 1, "dataChange": True}
    for version in range(1, 25):
        _commit(tmp_path / "t", version, *({"add": file} for _ in range(1000)))
    for version in range(1, 25):
        found = log.commit(version)
        assert found is not None and log.commit(version) is found
        assert sum(len(each.actions) for each in log._commits.values()) <= 10_000


# -- columns ----------------------------------------------------------------------------------------------------------


class Wide(msgspec.Struct):
    number: int
    part: Annotated[datetime, msgspec.Meta(tz=True)] | None
    text: str | None = None


def test_a_column_that_was_added_later_is_null_and_a_renamed_one_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "t"
    _append(table, 1)
    rows = pa.table({"number": [2], "text": ["x"]})
    write_deltalake(str(table), rows, mode="append", schema_mode="merge")

    class Texts(msgspec.Struct):
        number: int
        text: str | None

    def found(**more: Any) -> list[dict[str, Any]]:
        batches = batches_of(DeltaSource(table, schema=Texts, start=0, **more))
        return [row for _, rows in batches for row in rows.to_pylist()]

    assert found() == [{"number": 1, "text": None}, {"number": 2, "text": "x"}]
    other = pa.table({"number": [3], "text": ["y"], "more": [1]}).rename_columns(["number", "renamed", "more"])
    write_deltalake(str(table), other, mode="overwrite", schema_mode="overwrite")

    class Renamed(msgspec.Struct):
        number: int
        renamed: str | None

    with raises(SchemaMismatch, version="1", column="renamed", found="the columns text"):
        list(batches_of(DeltaSource(table, schema=Renamed, start=0, skip_changes=True)))


def test_a_column_that_had_another_type_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"number": ["1"]}))
    write_deltalake(str(tmp_path / "t"), pa.table({"number": [2]}), mode="overwrite", schema_mode="overwrite")
    with raises(SchemaMismatch, column="number", found="string", declared="int64", version="0"):
        _read(DeltaSource(tmp_path / "t", schema=Numbered, start=0, skip_changes=True))
    source = DeltaSource(tmp_path / "t", schema=Numbered)
    assert _read(source) == [[2]]


PARTITIONS: Sequence[tuple[str | None, pa.DataType, object]] = [
    (None, pa.int64(), None), ("", pa.string(), None), ("-3", pa.int64(), -3), ("true", pa.bool_(), True),
    ("1.5", pa.float64(), 1.5), ("2024-02-29", pa.date32(), date(2024, 2, 29)),
    ("1.20", pa.decimal128(12, 2), Decimal("1.20")), ("a b", pa.string(), "a b"),
    ("2024-01-02 03:04:05", pa.timestamp("us", "UTC"), datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ("2024-01-02T03:04:05.000006Z", pa.timestamp("us", "UTC"), datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
    ("2024-01-02 03:04:05.5", pa.timestamp("us"), datetime.fromisoformat("2024-01-02T03:04:05.5")),
    ("61000000", pa.time64("us"), dt_time(0, 1, 1)),
    ("1500000", pa.duration("us"), timedelta(seconds=1.5)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "value"), PARTITIONS, ids=str)
def test_values_of_partitions_have_the_declared_type(text: str | None, kind: pa.DataType, value: object) -> None:
    assert partition_scalar(text, kind).as_py() == value


@pytest.mark.parametrize(("text", "kind"), [("x", pa.int64()), ("2024-13-01", pa.date32()), ("x", pa.float64())])
def test_a_value_of_a_partition_that_is_not_of_its_type_is_an_error(text: str, kind: pa.DataType) -> None:
    with pytest.raises(ValueError):
        partition_scalar(text, kind)


class Followed(Numbered):
    deleted: bool


# -- tables and files that are refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feature", "refused"),
    [("catalogManaged", True), ("catalogOwned-preview", True), ("unheardOf", True), ("vacuumProtocolCheck", False)],
)
def test_a_table_with_a_feature_that_cannot_be_read_is_refused_before_spark_starts(
    tmp_path: Path, feature: str, refused: bool
) -> None:
    _append(tmp_path / "t", 1)
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [feature], "writerFeatures": [feature]}
    _commit(tmp_path / "t", 1, {"protocol": protocol})
    source = DeltaSource(tmp_path / "t", schema=Numbered)
    if not refused:
        source.check_settings(SourceSettings())
        assert _read(source) == [[1]]
        return
    with raises(EnvironmentUnsupported, table=str(tmp_path / "t")) as caught:
        source.check_settings(SourceSettings())
    with raises(EnvironmentUnsupported, table=str(tmp_path / "t")):
        BatchTable(tmp_path / "t", schema=Followed, refresh=timedelta(minutes=1)).read(None, SourceSettings())
    assert caught.value.hint and str(caught.value.facts["features"])[:9] == str([feature])[:9]
    with raises(ConfigError, source="DeltaSource[rows:/nowhere]"):
        DeltaSource("/nowhere", schema=Numbered).check_settings(SourceSettings())


@pytest.mark.parametrize("damage", ["truncated", "checksum", "text"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    class Text(msgspec.Struct):
        text: str

    write_deltalake(str(tmp_path / "t"), pa.table({"text": ["right"]}))
    file = damage_one(tmp_path / "t", damage)
    source = DeltaSource(tmp_path / "t", schema=Text)
    with raises(CorruptInput, source=source.description, file=f"{tmp_path / 't'}/{file}"):
        list(batches_of(source))


# -- deletion vectors -------------------------------------------------------------------------------------------------

_MAGIC = (1681511377).to_bytes(4, "little")
_ROWS = st.one_of(
    st.integers(0, 200),
    st.integers(0, 300_000),
    st.integers((1 << 32) - 5, (1 << 32) + 70_000),
    st.integers(0, 1 << 40),
)


@given(
    st.sets(_ROWS, max_size=300),
    st.lists(st.tuples(st.integers(0, 1 << 18), st.integers(1, 70_000)), max_size=3),
    st.booleans(),
)
def test_the_numbers_in_a_vector_are_those_of_another_library(
    single: set[int], ranges: list[tuple[int, int]], with_runs: bool
) -> None:
    bitmap = BitMap64(single)
    for begin, length in ranges:
        bitmap |= BitMap64(range(begin, begin + length))
    if with_runs:
        bitmap.run_optimize()
    found = vector_positions(_MAGIC + bitmap.serialize(), 1 << 41)
    assert found.tolist() == list(bitmap)


def _vector(table: Path, number: int, rows: set[int]) -> dict[str, Any]:
    """Writes a deletion vector in a file of its own, and returns its description."""
    data = _MAGIC + BitMap64(rows).serialize()
    at = uuid.UUID(int=number)
    stored = b"\x01" + len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")
    (table / f"deletion_vector_{at}.bin").write_bytes(stored)
    text = base64.b85encode(at.bytes).translate(bytes.maketrans(_B85, _Z85)).decode()
    return {"storageType": "u", "pathOrInlineDv": text, "offset": 1, "sizeInBytes": len(data), "cardinality": len(rows)}


_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def test_rows_that_a_deletion_vector_has_are_left_out_and_their_difference_is_a_change(tmp_path: Path) -> None:
    table = tmp_path / "t"
    (path,) = [Path(uri).name for uri in _append(table, 0, 1, 2, 3, 4, configuration=FEED).file_uris()]
    file = {"path": path, "partitionValues": {}, "size": (table / path).stat().st_size, "dataChange": True}
    first, second = (_vector(table, number, rows) for number, rows in ((1, {1, 3}), (2, {0, 1})))
    _commit(table, 1, {"remove": file}, {"add": {**file, "modificationTime": 1, "deletionVector": first}})
    more = {**file, "modificationTime": 1, "deletionVector": second}
    _commit(table, 2, {"remove": {**file, "deletionVector": first}}, {"add": more})
    changes = DeltaSource(table, schema=Change, start=1, changes=True, metadata=KINDS)
    found = [tuple(row.values()) for _, rows in batches_of(changes) for row in rows.to_pylist()]
    assert found == [(1, "delete", 1), (3, "delete", 1), (0, "delete", 2), (3, "insert", 2)]
    (table / f"deletion_vector_{uuid.UUID(int=1)}.bin").unlink()
    with raises(InputLost, source=changes.description):
        list(batches_of(changes))


@given(st.binary(max_size=60))
def test_bytes_that_are_not_a_vector_are_an_error_or_numbers_of_rows(data: bytes) -> None:
    full = BitMap64(range(1 << 20))
    full.run_optimize()
    for text in (data, _MAGIC + data, _MAGIC + full.serialize()[: len(data)] + data, _MAGIC + full.serialize()):
        try:
            found = vector_positions(text, 1000)
        except ValueError:
            continue
        assert found.size == 0 or (found.min() >= 0 and found.max() < 1000)
    with pytest.raises(ValueError):
        vector_positions(_MAGIC + full.serialize(), 1000)
