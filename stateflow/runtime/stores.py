"""Stores that a worker process keeps open between batches.

Tasks have no affinity to workers, so a store is used again only when it is exactly the base that the task was given;
any other is closed. Every attempt that opens a store does so in a folder of its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stateflow.clock import SystemClock
from stateflow.runtime.specs import BatchInfo
from stateflow.state.handles import SubtaskState
from stateflow.state.rocksdb import RocksDBBackend
from stateflow.state.transfer import HostCache, private_folder, remove_tree

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
    backend: RocksDBBackend


_kept: dict[StoreKey, _Kept] = {}
_clock = SystemClock()


def acquire(key: StoreKey, base: SubtaskState | None, batch: BatchInfo, attempt: str) -> RocksDBBackend:
    """A store with exactly `base` in it: one that is open already, or a new one.

    Raises MissingFile or CorruptFile when the base is not what was recorded.
    """
    kept = _kept.pop(key, None)
    if kept is not None:
        if base is not None and kept.snapshot == base.snapshot:
            return kept.backend
        kept.backend.close()
    private_folder(batch.local_folder)
    home = batch.local_folder / key.job_uuid / key.uid / str(key.subtask)
    work = home / "work"
    _sweep(work, batch.generation)
    cache = HostCache(home / "cache", batch.storage, _clock)
    folder = work / f"{batch.generation}.{os.getpid()}.{batch.ordinal}.{attempt}"
    return RocksDBBackend(folder, cache, base.files if base else [], batch.rocksdb, key.subtask)


def give_back(key: StoreKey, backend: RocksDBBackend, snapshot: str) -> None:
    """Keeps a store open that now is exactly `snapshot`."""
    while len(_kept) >= _LIMIT:
        _kept.pop(next(iter(_kept))).backend.close()
    _kept[key] = _Kept(snapshot, backend)


def close_all() -> None:
    """Closes every kept store; for processes that outlive their job."""
    while _kept:
        _kept.popitem()[1].backend.close()


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


def decode_base(data: bytes) -> SubtaskState | None:
    """A subtask's base as `UnitSpec.bases` holds it."""
    return msgspec.msgpack.decode(data, type=SubtaskState) if data else None
