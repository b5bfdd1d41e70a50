"""The sweep of a Delta table: unpublished files are deleted, all others are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deltalake import DeltaTable

from stateflow.api.sink import Writing
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.log import append_entry, checkpoint, entry_path, list_log
from stateflow.errors import StorageError
from tests.support.delta_tables import context, ids, pairs, put, snapshot, write
from tests.support.errors import raises

_ABOUT = context()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def sink(table: Path) -> DeltaSink:
    made = DeltaSink(table)
    made.prepare(_ABOUT)
    return made


def _all(generation: int, ordinal: int, path: str) -> bool:
    return True


def _leftover(sink: DeltaSink, ordinal: int = 1) -> str:
    return write(sink, _ABOUT, pairs(100, 1), Writing(1, ordinal, 0, "lost"))[0].path


def _delete_rows(table: Path, expired: bool = False) -> None:
    """Deletes all rows, and makes a Delta checkpoint, without the removed files if they have expired."""
    if expired:
        retention = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
        DeltaTable(str(table)).alter.set_table_properties(retention)
    DeltaTable(str(table)).delete()
    checkpoint(table)


def _remove_entries(table: Path, count: int) -> None:
    for version in range(count):
        entry_path(table, version).unlink()


def test_an_unpublished_file_is_deleted(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 1, pairs(0, 1))
    lost = _leftover(sink)
    assert sink.sweep(_ABOUT, _all) == [lost]
    assert not (table / lost).exists()
    assert ids(table) == [0]
    assert sink.sweep(_ABOUT, _all) == []
    assert DeltaSink(table / "none").sweep(_ABOUT, _all) == []


def test_the_caller_decides_by_generation_ordinal_and_path_which_files_are_pending(sink: DeltaSink) -> None:
    pending = write(sink, _ABOUT, pairs(0, 1), Writing(1, 7, 0, "a"))
    lost = _leftover(sink, ordinal=6)
    seen = []

    def is_leftover(generation: int, ordinal: int, path: str) -> bool:
        seen.append((generation, ordinal, path))
        return ordinal < 7

    assert sink.sweep(_ABOUT, is_leftover) == [lost]
    assert sorted(seen) == [(1, 6, lost), (1, 7, pending[0].path)]
    assert sink.open_table(_ABOUT).missing(pending) == []


def test_files_of_others_are_kept(sink: DeltaSink, table: Path) -> None:
    for about in (context(uid="other"), context(uid="out-2"), context(job="f" * 32)):
        write(sink, about, pairs(0, 1))
    (table / "notes.txt").write_text("x")
    before = snapshot(table)
    assert sink.sweep(_ABOUT, _all) == []
    assert snapshot(table) == before


def test_files_of_readable_versions_are_kept(sink: DeltaSink, table: Path) -> None:
    for token in (1, 2):
        put(sink, _ABOUT, token, pairs(token, 1))
    DeltaTable(str(table)).optimize.compact()
    assert sink.sweep(_ABOUT, _all) == []
    # Delta checkpoints omit removed files after their retention, while older versions can still be read.
    _delete_rows(table, expired=True)
    assert sink.sweep(_ABOUT, _all) == []
    older = DeltaTable(str(table), version=2)
    assert all(Path(uri.removeprefix("file://")).exists() for uri in older.file_uris())


def test_a_file_that_only_a_delta_checkpoint_names_as_removed_is_kept(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 1, pairs(0, 2))
    _delete_rows(table)
    _remove_entries(table, 3)
    assert DeltaTable(str(table)).file_uris() == []
    assert sink.sweep(_ABOUT, _all) == []


def test_a_file_that_no_remaining_version_names_is_deleted(sink: DeltaSink, table: Path) -> None:
    [file] = put(sink, _ABOUT, 1, pairs(0, 2))
    _delete_rows(table, expired=True)
    _remove_entries(table, 4)
    assert sink.sweep(_ABOUT, _all) == [file.path]


def test_a_published_file_whose_log_entry_is_gone_is_kept(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 1, pairs(0, 2))
    checkpoint(table)
    _remove_entries(table, 2)
    assert sink.sweep(_ABOUT, _all) == []
    assert ids(table) == [0, 1]


# -- how much of the log is read --------------------------------------------------------------------------------------


def _make_unreadable(table: Path, version: int) -> None:
    """Reading this log entry fails."""
    entry_path(table, version).unlink()
    entry_path(table, version).mkdir()


def test_only_entries_after_the_checkpoint_or_the_generation_of_a_leftover_are_read(
    sink: DeltaSink, table: Path
) -> None:
    """Tokens are above the generation that publishes: an entry with a lower one is older than its files."""
    for token in range(1, 12):
        put(sink, _ABOUT, token, pairs(token, 1))
    checkpoint(table)
    _make_unreadable(table, 7)
    fresh = DeltaSink(table)
    assert fresh.check(_ABOUT) is not None
    assert fresh.sweep(_ABOUT, _all) == []
    lost = write(sink, _ABOUT, pairs(100, 1), Writing(10, 1, 0, "lost"))[0].path
    assert DeltaSink(table).sweep(_ABOUT, lambda generation, *_: generation == 10) == [lost]


def test_output_that_was_published_before_its_checkpoint_is_kept(sink: DeltaSink, table: Path) -> None:
    """In at-least-once mode entries of generation 5 have the token that the table had when it began."""
    put(sink, _ABOUT, 2, pairs(2, 1))
    early = [write(sink, _ABOUT, pairs(n, 1), Writing(5, n, 0, "early")) for n in range(3)]
    assert sink.open_table(_ABOUT).commit(2, early[0]) is not None
    _delete_rows(table, expired=True)
    for files in early[1:]:
        assert sink.open_table(_ABOUT).commit(2, files) is not None
    assert DeltaSink(table).sweep(_ABOUT, lambda generation, *_: generation == 5) == []


def test_a_start_makes_a_checkpoint_when_two_are_missing(sink: DeltaSink, table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.checkpointInterval": "5"})
    for newest in range(2, 11):
        assert append_entry(table, newest, [{"commitInfo": {"operation": "WRITE"}}])
        if newest > 8:
            DeltaSink(table).sweep(_ABOUT, _all)
            assert list_log(table).checkpoints == ({10} if newest == 10 else frozenset())


def test_a_checkpoint_without_one_of_its_parts_is_ignored(table: Path) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True)
    names = [
        "4.checkpoint.0000000001.0000000002",
        "4.checkpoint.0000000002.0000000002",
        "6.checkpoint.0000000001.0000000002",
        "8.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11",
    ]
    for name in names:
        version, rest = name.split(".", 1)
        (log / f"{int(version):020d}.{rest}.parquet").touch()
    found = list_log(table)
    assert found.checkpoints == {4, 8}
    assert [found.newest_checkpoint(v) for v in (3, 4, 7, 9)] == [0, 4, 4, 8]


def test_a_checkpoint_leaves_no_threads_in_the_driver_and_its_failure_is_an_error(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    put(sink, _ABOUT, 1, pairs(1, 1))
    DeltaTable(str(table))
    before = len(os.listdir("/proc/self/task"))
    checkpoint(table)
    assert list_log(table).checkpoints == {1}
    assert len(os.listdir("/proc/self/task")) <= before + 2
    with raises(StorageError, table=str(tmp_path / "none"), exit_code=1):
        checkpoint(tmp_path / "none")
