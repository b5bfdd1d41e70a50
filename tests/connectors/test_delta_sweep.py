"""Leftovers of the sink: what was written and never published goes, everything else stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from stateflow.api.sink import Writing
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta_checkpoint import checkpoint
from stateflow.connectors.delta_log import entry_path
from tests.connectors.kit import context, ids, pairs, put, snapshot, write

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
