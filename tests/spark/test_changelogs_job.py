"""Changelogs in Delta tables by key, on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.changelogs.changelogs_job import ChangelogsJob
from tests.support.processes import spawn

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="starts Spark for its jobs")]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ChangelogsJob]:
    settings = {"job__spark": "yes", "parallelism": 2}
    job = ChangelogsJob(tmp_path / "job", settings, job_name="changelogs", launcher=spawn)
    yield job
    job.end_all()


def test_tables_by_key_on_spark_are_those_of_plain_python(job: ChangelogsJob) -> None:
    for count in (60, 150):
        job.deliver(count)
        job.finish()
        job.check_all()
