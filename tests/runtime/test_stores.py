"""Which open store a worker reuses, and what snapshots contain of expired state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stateflow import Context, KeyedProcessFunction, RuntimeContext, StateTtlConfig, Time, ValueStateDescriptor
from stateflow.clock import ManualClock
from stateflow.config.settings import BACKENDS, StateSettings
from stateflow.query.state import state_entries
from stateflow.runtime.executor import BatchId, BatchInfo, TaskEnvironment, TaskSettings
from stateflow.runtime.task import store_cache
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.handles import Base, SubtaskState
from stateflow.types.key_groups import KeyGroupRange
from tests.runtime.timer_jobs import Event, Note, TimerJobs

KEY = store_cache.StoreKey("0" * 32, "op", 0)
ENTRIES = {b"\0\1a": b"1", b"\0\2b": b"2"}


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[BatchInfo]:
    yield BatchInfo(
        BatchId(KEY.job_uuid, 1, 1, datetime(2026, 1, 1, tzinfo=UTC)),
        TaskSettings(128),
        TaskEnvironment((tmp_path / "root").as_uri(), tmp_path / "local"),
    )
    store_cache.close_all()


def _with(batch: BatchInfo, state: StateSettings) -> BatchInfo:
    return replace(batch, settings=replace(batch.settings, state=state))


def _next(batch: BatchInfo) -> BatchInfo:
    return replace(batch, id=replace(batch.id, ordinal=batch.id.ordinal + 1))


def _acquire(batch: BatchInfo, state: SubtaskState | None) -> KeyedStateBackend:
    base = Base(0, KeyGroupRange(0, 127), (state,) if state else ())
    return store_cache.acquire(KEY, base, batch, ManualClock(1).new_id(), 1)


def _release(batch: BatchInfo, store: KeyedStateBackend, name: str) -> SubtaskState:
    taken = store.snapshot(f"data/x/{name}-")
    store_cache.release(KEY, store, name, batch.settings.state)
    return SubtaskState(
        subtask=0, first_group=0, last_group=127, snapshot=name, files=list(taken.files),
        backend=batch.settings.state.backend, inline=taken.inline, store_manifest=taken.store_manifest,
    )  # fmt: skip


@pytest.mark.parametrize("before", BACKENDS)
@pytest.mark.parametrize("after", [StateSettings(backend=b) for b in BACKENDS] + [StateSettings(incremental=False)])
def test_a_store_is_reused_only_with_exactly_its_snapshot_and_its_settings(
    batch: BatchInfo, before: str, after: StateSettings
) -> None:
    batch = _with(batch, StateSettings(backend=before))
    store = _acquire(batch, None)
    store.write(ENTRIES)
    first = _release(batch, store, "first")
    other = _acquire(_with(_next(batch), after), first)
    assert (other is store) == (batch.settings.state == after)
    assert dict(other.scan(b"")) == ENTRIES
    if other is not store:
        other.close()
        return
    store.write({b"\0\3c": b"3"})
    _release(batch, store, "second")
    # The second snapshot was never committed.
    again = _acquire(_next(batch), first)
    assert again is not store and dict(again.scan(b"")) == ENTRIES
    again.close()


FULL: list[dict[str, Any]] = [
    {"state__backend": "memory"},
    {"state__backend": "filesystem"},
    {"state__backend": "filesystem", "state__inline_below_bytes": 1},
    {"state__backend": "rocksdb", "state__incremental": False},
]
SECOND = StateTtlConfig.new_builder(Time.seconds(1)).use_event_time().disable_cleanup_in_background().build()


class LastTime(KeyedProcessFunction[Event, Note]):
    def open(self, ctx: RuntimeContext) -> None:
        self.short = ctx.get_state(ValueStateDescriptor("short", int, ttl=SECOND))
        self.long = ctx.get_state(ValueStateDescriptor("long", int))

    def process_element(self, row: Event, ctx: Context) -> None:
        self.short.update(row.at)
        self.long.update(row.at)


@pytest.mark.parametrize(
    ("settings", "kept"), [*((each, "cdef") for each in FULL), ({"state__backend": "rocksdb"}, "abcdef")]
)
def test_full_snapshots_omit_expired_state_and_incremental_ones_leave_that_to_the_cleanup(
    tmp_path: Path, settings: dict[str, Any], kept: str
) -> None:
    # Two rows are a batch, and its watermark comes from the batches before: nearly 0 in the second, 5 s in the third.
    # A life begins at the time of the row that wrote it.
    rows = [Event(key, at) for key, at in zip("abcdef", (0, 1, 5000, 5001, 5002, 5003), strict=True)]
    TimerJobs(tmp_path).events(LastTime(), rows, parallelism=1, **settings)
    found: dict[str, list[str]] = {"short": [], "long": []}
    for entry in state_entries(str(tmp_path / "root"), "op"):
        found[entry.state].append(str(entry.key[0]))
    assert {state: "".join(sorted(keys)) for state, keys in found.items()} == {"short": kept, "long": "abcdef"}
