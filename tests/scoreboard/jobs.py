"""The job without Spark, as most rows play it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stateflow.failpoints import NAMES
from tests.scoreboard.row import Round
from tests.support.job_fixture import ON_REQUEST, AccountsJob
from tests.support.processes import Running, wait_for
from tests.support.root_files import Chain

KILLED = -9
STEPS = sorted(NAMES.keys() - ON_REQUEST - {"start.seeded"})
"""Named steps of the protocol that a run passes without Spark."""


def checkpoint_settings(round_: Round) -> dict[str, object]:
    """Settings of checkpoints that the seed decides."""
    return {
        "checkpoints__asynchronous": ["no", "yes"][round_.seed % 2],
        "checkpoints__collect_every": 1 + round_.seed % 3,
        "checkpoints__retained": 1 + round_.seed % 4,
    }


@contextmanager
def accounts_job(round_: Round, **more: Any) -> Iterator[AccountsJob]:
    """A job with settings that the seed decides; nothing that it started outlives it."""
    settings = {**checkpoint_settings(round_), "state__backend": ["rocksdb", "rocksdb", "filesystem"][round_.seed % 3]}
    job = AccountsJob(round_.folder / "job", settings, **more)
    try:
        yield job
    finally:
        job.end_all()


def kill_after(seconds: float, run: Running, each: Callable[[], object]) -> None:
    """SIGKILL after so many seconds, unless the run has ended; calls `each` periodically."""
    until = time.monotonic() + seconds

    def is_due() -> bool:
        each()
        return time.monotonic() >= until or run.poll() is not None

    wait_for(is_due, lambda: f"the time to kill {run}")
    run.kill()


def check_complete(job: AccountsJob, chain: Chain) -> None:
    """All that was delivered is in the tables and the state, once; at rest nothing is left over."""
    job.deliver_more(10)
    job.finish()
    chain.check()
    job.check_results()
    job.check_clean()
