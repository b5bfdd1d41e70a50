"""A newer run that lets the active one end with a checkpoint, and then continues from it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stateflow.checkpoint.job_requests import open_requests, post, read_answer
from stateflow.checkpoint.log.documents import Origin, Request, RequestKind
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.transitions import Settlement
from stateflow.clock import ManualClock
from stateflow.errors import PlanOutdated
from stateflow.operations import SavepointRequest, create_savepoint, stop
from stateflow.runtime.driver.job_run import active_generation, end_active_run
from stateflow.storage import open_storage
from tests.checkpoint.log.memory_job import MemoryJob
from tests.support.job_fixture import KILLED, AccountsJob
from tests.support.processes import Running, wait_for

TAKE_OVER: dict[str, Any] = {"run__take_over": "2 min", "requests__interval": "20ms"}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[AccountsJob]:
    """A job whose runs stay up, and make no checkpoint before their end."""
    stays_up = {"run__until": "stopped", "checkpoints__interval": "1h", "requests__interval": "20ms"}
    job = AccountsJob(tmp_path / "job", stays_up)
    job.deliver(30)
    yield job
    job.end_all()


def _wait_for_rows(job: AccountsJob, run: Running, rows: int) -> None:
    def processed() -> bool:
        assert run.poll() is None, str(run)
        return any(end == rows for _, end in job.requested())

    wait_for(processed, lambda: f"{rows} rows: {run}")


@pytest.mark.long(reason="runs a job as processes")
def test_the_active_run_ends_with_a_checkpoint_from_which_the_newer_one_continues(job: AccountsJob) -> None:
    active = job.start()
    _wait_for_rows(job, active, 30)
    # A run reads the script of its source when it starts.
    job.deliver(40)
    newer = job.start(**TAKE_OVER)
    ended = active.wait().check().result
    assert (ended["stopped_because"], ended["rows_in"]) == ("taken-over", 30)
    _wait_for_rows(job, newer, 40)
    job.command("stop").check()
    continued = newer.wait().check().result
    assert (continued["start_checkpoint_id"], continued["rows_in"]) == (ended["checkpoint_id"], 10)
    assert job.requested() == [(0, 10), (10, 20), (20, 30), (30, 40)]
    job.check_results()


def test_a_take_over_that_was_killed_ends_no_other_run(job: AccountsJob) -> None:
    active = job.start()
    _wait_for_rows(job, active, 30)
    killed = job.start("request.posted", **TAKE_OVER)
    assert killed.wait().code == KILLED
    assert active.wait().check().result["stopped_because"] == "taken-over"
    # As if the active run had ended before it answered.
    root = _open(job)
    request = _stop_of(root.head().entry.generation)
    post(root.storage, request)
    ended = job.finish(**TAKE_OVER, run__until="input-ends").result
    answer = read_answer(root.storage, request.id)
    assert answer and (answer.status, ended["stopped_because"]) == ("withdrawn", "caught-up")
    job.check_results()


def test_a_run_that_does_not_end_in_time_is_left_to_the_claim(job: AccountsJob) -> None:
    """And the request to it is withdrawn."""
    job.start("claim.after")
    wait_for(lambda: (job.root / "log").is_dir() and bool(list((job.root / "log").iterdir())), lambda: "a claim")
    root = _open(job)
    root.clock = clock = ManualClock()
    assert not end_active_run(root, timedelta(seconds=3), "newer")
    assert clock.monotonic() >= 3 and not open_requests(root.storage)


def test_a_run_that_has_recorded_its_end_is_not_active() -> None:
    job = MemoryJob()
    assert active_generation(job.root) == job.head.entry.generation
    job.root.settle(job.head, Settlement({}, frozenset()))
    assert active_generation(job.root) == 0 and end_active_run(job.root, timedelta(seconds=3), "newer")


@pytest.mark.long(reason="runs a job as processes")
def test_a_stop_of_one_run_ends_no_run_that_has_begun_since(job: AccountsJob) -> None:
    """A run that begins at any time after the request continues."""
    earlier = job.finish(run__until="input-ends").result["generation"]
    job.deliver(50)
    newer = job.start()
    _wait_for_rows(job, newer, 50)
    for with_savepoint in (True, False):
        request = SavepointRequest(name="mine", generation=earlier)
        with pytest.raises(PlanOutdated):
            stop(job.job_root, request, savepoint=with_savepoint)
    with pytest.raises(PlanOutdated):
        create_savepoint(job.job_root, SavepointRequest(name="mine", generation=earlier))
    # Nor by a request that was posted before it began.
    root, posted = _open(job), replace(_stop_of(earlier), takes_over=False)
    post(root.storage, posted)
    wait_for(lambda: not open_requests(root.storage), lambda: "an answer")
    answer = read_answer(root.storage, posted.id)
    assert answer and answer.status == "withdrawn"
    assert newer.poll() is None and job.savepoints == {}
    stop(job.job_root, SavepointRequest(generation=root.head().entry.generation), savepoint=False)
    assert newer.wait().check().result["stopped_because"] == "stopped"
    job.check_results()


def _open(job: AccountsJob) -> JobRoot:
    return JobRoot.open(open_storage(job.job_root), ManualClock(), "two:2")


def _stop_of(generation: int) -> Request:
    at = ManualClock().now().isoformat()
    return Request(
        id="a" * 32, kind=RequestKind.STOP, savepoint="", origin=Origin.STOP, by="x", at=at, generation=generation,
        takes_over=True,
    )  # fmt: skip
