"""A committed checkpoint that a server has open: its queryable states, and the stores with their entries."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.errors import CheckpointNotServed, NotYetAvailable, UnknownState
from stateflow.query.columns.value_reader import ValueReader
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.handles import StateSchema
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import timestamp_of

QUERYABLE_KINDS = ("value", "map", "reducing", "aggregating")
"""The kinds of state that can be queried. A list may be larger than any answer."""


class SharedStore:
    """An open store of one subtask, which several checkpoints share if the state did not change between them.

    Args:
        backend: the store; closed when the last user releases it.
    """

    def __init__(self, backend: KeyedStateBackend) -> None:
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

    def store_of(self, operator: str, group: int, *, exactly: bool) -> KeyedStateBackend | None:
        """Returns the store with a key group of an operator; None if the key group has no state.

        Args:
            exactly: whether the query names this checkpoint, so that a newer one is no answer.

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
                wanted=self.checkpoint_id,
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
            names = tuple(operator.key_names) or _key_names(len(operator.key_types))
            state = QueryableState(operator.uid, schema, names, tuple(operator.key_types), now)
            found[schema.queryable] = None if schema.queryable in found else state
    return found


def _key_names(number: int) -> tuple[str, ...]:
    return ("key",) if number == 1 else tuple(f"key_{i}" for i in range(1, number + 1))


def queryable_schemas(operator: OperatorState) -> list[StateSchema]:
    """Returns the schemas of the operator's states that can be queried."""
    return [schema for schema in operator.states if schema.queryable and schema.kind in QUERYABLE_KINDS]
