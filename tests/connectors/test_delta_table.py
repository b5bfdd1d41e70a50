"""A Delta table: creation, commits, concurrent writers and long logs. Without Spark."""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.log import checkpoint, entry_path
from stateflow.connectors.delta.versions import read_content
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    InternalError,
    JobDefinitionError,
    SinkDiverged,
    SinkRefused,
    StateflowError,
)
from stateflow.state.handles import Committable
from tests.support.delta_tables import (
    Every,
    Pair,
    Process,
    batch,
    commit_elsewhere,
    context,
    create_mapped,
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


def test_processes_that_create_the_same_tables_agree(tmp_path: Path) -> None:
    ends = Process.race(Process("create", tmp_path, 60), Process("create", tmp_path, 60))
    assert [end[0] for end in ends] == [0, 0], ends
    created = [end[1].split() for end in ends]
    assert created[0] == created[1] and len(set(created[0])) == 60
    assert all(_entries(tmp_path / str(i)) == [f"{0:020d}.json"] for i in range(60))


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


def test_a_removed_table_is_reported_and_not_created_again(sink: DeltaSink, table: Path) -> None:
    opened = sink.open_table(_ABOUT)
    shutil.rmtree(table)
    assert opened.commit(1, []) is None
    with raises(SinkDiverged, table=str(table)):
        sink.open_table(_ABOUT)
    assert not table.exists()


def test_two_applications_commit_concurrently_with_tokens_of_their_own(sink: DeltaSink, table: Path) -> None:
    ends = Process.race(Process("append", table, "a", 30), Process("append", table, "b", 20))
    assert [end[0] for end in ends] == [0, 0]
    assert ids(table) == sorted([*range(1, 31), *range(1, 21)])
    assert _entries(table) == [f"{v:020d}.json" for v in range(51)]
    for opener in (sink, DeltaSink(table)):
        assert [opener.open_table(context(uid=uid)).token for uid in ("a", "b")] == [30, 20]


@pytest.mark.parametrize("version", [3, 20])
def test_a_kill_leaves_complete_entries_and_nothing_else(sink: DeltaSink, table: Path, version: int) -> None:
    process = Process("append", table, "a", 10**6)
    process.go()
    while not entry_path(table, version).exists():
        pass
    process.kill()
    assert process.end()[0] == -9
    token = sink.open_table(context(uid="a")).token
    assert token is not None and token >= version
    assert ids(table) == list(range(1, token + 1))
    others = [n for n in os.listdir(table / "_delta_log") if n not in _entries(table)]
    assert _entries(table) == [f"{v:020d}.json" for v in range(token + 1)]
    assert all("checkpoint" in name for name in others)


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


def test_a_handle_that_follows_the_log_equals_one_that_reads_the_whole_log(sink: DeltaSink, table: Path) -> None:
    for token in range(1, 8):
        commit_elsewhere(table, pairs(token, 1), _ABOUT.application if token % 2 else "other", token)
        followed, read = sink.open_table(_ABOUT), DeltaSink(table).open_table(_ABOUT)
        assert (followed.token, followed.version) == (read.token, read.version) == (token - 1 + token % 2, token)


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


@pytest.mark.parametrize("mode", ["name", "id"])
def test_the_files_of_a_partitioned_table_with_mapped_columns_are_listed(table: Path, mode: str) -> None:
    create_mapped(table, mode, ("text", "day"), partition_by=["day"])
    add = {"path": "x/a.parquet", "size": 1, "modificationTime": 1, "dataChange": True}
    add |= {"partitionValues": {"col-2": "monday"}, "stats": '{"numRecords":3}'}
    entry_path(table, 1).write_text(json.dumps({"add": add}))
    content = read_content(table, 1, "")
    assert content is not None
    (file,) = content.files.values()
    assert (file.path, file.partition_values, file.rows) == ("x/a.parquet", {"col-2": "monday"}, 3)
