"""Expired state is removed on time: while no input arrives at all, and in subtasks that get no rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from stateflow import Context, KeyedProcessFunction, RuntimeContext, StateTtlConfig, ValueStateDescriptor
from stateflow.config.settings import StateSettings
from stateflow.runtime.task.task import NEVER, TtlSchedule
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.kinds.ttl import TtlCleanup
from stateflow.types.key_groups import KeyGroupRange
from tests.runtime.test_continuous_runs import ContinuousJobs, _sampled
from tests.runtime.timer_jobs import Event, Note
from tests.support import root_files, stored_state

TTL = timedelta(minutes=10)


class Remember(KeyedProcessFunction[Event, Note]):
    def __init__(self, ttl: StateTtlConfig) -> None:
        self.ttl = ttl

    def open(self, ctx: RuntimeContext) -> None:
        self.last = ctx.get_state(ValueStateDescriptor("last", int, ttl=self.ttl))

    def process_element(self, row: Event, ctx: Context) -> Iterator[Note]:
        self.last.update(row.at)
        yield from ()


class TtlJobs(ContinuousJobs):
    def stay_up_for(self, until: str, ttl: StateTtlConfig | None = None, **settings: Any) -> list[int]:
        """Makes a run; returns the number of rows of each of its batches."""
        function = Remember(ttl or StateTtlConfig.new_builder(TTL).build())
        self.results.clear()
        self.stay_up(function, run__until=until, **settings)
        return [result.rows_in for result in self.results]

    def entries(self) -> int:
        """How many entries the newest checkpoint has: a value and an expiry entry of each key."""
        root = self.folder / "root"
        (operator,) = root_files.read_manifest(root, root_files.head(root).doc["manifest"])["operators"]
        return sum(len(list(stored_state.stored_entries(root, state))) for state in operator["subtasks"])


@pytest.fixture
def jobs(tmp_path: Path) -> TtlJobs:
    return TtlJobs(tmp_path)


@pytest.mark.parametrize("backend", ["rocksdb", "filesystem"])
def test_expired_state_is_removed_although_no_input_arrives(jobs: TtlJobs, backend: str) -> None:
    jobs.add(0, Event("a", 1), Event("b", 2))
    jobs.add(65, Event("c", 3))
    entries = _sampled(jobs, (590, 670, 730), jobs.entries)
    seqs = _sampled(jobs, (1000, 3500), lambda: root_files.newest_seq(jobs.folder / "root"))
    rows = jobs.stay_up_for("1h", state__backend=backend, checkpoints__asynchronous=False, parallelism=3)
    assert entries == [6, 2, 0]
    # Nothing is left that can expire: no further batch.
    assert rows == [2, 1, 0, 0] and seqs[0] == seqs[1]


def test_an_idle_run_removes_expired_state_at_most_once_per_interval(jobs: TtlJobs) -> None:
    minutes = 5
    for seconds in range(5, 60 * minutes, 10):
        jobs.add(seconds, Event(f"key-{seconds}", seconds))
    ttl = StateTtlConfig.new_builder(timedelta(seconds=45)).build()
    rows = jobs.stay_up_for(f"{minutes + 20} min", ttl, checkpoints__asynchronous=False, parallelism=4)
    assert rows.count(1) == 6 * minutes and minutes - 1 <= rows.count(0) <= minutes + 1
    assert jobs.entries() == 0


def test_a_subtask_without_rows_removes_expired_state_in_a_batch_with_rows_of_others(jobs: TtlJobs) -> None:
    jobs.add(0, Event("a", 1), Event("b", 2))
    settings: dict[str, Any] = {"checkpoints__asynchronous": False, "parallelism": 8}
    jobs.stay_up_for("1 min", **settings)
    assert jobs.entries() == 4
    jobs.clock.sleep(TTL)
    jobs.arrived.append(Event("a", 3))
    assert jobs.stay_up_for("1s", **settings) == [1]
    assert jobs.entries() == 2


class _Found:
    """A cleanup that finds entries.

    Args:
        first: when the first entry that is left expires.
        shortest: the shortest TTL.
    """

    def __init__(self, first: int | None, shortest: int | None = 5_000) -> None:
        self.first, self.shortest = first, shortest
        self.limits: list[int] = []

    def remove_some(self, limit: int) -> None:
        self.limits.append(limit)

    def first_expiry(self) -> int | None:
        return self.first

    def shortest_ttl(self) -> int | None:
        return self.shortest


NOW, MINUTE = 600_000_123, 60_000


@pytest.mark.parametrize(
    ("planned", "has_rows", "found", "wanted"),
    [
        (NEVER, True, _Found(None), 600_060_000),
        (NOW + 1, True, _Found(None), NOW + 1),
        (NOW, False, _Found(None), NEVER),
        (NOW, False, _Found(NOW + 1), 600_060_000),
        (NOW, False, _Found(600_060_001), 600_120_000),
        (NOW, False, _Found(NOW), NOW),
        (NOW, True, _Found(NOW), 600_060_000),
        (None, True, _Found(NEVER - 1), NEVER),
        (None, True, _Found(None), NEVER),
        (NOW, True, _Found(None, None), None),
    ],
    ids=[
        "written now", "earlier ones left", "all removed", "next minute", "rounded up", "more is due",
        "more is due, rows wait", "unknown", "unknown and empty", "no TTL left",
    ],
)  # fmt: skip
def test_the_next_clean_up_is_planned(planned: int | None, has_rows: bool, found: _Found, wanted: int | None) -> None:
    part = SubtaskState(subtask=0, first_group=0, last_group=7, snapshot="s", ttl_cleanup_at=planned)
    schedule = TtlSchedule(Base(0, KeyGroupRange(0, 7), (part,)), NOW, StateSettings())
    assert schedule.is_due == (planned == NOW)
    assert schedule.clean_up(cast("TtlCleanup", found), has_rows=has_rows) == wanted
    assert found.limits == [10_000 if schedule.is_due and not has_rows else 1_000]
