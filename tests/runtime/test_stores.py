"""Which open store a worker uses again: one with exactly the base that a task was given, kept as the job now wants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stateflow.clock import ManualClock
from stateflow.config.state_settings import BACKENDS, StateSettings
from stateflow.runtime.task import store_cache
from stateflow.runtime.task_spec import BatchId, BatchInfo, TaskEnvironment, TaskSettings
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.handles import Base, SubtaskState
from stateflow.types.key_groups import KeyGroupRange

KEY = store_cache.StoreKey("0" * 32, "op", 0)
OWNED = KeyGroupRange(0, 127)
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
    base = Base(0, OWNED, (state,) if state else ())
    return store_cache.acquire(KEY, base, batch, ManualClock(1).new_id(), 1)


def _release(batch: BatchInfo, store: KeyedStateBackend, name: str) -> SubtaskState:
    taken = store.snapshot(f"data/x/{name}-")
    store_cache.release(KEY, store, name, batch.settings.state)
    return SubtaskState(
        subtask=0,
        first_group=0,
        last_group=127,
        snapshot=name,
        files=list(taken.files),
        backend=batch.settings.state.backend,
        inline=taken.inline,
        store_manifest=taken.store_manifest,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_is_used_again_when_it_is_the_base_and_else_opened_anew(batch: BatchInfo, backend: str) -> None:
    batch = _with(batch, StateSettings(backend=backend))
    store = _acquire(batch, None)
    store.write(ENTRIES)
    first = _release(batch, store, "first")
    assert _acquire(batch, first) is store
    store.write({b"\0\3c": b"3"})
    _release(batch, store, "second")
    # The second was never committed.
    again = _acquire(_next(batch), first)
    assert again is not store and dict(again.scan(b"")) == ENTRIES
    again.close()


@pytest.mark.parametrize("before", BACKENDS)
@pytest.mark.parametrize("after", [StateSettings(backend=b) for b in BACKENDS] + [StateSettings(incremental=False)])
def test_a_store_is_not_used_again_when_the_job_wants_another_backend(
    batch: BatchInfo, before: str, after: StateSettings
) -> None:
    batch = _with(batch, StateSettings(backend=before))
    store = _acquire(batch, None)
    store.write(ENTRIES)
    state = _release(batch, store, "first")
    again = _acquire(_with(_next(batch), after), state)
    assert (again is store) == (batch.settings.state == after)
    assert dict(again.scan(b"")) == ENTRIES
    again.close()
