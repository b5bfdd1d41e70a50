"""Leftovers of the sink: what was written and never published goes, everything else stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from stateflow.api.sink import Writing
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.checkpoint import checkpoint
from stateflow.connectors.delta.log import append_entry, entry_path, list_log
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


def _older_than(ordinal: int) -> Callable[[int, int, str], bool]:
    return lambda generation, found, path: (generation, found) < (1, ordinal)


def _leftover(sink: DeltaSink, ordinal: int = 1, attempt: str = "lost") -> str:
    return write(sink, _ABOUT, pairs(100, 1), Writing(1, ordinal, 0, attempt))[0].path


def test_a_file_that_was_never_published_goes(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 1, pairs(0, 1))
    lost = _leftover(sink)
    assert sink.sweep(_ABOUT, _all) == [lost]
    assert not (table / lost).exists()
    assert ids(table) == [0]
    assert sink.sweep(_ABOUT, _all) == []


def test_the_caller_is_asked_with_what_the_name_says(sink: DeltaSink) -> None:
    asked = []
    lost = write(sink, _ABOUT, pairs(0, 1), Writing(12, 34, 5, "x"))[0].path
    sink.sweep(_ABOUT, lambda *file: bool(asked.append(file)))  # type: ignore[func-returns-value]
    assert asked == [(12, 34, lost)]


def test_a_file_that_is_still_to_be_published_stays(sink: DeltaSink, table: Path) -> None:
    pending = write(sink, _ABOUT, pairs(0, 1), Writing(1, 7, 0, "a"))
    lost = _leftover(sink, ordinal=6)
    assert sink.sweep(_ABOUT, _older_than(7)) == [lost]
    assert sink.open_table(_ABOUT).missing(pending) == []


def test_files_of_others_stay(sink: DeltaSink, table: Path) -> None:
    for about in (context(uid="other"), context(uid="out-2"), context(job="f" * 32)):
        write(sink, about, pairs(0, 1))
    (table / "notes.txt").write_text("x")
    before = snapshot(table)
    assert sink.sweep(_ABOUT, _all) == []
    assert snapshot(table) == before


def test_a_file_that_time_travel_needs_stays(sink: DeltaSink, table: Path) -> None:
    for token in (1, 2):
        put(sink, _ABOUT, token, pairs(token, 1))
    DeltaTable(str(table)).optimize.compact()
    assert sink.sweep(_ABOUT, _all) == []
    older = DeltaTable(str(table), version=2)
    assert all(Path(uri.removeprefix("file://")).exists() for uri in older.file_uris())


def test_a_tombstone_that_only_a_delta_checkpoint_has_is_honoured(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 1, pairs(0, 2))
    DeltaTable(str(table)).delete()
    checkpoint(table)
    for version in range(3):
        entry_path(table, version).unlink()
    assert DeltaTable(str(table)).file_uris() == []
    assert sink.sweep(_ABOUT, _all) == []


def test_a_version_that_only_old_log_entries_tell_of_is_honoured(sink: DeltaSink, table: Path) -> None:
    """Delta's checkpoints drop tombstones after their retention, while the versions before can still be read."""
    put(sink, _ABOUT, 1, pairs(0, 2))
    expire = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    DeltaTable(str(table)).alter.set_table_properties(expire)
    DeltaTable(str(table)).delete()
    checkpoint(table)
    assert sink.sweep(_ABOUT, _all) == []
    assert len(DeltaTable(str(table), version=1).file_uris()) == 1


def test_a_file_that_no_version_names_any_more_goes(sink: DeltaSink, table: Path) -> None:
    [file] = put(sink, _ABOUT, 1, pairs(0, 2))
    expire = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    DeltaTable(str(table)).alter.set_table_properties(expire)
    DeltaTable(str(table)).delete()
    checkpoint(table)
    for version in range(4):
        entry_path(table, version).unlink()
    assert sink.sweep(_ABOUT, _all) == [file.path]


def test_a_published_file_whose_log_entry_was_cleaned_up_stays(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 1, pairs(0, 2))
    checkpoint(table)
    for version in range(2):
        entry_path(table, version).unlink()
    assert sink.sweep(_ABOUT, _all) == []
    assert ids(table) == [0, 1]


def test_a_table_that_was_never_made_has_no_leftovers(tmp_path: Path) -> None:
    assert DeltaSink(tmp_path / "none").sweep(_ABOUT, _all) == []


# -- how much of the log is read --------------------------------------------------------------------------------------


def _expire_tombstones(table: Path) -> None:
    """Deletes all rows, and makes a checkpoint that does not know of it any more."""
    expire = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    DeltaTable(str(table)).alter.set_table_properties(expire)
    DeltaTable(str(table)).delete()
    checkpoint(table)


def _make_unreadable(table: Path, version: int) -> None:
    """Whoever reads this log entry fails."""
    entry_path(table, version).unlink()
    entry_path(table, version).mkdir()


def test_a_start_reads_a_checkpoint_and_no_older_entry(sink: DeltaSink, table: Path) -> None:
    for token in range(1, 12):
        put(sink, _ABOUT, token, pairs(token, 1))
    checkpoint(table)
    _make_unreadable(table, 5)
    fresh = DeltaSink(table)
    assert fresh.check(_ABOUT) is not None
    assert fresh.sweep(_ABOUT, _all) == []


def test_for_a_leftover_entries_are_read_back_to_its_generation(sink: DeltaSink, table: Path) -> None:
    """Tokens are above the generation that publishes: an entry with a lower one is older than its files."""
    for token in range(1, 12):
        put(sink, _ABOUT, token, pairs(token, 1))
    checkpoint(table)
    _make_unreadable(table, 7)
    lost = write(sink, _ABOUT, pairs(100, 1), Writing(10, 1, 0, "lost"))[0].path
    assert DeltaSink(table).sweep(_ABOUT, lambda generation, *_: generation == 10) == [lost]


def test_output_that_was_published_before_its_checkpoint_is_found(sink: DeltaSink, table: Path) -> None:
    """In at-least-once mode entries of generation 5 have the token that the table had when it began."""
    put(sink, _ABOUT, 2, pairs(2, 1))
    early = [write(sink, _ABOUT, pairs(n, 1), Writing(5, n, 0, "early")) for n in range(3)]
    assert sink.open_table(_ABOUT).commit(2, early[0]) is not None
    _expire_tombstones(table)
    for files in early[1:]:
        assert sink.open_table(_ABOUT).commit(2, files) is not None
    assert DeltaSink(table).sweep(_ABOUT, lambda generation, *_: generation == 5) == []


def test_a_start_makes_a_checkpoint_when_two_are_missing(sink: DeltaSink, table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.checkpointInterval": "5"})
    newest = 1
    for _ in range(8):
        newest += 1
        assert append_entry(table, newest, [{"commitInfo": {"operation": "WRITE"}}])
    DeltaSink(table).sweep(_ABOUT, _all)
    assert list_log(table).checkpoints == frozenset()
    assert append_entry(table, newest + 1, [{"commitInfo": {"operation": "WRITE"}}])
    DeltaSink(table).sweep(_ABOUT, _all)
    assert list_log(table).checkpoints == {newest + 1}


def test_a_checkpoint_without_one_of_its_parts_is_none(table: Path) -> None:
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


def test_checkpoints_leave_no_threads_and_no_memory_in_the_driver(sink: DeltaSink, table: Path) -> None:
    put(sink, _ABOUT, 1, pairs(1, 1))
    DeltaTable(str(table))
    before = len(os.listdir("/proc/self/task"))
    checkpoint(table)
    assert list_log(table).checkpoints == {1}
    assert len(os.listdir("/proc/self/task")) <= before + 2


def test_a_checkpoint_that_cannot_be_made_says_why(table: Path) -> None:
    with raises(StorageError, table=str(table), exit_code=1):
        checkpoint(table)
