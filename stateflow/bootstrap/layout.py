"""The operators of a savepoint that is written, how their state is divided, and the names of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from stateflow.bootstrap.encoded_entries import EPOCH, GivenKey, StateEncoder, TimerEncoder, declare, new_keyed_state
from stateflow.bootstrap.encoded_values import field_names
from stateflow.bootstrap.frames import (
    DOMAIN,
    NAMESPACE,
    TIME,
    Frame,
    KeyedStateFrame,
    StateColumns,
    column_names,
    columns_of,
    is_spark,
)
from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.errors import ConfigError
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.handles import FileHandle, StateSchema
from stateflow.storage import Storage
from stateflow.storage.paths import SAVEPOINT_FILES
from stateflow.types.descriptors import ListStateDescriptor, StateDescriptor
from stateflow.types.key_groups import KeyGroupRange, range_of, subtask_of


@dataclass(frozen=True)
class Layout:
    """How the state of a savepoint is divided, and when it is written.

    Attributes:
        max_parallelism: the number of key groups.
        parallelism: the number of subtasks of each operator.
        at: the time of the writer, in milliseconds since 1970.
        epoch: the epoch of the savepoint, which elements of lists have in their keys.
    """

    max_parallelism: int
    parallelism: int
    at: int
    epoch: int = EPOCH

    def groups_of(self, subtask: int) -> KeyGroupRange:
        """Returns the key groups of a subtask."""
        return range_of(subtask, self.parallelism, self.max_parallelism)

    def subtask_of(self, group: int) -> int:
        """Returns the subtask of a key group."""
        return subtask_of(group, self.parallelism, self.max_parallelism)


@dataclass(frozen=True)
class SavepointFolder:
    """Where a savepoint is written: `folder` is the prefix of its keys in `storage`."""

    storage: Storage
    folder: str

    @property
    def uri(self) -> str:
        """URI of the savepoint's folder."""
        return f"{self.storage.uri}/{self.folder}".rstrip("/")


@dataclass(frozen=True)
class StateRows:
    """The frame of one keyed state, and its columns by their meaning."""

    descriptor: StateDescriptor
    frame: Frame
    columns: StateColumns


@dataclass(frozen=True)
class GivenOperator:
    """The keyed state of an operator, as frames.

    Attributes:
        uid: uid of the operator.
        key: its key columns.
        states: the frames of its states.
        timers: the frame of its timers; None without one.
        kept: schemas of states whose entries are kept as they are.
        stored: schemas of all states before they were transformed.
    """

    uid: str
    key: GivenKey
    states: tuple[StateRows, ...]
    timers: Frame | None = None
    kept: tuple[StateSchema, ...] = ()
    stored: tuple[StateSchema, ...] = ()

    @property
    def frames(self) -> list[Frame]:
        """All frames."""
        return [rows.frame for rows in self.states] + ([] if self.timers is None else [self.timers])

    def schemas(self, at: int) -> list[StateSchema]:
        """Returns the schemas of its states as a batch at a time, in milliseconds since 1970, would store them.

        Raises:
            StateError: the declarations contradict each other.
            JobDefinitionError: a declaration is not valid.
        """
        keyed = new_keyed_state(at)
        for rows in self.states:
            declare(keyed, rows.descriptor)
        given = {rows.descriptor.name for rows in self.states if rows.columns.written_at}
        before = {schema.name: schema for schema in self.stored}
        declared = [
            _counting_from_rows(s, before.get(s.name)) if s.name in given else s for s in keyed.registry.schemas
        ]
        return sorted((*self.kept, *declared), key=lambda schema: schema.name)

    def state_encoder(self, rows: StateRows, layout: Layout) -> StateEncoder:
        """Returns a new encoder of a state's rows."""
        return StateEncoder(self.key, rows.columns, rows.descriptor, layout.at, layout.epoch)

    def timer_encoder(self) -> TimerEncoder:
        """Returns a new encoder of the timers."""
        assert self.timers is not None
        return TimerEncoder(self.key, tuple(column_names(self.timers)))

    def header(self, groups: KeyGroupRange, layout: Layout) -> CanonicalHeader:
        """Returns the header of the canonical file of some key groups."""
        return CanonicalHeader(
            uid=self.uid,
            key_types=list(self.key.types),
            max_parallelism=layout.max_parallelism,
            first_group=groups.first,
            last_group=groups.last,
            states=self.schemas(layout.at),
        )


def _counting_from_rows(schema: StateSchema, before: StateSchema | None) -> StateSchema:
    """Returns the schema of a state whose entries have given times, which may be before that of the writer."""
    if before is not None and before.ttl_time == schema.ttl_time:
        return replace(schema, ttl_since=before.ttl_since, ttl_always=before.ttl_always)
    return replace(schema, ttl_since=0) if schema.ttl_time == "processing" else schema


def check_timers(uid: str, frame: Frame, key: Sequence[str]) -> None:
    """Raises ConfigError for a frame that has not the columns of timers."""
    names = column_names(frame)
    missing = [name for name in (*key, TIME) if name not in names]
    unknown = [name for name in names if name not in (*key, TIME, DOMAIN, NAMESPACE, "key_group")]
    if missing or unknown:
        raise ConfigError(
            "a frame of timers has the wrong columns",
            hint="it needs the key columns and time, and may have domain (event or processing) and namespace",
            operator=uid,
            missing=missing,
            unknown=unknown,
        )


def state_rows(given: KeyedStateFrame, key: GivenKey) -> StateRows:
    """Returns a state's frame with its columns; raises ConfigError if it lacks one or a column has two meanings."""
    codec = declare(new_keyed_state(0), given.descriptor).codec
    columns = columns_of(given, key.names, field_names(codec))
    if isinstance(given.descriptor, ListStateDescriptor) and is_spark(given.frame) and not columns.order_by:
        raise ConfigError(
            "a DataFrame of a list state has no order",
            hint="name the columns that order the elements: KeyedStateFrame(…, order_by=…)",
            state=given.descriptor.name,
        )
    return StateRows(given.descriptor, given.frame, columns)


def store_content(target: SavepointFolder, data: bytes) -> FileHandle:
    """Stores bytes in a file of a savepoint, and returns its handle; an earlier attempt may have stored the same."""
    key = f"{SAVEPOINT_FILES}{hashlib.sha256(data).hexdigest()}"
    return replace(write_bytes(target.storage, f"{target.folder}{key}", data), key=key)
