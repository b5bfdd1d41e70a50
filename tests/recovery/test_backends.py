"""The whole job on each state backend: killed, rescaled, taken to another backend."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from stateflow.query.state import state_entries
from tests.support import root_files, stored_state
from tests.support.job_fixture import AccountsJob

BACKENDS: dict[str, dict[str, Any]] = {
    "memory": {"state__backend": "memory"},
    "filesystem": {"state__backend": "filesystem"},
    "filesystem-files": {"state__backend": "filesystem", "state__inline_below_bytes": 1},
    "rocksdb-full": {"state__backend": "rocksdb", "state__backend__incremental": "false"},
    "rocksdb": {},
}
# The batch of the last run has a row for one subtask only: the state of all others is laid out anyway.
CHAIN = ((30, 1), (60, 3), (90, 5), (120, 2), (121, 7))
OPERATORS = ("balances", "turnovers")
_POINTS = ["task.restored:3", "task.snapshot:2", "task.uploaded:1", "batch.reported:1", "commit.manifest"]


def _backends(job: AccountsJob) -> set[str]:
    return {s["backend"] for o in job.manifest["operators"] for s in o["subtasks"]}


def _kill(job: AccountsJob, failpoint: str, parallelism: int) -> None:
    """What the newest checkpoint needs exists as before."""
    before, live = job.head.doc["manifest"], root_files.live_files(job.root)
    job.reach(failpoint, parallelism=parallelism)
    assert job.head.doc["manifest"] == before
    assert root_files.live_files(job.root)[before["key"]] == live[before["key"]]
    root_files.check_hashes(job.root)


@pytest.mark.parametrize(("backend", "failpoint"), [*product(BACKENDS, _POINTS)])
@pytest.mark.slow(reason="starts a process for each kill")
def test_a_job_that_is_killed_continues_at_any_parallelism(job: AccountsJob, backend: str, failpoint: str) -> None:
    """State can be read from outside."""
    job.settings = {"checkpoints__retained": 2, **BACKENDS[backend]}
    for rows, parallelism in CHAIN:
        job.deliver(rows)
        if parallelism > 1:
            _kill(job, failpoint, parallelism)
        job.finish(parallelism=parallelism)
        layout = {
            o["uid"]: (o["parallelism"], [s["subtask"] for s in o["subtasks"]]) for o in job.manifest["operators"]
        }
        assert layout == dict.fromkeys(OPERATORS, (parallelism, list(range(parallelism))))
        job.check_results()
    job.check()
    for uid in OPERATORS:
        wanted = stored_state.read_state(job.root, uid)
        assert {(e.state, e.key, e.map_key): e.value for e in state_entries(str(job.root), uid)} == wanted


def test_full_bytes_count_a_shared_file_once(job: AccountsJob) -> None:
    job.run_to(50, parallelism=1)
    job.run_to(60, parallelism=3)
    handles = list(root_files.handles(job.manifest))
    sizes = {h["key"]: h["size"] for h in handles}
    assert len(handles) > len(sizes)
    assert job.manifest["full_bytes"] == sum(sizes.values())
    assert root_files.history(job.root)[-1]["files"] == len(sizes)


@pytest.mark.slow(reason="runs jobs many times")
def test_each_backend_restores_the_state_of_the_previous_backend(job: AccountsJob) -> None:
    chain = ["rocksdb", "memory", "filesystem", "rocksdb", "filesystem", "memory", "rocksdb"]
    for number, backend in enumerate(chain):
        job.run_to(20 * (number + 1), state__backend=backend, parallelism=2 + number % 2)
        assert _backends(job) == {backend}
        job.check_results()
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
