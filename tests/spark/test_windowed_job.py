"""Windows of a job on Spark that is killed, rescaled and drained, against plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.job_fixture import KILLED
from tests.support.processes import spawn
from tests.windows.windows_job import WindowsJob

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="starts Spark for its jobs")]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[WindowsJob]:
    settings = {"job__spark": "yes", "parallelism": 2}
    job = WindowsJob(tmp_path / "job", settings, job_name="windows", launcher=spawn)
    yield job
    job.end_all()


def test_windows_on_spark_are_those_of_plain_python(job: WindowsJob) -> None:
    for count, parallelism in ((60, 2), (120, 3)):
        job.deliver(count)
        job.finish(parallelism=parallelism)
        assert job.windows("hours") <= job.hours() and job.windows("sessions") <= job.sessions()
    before = job.windows("sessions")
    job.deliver(240)
    job.reach("commit.after:1", KILLED)
    job.finish(run__drain="yes")
    assert before and job.windows("hours") == job.hours() and job.windows("sessions") == job.sessions()
    assert job.windows("all-hours") == job.by_columns("all-hours") == job.all_hours()
