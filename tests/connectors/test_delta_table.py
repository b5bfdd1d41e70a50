"""A Delta table: creation, commits, concurrent writers and long logs. Without Spark."""

from __future__ import annotations

import datetime
import errno
import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.sink_commit import SinkOutput, publish
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.log import checkpoint, entry_path
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    InternalError,
    JobDefinitionError,
    MissingFile,
    SchemaMismatch,
    SinkDiverged,
    SinkRefused,
    StateflowError,
)
from stateflow.runtime.publisher import BoundSink
from stateflow.state.handles import Committable
from tests.support.delta_tables import (
    Every,
    Inner,
    Job,
    Pair,
    Price,
    batch,
    commit_elsewhere,
    context,
    ids,
    pairs,
    put,
    snapshot,
    visible,
    write,
)
from tests.support.errors import raises

_ABOUT = context()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "warehouse" / "out"


@pytest.fixture
def sink(table: Path) -> DeltaSink:
    made = DeltaSink(table)
    made.prepare(_ABOUT)
    return made


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
        (file, ConfigError, {"table": str(file)}),
        (file / "y", ConfigError, {"path": str(file / "y"), "reason": os.strerror(errno.ENOTDIR)}),
    ]
    for place, error, facts in refusals:
        for call in (DeltaSink(place).check, DeltaSink(place).prepare):
            with raises(error, **facts):
                call(_ABOUT)
    assert list(snapshot(folder)) == ["sales.csv"]


@pytest.mark.parametrize("address", ["memory://x", "s3://bucket/x", "/data/a%20b/out", "/data/a\\b"])
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


def test_files_become_visible_with_the_commit_which_the_history_describes(sink: DeltaSink, table: Path) -> None:
    files = write(sink, _ABOUT, pairs(0, 3))
    opened = sink.open_table(_ABOUT)
    assert (opened.token, opened.version, opened.missing(files), visible(table)) == (0, 0, [], [])
    assert opened.commit(5, files) == 1
    assert visible(table) == [{"id": i, "text": f"row {i}"} for i in range(3)]
    again = sink.open_table(_ABOUT)
    assert (again.token, again.version) == (5, 1)
    assert DeltaTable(str(table)).transaction_version(_ABOUT.application) == 5
    newest = DeltaTable(str(table)).history(1)[0]
    assert newest["operation"] == "STREAMING UPDATE"
    assert newest["operationParameters"] == {"outputMode": "Append", "queryId": _ABOUT.application, "epochId": "5"}
    assert newest["isBlindAppend"] is True
    # A checkpoint without output.
    assert again.commit(9, []) == 2
    assert sink.open_table(_ABOUT).token == DeltaSink(table).open_table(_ABOUT).token == 9


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


def test_missing_and_changed_files_are_reported(sink: DeltaSink, table: Path) -> None:
    files = [f for i in range(3) for f in write(sink, _ABOUT, pairs(i, 1))]
    (table / files[0].path).unlink()
    with (table / files[1].path).open("ab") as file:
        file.write(b"x")
    assert sink.open_table(_ABOUT).missing(files) == [files[0].path, files[1].path]


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
    assert [set(record.args or ()) for record in caplog.records] == [{table, 2}]


def test_a_damaged_log_is_named(sink: DeltaSink, table: Path) -> None:
    sink.open_table(_ABOUT)
    entry_path(table, 1).write_text('{"txn": ')
    with raises(CorruptFile, file=str(entry_path(table, 1))):
        sink.open_table(_ABOUT)
    with raises(SinkRefused, table=str(table)) as refused:
        DeltaSink(table).open_table(_ABOUT)
    assert refused.value.facts.keys() == {"table", "reason"}


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


# -- publishing a job's checkpoints in a delta table; ``test_sink_conformance.py`` has sev ----------------------------


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(tmp_path / "root", tmp_path / "out")
    made.sink.prepare(made.about)
    return made


def _pending(job: Job, checkpoints: int = 1) -> Head:
    head = job.root.claim()
    for i in range(checkpoints):
        head = job.commit(head, pairs(10 * i, 3))
    return head


def test_checkpoints_are_published_in_order_and_once(job: Job) -> None:
    head = _pending(job, checkpoints=3)
    first = job.publish(head)
    assert [p.checkpoint_id for p in first] == [2, 3, 4]
    assert [p.version for p in first] == [1, 2, 3]
    assert [p.version for p in job.publish(head)] == [3, 3, 3]
    assert ids(job.sink.table) == [*range(3), *range(10, 13), *range(20, 23)]


def test_a_table_that_was_created_again_is_refused(job: Job) -> None:
    head = _pending(job, checkpoints=2)
    [first, _] = job.publish(head)
    shutil.rmtree(job.sink.table)
    other = DeltaSink(job.sink.table).prepare(job.about)
    with raises(SinkDiverged, sink="out", known=first.table_id, found=other):
        publish(BoundSink(job.sink, job.about), SinkOutput(3, [], first), job.root.log, head)
    # Before the first publication, the lost files tell.
    files = head.entry.pending[0].committables
    assert files is not None
    with raises(MissingFile, sink="out", files=[files[0].path]):
        job.publish(head)
    assert ids(job.sink.table) == []


def test_a_copy_of_the_job_root_does_not_publish_over_the_original(job: Job, tmp_path: Path) -> None:
    first = _pending(job)
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    second = job.commit(first, pairs(50, 1))
    job.publish(second)
    with raises(SinkDiverged, token=second.checkpoint_id, newest=first.checkpoint_id):
        Job(tmp_path / "copy", tmp_path / "out").publish(first)


# -- tables that the sink must not write to, made without spark; ``test_delta_spark.py` ----------------------------


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
    first: datetime.datetime | None = None
    id: int
    text: str | None = None
    price: Price | None = None
    inner: Inner | None = None
    lasting: datetime.timedelta | None = None


OLD, NEW = context(Pair), context(More)
MORE = More(id=7, text="x", inner=Inner(1), lasting=datetime.timedelta(microseconds=5))


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
