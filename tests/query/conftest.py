"""A job root with checkpoints and savepoints of a small job, whose state is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.query.summed_job import SummedJob


@pytest.fixture
def job(tmp_path: Path) -> SummedJob:
    return SummedJob(tmp_path)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SummedJob]:
    """A job after three batches, each with its checkpoint, and after savepoints of both formats; tests only read it."""
    job = SummedJob(tmp_path_factory.mktemp("summed"))
    job.run(12)
    job.create_savepoint("canonical")
    job.create_savepoint("native")
    yield job
