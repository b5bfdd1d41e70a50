"""The table of one state: its columns, and its batches from the files of a snapshot.

There are tables of keyed state and timers, and of operator state, broadcast state and raw state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import SupportsIndex, TypeVar

import pyarrow as pa

from stateflow import failpoints
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.clock import Clock
from stateflow.errors import ConfigError, CorruptFile, StateflowError
from stateflow.helpers import did_you_mean
from stateflow.query.value_types import WRITTEN_AT, Refused, ValueReader, decode_write_times
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.backends.factory import open_store_location, read_blocks
from stateflow.state.handles import Base, OperatorContent, StateSchema, SubtaskState
from stateflow.state.key_columns import (
    KEY_GROUP,
    NAMESPACE,
    KeyLayout,
    decode_times,
    encode_keys,
    key_column_type,
    map_key_field,
    parts_column,
)
from stateflow.state.kinds.operator_state import BROADCAST, UNION
from stateflow.state.operator_content import read_parts
from stateflow.state.stored_key import (
    KEY_OFFSET,
    POSITION_BYTES,
    STATE_PART,
    TIME_PART,
    TIMED_KEY_OFFSET,
    TIMER_DOMAINS,
    TIMER_IDS,
    KeyRange,
    after_key,
    encode_group,
    state_id,
)
from stateflow.storage import Storage
from stateflow.types.key_encoding import decode_key, has_key_at
from stateflow.types.key_groups import KeyGroupRange, key_group

TIMERS = "_timers"
"""Name of the table of timers."""
OPERATOR_PREFIX = "_operator/"
"""Prefix of the names of operator states."""
RAW, RAW_KEYED = "_raw", "_raw_keyed"
"""Names of raw operator state and raw keyed state."""


BATCH_ROWS = 1 << 15
"""Most rows of a batch: the columns of more would not stay in a processor's cache."""
BATCH_BYTES = 8 << 20
"""Size of keys and values at which a batch ends."""


_RESERVED = {"key_group", "namespace", "map_key", "position", "value", "written_at", "time", "domain"}


class StateTable(ABC):
    """A state as a table."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns."""

    @property
    @abstractmethod
    def subtasks(self) -> Sequence[int]:
        """The subtasks that may have rows, in order; each has files of its own."""

    @abstractmethod
    def batches(
        self, storage: Storage, clock: Clock, columns: Sequence[str], subtasks: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows, with the files of one subtask on local disk at a time.

        Args:
            storage: the storage with the snapshot's files; the caller keeps them from deletion.
            clock: gives the timestamps of copies of files.
            columns: names of the columns in their order; values are not decoded if ``value`` is not among them.
            subtasks: the subtasks to read; all by default.

        Raises:
            MissingFile, CorruptFile: a file is missing or damaged, or a key or value does not decode.
            StateError: a value has no representation in its column.
        """


@dataclass(frozen=True)
class Rows:
    """The rows to read.

    Attributes:
        keys: rows of these keys only, each a tuple, or the value of the only key column, with None for null; None for
            all.
        groups: rows of these key groups only; None for all.
    """

    keys: tuple[object, ...] | None = None
    groups: KeyGroupRange | None = None


ALL_ROWS = Rows()


def key_fields(operator: OperatorState) -> list[pa.Field]:
    """Returns the key columns.

    They have the names that the job gives them. A name that another column has gets the prefix ``key_``.

    Raises:
        CorruptFile: a recorded type is not a type of keys.
    """
    fields, taken = [], set(_RESERVED)
    for name, kind in zip(operator.key_names, operator.key_types, strict=True):
        # Spark does not distinguish case.
        while name.lower() in taken:
            name = f"key_{name}"
        taken.add(name.lower())
        fields.append(pa.field(name, key_column_type(kind)))
    return fields


@dataclass(frozen=True)
class EncodedKey:
    """A key of a query as it is stored.

    Attributes:
        group: its key group.
        data: the encoded key columns.
    """

    group: int
    data: bytes

    def is_at(self, stored: bytes, offset: int) -> bool:
        """Returns whether a stored key has this key at an offset."""
        return has_key_at(stored, self.data, offset)


def encode_query_keys(keys: Iterable[object], operator: OperatorState, max_parallelism: int) -> list[EncodedKey]:
    """Returns keys as they are stored, each once, in the order of key groups and stored keys.

    Args:
        keys: tuples of the values of the key columns, or plain values if there is one key column.
        operator: the operator with the key columns.
        max_parallelism: number of key groups.

    Raises:
        ConfigError: a key has another number of values, or a value that does not have the type of its column.
    """
    fields = key_fields(operator)
    found = set()
    for key in keys:
        values = key if isinstance(key, tuple | list) else (key,)
        if len(values) != len(fields):
            raise ConfigError(
                "a key does not have one value for each key column",
                hint="give tuples with the values in the order of the key columns",
                key=repr(key)[:200],
                columns=[field.name for field in fields],
            )
        scalars = [_typed(value, field) for value, field in zip(values, fields, strict=True)]
        group = key_group([scalar.as_py() for scalar in scalars], operator.key_types, max_parallelism)
        (data,) = encode_keys([pa.array([scalar.as_py()], scalar.type) for scalar in scalars])
        found.add((group, data))
    return [EncodedKey(group, data) for group, data in sorted(found)]


def _typed(value: object, field: pa.Field) -> pa.Scalar:
    try:
        if isinstance(value, bool) and not pa.types.is_boolean(field.type):
            raise TypeError(f"it is {value}")
        if pa.types.is_integer(field.type) and not isinstance(value, SupportsIndex | None):
            # A scalar of an integer type drops a fraction without an error.
            raise TypeError("it is not an integer")
        return pa.scalar(value, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
        raise ConfigError(
            "a value of a key does not have the type of its column",
            hint="convert the value",
            column=field.name,
            type=str(field.type),
            value=repr(value)[:200],
            reason=str(e)[:200],
        ) from e


def select_columns(columns: Sequence[str] | None, schema: pa.Schema) -> list[str]:
    """Returns the names of the columns to read; raises ConfigError for one that the state does not have."""
    if columns is None:
        return list(schema.names)
    for name in columns:
        if name not in schema.names:
            raise ConfigError(
                "the state has no such column", hint=did_you_mean(name, schema.names), column=name, found=schema.names
            )
    if not columns or len(set(columns)) < len(columns):
        raise ConfigError(
            "columns must name at least one column, and each column once",
            hint="name each column once",
            columns=list(columns),
        )
    return list(columns)


_TIME = pa.field("time", pa.int64(), nullable=False)
"""Milliseconds since 1970, not a timestamp of Arrow: timers at the end of time, 2**63 - 1, are usual."""
_DOMAIN = pa.field("domain", pa.string(), nullable=False)
_POSITION = pa.field("position", pa.int64(), nullable=False)


@dataclass(frozen=True)
class KeyedTable(StateTable):
    """Rows of one keyed state, or of the timers.

    Attributes:
        operator: the operator.
        state: schema of the state; None for the timers.
        keys: keys to read, in order; None for all keys.
        groups: key groups to read; None for all.
        refused: as for `ValueReader`.
    """

    operator: OperatorState
    state: StateSchema | None
    keys: Sequence[EncodedKey] | None = None
    groups: KeyGroupRange | None = None
    refused: Refused = Refused.NOTHING

    @property
    def schema(self) -> pa.Schema:
        fields = [KEY_GROUP, *key_fields(self.operator), NAMESPACE]
        if self.state is None:
            return pa.schema([*fields, _TIME, _DOMAIN])
        if self.state.kind == "map":
            fields.append(map_key_field(self.state.key_type))
        if self.state.kind == "list":
            fields.append(_POSITION)
        fields.append(self._values.field)
        return pa.schema([*fields, WRITTEN_AT] if self.state.ttl_time else fields)

    @property
    def subtasks(self) -> Sequence[int]:
        return [state.subtask for state in self.operator.subtasks if self._ranges(state)]

    def batches(
        self, storage: Storage, clock: Clock, columns: Sequence[str], subtasks: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([self.schema.field(name) for name in columns])
        for subtask in self.operator.subtasks:
            if subtasks is not None and subtask.subtask not in subtasks:
                continue
            ranges = self._ranges(subtask)
            if ranges:
                rows = _Rows(self, schema)
                for block in _stored_blocks(subtask, ranges, storage, clock):
                    batch = rows.batch(block)
                    del block
                    if batch.num_rows:
                        yield batch

    def _ranges(self, subtask: SubtaskState) -> list[KeyRange]:
        """Returns the ranges of stored keys to read of a subtask; empty without any."""
        groups = subtask.groups if self.groups is None else subtask.groups.overlap(self.groups)
        if groups is None:
            return []
        ids = self.ids
        if self.keys is None:
            return [_range(group, each) for group in range(groups.first, groups.last + 1) for each in ids]
        if self.state is None:
            wanted = sorted({key.group for key in self.keys if key.group in groups})
            return [_range(group, each) for group in wanted for each in ids]
        prefixes = [encode_group(key.group) + ids[0] + key.data for key in self.keys if key.group in groups]
        return [(prefix, after_key(prefix)) for prefix in prefixes]

    @property
    def ids(self) -> list[bytes]:
        """The state ids in stored keys, in order."""
        return sorted(TIMER_IDS.values()) if self.state is None else [state_id(self.state.name)]

    @cached_property
    def _values(self) -> ValueReader:
        assert self.state is not None
        return ValueReader(self.state, self.refused)

    @cached_property
    def layout(self) -> KeyLayout:
        """The parts of the stored keys."""
        types = tuple(field.type for field in key_fields(self.operator))
        if self.state is None:
            return KeyLayout(types, TIMED_KEY_OFFSET)
        tail = POSITION_BYTES if self.state.kind == "list" else 0
        map_key = map_key_field(self.state.key_type).type if self.state.kind == "map" else None
        return KeyLayout(types, KEY_OFFSET, map_key, tail)

    def describe(self, stored: bytes) -> dict[str, object]:
        """Returns the facts of an error about an entry: operator, state and key."""
        name = self.state.name if self.state else "timers"
        try:
            key = decode_key(stored[self.layout.start : len(stored) - self.layout.tail])[: len(self.layout.types)]
        except StateflowError:
            return {"operator": self.operator.uid, "state": name, "stored_key": stored.hex()[:200]}
        return {"operator": self.operator.uid, "state": name, "key": key}

    def values(self, block: EntryBlock) -> pa.Array:
        """Returns the column of values; raises as `ValueReader.read` does."""
        return self._values.read(block.values, lambda row: self.describe(block.keys[row]))


def _range(group: int, of_state: bytes) -> KeyRange:
    prefix = encode_group(group) + of_state
    return prefix, (int.from_bytes(prefix) + 1).to_bytes(len(prefix))


@dataclass
class _Rows:
    """Turns entries of a subtask into batches.

    Attributes:
        table: the table.
        schema: the columns to read.
        list_key: the last list, without the position of its element.
        position: number of elements of it that were read.
    """

    table: KeyedTable
    schema: pa.Schema
    list_key: bytes = b""
    position: int = 0

    def batch(self, block: EntryBlock) -> pa.RecordBatch:
        """Returns the rows of a block, which are in order of stored keys; raises as `StateTable.batches` does."""
        table = self.table
        if table.state is None and table.keys is not None:
            block = _with_keys(block, table.keys, table.layout.start)
            if not block.keys:
                return pa.RecordBatch.from_pylist([], schema=self.schema)
        found = self._key_columns(block)
        names = set(self.schema.names)
        if table.state is None:
            found |= timer_columns(block.keys)
        elif table.state.kind == "list":
            found["position"] = self._positions(block)
        if "value" in names and table.state is not None:
            found["value"] = table.values(block)
        if "written_at" in names and table.state is not None:
            found["written_at"] = decode_write_times(block.values, table.state.ttl_time)
        return pa.RecordBatch.from_arrays([found[name] for name in self.schema.names], schema=self.schema)

    def _key_columns(self, block: EntryBlock) -> dict[str, pa.Array]:
        table = self.table
        try:
            columns = table.layout.read(block.keys)
        except StateflowError as e:
            e.add_facts(operator=table.operator.uid, state=table.state.name if table.state else "timers")
            raise
        names = [field.name for field in key_fields(table.operator)]
        found = {"key_group": columns.key_group, "namespace": columns.namespace}
        if columns.map_key is not None:
            found["map_key"] = columns.map_key
        return found | dict(zip(names, columns.keys, strict=True))

    def _positions(self, block: EntryBlock) -> pa.Array:
        positions = []
        last, position = self.list_key, self.position
        for key in block.keys:
            of_list = key[:-POSITION_BYTES]
            position = position + 1 if of_list == last else 0
            last = of_list
            positions.append(position)
        self.list_key, self.position = last, position
        return pa.array(positions, pa.int64())


def _with_keys(block: EntryBlock, keys: Sequence[EncodedKey], offset: int) -> EntryBlock:
    """Returns the entries of timers of these keys."""
    rows = [row for row, stored in enumerate(block.keys) if any(key.is_at(stored, offset) for key in keys)]
    return EntryBlock([block.keys[row] for row in rows], [block.values[row] for row in rows])


def timer_columns(keys: Sequence[bytes]) -> dict[str, pa.Array]:
    """Returns the columns ``time`` and ``domain`` of the stored keys of timers."""
    domains = {stored: domain.value for stored, domain in TIMER_DOMAINS.items()}
    return {
        "time": pa.array(decode_times(b"".join([key[TIME_PART] for key in keys]))),
        "domain": pa.array([domains[key[STATE_PART]] for key in keys], pa.string()),
    }


def _stored_blocks(
    subtask: SubtaskState, ranges: Sequence[KeyRange], storage: Storage, clock: Clock
) -> Iterator[EntryBlock]:
    """Yields the entries of a subtask in blocks that are large enough for work by columns."""
    with open_store_location(storage, clock) as location:
        keys: list[bytes] = []
        values: list[bytes] = []
        size = 0
        for block in read_blocks(location, Base.of(subtask), ranges):
            failpoints.hit("read.entries")
            keys += block.keys
            values += block.values
            size += sum(map(len, block.keys)) + sum(map(len, block.values))
            if len(keys) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield EntryBlock(keys, values)
                keys, values, size = [], [], 0
        if keys:
            yield EntryBlock(keys, values)


_SUBTASK = pa.field("subtask", pa.int32(), nullable=False)
_KIND = pa.field("kind", pa.string(), nullable=False)
_BYTES = pa.field("value", pa.binary(), nullable=False)


K = TypeVar("K")
Entry = tuple[bytes, bytes]
"""The key of a broadcast state's entry, empty for other states, and a value."""


@dataclass(frozen=True)
class OperatorTable(StateTable):
    """Rows of an operator state: a list, a union list, or a broadcast state, which subtask 0 stores for all.

    Attributes:
        operator: the operator.
        state: schema of the state.
        refused: as for `ValueReader`.
    """

    operator: OperatorState
    state: StateSchema
    refused: Refused = Refused.NOTHING

    @property
    def schema(self) -> pa.Schema:
        fields = [_SUBTASK, _KIND]
        if self.state.kind == BROADCAST:
            fields.append(map_key_field(self.state.key_type))
        return pa.schema([*fields, ValueReader(self.state).field])

    @property
    def subtasks(self) -> Sequence[int]:
        return [part.subtask for part in self.operator.parts]

    def batches(
        self, storage: Storage, clock: Clock, columns: Sequence[str], subtasks: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        for subtask, content in _contents(self.operator, storage, subtasks):
            yield from self.rows_of(subtask, content, columns)

    def rows_of(self, subtask: int, content: OperatorContent, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the content of one subtask; as `batches`."""
        reader = ValueReader(self.state, self.refused)
        schema = pa.schema([self.schema.field(name) for name in columns])
        for entries in _batches(self._entries(content)):
            keys, values = zip(*entries, strict=True)
            found = {"subtask": _repeated(subtask, len(keys), _SUBTASK)}
            found["kind"] = _repeated(self.state.kind, len(keys), _KIND)
            if "map_key" in columns:
                found["map_key"] = self.map_keys(keys)
            if "value" in columns:
                found["value"] = reader.read(values, partial(self._describe, subtask, keys))
            yield pa.RecordBatch.from_arrays([found[name] for name in columns], schema=schema)

    def _entries(self, content: OperatorContent) -> Iterator[Entry]:
        if self.state.kind == BROADCAST:
            yield from content.broadcasts.get(self.state.name, {}).items()
            return
        lists = content.unions if self.state.kind == UNION else content.lists
        yield from ((b"", value) for value in lists.get(self.state.name, []))

    def map_keys(self, stored: Sequence[bytes]) -> pa.Array:
        """Returns the column of a broadcast state's keys; raises CorruptFile for one of another type."""
        try:
            return parts_column([decode_key(key)[0] for key in stored], map_key_field(self.state.key_type).type)
        except (pa.ArrowException, TypeError, ValueError, IndexError, OverflowError, CorruptFile) as e:
            raise CorruptFile(
                "a stored key of broadcast state is not of its recorded type",
                operator=self.operator.uid,
                state=self.state.name,
                reason=str(e)[:200],
            ) from e

    def _describe(self, subtask: int, keys: Sequence[bytes], row: int) -> dict[str, object]:
        facts: dict[str, object] = {"operator": self.operator.uid, "state": self.state.name, "subtask": subtask}
        return facts | {"key": decode_key(keys[row])} if keys[row] else facts


@dataclass(frozen=True)
class RawTable(StateTable):
    """Rows of raw state: the partitions of raw operator state, or the bytes of each key group.

    Attributes:
        operator: the operator.
        name: `RAW` or `RAW_KEYED`.
        groups: key groups to read, for raw keyed state; None for all.
    """

    operator: OperatorState
    name: str
    groups: KeyGroupRange | None = None

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([_SUBTASK, *([KEY_GROUP] * (self.name == RAW_KEYED)), _BYTES])

    @property
    def subtasks(self) -> Sequence[int]:
        return [part.subtask for part in self.operator.parts]

    def batches(
        self, storage: Storage, clock: Clock, columns: Sequence[str], subtasks: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([self.schema.field(name) for name in columns])
        for subtask, content in _contents(self.operator, storage, subtasks):
            for pieces in _batches(self._pieces(content)):
                groups, values = zip(*pieces, strict=True)
                found = {
                    "subtask": _repeated(subtask, len(values), _SUBTASK),
                    "key_group": pa.array(groups, KEY_GROUP.type),
                    "value": pa.array(values, _BYTES.type),
                }
                yield pa.RecordBatch.from_arrays([found[name] for name in columns], schema=schema)

    def _pieces(self, content: OperatorContent) -> Iterator[tuple[int, bytes]]:
        if self.name == RAW_KEYED:
            yield from (piece for piece in content.raw_keyed if self.groups is None or piece[0] in self.groups)
        else:
            yield from ((0, partition) for partition in content.raw)


def _batches(pieces: Iterator[tuple[K, bytes]]) -> Iterator[list[tuple[K, bytes]]]:
    batch: list[tuple[K, bytes]] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece[1])
        if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _contents(
    operator: OperatorState, storage: Storage, subtasks: Sequence[int] | None
) -> Iterator[tuple[int, OperatorContent]]:
    parts = [part for part in operator.parts if subtasks is None or part.subtask in subtasks]
    for part, content in read_parts(storage, parts):
        yield part.subtask, content


def _repeated(value: object, count: int, field: pa.Field) -> pa.Array:
    return pa.repeat(pa.scalar(value, field.type), count)
