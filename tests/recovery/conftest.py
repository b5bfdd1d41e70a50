"""A job's folder for each test; nothing that a test started outlives it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recovery.savepoints import NewRoot
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
def roots(job: AccountsJob, tmp_path: Path) -> NewRoot:
    return NewRoot(job, tmp_path)


class Template:
    """A job in a folder, which gets the same content for each test: its files name the folder."""

    def __init__(self, job: AccountsJob) -> None:
        self._job = job
        self._copy = job.folder.with_name("copy")
        shutil.copytree(job.folder, self._copy, symlinks=True)

    def reset(self) -> AccountsJob:
        shutil.rmtree(self._job.folder)
        shutil.copytree(self._copy, self._job.folder, symlinks=True)
        return AccountsJob(self._job.folder, dict(self._job.settings))


@pytest.fixture(scope="session")
def idle_template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    job = AccountsJob(tmp_path_factory.mktemp("idle") / "job")
    job.run_to(50)
    return Template(job)


@pytest.fixture(scope="session")
def early_template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    job = AccountsJob(tmp_path_factory.mktemp("early") / "job")
    return Template(continue_past_savepoint(job, at=50, until=120))


@pytest.fixture
def idle_job(idle_template: Template) -> Iterator[AccountsJob]:
    """A job with a few checkpoints and nothing to do."""
    job = idle_template.reset()
    yield job
    job.end_all()


@pytest.fixture
def early(early_template: Template) -> Iterator[AccountsJob]:
    """A job with a savepoint at its 50th event that continued to the 120th, and keeps every checkpoint."""
    job = early_template.reset()
    yield job
    job.end_all()


@pytest.fixture
def flights(tmp_path: Path) -> Iterator[FlightsJob]:
    scratch = {"spark__conf__spark.local.dir": tmp_path / "spark"}
    job = FlightsJob(tmp_path / "job", scratch, job_name="small_flights", launcher=spawn)
    yield job
    job.end_all()
    for process in job.processes:
        process.wait_family()
