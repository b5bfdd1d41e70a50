"""Operator state and broadcast state of a savepoint, from frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import msgspec
import pyarrow as pa

from stateflow.bootstrap.encoded_entries import LIMITS, describe_scalar, naming_row
from stateflow.bootstrap.encoded_values import ValueEncoder, encode_map_keys, field_names, name_state_in_errors
from stateflow.bootstrap.frames import (
    KEY_GROUP,
    MAP_KEY,
    READ_ONLY,
    VALUE,
    Frame,
    StateColumns,
    batches_of,
    cast_column,
    check_frame,
    column_names,
    is_spark,
)
from stateflow.bootstrap.layout import Layout, SavepointFolder, store_content
from stateflow.checkpoint.restore.state_assignment import even_split
from stateflow.errors import ConfigError, DataError, JobDefinitionError, StateError
from stateflow.runtime.task.operator_state import INLINE_BYTES
from stateflow.state.column_serializer import ColumnSerializer
from stateflow.state.handles import OperatorContent, OperatorPart, StateSchema
from stateflow.state.kinds.maps.map_state import MapKeys
from stateflow.state.kinds.operator_state import OperatorStateStore
from stateflow.state.operator_content import StoredContent
from stateflow.types.decoders import MEMORY_LIMIT, TooMuchMemory
from stateflow.types.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from stateflow.types.key_encoding import decode_key
from stateflow.types.serializers import ValueSerializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
E = TypeVar("E", list[bytes], dict[bytes, bytes])
Encoded = list[bytes] | dict[bytes, bytes]
"""The elements of a list, or the entries of a map, by their encoded keys."""


@dataclass(frozen=True)
class OperatorStateRows:
    """The frame of an operator state.

    Attributes:
        descriptor: a list, or a map for broadcast state.
        frame: its elements, in their order, or entries.
        is_union: whether each subtask reads all elements of the list.
    """

    descriptor: StateDescriptor
    frame: Frame
    is_union: bool = False

    @property
    def name(self) -> str:
        """Name of the state."""
        return self.descriptor.name

    @property
    def schema(self) -> StateSchema:
        """The schema as a run would store it.

        Raises:
            ConfigError: the state is neither a list nor a map.
            StateError, JobDefinitionError: the declaration is not valid.
        """
        store = OperatorStateStore()
        if isinstance(self.descriptor, MapStateDescriptor):
            return store.get_broadcast_state(self.descriptor).schema
        descriptor = _as_list(self.descriptor)
        return (store.get_union_list_state if self.is_union else store.get_list_state)(descriptor).schema

    def encode(self) -> Encoded:
        """Returns the encoded elements of the list, or entries of the map.

        Raises:
            DataError: a value or key is null, or a key occurs twice; errors have the number of the row or its key.
            SchemaMismatch, StateError, EntryTooLarge: a value cannot be stored.
        """
        if isinstance(self.descriptor, MapStateDescriptor):
            return _entries(self.descriptor, self.frame)
        return _elements(_as_list(self.descriptor), self.frame)

    def shares(self, encoded: Encoded, parallelism: int) -> Sequence[Encoded]:
        """Returns what the subtasks store, from the first on: lists are split evenly, other states are in subtask 0."""
        return even_split(encoded, parallelism) if isinstance(encoded, list) and not self.is_union else [encoded]

    def replace_state(self, content: OperatorContent, encoded: Encoded) -> OperatorContent:
        """Returns content of a subtask with encoded elements or entries in place of those that the state has there."""
        match encoded:
            case dict():
                return msgspec.structs.replace(content, broadcasts=_with(content.broadcasts, self.name, encoded))
            case _ if self.is_union:
                return msgspec.structs.replace(content, unions=_with(content.unions, self.name, encoded))
            case _:
                return msgspec.structs.replace(content, lists=_with(content.lists, self.name, encoded))


@dataclass(frozen=True)
class RawRows:
    """The frames of raw state, whose bytes only the function of an operator understands.

    Attributes:
        partitions: of raw operator state: ``value``, in order.
        key_groups: of raw keyed state: ``key_group`` and ``value``.
    """

    partitions: Frame | None = None
    key_groups: Frame | None = None

    @property
    def is_given(self) -> bool:
        """Whether one of the frames exists."""
        return self.partitions is not None or self.key_groups is not None

    def pieces(self) -> list[bytes]:
        """Returns the partitions. Raises DataError for null, ConfigError or SchemaMismatch for other columns."""
        return [data for _, data in _raw_rows(self.partitions, has_groups=False)]

    def by_key_group(self, max_parallelism: int) -> list[tuple[int, bytes]]:
        """Returns the bytes of key groups in order; raises as `pieces`, and DataError for a wrong key group."""
        found: dict[int, bytes] = {}
        for group, data in _raw_rows(self.key_groups, has_groups=True):
            if group in found or not 0 <= group < max_parallelism:
                raise DataError(
                    "a key group of raw keyed state occurs twice or does not exist",
                    hint="pass one row for each key group below the max parallelism",
                    key_group=group,
                    max_parallelism=max_parallelism,
                )
            found[group] = data
        return sorted(found.items())


@dataclass(frozen=True)
class OperatorStates:
    """All operator state of an operator."""

    uid: str
    states: tuple[OperatorStateRows, ...]
    raw: RawRows = RawRows()

    def with_rows(self, rows: OperatorStateRows) -> OperatorStates:
        """Returns this state and that of a frame; raises ConfigError or StateError for contradictory declarations."""
        check_frame(rows.frame, f"{self.uid}.{rows.name}")
        if any(each.name == rows.name for each in self.states):
            raise ConfigError("an operator state was added twice", hint="pass one frame", uid=self.uid, state=rows.name)
        found = replace(self, states=(*self.states, rows))
        found.schemas()
        return found

    def with_raw(self, raw: RawRows) -> OperatorStates:
        """Returns this state and raw state; raises ConfigError if it has raw state, or the rows are not a frame."""
        for name, frame in (("_raw", raw.partitions), ("_raw_keyed", raw.key_groups)):
            if frame is not None:
                check_frame(frame, f"{self.uid}.{name}")
        if self.raw.is_given:
            raise ConfigError("raw state was added twice", hint="pass both frames in one call", uid=self.uid)
        return replace(self, raw=raw)

    def schemas(self) -> list[StateSchema]:
        """Returns the schemas as a run would store them."""
        return sorted((rows.schema for rows in self.states), key=lambda schema: schema.name)

    def parts(self, layout: Layout, target: SavepointFolder) -> list[OperatorPart]:
        """Stores the state of all subtasks, and returns its parts.

        Lists and raw partitions are split evenly, the bytes of a key group belong to its subtask, and subtask 0 has the
        rest.

        Raises:
            StateError: a value cannot be stored, or all of them take too much memory.
            DataError: a value or key is null, or a key occurs twice.
        """
        parallelism = layout.parallelism
        with name_state_in_errors("_raw"):
            contents = [OperatorContent(raw=pieces) for pieces in even_split(self.raw.pieces(), parallelism)]
        raw_keyed: dict[int, list[tuple[int, bytes]]] = {}
        with name_state_in_errors("_raw_keyed"):
            for group, data in self.raw.by_key_group(layout.max_parallelism):
                raw_keyed.setdefault(layout.subtask_of(group), []).append((group, data))
        for subtask, pieces in raw_keyed.items():
            contents[subtask] = msgspec.structs.replace(contents[subtask], raw_keyed=pieces)
        for rows in self.states:
            with name_state_in_errors(rows.name):
                encoded = rows.encode()
            for subtask, share in enumerate(rows.shares(encoded, parallelism)):
                contents[subtask] = rows.replace_state(contents[subtask], share)
        return store_parts(self.uid, enumerate(contents), target)


def store_parts(
    uid: str, contents: Iterable[tuple[int, OperatorContent]], target: SavepointFolder
) -> list[OperatorPart]:
    """Stores the operator state of some subtasks of an operator, and returns its parts; a subtask may have none.

    Raises:
        StateError: it takes too much memory.
    """
    return [_stored(uid, subtask, content, target) for subtask, content in contents if content != OperatorContent()]


def _stored(uid: str, subtask: int, content: OperatorContent, target: SavepointFolder) -> OperatorPart:
    data = msgspec.msgpack.encode(content)
    try:
        memory = StoredContent.of(data, MEMORY_LIMIT).memory
    except TooMuchMemory as e:
        raise StateError(
            "the operator state takes too much memory",
            hint="every task of the operator reads all of it; keep large state in keyed state",
            operator=uid,
            size_bytes=len(data),
            limit_bytes=MEMORY_LIMIT,
        ) from e
    if len(data) <= INLINE_BYTES:
        return OperatorPart(subtask=subtask, content=data, memory=memory)
    return OperatorPart(subtask=subtask, handle=store_content(target, data), memory=memory)


def _with(named: Mapping[str, E], name: str, state: E) -> dict[str, E]:
    """Returns the states by name in the order in which a run stores them, without empty ones."""
    return {each: found for each, found in sorted({**named, name: state}.items()) if found}


def _as_list(descriptor: StateDescriptor) -> ListStateDescriptor[object]:
    if not isinstance(descriptor, ListStateDescriptor):
        raise ConfigError(
            "operator state is a list, or a map for broadcast state",
            hint="pass a ListStateDescriptor, or a MapStateDescriptor to with_broadcast_state",
            given=repr(descriptor)[:200],
        )
    return descriptor


def _elements(descriptor: ListStateDescriptor[T], frame: Frame) -> list[bytes]:
    codec: ValueSerializer[T] = ValueSerializer(descriptor.element_type, descriptor.name)
    values = ValueEncoder(codec, _columns(frame, (), codec), LIMITS, descriptor.name)
    found: list[bytes] = []
    for batch in batches_of(_arrow(frame)):
        found += naming_row(batch, values.encode, partial(_number_of, len(found))).to_pylist()
    return found


def _number_of(before: int, batch: pa.RecordBatch, row: int) -> dict[str, object]:
    return {"row": before + row}


def _entries(descriptor: MapStateDescriptor[K, V], frame: Frame) -> dict[bytes, bytes]:
    keys: MapKeys[K] = MapKeys(descriptor.key_type, descriptor.name)
    codec: ValueSerializer[V] = ValueSerializer(descriptor.value_type, descriptor.name)
    values = ValueEncoder(codec, _columns(frame, (MAP_KEY,), codec), LIMITS, descriptor.name)

    def encode(batch: pa.RecordBatch) -> tuple[list[bytes], list[bytes]]:
        encoded = encode_map_keys(keys, _key_columns(descriptor), batch.column(MAP_KEY), MAP_KEY)
        return encoded.to_pylist(), values.encode(batch).to_pylist()

    found: dict[bytes, bytes] = {}
    for batch in batches_of(_arrow(frame)):
        for key, value in zip(*naming_row(batch, encode, _map_key_of), strict=True):
            if key in found:
                raise DataError(
                    "two rows have the same key", hint="drop duplicates", map_key=repr(decode_key(key)[0])[:200]
                )
            found[key] = value
    return dict(sorted(found.items()))


def _map_key_of(batch: pa.RecordBatch, row: int) -> dict[str, object]:
    return {"map_key": describe_scalar(batch.column(MAP_KEY)[row])[:200]}


def _key_columns(descriptor: MapStateDescriptor[K, V]) -> ColumnSerializer | None:
    try:
        return ColumnSerializer(descriptor.key_type)
    except JobDefinitionError:
        return None


def _raw_rows(frame: Frame | None, has_groups: bool) -> Iterator[tuple[int, bytes]]:
    """Yields the rows of raw state; without key groups, they have the number 0."""
    if frame is None:
        return
    wanted = {KEY_GROUP: pa.int64()} if has_groups else {}
    wanted[VALUE] = pa.binary()
    missing = [name for name in wanted if name not in column_names(frame)]
    if missing:
        raise ConfigError("a frame of raw state lacks columns", hint="rename them", missing=missing)
    _check_columns(column_names(frame), tuple(wanted))
    for batch in batches_of(_arrow(frame)):
        columns = [cast_column(batch.column(name), kind, name) for name, kind in wanted.items()]
        if any(column.null_count for column in columns):
            raise DataError("a row of raw state has a null", hint="filter these rows")
        groups = columns[0].to_pylist() if has_groups else [0] * batch.num_rows
        yield from zip(groups, columns[-1].to_pylist(), strict=True)


def _columns(frame: Frame, others: Sequence[str], codec: ValueSerializer[T]) -> StateColumns:
    names = column_names(frame)
    missing = [name for name in others if name not in names]
    fields = tuple(name for name in names if name not in others)
    if missing or not fields:
        raise ConfigError(
            "a frame of operator state lacks columns",
            hint="it has value, or a column for each field of the values; broadcast state has map_key, too",
            missing=missing or [VALUE],
            columns=names,
        )
    if VALUE in names:
        _check_columns(names, (VALUE, *others))
        return StateColumns(value=VALUE)
    if taken := sorted(field_names(codec) & set(others)):
        raise ConfigError(
            "a column of a frame of operator state is a field of the values, and has another meaning",
            hint="pass the values as one column of structs that is called value",
            columns=taken,
        )
    return StateColumns(value="", fields=fields)


def _check_columns(names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises ConfigError for a column that is neither wanted nor one of `stateflow.read_state` that is not needed."""
    unknown = [name for name in names if name not in wanted and name not in READ_ONLY]
    if unknown:
        raise ConfigError(
            "a frame of operator state has columns without a meaning",
            hint="drop them, or rename them",
            columns=unknown,
            wanted=list(wanted),
        )


def _arrow(frame: Frame) -> pa.Table | pa.RecordBatch | pa.RecordBatchReader:
    # All of it must fit into the memory of each task.
    return frame.toArrow() if is_spark(frame) else frame
