"""A job's folder for each test; nothing that a test started outlives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.flights_job import FlightsJob
from tests.support.job_fixture import AccountsJob
from tests.support.processes import spawn
from tests.support.restores import continue_past_savepoint


@pytest.fixture
def job(tmp_path: Path) -> Iterator[AccountsJob]:
    job = AccountsJob(tmp_path / "job")
    yield job
    job.end_all()


@pytest.fixture
def idle_job(job: AccountsJob) -> AccountsJob:
    """A job with a few checkpoints and nothing to do."""
    job.run_to(50)
    return job


@pytest.fixture
def early(job: AccountsJob) -> AccountsJob:
    """A job with a savepoint at its 50th event that continued to the 120th, and keeps every checkpoint."""
    return continue_past_savepoint(job, at=50, until=120)


@pytest.fixture
def flights(tmp_path: Path) -> Iterator[FlightsJob]:
    scratch = {"spark__conf__spark.local.dir": tmp_path / "spark"}
    job = FlightsJob(tmp_path / "job", scratch, job_name="small_flights", launcher=spawn)
    yield job
    job.end_all()
    for process in job.processes:
        process.wait_family()
