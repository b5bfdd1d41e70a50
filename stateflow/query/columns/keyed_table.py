"""Keyed state and timers as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from stateflow import failpoints
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.clock import Clock
from stateflow.config.state_settings import RocksDBSettings
from stateflow.errors import StateflowError
from stateflow.query.columns.state_table import BATCH_BYTES, BATCH_ROWS, EncodedKey, StateTable, key_fields
from stateflow.query.columns.value_reader import WRITTEN_AT, ValueReader, written_at
from stateflow.query.columns.value_types import Refused
from stateflow.scratch_folder import ScratchFolder
from stateflow.state.backends.entry_stream import EntryBlock, KeyRange, first_key
from stateflow.state.backends.factory import StoreLocation, read_ranges
from stateflow.state.columnar.key_reader import KEY_GROUP, NAMESPACE, KeyLayout, map_key_field
from stateflow.state.files.host_cache import HostCache
from stateflow.state.handles import Base, StateSchema, SubtaskState
from stateflow.state.kinds.key_context import KEY_OFFSET, state_id
from stateflow.state.kinds.list_state import POSITION_BYTES
from stateflow.state.kinds.timers import TIMER_IDS
from stateflow.storage import Storage
from stateflow.types.key_encoding import decode_key
from stateflow.types.key_groups import KeyGroupRange

_GROUP_BYTES, _TIME_BYTES = 2, 8
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
        prefixes = [first_key(key.group) + ids[0] + key.data for key in self.keys if key.group in groups]
        # A text continues after its end if ff follows: that is another key.
        return [(prefix, prefix + b"\xff") for prefix in prefixes]

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
        """What the stored keys consist of."""
        types = tuple(field.type for field in key_fields(self.operator))
        if self.state is None:
            return KeyLayout(types, KEY_OFFSET + _TIME_BYTES)
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
    prefix = first_key(group) + of_state
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
            found["written_at"] = written_at(block.values, table.state.ttl_time)
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
    times = np.frombuffer(b"".join([key[KEY_OFFSET : KEY_OFFSET + _TIME_BYTES] for key in keys]), ">u8")
    domains = {stored: domain.value for domain, stored in TIMER_IDS.items()}
    return {
        "time": pa.array((times.astype(np.uint64) ^ np.uint64(1 << 63)).view(np.int64)),
        "domain": pa.array([domains[key[_GROUP_BYTES:KEY_OFFSET]] for key in keys], pa.string()),
    }


def _stored_blocks(
    subtask: SubtaskState, ranges: Sequence[KeyRange], storage: Storage, clock: Clock
) -> Iterator[EntryBlock]:
    """Yields the entries of a subtask in blocks that are large enough for work by columns."""
    with ScratchFolder() as scratch:
        location = StoreLocation(
            scratch.path / "work", HostCache.direct(scratch.path / "cache", storage, clock), RocksDBSettings()
        )
        keys: list[bytes] = []
        values: list[bytes] = []
        size = 0
        for block in read_ranges(location, Base.of(subtask), ranges):
            failpoints.hit("read.entries")
            keys += block.keys
            values += block.values
            size += sum(map(len, block.keys)) + sum(map(len, block.values))
            if len(keys) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield EntryBlock(keys, values)
                keys, values, size = [], [], 0
        if keys:
            yield EntryBlock(keys, values)
