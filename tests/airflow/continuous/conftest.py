"""The job and the drivers of tests of tasks whose run stays up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.continuous.drivers import Drivers
from tests.airflow.jobs import use_submit
from tests.support.job_fixture import AccountsJob


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AccountsJob]:
    """A job whose runs stay up, and make no checkpoint before their end."""
    use_submit(tmp_path, monkeypatch)
    job = AccountsJob(tmp_path / "job", {"run__until": "stopped", "checkpoints__interval": "1h"})
    job.deliver(30)
    yield job
    job.end_all()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    """Drivers; all that still run are ended."""
    drivers = Drivers(tmp_path)
    yield drivers
    for launch in drivers.launcher.launches():
        drivers.launcher.stop(launch, 0)
