"""A job's folder for each test; nothing that a test started outlives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.flights_job import FlightsJob
from tests.support.job_fixture import AccountsJob
from tests.support.processes import spawn


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsJob]:
    box = AccountsJob(tmp_path / "job")
    yield box
    box.end_all()


@pytest.fixture
def resting(box: AccountsJob) -> AccountsJob:
    """A job with a few checkpoints and nothing to do."""
    box.run_to(50)
    return box


@pytest.fixture
def early(box: AccountsJob) -> AccountsJob:
    """A job with a savepoint at its 50th event that continued to the 120th, and keeps every checkpoint."""
    box.settings = {"checkpoints__retained": 100}
    box.run_to(50)
    box.create_savepoint("early")
    box.run_to(120)
    return box


@pytest.fixture
def flights(tmp_path: Path) -> Iterator[FlightsJob]:
    scratch = {"spark__conf__spark.local.dir": tmp_path / "spark"}
    box = FlightsJob(tmp_path / "job", scratch, job="small_flights", launcher=spawn)
    yield box
    box.end_all()
    for process in box.processes:
        process.wait_family()
