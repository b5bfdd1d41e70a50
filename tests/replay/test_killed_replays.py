"""Replays that are killed: the job is as before, the next replay removes what they left, and their pins end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow.checkpoint.log.job_root import LEASE, JobRoot
from stateflow.clock import ManualClock, SystemClock
from stateflow.private_files import PREFIX
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage
from tests.support.cli_fixture import CliFixture, contents
from tests.support.job_fixture import KILLED
from tests.support.processes import Ended, Launch, spawn

POINTS = {
    "read.pinned:1": 2,
    "read.pinned:2": 2,
    "task.processed": 2,
    "task.uploaded": 2,
    "task.sink-closed": 2,
    "batch.reported": 2,
    "read.finished:1": 2,
    "read.unpinned:1": 1,
    "read.unpinned:2": 0,
}
"""Failpoints of a replay, and the pins that exist then."""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[CliFixture]:
    job = CliFixture(tmp_path)
    job.settings["checkpoints.asynchronous"] = "no"
    job.run()
    (tmp_path / "tmp").mkdir()
    yield job
    store_cache.close_all()


def _replay(job: CliFixture, failpoint: str = "") -> Ended:
    arguments = ["replay", str(job.job), "--job-root", job.root, "--batch", "3", *job.command()[4:]]
    environment = {"STATEFLOW_FAILPOINT": failpoint, "TMPDIR": str(job.folder / "tmp")}
    return spawn(Launch(arguments, job.folder / "output", environment)).wait()


def _scratch(job: CliFixture) -> list[Path]:
    return list((job.folder / "tmp").glob(f"{PREFIX}*"))


def _lasting(job: CliFixture) -> dict[str, str]:
    """The files of the job, its tables and its working folder, apart from the log."""
    others = ("root/log/", "tmp/", "output", "code/")
    return {name: text for name, text in contents(job.folder).items() if not name.startswith(others)}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.slow(reason="starts a process for each kill")
def test_a_killed_replay_changes_nothing_of_the_job_and_the_next_one_removes_its_files(
    job: CliFixture, point: str
) -> None:
    before = _lasting(job)
    assert _replay(job, point).code == KILLED
    pins = POINTS[point]
    left = set(_scratch(job))
    assert len(left) == (1 if 1 < pins else 0) or point.startswith("read.")
    assert _lasting(job) == before
    _replay(job).check()
    assert not _scratch(job) and left.isdisjoint(_scratch(job))
    assert _lasting(job) == before
    later = ManualClock(start=SystemClock().now() + LEASE)
    root = JobRoot.open(open_storage(job.root), later, "later")
    assert len(root.head().entry.pinned) == pins
    root.admin.end_leases()
    assert root.head().entry.pinned == []
