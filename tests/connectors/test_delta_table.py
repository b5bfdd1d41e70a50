"""The table: creation, the handle, commits, and what others do in between. Without Spark."""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.checkpoint import checkpoint
from stateflow.connectors.delta.log import entry_path, read_head
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    InternalError,
    JobDefinitionError,
    SinkDiverged,
    SinkRefused,
)
from stateflow.state.handles import Committable
from tests.support.delta_tables import (
    Every,
    Pair,
    Process,
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


def test_a_table_is_created_once(table: Path) -> None:
    created = DeltaSink(table).prepare(_ABOUT)
    before = snapshot(table)
    assert DeltaSink(table).prepare(_ABOUT) == created == str(DeltaTable(str(table)).metadata().id)
    assert snapshot(table) == before


def test_a_table_has_the_columns_of_the_row_class_all_nullable(table: Path) -> None:
    DeltaSink(table).prepare(context(Every))
    fields = [(f.name, str(f.type), f.nullable) for f in DeltaTable(str(table)).schema().fields]
    types = ["long", "double", "string", "boolean", "binary", "date", "timestamp_ntz", "timestamp"]
    names = context(Every).schema.names
    assert fields == [(n, f'PrimitiveType("{t}")', True) for n, t in zip(names, types, strict=True)]


def test_only_a_timestamp_without_zone_needs_a_table_feature(table: Path, tmp_path: Path) -> None:
    DeltaSink(table).prepare(_ABOUT)
    assert DeltaTable(str(table)).protocol().writer_features is None
    DeltaSink(tmp_path / "other").prepare(context(Every))
    assert DeltaTable(str(tmp_path / "other")).protocol().reader_features == ["timestampNtz"]


def test_processes_that_create_the_same_tables_agree(tmp_path: Path) -> None:
    processes = [Process("create", tmp_path, 60) for _ in range(2)]
    for process in processes:
        process.go()
    ends = [process.end() for process in processes]
    assert [end[0] for end in ends] == [0, 0], ends
    created = [end[1].split() for end in ends]
    assert created[0] == created[1] and len(set(created[0])) == 60
    assert all(_entries(tmp_path / str(i)) == [f"{0:020d}.json"] for i in range(60))


def test_what_a_crash_while_creating_leaves_is_no_obstacle(table: Path) -> None:
    (table / "_delta_log").mkdir(parents=True)
    assert DeltaSink(table).prepare(_ABOUT)


def test_checking_creates_nothing(table: Path) -> None:
    DeltaSink(table).check(_ABOUT)
    assert not table.exists()


def test_a_folder_with_other_things_is_refused(table: Path) -> None:
    table.mkdir(parents=True)
    (table / "sales.csv").write_text("x")
    for call in (DeltaSink(table).check, DeltaSink(table).prepare):
        with raises(SinkRefused, table=str(table), found=["sales.csv"]):
            call(_ABOUT)
    assert list(snapshot(table)) == ["sales.csv"]


def test_a_file_in_place_of_the_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    inside = tmp_path / "x" / "y"
    for place, facts in (
        (tmp_path / "x", {"table": str(tmp_path / "x")}),
        (inside, {"path": str(inside), "reason": os.strerror(errno.ENOTDIR)}),
    ):
        for call in (DeltaSink(place).check, DeltaSink(place).prepare):
            with raises(ConfigError, **facts):
                call(_ABOUT)


@pytest.mark.parametrize("address", ["memory://x", "s3://bucket/x", "/data/a%20b/out"])
def test_other_addresses_are_refused(address: str) -> None:
    with raises(ConfigError, table=address):
        DeltaSink(address)


def test_columns_that_differ_only_in_case_are_refused(table: Path) -> None:
    class Twins(Pair):
        ID: int = 0

    with raises(JobDefinitionError, row_class="Twins", fields=["ID", "id"]):
        DeltaSink(table).prepare(context(Twins))
    assert not table.exists()


def test_a_sink_travels_to_tasks_as_its_address(sink: DeltaSink) -> None:
    assert b"DeltaHead" not in pickle.dumps(sink)
    assert pickle.loads(pickle.dumps(sink)).table == sink.table


def test_an_address_may_be_a_uri_or_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    strange = tmp_path / "ä b?#c"
    assert DeltaSink("x").table == str(tmp_path / "x")
    assert DeltaSink((tmp_path / "x").as_uri()).table == str(tmp_path / "x")
    sink = DeltaSink(strange)
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(0, 2))
    assert DeltaSink(strange).open_table(_ABOUT).token == 1


# --- Committing


def test_files_become_visible_with_the_commit(sink: DeltaSink, table: Path) -> None:
    files = write(sink, _ABOUT, pairs(0, 3))
    opened = sink.open_table(_ABOUT)
    assert (opened.token, opened.version, opened.missing(files), visible(table)) == (0, 0, [], [])
    assert opened.commit(5, files) == 1
    assert visible(table) == [{"id": i, "text": f"row {i}"} for i in range(3)]
    again = sink.open_table(_ABOUT)
    assert (again.token, again.version) == (5, 1)
    assert DeltaTable(str(table)).transaction_version(_ABOUT.application) == 5


def test_a_checkpoint_without_output_leaves_its_token(sink: DeltaSink, table: Path) -> None:
    assert sink.open_table(_ABOUT).commit(9, []) == 1
    assert sink.open_table(_ABOUT).token == DeltaSink(table).open_table(_ABOUT).token == 9


def test_each_application_has_its_own_token(sink: DeltaSink, table: Path) -> None:
    other = context(uid="other")
    put(sink, _ABOUT, 5, pairs(0, 1))
    put(sink, other, 3, pairs(1, 1))
    for opener in (sink, DeltaSink(table)):
        assert [opener.open_table(about).token for about in (_ABOUT, other)] == [5, 3]


def test_a_stale_handle_commits_nothing(sink: DeltaSink, table: Path) -> None:
    stale = sink.open_table(_ABOUT)
    put(DeltaSink(table), _ABOUT, 1, pairs(0, 1))
    assert stale.commit(1, write(sink, _ABOUT, pairs(0, 1))) is None
    assert ids(table) == [0]


def test_a_token_alone_makes_a_handle_stale(sink: DeltaSink, table: Path) -> None:
    stale = sink.open_table(_ABOUT)
    commit_elsewhere(table, [], _ABOUT.application, 7)
    assert stale.commit(6, write(sink, _ABOUT, pairs(0, 1))) is None
    assert sink.open_table(_ABOUT).token == 7


def test_commits_of_others_are_seen_by_the_next_handle(sink: DeltaSink, table: Path) -> None:
    files = write(sink, _ABOUT, pairs(0, 1))
    stale = sink.open_table(_ABOUT)
    commit_elsewhere(table, pairs(10, 1))
    assert stale.commit(1, files) is None
    assert sink.open_table(_ABOUT).commit(1, files) == 2
    assert ids(table) == [0, 10]


def test_two_applications_commit_at_once_without_loss(sink: DeltaSink, table: Path) -> None:
    processes = [Process("append", table, uid, 30) for uid in ("a", "b")]
    for process in processes:
        process.go()
    assert [process.end()[0] for process in processes] == [0, 0]
    assert ids(table) == sorted([*range(1, 31)] * 2)
    assert _entries(table) == [f"{v:020d}.json" for v in range(61)]


@pytest.mark.parametrize("version", [3, 20])
def test_a_kill_leaves_whole_entries_and_nothing_else(sink: DeltaSink, table: Path, version: int) -> None:
    process = Process("append", table, "a", 10**6)
    process.go()
    while not entry_path(table, version).exists():
        pass
    process.kill()
    assert process.end()[0] == -9
    token = sink.open_table(context(uid="a")).token
    assert token >= version
    assert ids(table) == list(range(1, token + 1))
    others = [n for n in os.listdir(table / "_delta_log") if n not in _entries(table)]
    assert _entries(table) == [f"{v:020d}.json" for v in range(token + 1)]
    assert all("checkpoint" in name for name in others)


def test_a_handle_of_a_table_that_was_made_again_commits_nothing(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 1, pairs(0, 1))
    stale = sink.open_table(_ABOUT)
    known = stale.table_id
    shutil.rmtree(table)
    DeltaSink(table).prepare(_ABOUT)
    before = _entries(table)
    assert stale.commit(2, []) is None
    assert _entries(table) == before
    opened = sink.open_table(_ABOUT)
    assert (opened.token, opened.version, opened.table_id != known) == (0, 0, True)


def test_a_table_that_was_replaced_as_a_commit_has_another_id(sink: DeltaSink, table: Path) -> None:
    known = sink.open_table(_ABOUT).table_id
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    DeltaTable.create(str(table), schema, mode="overwrite")
    assert sink.open_table(_ABOUT).table_id != known


def test_a_table_that_is_gone_is_said_to_be(sink: DeltaSink, table: Path) -> None:
    opened = sink.open_table(_ABOUT)
    shutil.rmtree(table)
    assert opened.commit(1, []) is None
    with raises(SinkDiverged, table=str(table)):
        sink.open_table(_ABOUT)


def test_missing_files_are_reported(sink: DeltaSink, table: Path) -> None:
    files = [f for i in range(3) for f in write(sink, _ABOUT, pairs(i, 1))]
    (table / files[0].path).unlink()
    with (table / files[1].path).open("ab") as file:
        file.write(b"x")
    assert sink.open_table(_ABOUT).missing(files) == [files[0].path, files[1].path]


def test_a_file_twice_in_a_commit_is_refused(sink: DeltaSink, table: Path) -> None:
    files = write(sink, _ABOUT, pairs(0, 1))
    with raises(InternalError, application=_ABOUT.application, token=1):
        sink.open_table(_ABOUT).commit(1, [*files, *files])
    assert _entries(table) == [f"{0:020d}.json"]


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "part-0.parquet", ""])
def test_a_foreign_path_is_refused(sink: DeltaSink, path: str) -> None:
    with raises(DataError, path=path):
        sink.open_table(_ABOUT).missing([Committable(path=path, size=1, rows=1)])


def test_history_names_the_job_and_the_checkpoint(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 4, pairs(0, 2))
    newest = DeltaTable(str(table)).history(1)[0]
    assert newest["operation"] == "STREAMING UPDATE"
    assert newest["operationParameters"] == {"outputMode": "Append", "queryId": _ABOUT.application, "epochId": "4"}
    assert newest["isBlindAppend"] is True


# --- Long logs


def test_a_log_that_others_wrote_is_followed_exactly(sink: DeltaSink, table: Path) -> None:
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


def test_a_known_head_outlives_the_clean_up_of_its_log_entry(sink: DeltaSink, table: Path) -> None:
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


def test_an_empty_entry_is_a_version_in_which_nothing_happened(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 1, pairs(0, 1))
    entry_path(table, 2).touch()
    assert sink.open_table(_ABOUT).token == DeltaSink(table).open_table(_ABOUT).token == 1
    assert sink.open_table(_ABOUT).commit(2, []) == 3


def test_the_head_is_what_deltalake_reads(sink: DeltaSink, table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.appendOnly": "true"})
    head = read_head(table, _ABOUT.application)
    assert head is not None and head.metadata.configuration == {"delta.appendOnly": "true"}
    names = [f["name"] for f in json.loads(head.metadata.schema_string)["fields"]]
    assert names == ["id", "text"]


def test_the_umask_decides_who_may_read_the_table(table: Path) -> None:
    before = os.umask(0o022)
    try:
        sink = DeltaSink(table)
        sink.prepare(_ABOUT)
        put(sink, _ABOUT, 1, pairs(0, 1))
    finally:
        os.umask(before)
    modes = {p.stat().st_mode & 0o777 for p in table.rglob("*") if p.is_file()}
    assert modes == {0o644}
    assert table.stat().st_mode & 0o777 == 0o755


def test_rows_come_back_as_they_were(table: Path) -> None:
    about = context(Every)
    sink = DeltaSink(table)
    sink.prepare(about)
    rows = [Every(id=i, amount=i / 7, flag=bool(i % 2), raw=b"\x00" * i) for i in range(5)]
    put(sink, about, 1, rows)
    assert visible(table) == batch(about, rows).to_pylist()
