"""Operator state and broadcast state of a savepoint, from frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import pyarrow as pa

from stateflow.bootstrap.content import store_content
from stateflow.bootstrap.encoding.entries import LIMITS
from stateflow.bootstrap.encoding.frames import MAP_KEY, VALUE, Frame, StateColumns, batches_of, is_spark, names_of
from stateflow.bootstrap.encoding.values import Values, encode_map_keys, state_named
from stateflow.bootstrap.layout import Target
from stateflow.checkpoint.restore.redistribution import even_split
from stateflow.errors import ConfigError, DataError, JobDefinitionError, StateError
from stateflow.runtime.task.operator_state import INLINE_BYTES
from stateflow.state.columnar.column_serializer import ColumnSerializer
from stateflow.state.handles import OperatorContent, OperatorPart, StateSchema
from stateflow.state.kinds.maps.map_keys import MapKeys
from stateflow.state.kinds.operator_state import OperatorStateStore
from stateflow.state.operator_content import StoredContent
from stateflow.types.bounded_json import MEMORY_LIMIT, TooMuchMemory
from stateflow.types.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from stateflow.types.key_encoding import decode_key
from stateflow.types.serializers import ValueSerializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


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


@dataclass(frozen=True)
class OperatorStates:
    """All operator state of an operator."""

    uid: str
    states: tuple[OperatorStateRows, ...]

    def schemas(self) -> list[StateSchema]:
        """Returns the schemas as a run would store them; raises StateError if declarations contradict each other."""
        store = OperatorStateStore()
        for rows in self.states:
            if isinstance(rows.descriptor, MapStateDescriptor):
                store.get_broadcast_state(rows.descriptor)
            elif rows.is_union:
                store.get_union_list_state(_as_list(rows.descriptor))
            else:
                store.get_list_state(_as_list(rows.descriptor))
        return store.schemas

    def parts(self, parallelism: int, target: Target) -> list[OperatorPart]:
        """Stores the state of all subtasks, and returns its parts: lists are split evenly, subtask 0 has the rest.

        Raises:
            StateError: a value cannot be stored, or all of them take too much memory.
            DataError: a value or key is null, or a key occurs twice.
        """
        lists: dict[str, list[list[bytes]]] = {}
        unions: dict[str, list[bytes]] = {}
        broadcasts: dict[str, dict[bytes, bytes]] = {}
        for rows in sorted(self.states, key=lambda each: each.descriptor.name):
            name = rows.descriptor.name
            with state_named(name):
                if isinstance(rows.descriptor, MapStateDescriptor):
                    broadcasts[name] = _entries(rows.descriptor, rows.frame)
                elif rows.is_union:
                    unions[name] = _elements(_as_list(rows.descriptor), rows.frame)
                else:
                    elements = _elements(_as_list(rows.descriptor), rows.frame)
                    lists[name] = even_split(elements, parallelism)
        first = OperatorContent(unions=_non_empty(unions), broadcasts={n: e for n, e in broadcasts.items() if e})
        found = []
        for subtask in range(parallelism):
            own = _non_empty({name: parts[subtask] for name, parts in lists.items()})
            content = msgspec.structs.replace(first if subtask == 0 else OperatorContent(), lists=own)
            if content != OperatorContent():
                found.append(self._stored(subtask, content, target))
        return found

    def _stored(self, subtask: int, content: OperatorContent, target: Target) -> OperatorPart:
        data = msgspec.msgpack.encode(content)
        try:
            memory = StoredContent.of(data, MEMORY_LIMIT).memory
        except TooMuchMemory as e:
            raise StateError(
                "the operator state takes too much memory",
                hint="every task of the operator reads all of it; keep large state in keyed state",
                operator=self.uid,
                bytes=len(data),
                limit=MEMORY_LIMIT,
            ) from e
        if len(data) <= INLINE_BYTES:
            return OperatorPart(subtask=subtask, content=data, memory=memory)
        return OperatorPart(subtask=subtask, handle=store_content(target, data), memory=memory)


def _non_empty(lists: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
    return {name: elements for name, elements in lists.items() if elements}


def _as_list(descriptor: StateDescriptor) -> ListStateDescriptor[object]:
    if not isinstance(descriptor, ListStateDescriptor):
        raise ConfigError(
            "operator state is a list, or a map for broadcast state",
            hint="pass a ListStateDescriptor, or a MapStateDescriptor to with_broadcast_state",
            given=repr(descriptor)[:200],
        )
    return descriptor


def _elements(descriptor: ListStateDescriptor[T], frame: Frame) -> list[bytes]:
    columns = _columns(frame, ())
    values = Values(ValueSerializer(descriptor.element_type, descriptor.name), columns, LIMITS, descriptor.name)
    return [data for batch in batches_of(_arrow(frame)) for data in values.encode(batch)]


def _entries(descriptor: MapStateDescriptor[K, V], frame: Frame) -> dict[bytes, bytes]:
    keys: MapKeys[K] = MapKeys(descriptor.key_type, descriptor.name)
    values = Values(
        ValueSerializer(descriptor.value_type, descriptor.name), _columns(frame, (MAP_KEY,)), LIMITS, descriptor.name
    )
    found: dict[bytes, bytes] = {}
    for batch in batches_of(_arrow(frame)):
        encoded = encode_map_keys(keys, _key_columns(descriptor), batch.column(MAP_KEY), MAP_KEY)
        for key, value in zip(encoded, values.encode(batch), strict=True):
            if key in found:
                raise DataError(
                    "two rows have the same key", hint="drop duplicates", map_key=repr(decode_key(key)[0])[:200]
                )
            found[key] = value
    return dict(sorted(found.items()))


def _key_columns(descriptor: MapStateDescriptor[K, V]) -> ColumnSerializer | None:
    try:
        return ColumnSerializer(descriptor.key_type)
    except JobDefinitionError:
        return None


def _columns(frame: Frame, others: Sequence[str]) -> StateColumns:
    names = names_of(frame)
    missing = [name for name in others if name not in names]
    fields = tuple(name for name in names if name not in others)
    if missing or not fields:
        raise ConfigError(
            "a frame of operator state lacks columns",
            hint="it has value, or a column for each field of the values; broadcast state has map_key, too",
            missing=missing or [VALUE],
            columns=names,
        )
    return StateColumns(value=VALUE) if VALUE in names else StateColumns(value="", fields=fields)


def _arrow(frame: Frame) -> pa.Table | pa.RecordBatch | pa.RecordBatchReader:
    # All of it must fit into the memory of each task.
    return frame.toArrow() if is_spark(frame) else frame
