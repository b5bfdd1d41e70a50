"""Delta tables whose log has forged commits and names: no endless plan, no wait, always an error with a code."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.log import (
    LOG_FOLDER,
    DeltaHead,
    Metadata,
    checkpoint,
    entry_path,
    maintain_log,
    read_head,
)
from stateflow.connectors.delta.versions import Divergence, Rewinder, read_entry
from stateflow.errors import CorruptFile, SinkDiverged, SinkRefused, StorageError
from tests.support.delta_tables import context, pairs, put
from tests.support.errors import raises

_ABOUT = context()
_FOREIGN: dict[str, dict[str, object]] = {
    "add": {"path": "x", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
}
INFOS: dict[str, object] = {
    "a time as text": {"timestamp": "x"},
    "a time after the calendar": {"timestamp": 10**17},
    "a time before 1970": {"timestamp": -1},
    "a time with a fraction": {"timestamp": 0.5},
    "operations": {"operation": ["x"]},
    "metrics": {"operation": "DELETE", "operationMetrics": "x"},
    "parameters": {"engineInfo": "stateflow", "operation": "RESTORE", "operationParameters": []},
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    sink = DeltaSink(tmp_path / "table")
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(0, 3))
    return tmp_path / "table"


def _put(table: Path, version: int, *actions: object) -> None:
    entry_path(table, version).write_text("\n".join(map(json.dumps, actions)) + "\n")


def _rewinder(table: Path, known: DeltaHead | None = None) -> Rewinder:
    head = read_head(table, _ABOUT.application, known)
    assert head is not None
    return Rewinder(table, _ABOUT.application, head)


@pytest.mark.parametrize("name", INFOS)
def test_a_plan_over_a_commit_with_junk_is_an_error_with_a_code(table: Path, name: str) -> None:
    known = read_head(table, _ABOUT.application)
    _put(table, 2, {"commitInfo": INFOS[name]}, _FOREIGN)
    with raises(CorruptFile, version=2):
        _rewinder(table, known).changes_since(1)
    with pytest.raises((CorruptFile, SinkRefused, SinkDiverged)):
        _rewinder(table, known).plan(0)


@pytest.mark.parametrize("rows", ["x", [], "9" * 5000, "²", -1])
def test_a_count_that_is_no_number_is_unknown(table: Path, rows: object) -> None:
    info = {"operation": "DELETE", "operationMetrics": {"numCopiedRows": rows}}
    _put(table, 2, {"commitInfo": info}, {"add": {**_FOREIGN["add"], "stats": '{"numRecords":1}'}})
    entry = read_entry(table, 2)
    assert entry is not None
    assert Divergence({}, [entry], []).rows() == (1, 0)
    assert Divergence({}, [entry], [entry]).rows() == (None, None)


@pytest.mark.parametrize("restored_version", ["2", "3", "9" * 20, "-1", "²", "9" * 5000, None])
def test_an_entry_that_restores_itself_or_a_later_one_is_refused(table: Path, restored_version: str | None) -> None:
    """A plan would follow it without end."""
    info = {"engineInfo": "stateflow", "operation": "RESTORE", "operationParameters": {"version": restored_version}}
    _put(table, 2, {"commitInfo": info})
    with raises(CorruptFile, version=2, found=str(restored_version)[:200]):
        _rewinder(table).plan(0)


@pytest.mark.parametrize("folder", ["_sidecars", "_staged_commits", "other"])
def test_a_fifo_in_a_folder_of_the_log_is_an_error_at_once(table: Path, folder: str) -> None:
    fifo = table / LOG_FOLDER / folder / "x.parquet"
    fifo.parent.mkdir()
    os.mkfifo(fifo)
    with raises(CorruptFile, file=str(fifo)):
        read_head(table, "app")


_EACH = Metadata("x", "{}", [], {"delta.checkpointInterval": "1"})


def test_a_fifo_that_is_named_like_a_new_checkpoint_does_not_stop_the_driver(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(table / LOG_FOLDER / f"{1:020d}.checkpoint.x")
    maintain_log(table, 1, _EACH)
    assert caplog.records[0].exc_info is not None
    assert isinstance(caplog.records[0].exc_info[1], CorruptFile)
    # Created after the log was checked.
    with raises(StorageError, table=str(table)):
        checkpoint(table)


def test_a_checkpoint_process_that_waits_is_killed(table: Path) -> None:
    os.mkfifo(table / LOG_FOLDER / "_last_checkpoint")
    with raises(StorageError, seconds=0.5):
        checkpoint(table, seconds=0.5)


@pytest.mark.parametrize("interval", ["²", "0", "-1", "", "9" * 5000])
def test_an_interval_of_checkpoints_that_is_no_number_is_ignored(table: Path, interval: str) -> None:
    maintain_log(table, 1, Metadata("x", "{}", [], {"delta.checkpointInterval": interval}))
    assert not list((table / LOG_FOLDER).glob("*.checkpoint.*"))


def test_a_log_whose_newest_version_is_any_number_is_read_in_time(table: Path) -> None:
    head = read_head(table, _ABOUT.application)
    assert head is not None
    far = dataclasses.replace(head, version=10**18)
    found = Rewinder(table, _ABOUT.application, far).changes_since(0).others
    assert [(commit.version, commit.rows) for commit in found] == [(head.version + 1, None)]
