"""Follows the log of a job and keeps its newest checkpoints open for queries.

Only committed state is served: a checkpoint is opened when a verified log entry has it. A server reads the log and the
files of a checkpoint, and changes neither, so it never blocks a run. It needs no pin: every file of a checkpoint is a
local file before the checkpoint is served, and an open store keeps its files. If the garbage collector of the job
deletes a file before the server has it, the log has a newer checkpoint, which is opened instead.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import count
from pathlib import Path

from stateflow import failpoints
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import EntryRef, Manifest, OperatorState
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import Clock, epoch_milliseconds, is_timestamp
from stateflow.config.settings import RocksDBSettings
from stateflow.errors import (
    CheckpointNotServed,
    DamagedCopy,
    MissingFile,
    NotYetAvailable,
    StateflowError,
    StorageError,
    UnknownState,
)
from stateflow.observability import log_event
from stateflow.query.value_types import ValueReader
from stateflow.state.backends.base import KeyedStateReader
from stateflow.state.backends.factory import StoreLocation, open_to_read
from stateflow.state.handles import StateFile, StateSchema, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.storage import Storage
from stateflow.storage.paths import FORMAT, LOG, log_entry
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import timestamp_of

log = logging.getLogger(__name__)


ALL_GROUPS = (KeyGroupRange(0, (1 << 15) - 1),)
_TRIES = 5
"""How many newer checkpoints are tried in one poll when files were deleted meanwhile."""


Prepare = Callable[[Sequence[SubtaskState]], object]
"""Fetches and checks the files of states before they are opened."""


def _not_prepared(states: Sequence[SubtaskState]) -> None:
    """Leaves everything to the follower."""


@dataclass(frozen=True)
class FollowSettings:
    """Settings of a follower.

    Attributes:
        keep: number of checkpoints to keep open, with the newest one.
        rocksdb: memory of open stores.
    """

    keep: int = 3
    rocksdb: RocksDBSettings = RocksDBSettings()


class Follower:
    """Opens each new checkpoint of a job, and releases old ones. `poll` is called by one thread.

    Args:
        storage: the job root, which may be empty still.
        folder: a folder of this process for files and stores.
        clock: the clock for names of files.
        settings: what to keep.
        prepare: puts the files of states into the folder `files` in another process; what it leaves is done here.

    Attributes:
        files: the folder for files of checkpoints.
        problem: why the newest poll failed; None after a success.
    """

    def __init__(
        self, storage: Storage, folder: Path, clock: Clock, settings: FollowSettings, prepare: Prepare = _not_prepared
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._clock = clock
        self._settings = settings
        self._prepare = prepare
        self.files = folder / "files"
        self._cache = HostCache.temporary(self.files, storage, clock)
        self._root: JobRoot | None = None
        self._seq = 0
        self._groups: Sequence[KeyGroupRange] = ALL_GROUPS
        self._opened_groups: Sequence[KeyGroupRange] = ()
        self._current: EntryRef | None = None
        self._open: deque[ServedCheckpoint] = deque()
        self._files_of: dict[str, list[StateFile]] = {}
        self._is_damaged = False
        self._numbers = count(1)
        self._lock = threading.Lock()
        self.problem: StateflowError | None = None

    @property
    def newest(self) -> ServedCheckpoint | None:
        """The checkpoint that was opened last; None before the first."""
        with self._lock:
            return self._open[-1] if self._open else None

    @property
    def groups(self) -> Sequence[KeyGroupRange]:
        """The key groups whose state is open in the newest checkpoint."""
        return self._opened_groups

    def assign(self, groups: Sequence[KeyGroupRange]) -> None:
        """Sets the key groups to serve, from the next poll on; without any, `poll` opens nothing."""
        self._groups = tuple(groups)

    def report_damage(self) -> None:
        """Lets the next poll open all stores again, after a local copy of a file was found to be damaged."""
        self._is_damaged = True

    def poll(self) -> bool:
        """Opens the newest checkpoint if there is a newer one, or if the key groups changed; returns whether it did.

        An error of the storage or of the checkpoint is kept in `problem`, and the checkpoints that are open stay so.
        """
        try:
            is_new = self._follow()
        except (StateflowError, OSError) as e:
            found = e if isinstance(e, StateflowError) else StorageError("a local file cannot be used", reason=str(e))
            if self.problem is None or found.sentence != self.problem.sentence:
                log_event(log, logging.WARNING, "checkpoint-not-opened", code=found.code, reason=found.sentence)
            self.problem = found
            return False
        self.problem = None
        return is_new

    @contextmanager
    def checkpoint(self, at_least: int | None = None, exactly: int | None = None) -> Iterator[ServedCheckpoint]:
        """Yields an open checkpoint, which stays open until the end of the block.

        Args:
            at_least: lowest id of the newest checkpoint.
            exactly: the id of the checkpoint.

        Raises:
            NotYetAvailable: the job has no checkpoint yet, or none as new.
            CheckpointNotServed: the checkpoint with the id `exactly` is no longer open.
        """
        with self._select(at_least, exactly).released_at_end() as selected:
            yield selected

    def _select(self, at_least: int | None, exactly: int | None) -> ServedCheckpoint:
        with self._lock:
            found = self._open[-1] if self._open else None
            newest = found.checkpoint_id if found else 0
            if exactly is not None:
                found = next((c for c in reversed(self._open) if c.checkpoint_id == exactly), None)
            if found is not None and found.checkpoint_id >= (at_least or 0):
                # The follower is a user of it as long as the lock is held.
                found.acquire()
                return found
            opened = [c.checkpoint_id for c in self._open]
        if exactly is not None and newest > exactly:
            raise CheckpointNotServed(
                "the server does not have the requested checkpoint open",
                hint="ask for a newer one, or read it with stateflow.read_state",
                wanted_checkpoint_id=exactly,
                open_checkpoint_ids=opened,
            )
        raise NotYetAvailable(
            "the server has no checkpoint that is as new as requested",
            hint="retry; the job commits its next checkpoint at the end of a batch",
            wanted_checkpoint_id=at_least if exactly is None else exactly,
            newest_checkpoint_id=newest,
        )

    def close(self) -> None:
        """Releases all checkpoints; those that a query uses are closed at its end."""
        with self._lock:
            released = list(self._open)
            self._open.clear()
        for checkpoint in released:
            checkpoint.release()

    def _follow(self) -> bool:
        root = self.open_job()
        if root is None or not self._groups:
            return False
        must_open = self._is_damaged or tuple(self._groups) != tuple(self._opened_groups)
        if not must_open and not self._storage.list(LOG, log_entry(self._seq)):
            return False
        for attempt in range(_TRIES):
            head = root.log.read_head()
            if head is None:
                return False
            try:
                return self._open_newest(root, head, must_open)
            except MissingFile:
                # The collector of a run may have deleted the file after the next COMMIT; without one, it is damage.
                if attempt == _TRIES - 1 or not self._storage.list(LOG, log_entry(head.entry.seq)):
                    raise
        return False

    def open_job(self) -> JobRoot | None:
        """Returns the job root; None as long as the job does not exist. Raises StorageError or WrongJobRoot."""
        if self._root is None and self._storage.size(FORMAT) is not None:
            self._root = JobRoot.open(self._storage, self._clock, "serve")
        return self._root

    def _open_newest(self, root: JobRoot, head: Head, must_open: bool) -> bool:
        ref, groups, was_damaged = head.checkpoint, tuple(self._groups), self._is_damaged
        if ref is None or (ref == self._current and not must_open):
            self._seq = head.entry.seq
            return False
        manifest = root.checkpoints.manifest_of(ref)
        opened = self._open_checkpoint(root, ref, manifest, groups, was_damaged)
        failpoints.hit("serve.opened")
        self._seq, self._current, self._opened_groups = head.entry.seq, ref, groups
        if was_damaged:
            self._is_damaged = False
        self._add(opened, replaces_all=was_damaged)
        log_event(
            log, logging.INFO, "checkpoint-opened", checkpoint_id=ref.id, subtasks=len(list(opened.open_subtasks()))
        )
        return True

    def _open_checkpoint(
        self, root: JobRoot, ref: EntryRef, manifest: Manifest, groups: Sequence[KeyGroupRange], anew: bool
    ) -> ServedCheckpoint:
        committed = epoch_milliseconds(datetime.fromisoformat(ref.at)) if is_timestamp(ref.at) else None
        subtasks: dict[str, list[OpenSubtask]] = {}
        newest = self.newest
        known = {s.snapshot: s for s in newest.open_subtasks()} if newest and not anew else {}
        wanted = {o.uid: _states_of(o, groups) for o in manifest.operators if queryable_schemas(o)}
        self._prepare([s for stored in wanted.values() for s in stored if s.snapshot not in known])
        try:
            for uid, stored in wanted.items():
                self._open_subtasks(stored, known, subtasks.setdefault(uid, []))
        except BaseException:
            for opened in subtasks.values():
                for subtask in opened:
                    subtask.store.release()
            raise
        states = queryable_states(manifest, committed)
        return ServedCheckpoint(ref.id, root.job.max_parallelism, states, subtasks, groups)

    def _open_subtasks(
        self, states: Sequence[SubtaskState], known: Mapping[str, OpenSubtask], opened: list[OpenSubtask]
    ) -> None:
        for state in states:
            reused = known.get(state.snapshot)
            store = reused.store.acquire() if reused else SharedStore(self._open_store(state))
            opened.append(OpenSubtask(state.snapshot, state.groups, store))

    def _open_store(self, state: SubtaskState) -> KeyedStateReader:
        self._files_of[state.snapshot] = list(state.files)
        failpoints.hit("serve.fetching")
        try:
            return self._open_backend(state)
        except DamagedCopy:
            # It was dropped: the second time, the file is fetched again.
            return self._open_backend(state)

    def _open_backend(self, state: SubtaskState) -> KeyedStateReader:
        rocksdb = self._settings.rocksdb
        location = StoreLocation(self._folder / "stores" / str(next(self._numbers)), self._cache, rocksdb)
        return open_to_read(location, state)

    def _add(self, opened: ServedCheckpoint, replaces_all: bool) -> None:
        with self._lock:
            same = [c for c in self._open if replaces_all or c.checkpoint_id == opened.checkpoint_id]
            kept = [c for c in self._open if c not in same]
            surplus = kept[: max(0, len(kept) + 1 - self._settings.keep)]
            self._open = deque([*kept[len(surplus) :], opened])
            for checkpoint in self._open:
                checkpoint.newest_groups = opened.groups
            remaining = {s.snapshot for c in self._open for s in c.open_subtasks()}
        failpoints.hit("serve.swapped")
        for checkpoint in [*same, *surplus]:
            checkpoint.release()
        self._files_of = {name: files for name, files in self._files_of.items() if name in remaining}
        self._cache.keep_only(file for files in self._files_of.values() for file in files)


def _states_of(operator: OperatorState, groups: Sequence[KeyGroupRange]) -> list[SubtaskState]:
    return [state for state in operator.subtasks if any(state.groups.overlap(wanted) for wanted in groups)]


QUERYABLE_KINDS = ("value", "map", "reducing", "aggregating")
"""The kinds of state that can be queried. A list may be larger than any answer."""


class SharedStore:
    """An open store of one subtask, which several checkpoints share if the state did not change between them.

    Args:
        backend: the store; closed when the last user releases it.
    """

    def __init__(self, backend: KeyedStateReader) -> None:
        self.backend = backend
        self._users = 1
        self._lock = threading.Lock()

    def acquire(self) -> SharedStore:
        """Adds a user; a user must exist already."""
        with self._lock:
            assert self._users > 0
            self._users += 1
        return self

    def release(self) -> None:
        """Removes a user, and closes the store after the last one."""
        with self._lock:
            self._users -= 1
            is_unused = self._users == 0
        if is_unused:
            self.backend.close()


@dataclass(frozen=True)
class OpenSubtask:
    """The state of one subtask.

    Attributes:
        snapshot: the unique name of its content.
        groups: its key groups.
        store: the open store.
    """

    snapshot: str
    groups: KeyGroupRange
    store: SharedStore


@dataclass(frozen=True)
class QueryableState:
    """A state with a queryable name, as of one checkpoint.

    Attributes:
        operator: uid of the operator.
        schema: the recorded schema.
        key_names: names of the key columns.
        key_types: Spark's simple type name of each key column.
        now: the time that its TTL is compared with, in milliseconds since 1970: for event time the watermark of the
            operator, for processing time the time of the commit; None without one.
    """

    operator: str
    schema: StateSchema
    key_names: tuple[str, ...]
    key_types: tuple[str, ...]
    now: int | None

    @cached_property
    def reader(self) -> ValueReader:
        """Decodes values with the recorded type, for JSON and Arrow."""
        return ValueReader(self.schema)

    def is_expired(self, data: bytes) -> bool:
        """Returns whether an entry had expired at the time of the checkpoint."""
        schema = self.schema
        if not schema.ttl_time or not schema.ttl_milliseconds or self.now is None:
            return False
        start = timestamp_of(data, schema.ttl_time)
        if start is None or not (schema.ttl_always or schema.ttl_since is None):
            start = max((t for t in (start, schema.ttl_since) if t is not None), default=None)
        return start is not None and start + schema.ttl_milliseconds <= self.now


class ServedCheckpoint:
    """A checkpoint with open stores.

    Args:
        checkpoint_id: id of the checkpoint.
        max_parallelism: number of key groups of the job.
        states: the queryable states by name; None for a name that several operators use.
        subtasks: the open subtasks by uid of the operator; the checkpoint becomes a user of their stores.
        groups: the key groups that are open.

    Attributes:
        newest_groups: the key groups that are open in the server's newest checkpoint.
    """

    def __init__(
        self,
        checkpoint_id: int,
        max_parallelism: int,
        states: Mapping[str, QueryableState | None],
        subtasks: Mapping[str, Sequence[OpenSubtask]],
        groups: Sequence[KeyGroupRange],
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.max_parallelism = max_parallelism
        self.states = states
        self.subtasks = subtasks
        self.groups = groups
        self.newest_groups = groups
        self._users = 1
        self._lock = threading.Lock()

    def acquire(self) -> bool:
        """Adds a user; returns False if the checkpoint was released already."""
        with self._lock:
            if self._users == 0:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Removes a user; the last one releases the stores."""
        with self._lock:
            self._users -= 1
            is_unused = self._users == 0
        if is_unused:
            for subtask in self.open_subtasks():
                subtask.store.release()

    def open_subtasks(self) -> Iterator[OpenSubtask]:
        """Yields the open subtasks of all operators."""
        for subtasks in self.subtasks.values():
            yield from subtasks

    @contextmanager
    def released_at_end(self) -> Iterator[ServedCheckpoint]:
        """Yields this checkpoint, and removes a user at the end of the block."""
        try:
            yield self
        finally:
            self.release()

    def state(self, name: str) -> QueryableState:
        """Returns the state with a queryable name; raises UnknownState."""
        found = self.states.get(name)
        if found is None:
            raise UnknownState(
                "several operators have a state with this queryable name"
                if name in self.states
                else "no state of the job has this queryable name",
                hint="name the state with set_queryable, one name for each state; it appears with the next checkpoint",
                name=name[:100],
                found=sorted(self.states)[:20],
                checkpoint_id=self.checkpoint_id,
            )
        return found

    def store_of(self, operator: str, group: int, *, exactly: bool) -> KeyedStateReader | None:
        """Returns the store with a key group of an operator; None if the key group has no state.

        Args:
            exactly: whether the query names this checkpoint, so that a newer one is not an answer.

        Raises:
            NotYetAvailable: another server has the key group.
            CheckpointNotServed: the server has the key group in later checkpoints only.
        """
        # A store has all key groups of its subtask, and those of other servers are refused: otherwise clients with
        # older leases would never ask a server that has joined.
        if any(group in opened for opened in self.groups):
            return next((s.store.backend for s in self.subtasks[operator] if group in s.groups), None)
        if exactly and any(group in opened for opened in self.newest_groups):
            # A retry does not help: the server before has dropped the key group, or is about to.
            raise CheckpointNotServed(
                "the server does not have the key group open at the requested checkpoint",
                hint="ask for a newer one, or read it with stateflow.read_state",
                wanted_checkpoint_id=self.checkpoint_id,
                group=group,
                operator=operator,
            )
        raise NotYetAvailable(
            "the server does not have the key group", hint="ask another server", group=group, operator=operator
        )


def queryable_states(manifest: Manifest, committed_ms: int | None) -> dict[str, QueryableState | None]:
    """Returns the queryable states of a checkpoint by name; None for a name that several operators use.

    Args:
        manifest: the manifest of the checkpoint.
        committed_ms: when it was committed, in milliseconds since 1970; None if that is not known.
    """
    found: dict[str, QueryableState | None] = {}
    for operator in manifest.operators:
        for schema in queryable_schemas(operator):
            now = operator.watermark if schema.ttl_time == "event" else committed_ms
            names = tuple(operator.key_names)
            state = QueryableState(operator.uid, schema, names, tuple(operator.key_types), now)
            found[schema.queryable] = None if schema.queryable in found else state
    return found


def queryable_schemas(operator: OperatorState) -> list[StateSchema]:
    """Returns the schemas of the operator's states that can be queried."""
    return [schema for schema in operator.states if schema.queryable and schema.kind in QUERYABLE_KINDS]
