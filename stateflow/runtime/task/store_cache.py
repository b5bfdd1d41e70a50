"""The store of a subtask's keyed state in a batch, and the stores that a worker process keeps open between batches.

Tasks have no affinity to workers, so an open store is used again only if it is exactly the base that the task received;
any other store is closed. Each attempt opens a store in a folder of its own.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

from stateflow import failpoints
from stateflow.clock import Section, Stopwatch, SystemClock
from stateflow.config.settings import StateSettings
from stateflow.observability import RESTORE, span
from stateflow.private_files import make_own_folder
from stateflow.runtime.executor import BatchInfo, TaskSpec
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.backends.factory import StoreLocation, open_backend
from stateflow.state.backends.hash_maps import check_limit
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.host_cache import FileTransfer, HostCache, mark_used, remove_tree, trim
from stateflow.state.kinds.timers import TimerIndex
from stateflow.state.uploads import BackgroundUploads, is_running, own_label
from stateflow.storage.paths import generation_folder
from stateflow.types.decoders import msgpack_decoder
from stateflow.types.key_groups import range_of


class SubtaskStore:
    """Opens the state backend of a subtask when it is first needed, and takes its snapshot.

    Args:
        task: the task.
        watch: measures the time in the store.

    Attributes:
        base: the state that the subtask starts from.
        compaction_bytes: bytes that the snapshot stored again because of compactions.
        ttl_cleanup_at: see `SubtaskState`; that of the base unless the batch sets it.
    """

    def __init__(self, task: TaskSpec, watch: Stopwatch) -> None:
        self._task = task
        batch, chain = task.batch, task.chain
        parts = decode_parts(chain.bases[task.subtask]) if chain.keying else ()
        owned = range_of(task.subtask, task.level.parallelism, batch.settings.max_parallelism)
        self.base = Base(task.subtask, owned, parts)
        self.compaction_bytes = 0
        self.ttl_cleanup_at = self.base.ttl_cleanup_at
        self._key = StoreKey.of(batch, chain.uid, task.subtask)
        self._backend: KeyedStateBackend | None = None
        self._watch = watch

    def open(self) -> KeyedStateBackend:
        """Returns the backend with the base in it."""
        if self._backend is None:
            task = self._task
            before = self._watch.switch(Section.STORE)
            self._backend = acquire(self._key, self.base, task.batch, task.attempt, task.level.parallelism)
            self._backend.watch = self._watch
            self._watch.switch(before)
            failpoints.hit("task.restored")
        return self._backend

    @property
    def must_open(self) -> bool:
        """Whether the subtask stores new state even without rows.

        The next manifest must not mix the states of two parallelisms, nor may a full checkpoint refer to files of
        earlier ones.
        """
        return self.base.rescales or (self._task.batch.settings.full_snapshot and bool(self.base.parts))

    @property
    def timer_index(self) -> TimerIndex:
        """The index of the timers in the store; opens the store."""
        return timers_of(self.open(), self.base)

    def snapshot(self) -> SubtaskState | None:
        """Stores the state and returns it; returns that of the base for a store that was never opened.

        Raises:
            ConfigError: the state exceeds the memory limit.
        """
        if self._backend is None:
            return self.base.own
        task, owned = self._task, self.base.owned
        batch, uid = task.batch, task.chain.uid
        name = f"{batch.id.data_folder(task.attempt)}{uid}-{task.subtask}-"
        before = self._watch.switch(Section.STORE)
        taken, entries = self._backend.snapshot(name, batch.settings.full_snapshot), self._backend.count_entries()
        self._watch.switch(before)
        earliest = self.timer_index.earliest
        self.compaction_bytes = taken.compaction_bytes
        state = SubtaskState(
            subtask=task.subtask,
            first_group=owned.first,
            last_group=owned.last,
            snapshot=name,
            files=list(taken.files),
            backend=batch.settings.state.backend,
            inline=taken.inline,
            store_manifest=taken.store_manifest,
            event_timer=earliest.event,
            processing_timer=earliest.processing,
            ttl_cleanup_at=self.ttl_cleanup_at,
            entries=entries,
            live_entries=taken.live.entries if taken.live else None,
            live_bytes=taken.live.size_bytes if taken.live else None,
        )
        # The driver checks all subtasks together; state that exceeds the limit alone need not be sent there.
        check_limit({uid: [state]}, batch.settings.state.memory_limit_bytes)
        failpoints.hit("task.uploaded")
        release(self._key, self._backend, name, batch.settings.state)
        self._backend = None
        return state

    def new_bytes(self, state: SubtaskState | None) -> int:
        """Returns how many bytes of `state` the base does not contain; `state` as `snapshot` returned it."""
        if state is None:
            return 0
        known = {file.handle.key for part in self.base.parts for file in part.files}
        files = {file.handle.key: file.handle.size for file in state.files}
        new = sum(size for key, size in files.items() if key not in known)
        return new if state is self.base.own else new + len(state.inline or b"")

    def close(self) -> None:
        """Closes the store without a snapshot, after a failure."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None


_MAX_OPEN = 16
"""Stores that one process keeps open."""
_WORK_FOLDER = re.compile(r"([0-9]+)\.([0-9_]+)\.")


@dataclass(frozen=True)
class StoreKey:
    """Identifies a subtask of an operator of a job, and the storage of its batches.

    Attributes:
        scratch_uri: see `TaskEnvironment`. An open store writes its files where the batch that opened it did: a replay
            must not take the store of a run whose worker process it shares, nor that of another replay.
    """

    job_uuid: str
    uid: str
    subtask: int
    scratch_uri: str = ""

    @classmethod
    def of(cls, batch: BatchInfo, uid: str, subtask: int) -> StoreKey:
        """Returns the key for a batch."""
        return cls(batch.id.job_uuid, uid, subtask, batch.environment.scratch_uri)


@dataclass
class _OpenStore:
    snapshot: str
    backend: KeyedStateBackend
    settings: StateSettings


_open: dict[StoreKey, _OpenStore] = {}
_timers: WeakKeyDictionary[KeyedStateBackend, TimerIndex] = WeakKeyDictionary()
"""The index of the timers in each open store."""
_clock = SystemClock()


def acquire(key: StoreKey, base: Base, batch: BatchInfo, attempt: str, parallelism: int) -> KeyedStateBackend:
    """Returns a store that contains exactly `base`: an open one, or a new one.

    Args:
        parallelism: number of the operator's subtasks; scratch files of subtasks beyond it are removed.

    Raises:
        MissingFile: a file of the base does not exist.
        CorruptFile: a file of the base has another size or hash than recorded.
    """
    held = _open.pop(key, None)
    if held is not None:
        if base.own is not None and (held.snapshot, held.settings) == (base.own.snapshot, batch.settings.state):
            return held.backend
        held.backend.close()
    local_folder, generation = batch.environment.local_folder, batch.id.generation
    make_own_folder(local_folder)
    operator = local_folder / key.job_uuid / key.uid
    home = operator / str(key.subtask)
    others = [folder for folder in _subtask_folders(operator) if folder != home]
    for folder in (home, *others):
        _remove_dead(folder / "work", generation)
    if not base.rescales:
        _remove_idle([folder for folder in others if int(folder.name) >= parallelism])
    # A rescaled subtask needs files that other subtasks of this host have cached, or are fetching now.
    shared = [folder / "cache" for folder in others] if base.rescales else []
    cache = HostCache(home / "cache", _file_transfer(batch, home / "cache"), _clock, shared)
    work = home / "work" / f"{generation}.{own_label()}.{batch.id.ordinal}.{attempt}"
    mark_used(home / "cache")
    with span(RESTORE, operator=key.uid, subtask=key.subtask, generation=generation):
        opened = open_backend(StoreLocation(work, cache, batch.settings.rocksdb), base, batch.settings.state)
    # After opening: files that the store has linked do not count against the limit, and are not evicted and fetched
    # again.
    _trim_once(local_folder, batch.settings.state.cache_limit_bytes, generation)
    return opened


@lru_cache(maxsize=1)
def _trim_once(local_folder: Path, limit: int, generation: int) -> None:
    """Trims the caches once per run and process, because it reads every cache of the host."""
    trim(local_folder, limit)


def adopt_uploads(batch: BatchInfo) -> None:
    """Continues the uploads of dead processes of this host."""
    if batch.outbox is not None:
        BackgroundUploads(batch.environment.storage, batch.outbox, _clock).adopt_orphans()


def _file_transfer(batch: BatchInfo, scratch: Path) -> FileTransfer:
    storage, outbox = batch.environment.storage, batch.outbox
    if outbox is None:
        return FileTransfer.direct(storage, scratch, _clock)
    uploads = BackgroundUploads(storage, outbox, _clock)
    return FileTransfer(storage, uploads, generation_folder(batch.id.generation), outbox.retry_timeout)


def timers_of(backend: KeyedStateBackend, base: Base) -> TimerIndex:
    """Returns the timer index of an open store that was acquired for `base`."""
    if backend not in _timers:
        _timers[backend] = TimerIndex(base.earliest_timers)
    return _timers[backend]


def release(key: StoreKey, backend: KeyedStateBackend, snapshot: str, settings: StateSettings) -> None:
    """Keeps a store open for the next batch; it contains exactly `snapshot`."""
    while len(_open) >= _MAX_OPEN:
        _open.pop(next(iter(_open))).backend.close()
    _open[key] = _OpenStore(snapshot, backend, settings)


def open_stores() -> list[StoreKey]:
    """Returns the subtasks whose stores are open and not in use."""
    return list(_open)


def close_all() -> None:
    """Closes all open stores; for processes that outlive their job."""
    while _open:
        _open.popitem()[1].backend.close()


def close_job(job_uuid: str) -> None:
    """Closes the open stores of one job."""
    for key in [key for key in _open if key.job_uuid == job_uuid]:
        _open.pop(key).backend.close()


def _subtask_folders(operator: Path) -> list[Path]:
    """Returns the folders of an operator's subtasks on this host."""
    return [folder for folder in operator.glob("*") if folder.name.isdigit()]


def _remove_idle(folders: list[Path]) -> None:
    """Removes folders of subtasks that no longer exist, unless a newer run with a higher parallelism uses them."""
    for folder in folders:
        if not any((folder / "work").glob("*")):
            remove_tree(folder)


def _remove_dead(work: Path, generation: int) -> None:
    """Removes the working folders of dead processes and fenced runs: a worker that Spark kills cannot clean up."""
    try:
        names = os.listdir(work)
    except FileNotFoundError:
        return
    for name in names:
        matched = _WORK_FOLDER.match(name)
        if matched and (int(matched[1]) < generation or not is_running(matched[2])):
            remove_tree(work / name)


def decode_parts(data: bytes) -> tuple[SubtaskState, ...]:
    """Returns the parts of a subtask's base, as `ChainSpec.bases` encodes them."""
    return msgpack_decoder(tuple[SubtaskState, ...]).decode(data) if data else ()
