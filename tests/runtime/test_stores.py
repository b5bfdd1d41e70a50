"""Which open store a worker uses again: one with exactly the base that a task was given, kept as the job now wants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stateflow.clock import ManualClock
from stateflow.keygroups import KeyGroupRange
from stateflow.runtime import stores
from stateflow.runtime.specs import BatchInfo
from stateflow.settings import BACKENDS, RocksDBSettings, StateSettings
from stateflow.state.backend import KeyedStateBackend
from stateflow.state.handles import Base, SubtaskState

KEY = stores.StoreKey("0" * 32, "op", 0)
OWNED = KeyGroupRange(0, 127)
ENTRIES = {b"\0\1a": b"1", b"\0\2b": b"2"}


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[BatchInfo]:
    yield BatchInfo(
        job_uuid=KEY.job_uuid, root_uri=(tmp_path / "root").as_uri(), generation=1, ordinal=1,
        processing_time=datetime(2026, 1, 1, tzinfo=UTC), max_parallelism=128, local_folder=tmp_path / "local",
        rocksdb=RocksDBSettings(), state=StateSettings(),
    )  # fmt: skip
    stores.close_all()


def _acquire(batch: BatchInfo, state: SubtaskState | None) -> KeyedStateBackend:
    base = Base(0, OWNED, (state,) if state else ())
    return stores.acquire(KEY, base, batch, ManualClock(1).new_id(), 1)


def _give_back(batch: BatchInfo, store: KeyedStateBackend, name: str) -> SubtaskState:
    taken = store.snapshot(f"data/x/{name}-")
    stores.give_back(KEY, store, name, batch.state)
    return SubtaskState(subtask=0, first_group=0, last_group=127, snapshot=name, files=list(taken.files),
                        backend=batch.state.backend, inline=taken.inline,
                        store_manifest=taken.store_manifest)  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_store_is_used_again_when_it_is_the_base_and_else_opened_anew(
    batch: BatchInfo, backend: str
) -> None:
    batch = replace(batch, state=StateSettings(backend=backend))
    store = _acquire(batch, None)
    store.write(ENTRIES)
    first = _give_back(batch, store, "first")
    assert _acquire(batch, first) is store
    store.write({b"\0\3c": b"3"})
    _give_back(batch, store, "second")
    # The second was never committed.
    again = _acquire(replace(batch, ordinal=2), first)
    assert again is not store and dict(again.scan(b"")) == ENTRIES
    again.close()


@pytest.mark.parametrize("before", BACKENDS)
@pytest.mark.parametrize(
    "after", [StateSettings(backend=b) for b in BACKENDS] + [StateSettings(incremental=False)]
)
def test_a_store_is_not_used_again_when_the_job_wants_another_backend(
    batch: BatchInfo, before: str, after: StateSettings
) -> None:
    batch = replace(batch, state=StateSettings(backend=before))
    store = _acquire(batch, None)
    store.write(ENTRIES)
    state = _give_back(batch, store, "first")
    again = _acquire(replace(batch, ordinal=2, state=after), state)
    assert (again is store) == (batch.state == after)
    assert dict(again.scan(b"")) == ENTRIES
    again.close()
