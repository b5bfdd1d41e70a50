"""A job with open windows and timers that is killed at each failpoint; its windows are those of plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow.failpoints import NAMES
from tests.recovery.test_failpoints import HERE
from tests.support.job_fixture import KILLED, mostly_slow
from tests.windows.windows_job import WindowsJob

_QUICK = ("task.fired", "commit.after", "publish.before")


@pytest.fixture
def windows_job(tmp_path: Path) -> Iterator[WindowsJob]:
    job = WindowsJob(
        tmp_path / "job", {"checkpoints__collect_every": 2, "checkpoints__retained": 2}, job_name="windows"
    )
    yield job
    job.end_all()


@pytest.mark.parametrize("name", mostly_slow(HERE, _QUICK))
def test_windows_survive_a_kill_at_each_failpoint(windows_job: WindowsJob, name: str) -> None:
    job = windows_job
    job.deliver(40)
    job.finish()
    opened = job.windows("sessions")
    job.deliver(80)
    job.reach(f"{name}:{4 if name.startswith('task.') else 1}", KILLED)
    job.deliver(120)
    job.finish(parallelism=3)
    # Windows are open at the end of each run: only the end of the input fires the last ones.
    assert 0 < opened.total() < job.windows("sessions").total() < job.sessions().total()
    assert job.windows("hours") <= job.hours() and job.windows("sessions") <= job.sessions()
    assert 0 < job.by_columns("sessions").total() and job.by_columns("sessions") <= job.sessions()
    job.finish(run__drain="yes")
    assert job.windows("hours") == job.hours() and job.windows("sessions") == job.sessions()
    assert job.by_columns("hours") == job.hours() and job.by_columns("sessions") == job.sessions()
    assert job.windows("all-hours") == job.by_columns("all-hours") == job.all_hours()


def test_the_failpoints_are_those_of_a_run_without_requests() -> None:
    assert set(_QUICK) <= set(HERE) <= NAMES.keys()
