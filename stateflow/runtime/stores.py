"""Stores that a worker process keeps open between batches.

Tasks have no affinity to workers, so a store is used again only when it is exactly the base that the task was given;
any other is closed. Every attempt that opens a store does so in a folder of its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

from stateflow.clock import SystemClock
from stateflow.decoders import msgpack_decoder
from stateflow.runtime.specs import BatchInfo
from stateflow.settings import StateSettings
from stateflow.state.backend import KeyedStateBackend
from stateflow.state.backends import Place, open_backend
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.host_caches import mark_used, trim
from stateflow.state.timers import TimerIndex
from stateflow.state.transfer import HostCache, Traffic, private_folder, remove_tree
from stateflow.state.uploads import BackgroundUploads
from stateflow.storage.paths import generation_folder
from stateflow.traces import RESTORE, span

_LIMIT = 16


@dataclass(frozen=True)
class StoreKey:
    """A subtask of an operator of a job."""

    job_uuid: str
    uid: str
    subtask: int


@dataclass
class _Kept:
    snapshot: str
    backend: KeyedStateBackend
    settings: StateSettings


_kept: dict[StoreKey, _Kept] = {}
_timers: WeakKeyDictionary[KeyedStateBackend, TimerIndex] = WeakKeyDictionary()
"""What is known of the timers in each open store."""
_clock = SystemClock()


def acquire(key: StoreKey, base: Base, batch: BatchInfo, attempt: str, parallelism: int) -> KeyedStateBackend:
    """A store with exactly `base` in it: one that is open already, or a new one.

    Args:
        parallelism: number of the operator's subtasks; scratch files of others are let go.

    Raises MissingFile or CorruptFile when the base is not what was recorded.
    """
    kept = _kept.pop(key, None)
    if kept is not None:
        if base.own is not None and (kept.snapshot, kept.settings) == (base.own.snapshot, batch.state):
            return kept.backend
        kept.backend.close()
    private_folder(batch.local_folder)
    operator = batch.local_folder / key.job_uuid / key.uid
    home = operator / str(key.subtask)
    homes = [folder for folder in _homes(operator) if folder != home]
    dropped = [folder for folder in homes if int(folder.name) >= parallelism]
    for folder in (home, *homes):
        _sweep(folder / "work", batch.generation)
    if not base.rescales:
        _remove_idle(dropped)
    # What a rescaled subtask needs, others had, or are fetching now.
    others = [folder / "cache" for folder in homes] if base.rescales else []
    cache = HostCache(home / "cache", _traffic(batch, home / "cache"), _clock, others)
    work = home / "work" / f"{batch.generation}.{os.getpid()}.{batch.ordinal}.{attempt}"
    mark_used(home / "cache")
    with span(RESTORE, operator=key.uid, subtask=key.subtask, generation=batch.generation):
        opened = open_backend(Place(work, cache, batch.rocksdb), base, batch.state)
    # Behind it: what the store has linked counts for nothing, and is not fetched for having been too much.
    _trim_once(batch.local_folder, batch.state.cache_limit_bytes, batch.generation)
    return opened


@lru_cache(maxsize=1)
def _trim_once(local_folder: Path, limit: int, generation: int) -> None:
    """Once per run and process: it looks at every cache of the host."""
    trim(local_folder, limit)


def adopt_orphans(batch: BatchInfo) -> None:
    """Goes on with what dead processes of this host had not stored yet."""
    if batch.outbox is not None:
        BackgroundUploads(batch.storage, batch.outbox, _clock).adopt_orphans()


def _traffic(batch: BatchInfo, scratch: Path) -> Traffic:
    storage, outbox = batch.storage, batch.outbox
    if outbox is None:
        return Traffic.direct(storage, scratch, _clock)
    uploads = BackgroundUploads(storage, outbox, _clock)
    return Traffic(storage, uploads, generation_folder(batch.generation), outbox.patience)


def timers_of(backend: KeyedStateBackend, base: Base) -> TimerIndex:
    """What is known of the timers in an open store that was acquired for `base`."""
    if backend not in _timers:
        _timers[backend] = TimerIndex(base.earliest_timers)
    return _timers[backend]


def give_back(key: StoreKey, backend: KeyedStateBackend, snapshot: str, settings: StateSettings) -> None:
    """Keeps a store open that now is exactly `snapshot`."""
    while len(_kept) >= _LIMIT:
        _kept.pop(next(iter(_kept))).backend.close()
    _kept[key] = _Kept(snapshot, backend, settings)


def close_all() -> None:
    """Closes every kept store; for processes that outlive their job."""
    while _kept:
        _kept.popitem()[1].backend.close()


def close_job(job_uuid: str) -> None:
    """Closes the kept stores of one job."""
    for key in [key for key in _kept if key.job_uuid == job_uuid]:
        _kept.pop(key).backend.close()


def _homes(operator: Path) -> list[Path]:
    """The folders of an operator's subtasks on this host."""
    return [folder for folder in operator.glob("*") if folder.name.isdigit()]


def _remove_idle(homes: list[Path]) -> None:
    """Removes what subtasks left that a smaller parallelism does not have; a newer run may have them again."""
    for home in homes:
        if not any((home / "work").glob("*")):
            remove_tree(home)


def _sweep(work: Path, generation: int) -> None:
    """Removes what dead processes and fenced runs left: a worker that Spark kills cannot tidy up."""
    try:
        names = os.listdir(work)
    except FileNotFoundError:
        return
    for name in names:
        parts = name.split(".")
        if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
            continue
        if int(parts[0]) < generation or not Path(f"/proc/{parts[1]}").exists():
            remove_tree(work / name)


def decode_parts(data: bytes) -> tuple[SubtaskState, ...]:
    """The parts of a subtask's base as `UnitSpec.bases` holds them."""
    return msgpack_decoder(tuple[SubtaskState, ...]).decode(data) if data else ()
