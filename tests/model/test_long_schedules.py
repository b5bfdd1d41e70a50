"""What is stored, and what a run asks of the storage, when nothing comes for a long time; the real code throughout."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stateflow import operations
from stateflow.checkpoint.gc.collector import Collector
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.operations import SavepointRequest
from stateflow.storage.paths import LOG
from tests.model.command_env import JOB_URI
from tests.model.history import History
from tests.model.plan import Plan
from tests.model.runs import RealRun


class Quiet:
    """A job in a world without faults, where calls are executed where they are made, and are counted."""

    def __init__(self) -> None:
        self.history = History(0, Plan(real=True, retain=3, sinks=1))
        self.calls = 0
        world = self.history.world
        world.settle()
        execute = world.call

        def counted(*arguments: object) -> object:
            self.calls += 1
            return execute(*arguments)  # type: ignore[arg-type]

        world.call = counted  # type: ignore[method-assign, assignment]
        self.site = self.history.site

    def run(self, batches: int) -> int:
        """Makes a run; returns how many calls of the storage it made."""
        before = self.calls
        run = RealRun(self.site, "run", batches)
        run()
        return self.calls - before

    @property
    def root(self) -> JobRoot:
        return self.site.open("test")

    @property
    def keys(self) -> list[str]:
        return sorted(key for area in self.site.storage.areas.values() for key in area)

    @property
    def entries(self) -> list[str]:
        return [key for key in self.keys if key.startswith(LOG)]


@pytest.fixture
def job() -> Iterator[Quiet]:
    quiet = Quiet()
    with quiet.history.office.applied():
        yield quiet


def test_idle_runs_leave_nothing_and_cost_the_same_each(job: Quiet) -> None:
    job.run(5)
    first = [job.run(0) for _ in range(30)]
    before = [key for key in job.keys if not key.startswith(LOG)]
    assert max(job.run(0) for _ in range(800)) <= max(first)
    assert [key for key in job.keys if not key.startswith(LOG)] == before
    assert len(job.entries) == 2
    job.run(2)
    Collector(job.root).collect()
    job.site.checker.check_rest()


def test_a_job_that_never_had_a_row_leaves_nothing_either(job: Quiet) -> None:
    costs = [job.run(0) for _ in range(200)]
    assert max(costs[100:]) <= max(costs[:100])
    assert len(job.entries) == 1 and len(job.keys) == 2


def test_runs_that_die_at_their_start_leave_no_more_than_the_last_one(job: Quiet) -> None:
    job.run(2)
    for _ in range(100):
        dying = RealRun(job.site, "run", 0)
        dying.start()
        dying.abandon()
    # Its own CLAIM, what its start found, and the checkpoint.
    assert len(job.entries) <= 3
    history = [key for key in job.keys if key.startswith("history/")]
    assert len(history) <= 2


def test_commands_without_a_run_leave_nothing(job: Quiet) -> None:
    job.run(3)
    before = len(job.keys)
    root = job.root
    for _ in range(300):
        root.admin.unpin(root.admin.pin(root.checkpoints.restorable(root.head())[0], "somebody", "looks").id)
    for number in range(30):
        made = operations.create_savepoint(JOB_URI, SavepointRequest(name=f"s{number}", from_head=True))
        operations.dispose(JOB_URI, made.name)
    assert len(job.entries) == 2
    assert len([key for key in job.keys if not key.startswith(("history/", "requests/"))]) <= before
    job.run(1)
    Collector(job.root).collect()
    job.site.checker.check_rest()
