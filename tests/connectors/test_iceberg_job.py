"""A job whose tables are Iceberg's: killed while it publishes, restored, and refused a restore that is not possible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.iceberg_tables import expire_all_but_current
from tests.support.job_fixture import KILLED
from tests.support.restores import ask, go_back
from tests.support.table_jobs import IcebergJob

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path: Path) -> Iterator[IcebergJob]:
    job = IcebergJob.create(tmp_path)
    job.settings = {**job.settings, "checkpoints__retained": 100}
    yield job
    job.end_all()


def test_a_job_that_is_killed_during_a_publication_is_continued_and_restored(job: IcebergJob) -> None:
    job.run_to(30)
    job.create_savepoint("early")
    job.deliver(60)
    # Both tables pass this point in turn.
    assert job.run("iceberg.before-commit:3").code == KILLED
    job.finish()
    job.check()
    planned = go_back(job, "early")
    assert {(s["uid"], s["rows_removed"] > 0) for s in planned["sinks"]} == {("movements", True), ("totals", True)}
    job.replace_events(since=30)
    job.finish()
    job.check()


def test_a_restore_to_a_snapshot_that_has_expired_is_refused_in_the_plan(job: IcebergJob) -> None:
    job.run_to(20)
    job.create_savepoint("early")
    job.run_to(60)
    expire_all_but_current(job.iceberg_table("movements"))
    job.finish()
    ask(job, "early").check_error(4, "sink-diverged")
    planned = go_back(job, "early", "--keep-table", "movements")
    assert {(s["uid"], s["rows_removed"] > 0) for s in planned["sinks"]} == {("movements", False), ("totals", True)}
