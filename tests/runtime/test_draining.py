"""Runs and commands that drain: every timer fires once, no further row is read, and the savepoint has the result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import root_files
from tests.support.job_fixture import KILLED
from tests.windows.windows_job import WindowsJob


@pytest.fixture
def job(tmp_path: Path) -> Iterator[WindowsJob]:
    job = WindowsJob(tmp_path / "job", {"requests__interval": "20ms"}, job_name="windows")
    yield job
    job.end_all()


def _rest_with_open_windows(job: WindowsJob) -> root_files.Entry:
    """Processes some rows; returns the newest entry. Other rows arrive after that."""
    job.deliver(30)
    job.finish()
    assert job.waiting()
    read = job.rows
    job.deliver(60)
    job.rows = read
    return root_files.head(job.root)


def _check_drained(job: WindowsJob, before: root_files.Entry) -> None:
    job.check_all()
    assert root_files.head(job.root).doc["sources"] == before.doc["sources"]
    last = root_files.savepoints(job.root)["last"]
    assert (last["drained"], last["origin"], last["checkpoint_id"] > before.seq) == (True, "stop", True)


@pytest.mark.long(reason="kills runs of a job")
def test_a_run_that_is_asked_to_drain_and_is_killed_fires_every_timer_once_before_the_savepoint(
    job: WindowsJob,
) -> None:
    before = _rest_with_open_windows(job)
    common = {"id": "r1", "kind": "stop", "origin": "stop", "by": "ada", "reason": "", "at": "2026-01-01T00:00:00Z"}
    (job.root / "requests").mkdir(exist_ok=True)
    (job.root / "requests" / "r1").write_bytes(root_files.sealed({**common, "savepoint": "last", "drain": True}))
    for failpoint in ("batch.reported:1", "task.fired:2", "commit.after:1"):
        job.reach(failpoint)
    job.finish()
    _check_drained(job, before)


def _stop(job: WindowsJob, failpoint: str = "", code: int = 0) -> None:
    words = ("stop", "--savepoint", "--drain", "--name", "last", "--request-id", "r1", "--job", job.job_file)
    ended = job.command(*words, failpoint=failpoint, with_job=True)
    assert ended.code == code, str(ended)


@pytest.mark.long(reason="runs a job as processes")
def test_a_stop_that_drains_without_a_run_runs_the_job_for_that_alone(job: WindowsJob) -> None:
    before = _rest_with_open_windows(job)
    refused = job.command("stop", "--savepoint", "--drain")
    assert (refused.code, refused.error.code) == (2, "config") and "--job" in refused.err
    _stop(job)
    _check_drained(job, before)
    # No timer is left, so that another savepoint needs no run.
    assert job.command("stop", "--savepoint", "--drain").code == 0


@pytest.mark.slow(reason="starts a process for each kill")
def test_a_stop_that_drains_and_is_killed_is_completed_by_the_next_one(job: WindowsJob) -> None:
    before = _rest_with_open_windows(job)
    _stop(job, failpoint="commit.after:1", code=KILLED)
    _stop(job)
    _check_drained(job, before)
    # The killed one has recorded no end and no publication, so that another savepoint needs the job file again.
    another = ("stop", "--savepoint", "--acknowledge-timeout", "0.2")
    refused = job.command(*another)
    refused.check_error(2, "config", checkpoint_id=root_files.head(job.root).checkpoint)
    assert "--job JOB.py" in refused.err
    job.command(*another, "--job", job.job_file, with_job=True).check()


@pytest.mark.long(reason="runs a job as processes")
def test_the_option_drain_drains_at_the_end_of_the_input_and_an_earlier_end_is_logged(job: WindowsJob) -> None:
    job.deliver(30)
    result = job.folder / "result.json"
    for more, reason in ((["--set", "run.max_batches=1"], "batches"), ([], "drained")):
        words = ("run", job.job_file, "--drain", "--result-file", str(result), *more)
        ended = job.command(*words, with_job=True)
        stopped = json.loads(result.read_text())["result"]["stopped_because"]
        assert (ended.code, stopped, "drain" in ended.err) == (0, reason, reason != "drained"), str(ended)
    job.check_all()
