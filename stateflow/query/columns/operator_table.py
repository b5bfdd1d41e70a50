"""Operator state, broadcast state and raw state as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.operator_parts import read_parts
from stateflow.clock import Clock
from stateflow.errors import CorruptFile
from stateflow.query.columns.state_table import BATCH_BYTES, BATCH_ROWS, RAW_KEYED, StateTable
from stateflow.query.columns.value_reader import ValueReader
from stateflow.query.columns.value_types import Refused
from stateflow.state.columnar.key_parts import parts_column
from stateflow.state.columnar.key_reader import KEY_GROUP, map_key_field
from stateflow.state.handles import OperatorContent, StateSchema
from stateflow.state.kinds.operator_state import BROADCAST, UNION
from stateflow.storage import Storage
from stateflow.types.key_encoding import decode_key
from stateflow.types.key_groups import KeyGroupRange

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
