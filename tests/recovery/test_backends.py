"""The whole job on each state backend: killed, rescaled, taken to another backend, saved, gone back."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from stateflow.query.state import state_entries
from tests.support import root_files, stored_state
from tests.support.job_fixture import AccountsJob
from tests.support.restores import check_after, go_back

BACKENDS: dict[str, dict[str, Any]] = {
    "memory": {"state__backend": "memory"},
    "filesystem": {"state__backend": "filesystem"},
    "filesystem-files": {"state__backend": "filesystem", "state__inline_below_bytes": 1},
    "rocksdb-full": {"state__backend": "rocksdb", "state__backend__incremental": "false"},
}


@pytest.fixture(params=BACKENDS)
def on(request: pytest.FixtureRequest, job: AccountsJob) -> AccountsJob:
    """A job on one of the backends; RocksDB with increments is what all other tests have."""
    job.settings = {"checkpoints__retained": 3, **BACKENDS[request.param]}
    return job


def _subtasks(job: AccountsJob) -> list[dict[str, Any]]:
    return [s for o in job.manifest["operators"] for s in o["subtasks"]]


def _backends(job: AccountsJob) -> set[str]:
    return {s["backend"] for s in _subtasks(job)}


@pytest.mark.parametrize("failpoint", ["task.uploaded:3", "task.sink-closed:2", "commit.manifest:2", "commit.after:2"])
def test_a_crash_between_snapshot_and_commit_loses_and_repeats_no_row(on: AccountsJob, failpoint: str) -> None:
    on.run_to(40)
    on.deliver(80)
    on.reach(failpoint)
    root_files.check_hashes(on.root)
    on.finish()
    on.check()


def test_state_after_a_chain_of_rescalings_is_correct_and_read_as_stored(on: AccountsJob) -> None:
    """The last batch has a row for one subtask only, and lays out the state of all. State can be read from outside."""
    for rows, parallelism in ((30, 1), (60, 3), (90, 5), (120, 2), (121, 7)):
        on.run_to(rows, parallelism=parallelism)
        assert len(_subtasks(on)) == 2 * parallelism
        on.check()
    for uid in ("balances", "turnovers"):
        wanted = stored_state.read_state(on.root, uid)
        assert {(e.state, e.key, e.map_key): e.value for e in state_entries(str(on.root), uid)} == wanted


def test_a_savepoint_has_all_of_the_state_and_restores(on: AccountsJob, tmp_path: Path) -> None:
    on.run_to(50)
    on.create_savepoint("early")
    on.run_to(120)
    for _ in range(2):
        on.command("gc").check()
    on.command("savepoint", "verify", "early").check()
    # What is moved away is whole by itself.
    (folder,) = (on.root / "savepoints").iterdir()
    shutil.move(folder, tmp_path / "elsewhere")
    root_files.check_savepoint(tmp_path / "elsewhere")
    go_back(on, str(tmp_path / "elsewhere"))
    check_after(on)


def test_the_size_of_a_savepoint_includes_the_state_in_the_manifest(job: AccountsJob) -> None:
    job.settings = BACKENDS["memory"]
    job.run_to(50)
    job.create_savepoint("here")
    (line,) = (line for line in job.command("savepoint", "show", "here").out.splitlines() if "balances" in line)
    assert re.search(r"\b[1-9][0-9.]* k?B\b", line), line
    assert job.manifest["increment_bytes"] > 0
    (listed,) = job.command("savepoint", "list", "--json").document
    assert listed["bytes"] == job.manifest["full_bytes"] > 0


@pytest.mark.parametrize("parallelism", [2, 3])
def test_each_backend_restores_the_state_of_the_previous_backend(job: AccountsJob, parallelism: int) -> None:
    chain = ["rocksdb", "memory", "filesystem", "rocksdb", "filesystem", "memory", "rocksdb"]
    for number, backend in enumerate(chain):
        job.run_to(20 * (number + 1), state__backend=backend, parallelism=parallelism if number % 2 else 2)
        assert _backends(job) == {backend}
        job.check()


def test_a_subtask_without_a_row_keeps_what_the_old_backend_wrote(job: AccountsJob) -> None:
    job.run_to(50, state__backend="memory", parallelism=20)
    job.run_to(60, parallelism=20)
    assert _backends(job) == {"memory", "rocksdb"}
    job.check_results()
    job.run_to(90, state__backend="filesystem", parallelism=2)
    job.check()


def test_a_batch_with_more_state_than_memory_may_hold_leaves_nothing(job: AccountsJob) -> None:
    job.run_to(50, **BACKENDS["memory"])
    before, size = job.head.doc["manifest"], job.manifest["full_bytes"]
    job.deliver(90)
    # No subtask alone has so much: it is the driver that adds them up.
    ended = job.run(**BACKENDS["memory"], state__memory_limit_bytes=size)
    ended.check_error(2, "config")
    assert job.head.doc["manifest"] == before
    for datum in ("turnovers", str(size), "state.backend", "state.memory_limit_bytes"):
        assert datum in ended.err
    # One subtask alone.
    assert job.run(**BACKENDS["memory"], state__memory_limit_bytes=10).code == 2
    # The solutions that the error names.
    job.finish(state__backend="filesystem")
    job.check()
