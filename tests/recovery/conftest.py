"""A job's folder for each test; nothing that a test started outlives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.job_fixture import AccountsJob


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsJob]:
    box = AccountsJob(tmp_path / "job")
    yield box
    box.end_all()


@pytest.fixture
def early(box: AccountsJob) -> AccountsJob:
    """A job with a savepoint at its 50th event that went on to the 120th, and keeps every checkpoint."""
    box.settings = {"checkpoints__retained": 100}
    box.deliver(50)
    box.finish()
    assert box.command("savepoint", "create", "--name", "early").code == 0
    box.deliver(120)
    box.finish()
    return box
