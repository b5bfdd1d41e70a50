"""A job that writes changelogs by key and is killed at each failpoint; its tables are those of plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.changelogs.changelogs_job import ChangelogsJob
from tests.recovery.test_failpoints import HERE
from tests.support.job_fixture import KILLED, mostly_slow

_QUICK = ("commit.after",)


@pytest.fixture
def changelogs_job(tmp_path: Path) -> Iterator[ChangelogsJob]:
    settings = {"checkpoints__collect_every": 2, "checkpoints__retained": 2}
    job = ChangelogsJob(tmp_path / "job", settings, job_name="changelogs")
    yield job
    job.end_all()


# The job has no timers.
@pytest.mark.parametrize("name", mostly_slow([name for name in HERE if name != "task.fired"], _QUICK))
def test_tables_by_key_survive_a_kill_at_each_failpoint(changelogs_job: ChangelogsJob, name: str) -> None:
    job = changelogs_job
    job.deliver(40)
    job.finish()
    job.check_tables()
    job.deliver(80)
    job.reach(f"{name}:{4 if name.startswith('task.') else 1}", KILLED)
    job.deliver(120)
    job.finish(parallelism=3)
    job.check_tables()
