"""Runs and commands by the hundred leave a bounded number of objects, and each run makes a bounded number of calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stateflow import operations
from stateflow.checkpoint.garbage_collector import Collector
from stateflow.operations import SavepointRequest
from stateflow.storage.paths import BACKLOG, LOG
from tests.model.history import History
from tests.model.simulation.command_env import JOB_URI
from tests.model.simulation.job import SimJob
from tests.model.simulation.plan import Plan
from tests.model.simulation.runs import JobRunProcess


@pytest.fixture
def job() -> Iterator[SimJob]:
    """A job without a scheduler and without faults."""
    history = History(0, Plan(uses_job_run=True, retain=3, sinks=1))
    history.scheduler.finish()
    with history.env.applied():
        yield history.job


def calls_of_run(job: SimJob, batches: int) -> int:
    """Executes a run; returns how many calls of the storage and the sink it made."""
    before = job.scheduler.stats["calls without faults"]
    JobRunProcess(job, "run", batches)()
    return job.scheduler.stats["calls without faults"] - before


def keys(job: SimJob, *, log: bool) -> list[str]:
    """The keys of log entries, or all others; each run replaces the report of the input that waits."""
    found = [key for key in job.storage.keys() if key.startswith(LOG) == log]
    return [BACKLOG if key.startswith(BACKLOG) else key for key in found]


def check_rest_after_run(job: SimJob, batches: int) -> None:
    JobRunProcess(job, "run", batches)()
    Collector(job.open("test")).collect()
    job.checker.check_rest()


def test_idle_runs_add_no_objects_and_no_storage_calls(job: SimJob) -> None:
    calls_of_run(job, 5)
    first = [calls_of_run(job, 0) for _ in range(30)]
    before = keys(job, log=False)
    assert max(calls_of_run(job, 0) for _ in range(100)) <= max(first)
    assert keys(job, log=False) == before
    assert len(keys(job, log=True)) == 2
    check_rest_after_run(job, 2)


def test_runs_of_a_job_without_rows_add_no_objects_and_no_storage_calls(job: SimJob) -> None:
    # Some runs, at random, look through more than others.
    calls = [calls_of_run(job, 0) for _ in range(120)]
    assert max(calls[60:]) <= max(calls[:60])
    assert len(keys(job, log=True)) == 1 and keys(job, log=False) == ["FORMAT", BACKLOG]


def test_runs_that_die_at_their_start_leave_a_bounded_number_of_objects(job: SimJob) -> None:
    calls_of_run(job, 2)
    for _ in range(100):
        dying = JobRunProcess(job, "run", 0)
        dying.start()
        dying.abandon()
    # Its own CLAIM, what its start found, and the checkpoint.
    assert len(keys(job, log=True)) <= 3
    assert len([key for key in keys(job, log=False) if key.startswith("history/")]) <= 2


def test_pins_and_savepoints_without_a_run_add_only_history_and_requests(job: SimJob) -> None:
    calls_of_run(job, 3)
    before = len(job.storage.keys())
    root = job.open("test")
    for _ in range(60):
        root.admin.unpin(root.admin.pin(root.checkpoints.restorable(root.head())[0], "user", "reads").id)
    for number in range(30):
        made = operations.create_savepoint(JOB_URI, SavepointRequest(name=f"s{number}", from_head=True))
        operations.dispose(JOB_URI, made.name)
    assert len(keys(job, log=True)) == 2
    assert len([key for key in job.storage.keys() if not key.startswith(("history/", "requests/"))]) <= before
    check_rest_after_run(job, 1)
