"""A savepoint to claim, and other jobs that may claim it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recovery.claims.claims import make_other_job
from tests.recovery.new_roots import NewRoot
from tests.support.job_fixture import AccountsJob


@pytest.fixture
def savepoint(early: AccountsJob) -> Path:
    """The folder of the job's savepoint, in its job root."""
    (folder,) = (early.root / "savepoints").iterdir()
    return folder


@pytest.fixture
def other(early: AccountsJob, tmp_path: Path) -> AccountsJob:
    """Another job with a few checkpoints, and input up to the 120th event."""
    return make_other_job(early, tmp_path, "other")


@pytest.fixture
def roots(job: AccountsJob, tmp_path: Path) -> NewRoot:
    return NewRoot(job, tmp_path)
