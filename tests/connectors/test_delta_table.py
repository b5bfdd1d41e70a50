"""A Delta table: creation, commits, concurrent writers and long logs. Without Spark."""

from __future__ import annotations

import dataclasses
import errno
import gc
import json
import logging
import math
import os
import pickle
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow.api.sink import SinkContext, Writing
from stateflow.connectors import DeltaSink
from stateflow.connectors.data_files import FileName, Limits, ParquetWriter
from stateflow.connectors.delta_types import stored_type, target_schema
from stateflow.connectors.partitions import StoredRows
from stateflow.connectors.store_assignment import nullable_schema
from stateflow.connectors.table_folder import DiskFolder
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    InternalError,
    JobDefinitionError,
    SchemaMismatch,
    SinkRefused,
    StateflowError,
    StorageError,
)
from stateflow.state.handles import Committable
from tests.support.delta_tables import (
    JOB,
    Every,
    Inner,
    Pair,
    Price,
    batch,
    checkpoint,
    commit_elsewhere,
    context,
    entry_path,
    ids,
    pairs,
    put,
    snapshot,
    visible,
    write,
)
from tests.support.errors import raises

_ABOUT = context()


def _entries(table: Path) -> list[str]:
    return sorted(p.name for p in (table / "_delta_log").glob("*.json"))


# --- Creating


def test_a_table_is_created_once_also_after_a_crash_and_not_by_a_check(table: Path) -> None:
    DeltaSink(table).check(_ABOUT)
    assert not table.exists()
    # What a crash during the creation leaves.
    (table / "_delta_log").mkdir(parents=True)
    created = DeltaSink(table).prepare(_ABOUT)
    before = snapshot(table)
    assert DeltaSink(table).prepare(_ABOUT) == created == str(DeltaTable(str(table)).metadata().id)
    assert snapshot(table) == before


def test_all_columns_are_nullable_and_only_a_timestamp_without_zone_needs_a_feature(
    table: Path, tmp_path: Path
) -> None:
    about, every = context(Every), DeltaSink(tmp_path / "every")
    every.prepare(about)
    fields = DeltaTable(every.table).schema().fields
    assert [(f.name, f.nullable) for f in fields] == [(name, True) for name in about.schema.names]
    types = ["long", "double", "string", "boolean", "binary", "date", "timestamp_ntz", "timestamp"]
    types += ["decimal(12,2)", "decimal(38,4)", "long", "long", "string", "string"]
    assert [str(f.type) for f in fields[:-3]] == [f'PrimitiveType("{t}")' for t in types]
    assert [getattr(f.type, "type", "") for f in fields[-3:]] == ["struct", "array", "map"]
    assert DeltaTable(every.table).protocol().reader_features == ["timestampNtz"]
    rows = [Every(id=i, amount=i / 7, flag=bool(i % 2), raw=b"\x00" * i) for i in range(5)]
    put(every, about, 1, rows)
    assert visible(every.table) == batch(about, rows).to_pylist()
    DeltaSink(table).prepare(_ABOUT)
    assert DeltaTable(str(table)).protocol().writer_features is None


def test_a_place_with_other_files_is_refused(tmp_path: Path) -> None:
    file, folder = tmp_path / "x", tmp_path / "folder"
    file.write_text("x")
    folder.mkdir()
    (folder / "sales.csv").write_text("x")
    refusals: list[tuple[Path, type[StateflowError], dict[str, object]]] = [
        (folder, SinkRefused, {"table": str(folder), "found": ["sales.csv"]}),
        (file, ConfigError, {"path": str(file)}),
        (file / "y", ConfigError, {"path": str(file / "y"), "reason": os.strerror(errno.ENOTDIR)}),
    ]
    for place, error, facts in refusals:
        for call in (DeltaSink(place).check, DeltaSink(place).prepare):
            with raises(error, **facts):
                call(_ABOUT)
    assert list(snapshot(folder)) == ["sales.csv"]


@pytest.mark.parametrize("address", ["/data/a%20b/out", "/data/a\\b"])
def test_other_addresses_are_refused(address: str) -> None:
    with raises(ConfigError, table=address):
        DeltaSink(address)


def test_columns_that_differ_only_in_case_are_refused(table: Path) -> None:
    class Twins(Pair):
        ID: int = 0

    with raises(JobDefinitionError, row_class="Twins", fields=["ID", "id"]):
        DeltaSink(table).prepare(context(Twins))
    assert not table.exists()


def test_an_address_may_be_a_uri_or_relative_and_is_all_that_a_task_receives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert DeltaSink("x").table == str(tmp_path / "x")
    assert DeltaSink((tmp_path / "x").as_uri()).table == str(tmp_path / "x")
    sink = DeltaSink(tmp_path / "ä b?#c")
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(0, 2))
    assert b"DeltaHead" not in pickle.dumps(sink)
    received = pickle.loads(pickle.dumps(sink))
    assert received.table == sink.table and received.open_table(_ABOUT).token == 1


# --- Committing


def test_the_history_describes_a_commit(sink: DeltaSink, table: Path) -> None:
    assert sink.open_table(_ABOUT).commit(5, write(sink, _ABOUT, pairs(0, 3))) == 1
    assert DeltaTable(str(table)).transaction_version(_ABOUT.application) == 5
    newest = DeltaTable(str(table)).history(1)[0]
    assert newest["operation"] == "STREAMING UPDATE"
    assert newest["operationParameters"] == {"outputMode": "Append", "queryId": _ABOUT.application, "epochId": "5"}
    assert newest["isBlindAppend"] is True


def _recreate(sink: DeltaSink) -> None:
    shutil.rmtree(sink.table)
    DeltaSink(sink.table).prepare(_ABOUT)


def _replace(sink: DeltaSink) -> None:
    DeltaTable.create(sink.table, pa.schema([("id", pa.int64()), ("text", pa.string())]), mode="overwrite")


@pytest.mark.parametrize(
    ("change", "token", "is_same_table"),
    [
        (lambda sink: put(DeltaSink(sink.table), _ABOUT, 2, pairs(1, 1)), 2, True),
        (lambda sink: commit_elsewhere(sink.table, [], _ABOUT.application, 7), 7, True),
        (lambda sink: commit_elsewhere(sink.table, pairs(10, 1)), 1, True),
        (_replace, 1, False),
        (_recreate, 0, False),
    ],
    ids=["own commit", "token", "other commit", "replacement", "recreation"],
)
def test_a_handle_of_an_older_version_commits_nothing(
    sink: DeltaSink, table: Path, change: Callable[[DeltaSink], object], token: int, is_same_table: bool
) -> None:
    put(sink, _ABOUT, 1, pairs(0, 1))
    files = write(sink, _ABOUT, pairs(2, 1))
    stale = sink.open_table(_ABOUT)
    change(sink)
    before = snapshot(table)
    assert stale.commit(2, files) is None
    assert snapshot(table) == before
    opened = sink.open_table(_ABOUT)
    assert (opened.token, opened.table_id == stale.table_id) == (token, is_same_table)


def test_a_file_twice_and_a_path_that_is_not_of_a_data_file_are_refused(sink: DeltaSink, table: Path) -> None:
    files = write(sink, _ABOUT, pairs(0, 1))
    opened = sink.open_table(_ABOUT)
    with raises(InternalError, application=_ABOUT.application, token=1):
        opened.commit(1, [*files, *files])
    assert _entries(table) == [f"{0:020d}.json"]
    for path in ("../secret", "/etc/passwd", "part-0.parquet", ""):
        with raises(DataError, path=path):
            opened.missing([Committable(path=path, size=1, rows=1)])


# --- Long logs


def test_delta_checkpoints_are_made_and_read(sink: DeltaSink, table: Path) -> None:
    opened = DeltaTable(str(table))
    opened.alter.set_table_properties({"delta.checkpointInterval": "5"})
    for token in range(1, 12):
        put(sink, _ABOUT, token, pairs(token, 1))
    made = sorted(p.name[:20] for p in (table / "_delta_log").glob("*.checkpoint.parquet"))
    assert made == [f"{v:020d}" for v in (4, 9)]
    for version in range(9):
        entry_path(table, version).unlink()
    assert DeltaSink(table).open_table(_ABOUT).token == 11
    assert ids(table) == list(range(1, 12))


def test_a_sink_continues_when_the_log_entries_known_to_the_sink_are_removed(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 1, pairs(0, 1))
    put(DeltaSink(table), _ABOUT, 2, pairs(1, 1))
    checkpoint(table)
    put(DeltaSink(table), _ABOUT, 3, pairs(2, 1))
    for version in (0, 1, 2):
        entry_path(table, version).unlink()
    assert sink.open_table(_ABOUT).token == 3


def test_a_checkpoint_that_fails_does_not_fail_the_commit(
    sink: DeltaSink, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.checkpointInterval": "3"})
    # A folder where the checkpoint belongs.
    (table / "_delta_log" / f"{2:020d}.checkpoint.parquet").mkdir()
    with caplog.at_level(logging.WARNING):
        assert sink.open_table(_ABOUT).commit(1, []) == 2
    assert [set(record.args or ()) for record in caplog.records] == [{str(table), 2}]


def test_a_damaged_log_is_named(sink: DeltaSink, table: Path) -> None:
    sink.open_table(_ABOUT)
    entry_path(table, 1).write_text('{"txn": ')
    with raises(CorruptFile, file=str(entry_path(table, 1))):
        sink.open_table(_ABOUT)
    with raises(CorruptFile, file=str(entry_path(table, 1))):
        DeltaSink(table).open_table(_ABOUT)


def test_an_empty_entry_is_a_version_without_changes(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 1, pairs(0, 1))
    entry_path(table, 2).touch()
    assert sink.open_table(_ABOUT).token == DeltaSink(table).open_table(_ABOUT).token == 1
    assert sink.open_table(_ABOUT).commit(2, []) == 3


def test_the_umask_decides_who_may_read_the_table(table: Path) -> None:
    before = os.umask(0o027)
    try:
        sink = DeltaSink(table)
        sink.prepare(_ABOUT)
        put(sink, _ABOUT, 1, pairs(0, 1))
    finally:
        os.umask(before)
    assert {p.stat().st_mode & 0o777 for p in table.rglob("*") if p.is_file()} == {0o640}
    assert table.stat().st_mode & 0o777 == 0o750


# -- tables that the sink must not write to; test_delta_spark.py has those that Spark makes ---------------------------


_INVARIANT = json.dumps({"expression": {"expression": "text > 'a'"}})
_RETENTION = "delta.setTransactionRetentionDuration"
_NESTED = pa.struct([pa.field("a", pa.struct([pa.field("b", pa.string(), metadata={"delta.invariants": _INVARIANT})]))])
_PAIR = [pa.field("id", pa.int64()), pa.field("text", pa.string())]


def _make(table: Path, fields: list[pa.Field], **options: Any) -> Path:
    DeltaTable.create(str(table), pa.schema(fields), **options)
    return table


def _refused(table: Path, error: type[StateflowError], remedy: str = "", **facts: object) -> StateflowError:
    """Each call is refused with these facts and a hint, which has this SQL in it; returns the last error."""
    before = snapshot(table)
    for call in (DeltaSink(table).check, DeltaSink(table).prepare, DeltaSink(table).open_table):
        with raises(error, table=str(table), **facts) as caught:
            call(_ABOUT)
        assert caught.value.hint and remedy in caught.value.hint
    assert snapshot(table) == before
    return caught.value


@pytest.mark.parametrize(
    ("fields", "options", "remedy", "facts"),
    [
        (_PAIR, {"partition_by": "text"}, "partition_by", {"property": "PARTITIONED BY", "column": "text"}),
        (
            [*_PAIR, pa.field("more", pa.int64(), nullable=False)],
            {},
            "DROP NOT NULL",
            {"property": "NOT NULL", "column": "more"},
        ),
        (
            _PAIR,
            {"configuration": {_RETENTION: "interval 1 day"}, "raise_if_key_not_exists": False},
            "UNSET TBLPROPERTIES",
            {"property": _RETENTION},
        ),
        *(
            (
                [_PAIR[0], pa.field("text", pa.string(), metadata={key: _INVARIANT})],
                {},
                "",
                {"property": key, "column": "text"},
            )
            for key in ("delta.somethingNew", "__SOMETHING", "delta.invariants")
        ),
        *(
            ([*_PAIR, pa.field("more", kind)], {}, "", {"property": "delta.invariants", "column": "more.a.b"})
            for kind in (_NESTED, pa.list_(_NESTED), pa.map_(pa.string(), _NESTED))
        ),
    ],
)
def test_a_property_with_an_effect_on_rows_is_refused(
    tmp_path: Path, fields: list[pa.Field], options: dict[str, Any], remedy: str, facts: dict[str, str]
) -> None:
    _refused(_make(tmp_path / "t", fields, **options), SinkRefused, remedy, **facts)


def test_a_constraint_is_refused_also_after_the_sink_has_opened_the_table(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", _PAIR)
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    stale = sink.open_table(_ABOUT)
    DeltaTable(str(table)).alter.add_constraint({"positive": "id > 0"})
    assert stale.commit(1, []) is None
    with raises(SinkRefused, property="delta.constraints.positive"):
        sink.open_table(_ABOUT)
    _refused(table, SinkRefused, "DROP CONSTRAINT positive", property="delta.constraints.positive")


@pytest.mark.parametrize(
    ("feature", "way_out"), [("catalogManaged", "managed by a catalog"), ("new", "DROP FEATURE new")]
)
def test_a_feature_is_refused_alike_before_and_after_the_sink_has_opened_the_table(
    tmp_path: Path, feature: str, way_out: str
) -> None:
    table = _make(tmp_path / "t", _PAIR)
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    sink.open_table(_ABOUT)
    _set_protocol(table, 3, 7, readerFeatures=[feature], writerFeatures=[feature])
    for each in (sink, DeltaSink(table)):
        with raises(SinkRefused, feature=feature, table=str(table)) as refused:
            each.open_table(_ABOUT)
        assert way_out in refused.value.hint


def _set_protocol(table: Path, reader: int, writer: int, **features: list[str]) -> None:
    protocol = {"minReaderVersion": reader, "minWriterVersion": writer, **features}
    entry_path(table, 1).write_text(json.dumps({"protocol": protocol}))


@pytest.mark.parametrize("feature", ["rowTracking", "clustering", "icebergCompatV2", "neverHeardOf"])
def test_a_feature_that_is_not_known_to_be_harmless_is_refused(tmp_path: Path, feature: str) -> None:
    table = _make(tmp_path / "t", _PAIR)
    _set_protocol(table, 1, 7, writerFeatures=["appendOnly", feature])
    _refused(table, SinkRefused, f"DROP FEATURE {feature}", feature=feature)


def test_a_feature_or_a_protocol_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    table = _make(tmp_path / "t", _PAIR)
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    _set_protocol(table, 1, 8)
    with raises(SinkRefused, minReaderVersion=1, minWriterVersion=8):
        sink.open_table(_ABOUT)
    _set_protocol(table, 3, 7, readerFeatures=["neverHeardOf"], writerFeatures=["neverHeardOf"])
    assert "neverHeardOf" in str(_refused(table, SinkRefused).facts["reason"])


# -- columns --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "declared", "found"),
    [
        ([_PAIR[0]], {"text": "string"}, {"text": None}),
        ([_PAIR[0], pa.field("Text", pa.string())], {"text": "string"}, {"Text": "string"}),
        ([pa.field("id", pa.float64()), _PAIR[1]], {"id": "long"}, {"id": "double"}),
        ([_PAIR[0], pa.field("text", pa.list_(pa.string()))], {"text": "string"}, {"text": "array<string>"}),
        ([pa.field("id", pa.string())], {"id": "long", "text": "string"}, {"id": "string", "text": None}),
    ],
)
def test_all_columns_that_differ_are_named(
    tmp_path: Path, fields: list[pa.Field], declared: dict[str, str], found: dict[str, str | None]
) -> None:
    _refused(_make(tmp_path / "t", fields), SchemaMismatch, declared=declared, found=found)


def test_additional_columns_another_order_and_notes_on_columns_are_accepted(tmp_path: Path) -> None:
    text = pa.field("text", pa.string(), metadata={"comment": "x", "owner": "y"})
    table = _make(tmp_path / "t", [pa.field("more", pa.int32()), text, _PAIR[0]])
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(3, 1))
    assert visible(table) == [{"id": 3, "text": "row 3"}]


# -- columns that a row class gains -----------------------------------------------------------------------------------


class More(msgspec.Struct, kw_only=True):
    first: datetime | None = None
    id: int
    text: str | None = None
    price: Price | None = None
    inner: Inner | None = None
    lasting: timedelta | None = None


OLD, NEW = context(Pair), context(More)
MORE = More(id=7, text="x", inner=Inner(1), lasting=timedelta(microseconds=5))


@pytest.fixture
def two_rows(tmp_path: Path) -> Path:
    """A two_rows with two rows of the old class, at version 1."""
    sink = DeltaSink(tmp_path / "out")
    sink.prepare(OLD)
    put(sink, OLD, 1, pairs(1, 2))
    return tmp_path / "out"


def _adding(two_rows: Path) -> DeltaSink:
    return DeltaSink(two_rows, schema_evolution="add-columns")


def _columns(two_rows: Path) -> list[str]:
    return [field.name for field in DeltaTable(str(two_rows)).schema().fields]


def test_columns_are_refused_unless_they_may_be_added(two_rows: Path) -> None:
    for call in (DeltaSink(two_rows).check, DeltaSink(two_rows).prepare, DeltaSink(two_rows).open_table):
        with raises(SchemaMismatch, found={"first": None, "price": None, "inner": None, "lasting": None}) as refused:
            call(NEW)
        assert "add-columns" in refused.value.hint
    with raises(ConfigError, name="schema_evolution", value="add"):
        DeltaSink(two_rows, schema_evolution="add")  # type: ignore[arg-type]
    assert DeltaTable(str(two_rows)).version() == 1


def test_added_columns_are_null_in_existing_rows_and_the_token_stays(two_rows: Path) -> None:
    sink, pending = _adding(two_rows), write(DeltaSink(two_rows), OLD, pairs(5, 1))
    table_id = sink.check(NEW)
    assert _columns(two_rows) == ["id", "text"], "a check changes nothing"
    assert sink.open_table(NEW).commit(2, pending) == 2, "output of the old rows is published before"
    assert sink.prepare(NEW) == table_id
    assert _columns(two_rows) == ["id", "text", "first", "price", "inner", "lasting"]
    assert sink.open_table(NEW).token == 2
    assert DeltaTable(str(two_rows)).protocol().reader_features == ["timestampNtz"]
    put(sink, NEW, 3, [MORE])
    assert [row["id"] for row in visible(two_rows)] == [1, 2, 5, 7]
    assert visible(two_rows)[3] == {
        "id": 7, "text": "x", "first": None, "price": None, "lasting": 5,
        "inner": {"number": 1, "price": None, "lasting": []},
    }  # fmt: skip
    version = DeltaTable(str(two_rows)).version()
    assert _adding(two_rows).prepare(NEW) == table_id and DeltaTable(str(two_rows)).version() == version
    # The old version of the job continues: the two_rows has further columns.
    put(DeltaSink(two_rows), OLD, 4, pairs(9, 1))


Renamed = msgspec.defstruct("Renamed", [("id", int), ("name", str | None)])
Both = msgspec.defstruct("Both", [("id", int), ("text", str | None), ("name", str | None)])
OtherType = msgspec.defstruct("OtherType", [("id", int), ("size", int | None)])


@pytest.mark.parametrize(
    ("row_class", "columns"), [(Renamed, None), (Both, ["id", "text", "name"]), (OtherType, ["id", "text", "size"])]
)
def test_a_column_of_the_same_type_in_the_place_of_another_is_taken_for_a_rename(
    two_rows: Path, row_class: Any, columns: list[str] | None
) -> None:
    sink = _adding(two_rows)
    if columns is None:
        with raises(SchemaMismatch, table=str(two_rows), column="text", renamed_to="name", position=2):
            sink.prepare(context(row_class))
        return
    sink.prepare(context(row_class))
    assert _columns(two_rows) == columns


# -- data files -------------------------------------------------------------------------------------------------------

_WRITING = Writing(7, 3, 1, "a1b2")
PAIR, _EVERY = context(), context(Every)
_naive = datetime.fromisoformat

uids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", fullmatch=True)
numbers = st.integers(0, 10**9)
attempts = st.from_regex(r"[A-Za-z0-9]{1,32}", fullmatch=True)


def _writer(folder: Path, limits: Limits | None = None, about: SinkContext = PAIR) -> ParquetWriter:
    rows = StoredRows(about.schema, target_schema(about.schema), about.uid)
    name, schema = FileName.first(about, _WRITING), nullable_schema(rows.target)
    return ParquetWriter(DiskFolder(folder), name, schema, limits, of=rows.of)


@given(uids, numbers, numbers, st.integers(0, 10**4), attempts, st.integers(0, 12))
@example("x-g1-o2-s3-a-0", 7, 3, 1, "a1b2", 0)
def test_a_name_contains_who_wrote_the_file(
    uid: str, generation: int, ordinal: int, subtask: int, attempt: str, part: int
) -> None:
    first = FileName.first(context(uid=uid), Writing(generation, ordinal, subtask, attempt))
    name = dataclasses.replace(first, part=part)
    assert FileName.parse(str(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "part-00000-6d7fa2ac.c000.snappy.parquet", "_delta_log", "stateflow-x.parquet",
        f"stateflow-{JOB}-out-g1-o1-s0-a-0.zstd.parquet.crc", f".stateflow-{JOB}-out-g1-o1-s0-a-0.zstd.parquet",
        f"../stateflow-{JOB}-out-g1-o1-s0-a-0.zstd.parquet",
    ],
)  # fmt: skip
def test_a_name_of_another_writer_is_not_parsed(name: str) -> None:
    assert FileName.parse(name) is None


@pytest.mark.parametrize(
    ("job", "uid", "attempt"),
    [("j" * 64, "u" * 100, "a" * 64), (JOB, "a b", "a"), (JOB, "_a", "a"), (JOB, "a", "x-y"), ("../x", "a", "a")],
)
def test_an_attempt_without_a_valid_name_is_refused(job: str, uid: str, attempt: str) -> None:
    with raises(ConfigError, limit=255):
        FileName.first(context(uid=uid, job=job), Writing(10**6, 10**6, 100, attempt))


def _write(writer: ParquetWriter, first: int = 0, count: int = 1) -> None:
    writer.write(batch(context(), pairs(first, count)))


def _ids(file: Path) -> list[int]:
    found: list[int] = pq.read_table(file).column("id").to_pylist()
    return found


def test_batches_become_one_nullable_row_group_that_is_visible_when_complete(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    _write(writer, count=0)
    assert _writer(tmp_path).close() == writer.close() == []
    writer = _writer(tmp_path)
    for first in range(0, 100, 10):
        _write(writer, first, 10)
    assert os.listdir(tmp_path) == []
    [file] = writer.close()
    assert os.listdir(tmp_path) == [file.path]
    assert (file.rows, file.size) == (100, (tmp_path / file.path).stat().st_size)
    assert _ids(tmp_path / file.path) == list(range(100))
    assert pq.read_metadata(tmp_path / file.path).num_row_groups == 1
    assert all(field.nullable for field in pq.read_schema(tmp_path / file.path))


def test_a_large_attempt_writes_several_files(tmp_path: Path) -> None:
    writer = _writer(tmp_path, Limits(row_group_bytes=1, file_bytes=1))
    for first in range(3):
        _write(writer, first)
    files = writer.close()
    names = [FileName.parse(f.path) for f in files]
    assert [name.part for name in names if name] == [0, 1, 2]
    assert [_ids(tmp_path / f.path) for f in files] == [[0], [1], [2]]


def test_an_abandoned_attempt_leaves_nothing(tmp_path: Path) -> None:
    writer = _writer(tmp_path, Limits(row_group_bytes=1))
    _write(writer, count=10)
    del writer
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_rows_of_another_schema_a_used_name_and_a_missing_folder_are_errors(tmp_path: Path) -> None:
    with raises(SchemaMismatch, uid="out"):
        _writer(tmp_path).write(pa.RecordBatch.from_pylist([{"id": 1.5, "text": "x"}]))
    first, second, third = _writer(tmp_path), _writer(tmp_path), _writer(tmp_path / "gone")
    for writer in (first, second, third):
        _write(writer)
    [file] = first.close()
    before = (tmp_path / file.path).read_bytes()
    with raises(StorageError, name=file.path):
        second.close()
    assert (tmp_path / file.path).read_bytes() == before
    with raises(StorageError, path=str(tmp_path / "gone")):
        third.close()


def test_every_type_is_written_and_doubles_have_no_bounds_in_parquet(tmp_path: Path) -> None:
    """Spark would skip row groups by them, although they ignore NaN."""
    writer = _writer(tmp_path, about=_EVERY)
    writer.write(batch(_EVERY, [Every(id=1), Every(id=2, amount=1.0, flag=True, raw=b"\x00")]))
    [file] = writer.close()
    assert pq.read_schema(tmp_path / file.path).types == [stored_type(kind) for kind in _EVERY.schema.arrow.types]
    row_group = pq.read_metadata(tmp_path / file.path).row_group(0)
    assert [row_group.column(i).statistics is None for i in (0, 1, 2)] == [False, True, False]


# -- statistics -----------------------------------------------------------------------------------------------------


def _read(writer: ParquetWriter) -> dict[str, Any]:
    [file] = writer.close()
    found: dict[str, Any] = json.loads(file.stats)
    assert found["numRecords"] == file.rows
    return found


def _bounds(folder: Path, column: str, values: list[Any], limits: Limits | None = None) -> tuple[Any, Any, Any]:
    writer = _writer(folder, limits, _EVERY)
    for value in values:
        writer.write(batch(_EVERY, [Every(id=0, **{column: value})]))
    stats = _read(writer)
    return stats["minValues"].get(column), stats["maxValues"].get(column), stats["nullCount"].get(column)


@pytest.mark.parametrize("limits", [None, Limits(row_group_bytes=1)], ids=["one row group", "a row group per row"])
@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("amount", [1.5, None, -2.25], (-2.25, 1.5, 1)), ("amount", [None, None], (None, None, 2)),
        ("amount", [math.nan], (None, None, 0)), ("amount", [1.0, math.nan, 2.0], (1.0, None, 0)),
        ("amount", [math.inf, 1.0], (1.0, None, 0)), ("amount", [-math.inf, 1.0], (None, 1.0, 0)),
        ("amount", [1e300, 5e-324], (5e-324, 1e300, 0)), ("text", ["b", "a", None, ""], ("", "b", 1)),
        ("text", ["é", "z", "\U0001f600"], ("z", "\U0001f600", 0)), ("text", ["a\0b", '"\\'], ('"\\', "a\0b", 0)),
        ("text", ["x" * 33], ("x" * 32, "x" * 32 + "\x7f", 0)),
        ("text", ["é" * 33], ("é" * 32, "é" * 32 + "\U0010ffff", 0)), ("text", ["x" * 5000, "a"], (None, None, 0)),
        ("flag", [True, None], (None, None, 1)), ("raw", [b"\xff", b""], (None, None, 0)),
        ("day", [date(2024, 2, 29), date(1, 1, 1)], ("0001-01-01", "2024-02-29", 0)),
        ("local", [_naive("2013-01-01T05:00:00.000001")], ("2013-01-01T05:00:00.000", "2013-01-01T05:00:00.001", 0)),
        ("local", [_naive("1969-12-31T23:59:59.999999")], ("1969-12-31T23:59:59.999", "1970-01-01T00:00:00.000", 0)),
        (
            "instant",
            [datetime(2013, 1, 1, 5, 0, 0, 7000, tzinfo=UTC)],
            ("2013-01-01T05:00:00.007Z", "2013-01-01T05:00:00.007Z", 0),
        ),
        ("instant", [datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)], ("9999-12-31T23:59:59.999Z", None, 0)),
    ],
)  # fmt: skip
def test_the_bounds_and_nulls_of_a_column(
    tmp_path: Path, column: str, values: list[Any], expected: tuple[Any, ...], limits: Limits | None
) -> None:
    assert _bounds(tmp_path, column, values, limits) == expected


def test_a_zero_is_bounded_in_either_order_of_the_two_zeros(tmp_path: Path) -> None:
    low, high, _ = _bounds(tmp_path, "amount", [0.0, -0.0])
    assert (math.copysign(1, low), math.copysign(1, high)) == (-1, 1)


@pytest.mark.parametrize(
    ("column", "far"),
    [
        (5, pa.array([0, 2**30], pa.int32()).cast(pa.date32())),
        (6, pa.array([0, 2**62], pa.timestamp("us"))),
        (7, pa.array([-(2**62), 0], pa.timestamp("us", "UTC"))),
    ],
)
def test_times_outside_the_calendar_are_refused(tmp_path: Path, column: int, far: pa.Array) -> None:
    arrays = [pa.nulls(2, t) for t in _EVERY.schema.arrow.types]
    arrays[0], arrays[column] = pa.array([1, 2]), far
    with pytest.raises(SchemaMismatch) as caught:
        _writer(tmp_path, about=_EVERY).write(pa.RecordBatch.from_arrays(arrays, schema=_EVERY.schema.arrow))
    assert caught.value.facts["column"] == _EVERY.schema.names[column]


def test_the_columns_that_delta_reads_statistics_of_have_them(tmp_path: Path) -> None:
    wide = msgspec.defstruct("Wide", [(f"c{i}", int) for i in range(40)])
    about = SinkContext("job", "out", context(wide).schema)
    writer = _writer(tmp_path, about=about)
    writer.write(batch(about, [wide(*range(40))]))
    assert list(_read(writer)["maxValues"]) == [f"c{i}" for i in range(32)]
