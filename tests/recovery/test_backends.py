"""The whole job on each state backend: killed, rescaled, taken to another backend, saved, gone back."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from stateflow.query.state import read_state
from tests.support import root_files
from tests.support.job_fixture import AccountsJob
from tests.support.restores import check_after, go_back

BACKENDS: dict[str, dict[str, object]] = {
    "memory": {"state__backend": "memory"},
    "filesystem": {"state__backend": "filesystem"},
    "filesystem-files": {"state__backend": "filesystem", "state__inline_below_bytes": 1},
    "rocksdb-full": {"state__backend": "rocksdb", "state__backend__incremental": "false"},
}


@pytest.fixture(params=BACKENDS)
def on(request: pytest.FixtureRequest, box: AccountsJob) -> AccountsJob:
    """A job on one of the backends; RocksDB with increments is what all other tests have."""
    box.settings = {"checkpoints__retained": 3, **BACKENDS[request.param]}
    return box


def _subtasks(box: AccountsJob) -> list[dict[str, Any]]:
    manifest = root_files.read_manifest(box.root, root_files.head(box.root).doc["manifest"])
    return [s for o in manifest["operators"] for s in o["subtasks"]]


@pytest.mark.parametrize("failpoint", ["task.uploaded:3", "task.sink-closed:2", "commit.manifest:2", "commit.after:2"])
def test_a_crash_between_snapshot_and_commit_is_as_if_nothing_had_been(on: AccountsJob, failpoint: str) -> None:
    on.deliver(40)
    on.finish()
    on.deliver(80)
    assert on.run(failpoint).code == -9 and on.marker.exists()
    root_files.check_hashes(on.root)
    on.finish()
    on.check_results()
    on.check_clean()


def test_a_chain_of_rescalings(on: AccountsJob) -> None:
    for number, parallelism in enumerate((1, 3, 5, 2)):
        on.deliver(30 * (number + 1))
        on.finish(parallelism=parallelism)
        assert len(_subtasks(on)) == 2 * parallelism
        on.check_results()
        on.check_clean()


def test_a_batch_without_a_row_for_most_subtasks_rescales_all_of_them(on: AccountsJob) -> None:
    on.deliver(50)
    on.finish(parallelism=2)
    on.deliver(51)
    on.finish(parallelism=7)
    assert len(_subtasks(on)) == 14
    on.check_results()


def test_a_savepoint_has_all_of_the_state_and_restores(on: AccountsJob, tmp_path: Path) -> None:
    on.deliver(50)
    on.finish()
    assert on.command("savepoint", "create", "--name", "early").code == 0
    on.deliver(120)
    on.finish()
    for _ in range(2):
        assert on.command("gc").code == 0
    assert on.command("savepoint", "verify", "early").code == 0
    # What is moved away is whole by itself.
    (folder,) = (on.root / "savepoints").iterdir()
    shutil.move(folder, tmp_path / "elsewhere")
    root_files.check_savepoint(tmp_path / "elsewhere")
    go_back(on, str(tmp_path / "elsewhere"))
    check_after(on)


def test_what_a_savepoint_shows_counts_the_state_in_the_manifest(box: AccountsJob) -> None:
    box.settings = BACKENDS["memory"]
    box.deliver(50)
    box.finish()
    assert box.command("savepoint", "create", "--name", "here").code == 0
    shown = box.command("savepoint", "show", "here").out
    (line,) = (line for line in shown.splitlines() if "balances" in line)
    assert re.search(r"\b[1-9][0-9.]* k?B\b", line), line
    manifest = root_files.read_manifest(box.root, root_files.head(box.root).doc["manifest"])
    assert manifest["full_bytes"] > 0 and manifest["increment_bytes"] > 0
    (listed,) = json.loads(box.command("savepoint", "list", "--json").out)
    assert listed["bytes"] == manifest["full_bytes"]


@pytest.mark.parametrize("parallelism", [2, 3])
def test_each_backend_goes_on_from_the_one_before(box: AccountsJob, parallelism: int) -> None:
    chain = ["rocksdb", "memory", "filesystem", "rocksdb", "filesystem", "memory", "rocksdb"]
    for number, backend in enumerate(chain):
        box.deliver(20 * (number + 1))
        box.finish(state__backend=backend, parallelism=parallelism if number % 2 else 2)
        assert {s["backend"] for s in _subtasks(box)} == {backend}
        box.check_results()
        box.check_clean()


def test_a_subtask_without_a_row_keeps_what_the_old_backend_wrote(box: AccountsJob) -> None:
    box.deliver(50)
    box.finish(state__backend="memory", parallelism=20)
    box.deliver(60)
    box.finish(parallelism=20)
    assert {s["backend"] for s in _subtasks(box)} == {"memory", "rocksdb"}
    box.check_results()
    box.deliver(90)
    box.finish(state__backend="filesystem", parallelism=2)
    box.check_results()
    box.check_clean()


def test_state_can_be_read_from_outside(on: AccountsJob) -> None:
    on.deliver(50)
    on.finish()
    for uid in ("balances", "turnovers"):
        wanted = {(state, key, user) for state, key, user in root_files.read_state(on.root, uid)}
        assert {(e.state, e.key, e.map_key) for e in read_state(str(on.root), uid)} == wanted


def test_a_batch_with_more_state_than_memory_may_hold_leaves_nothing_behind(box: AccountsJob) -> None:
    box.settings = BACKENDS["memory"]
    box.deliver(50)
    box.finish()
    size = root_files.read_manifest(box.root, root_files.head(box.root).doc["manifest"])["full_bytes"]
    before = root_files.head(box.root)
    box.deliver(90)
    # No subtask alone has so much: it is the driver that adds them up.
    ended = box.run(state__memory_limit_bytes=size)
    assert (ended.code, ended.error.code) == (2, "config"), str(ended)
    assert root_files.head(box.root).doc["manifest"] == before.doc["manifest"]
    for datum in ("turnovers", str(size), "state.backend", "state.memory_limit_bytes"):
        assert datum in ended.err
    # One subtask alone.
    assert box.run(state__memory_limit_bytes=10).code == 2
    # The ways out that the error names.
    box.finish(state__backend="filesystem")
    box.check_results()
    box.check_clean()
