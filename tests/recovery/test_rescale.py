"""Runs at one parallelism after another, with and without kills in the batch that redistributes the state."""

from __future__ import annotations

import pytest

from tests.support import root_files
from tests.support.job_fixture import AccountsJob

# The batch of the last run has a row for one subtask only: the state of all others is laid out anyway.
CHAIN = ((30, 1), (60, 3), (90, 5), (120, 2), (121, 7))
OPERATORS = ("balances", "turnovers")


def _kill(job: AccountsJob, failpoint: str, parallelism: int) -> None:
    """What the newest checkpoint needs exists as before."""
    before, live = job.head.doc["manifest"], root_files.live_files(job.root)
    job.reach(failpoint, parallelism=parallelism)
    assert job.head.doc["manifest"] == before
    assert root_files.live_files(job.root)[before["key"]] == live[before["key"]]
    root_files.check_hashes(job.root)


@pytest.mark.parametrize("failpoint", ["", "task.restored:3", "task.snapshot:2", "task.uploaded:1", "batch.reported:1"])
def test_a_job_continues_at_any_parallelism(job: AccountsJob, failpoint: str) -> None:
    job.settings = {"checkpoints__retained": 2}
    for rows, parallelism in CHAIN:
        job.deliver(rows)
        if failpoint and parallelism > 1:
            _kill(job, failpoint, parallelism)
        job.finish(parallelism=parallelism)
        layout = {
            o["uid"]: (o["parallelism"], [s["subtask"] for s in o["subtasks"]]) for o in job.manifest["operators"]
        }
        assert layout == dict.fromkeys(OPERATORS, (parallelism, list(range(parallelism))))
        job.check()


def test_after_a_kill_another_parallelism_may_be_chosen(job: AccountsJob) -> None:
    job.run_to(40, parallelism=4)
    job.deliver(70)
    _kill(job, "task.uploaded:3", 6)
    job.finish(parallelism=4)
    job.check()


def test_full_bytes_count_a_shared_file_once(job: AccountsJob) -> None:
    job.run_to(50, parallelism=1)
    job.run_to(60, parallelism=3)
    handles = list(root_files.handles(job.manifest))
    sizes = {h["key"]: h["size"] for h in handles}
    assert len(handles) > len(sizes)
    assert job.manifest["full_bytes"] == sum(sizes.values())
    assert root_files.history(job.root)[-1]["files"] == len(sizes)
