"""Streams as queryable state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stateflow import ListStateDescriptor, ReducingStateDescriptor, StateTtlConfig, Time, ValueStateDescriptor
from stateflow.clock import ManualClock, SystemClock
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import JobDefinitionError, StateError
from stateflow.serving.follower import Follower, FollowSettings
from stateflow.serving.lookups import GetRequest, Lookups
from stateflow.types.serializers import ValueSerializer
from tests.serving.shops_job import sales
from tests.support.errors import raises
from tests.support.local_jobs import LocalJobs


class Sale(msgspec.Struct, frozen=True):
    shop: str | None
    day: int
    amount: int


ROWS = [Sale(None if row.shop == "west" else row.shop, row.day, row.amount) for row in sales(40)]
KEYS = sorted({(row.shop, row.day) for row in ROWS}, key=repr)


def _larger(one: Sale, other: Sale) -> Sale:
    return max(one, other, key=lambda sale: sale.amount)


def _queried(jobs: LocalJobs, name: str) -> list[Any]:
    follower = Follower(jobs.storage, jobs.folder / "server", SystemClock(), FollowSettings())
    assert follower.poll()
    with follower.checkpoint() as checkpoint:
        request = GetRequest(state=name, keys=[list(key) for key in KEYS])
        found = Lookups(checkpoint, request).get(request)
    follower.close()
    return [None if data is None else ValueSerializer(Sale).decode(data) for data in found]


def test_a_stream_keeps_the_newest_row_of_each_key_or_reduces_its_rows(tmp_path: Path) -> None:
    jobs = LocalJobs(tmp_path, state__backend="memory", max_parallelism=16)

    def build(env: StreamExecutionEnvironment) -> None:
        keyed = env.from_collection(ROWS, Sale, uid="sales").key_by("shop", "day")
        keyed.as_queryable_state("newest", uid="newest")
        keyed.as_queryable_state("largest", ReducingStateDescriptor("sale", _larger, Sale), uid="largest")
        for wrong in (ListStateDescriptor("rows", Sale), ValueStateDescriptor("row", Sale, queryable="other")):
            with raises(JobDefinitionError):
                keyed.as_queryable_state("rows", wrong, uid="rows")

    jobs.run(build)
    newest = {(row.shop, row.day): row for row in ROWS}
    assert _queried(jobs, "newest") == [newest[key] for key in KEYS]
    largest = {key: max((r for r in ROWS if (r.shop, r.day) == key), key=lambda r: r.amount) for key in KEYS}
    assert [row.amount for row in _queried(jobs, "largest")] == [largest[key].amount for key in KEYS]


def test_expired_values_are_hidden_from_the_checkpoint_on_at_which_they_had_expired(tmp_path: Path) -> None:
    clock = ManualClock()
    jobs = LocalJobs(tmp_path, clock, state__backend="memory", max_parallelism=16)
    config = StateTtlConfig.new_builder(Time.seconds(10)).disable_cleanup_in_background().build()

    def build(env: StreamExecutionEnvironment, rows: list[Sale]) -> None:
        keyed = env.from_collection(rows, Sale, uid="sales").key_by("shop", "day")
        keyed.as_queryable_state("newest", ValueStateDescriptor("row", Sale, ttl=config), uid="newest")

    jobs.run(lambda env: build(env, ROWS[:20]))
    first = {(row.shop, row.day): row for row in ROWS[:20]}
    assert _queried(jobs, "newest") == [first.get(key) for key in KEYS]
    clock.sleep(Time.seconds(10))
    jobs.run(lambda env: build(env, ROWS))
    later = {(row.shop, row.day): row for row in ROWS[20:]}
    assert _queried(jobs, "newest") == [later.get(key) for key in KEYS]


def test_two_operators_with_one_queryable_name_are_refused_before_the_first_batch(tmp_path: Path) -> None:
    jobs = LocalJobs(tmp_path)

    def build(env: StreamExecutionEnvironment) -> None:
        keyed = env.from_collection(ROWS, Sale, uid="sales").key_by("shop", "day")
        keyed.as_queryable_state("rows", uid="one")
        keyed.as_queryable_state("rows", uid="two")

    with raises(StateError, queryable="rows", first="one.row", second="two.row"):
        jobs.run(build)
    assert not jobs.storage.list("data/")
