"""A partitioned source in a job without Spark: killed at each step, and set to earlier positions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import restores
from tests.support.ledger_job import LedgerJob

STEPS = ("batch.begin", "batch.reported:2", "commit.manifest", "commit.after", "publish.after:2")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LedgerJob]:
    (tmp_path / "in").mkdir()
    job = LedgerJob(tmp_path, spark=False, source__max_rows_per_batch=4, checkpoints__retained=100)
    yield job
    job.close()


def _positions(job: LedgerJob) -> dict[str, int]:
    [source] = job.manifest["sources"]
    found: dict[str, int] = json.loads(source["offset"])
    return found


@pytest.mark.slow(reason="starts a process for each kill")
def test_each_row_is_read_once_wherever_runs_are_killed(job: LedgerJob) -> None:
    for number, step in enumerate(STEPS):
        job.send("a", 7)
        job.send(f"p{number}", 3)
        job.reach(step)
    job.finish()
    job.check_rows()
    assert _positions(job) == {"a": 35, **{f"p{number}": 3 for number in range(len(STEPS))}}


@pytest.mark.slow(reason="runs and restores a job of several processes")
def test_a_restore_returns_to_the_positions_of_a_savepoint_or_is_refused_without_its_rows(job: LedgerJob) -> None:
    job.send("a", 9)
    job.send("b", 5)
    job.finish()
    before = _positions(job)
    job.create_savepoint("early")
    job.send("b", 6)
    job.send("c", 2)
    job.finish()
    planned = restores.plan(job, "early")
    assert [source["held"] for source in planned["sources"]] == [True]
    restores.execute(job).check()
    assert _positions(job) == before == {"a": 9, "b": 5}
    job.finish()
    job.check_rows()
    # Retention removes rows after the position of the savepoint.
    (job.folder / "in" / "b.first").write_text("6")
    planned = restores.go_back(job, "early")
    assert [source["held"] for source in planned["sources"]] == [False]
    ended = job.run()
    ended.check_error(4, "input-lost", source=f"Ledgers[{job.folder / 'in'}]")
    assert "b: offsets [5, 6)" in ended.err
    restores.go_back(job, "early", "--source", 'entries={"a":9,"b":6}')
    job.finish()
    assert _positions(job) == {"a": 9, "b": 11, "c": 2}
