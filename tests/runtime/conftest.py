"""The job root of a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.local_jobs import LocalJobs


@pytest.fixture
def jobs(tmp_path: Path) -> LocalJobs:
    return LocalJobs(tmp_path)
