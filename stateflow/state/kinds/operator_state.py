"""State of a subtask rather than of a key: lists that are redistributed, and broadcast state.

All of it is in memory while a subtask works, and written whole at the barrier when it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from msgspec.structs import replace

from stateflow.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from stateflow.errors import StateError
from stateflow.serializers import ValueSerializer
from stateflow.state.evolution import Declaration, check_state, with_history
from stateflow.state.handles import OperatorContent, StateSchema
from stateflow.state.map_access import MapAccess
from stateflow.state.map_keys import MapKeys
from stateflow.state.typeschema import state_schema

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

SPLIT, UNION, BROADCAST = "split-list", "union-list", "broadcast"


class _State(Protocol):
    schema: StateSchema

    def mark(self) -> None: ...

    def take_back(self) -> None: ...


class OperatorListState(Generic[T]):
    """A list of a subtask.

    Args:
        kept: elements that this subtask stores.
        seen: elements that it reads, if these are more: in a union list, those of all subtasks.
    """

    def __init__(
        self, schema: StateSchema, element_type: Any, kept: list[bytes], seen: list[bytes] | None = None
    ) -> None:
        self.schema = schema
        self._serializer: ValueSerializer[T] = ValueSerializer(element_type, schema.name)
        self._kept = kept
        self._seen = kept if seen is None else seen
        self._marked = (self._kept, len(self._kept), self._seen, len(self._seen))

    def get(self) -> Iterator[T]:
        """The elements, in order, as they are now. Of a union list: the elements of all subtasks as of the last
        checkpoint, then those added here; after `clear` or `update`, only those of this subtask."""
        return map(self._serializer.decode, list(self._seen))

    def add(self, value: T) -> None:
        """Adds an element at the end. Raises StateError for None, and for what cannot be stored."""
        self._append([self._encoded(value)])

    def add_all(self, values: Iterable[T]) -> None:
        """Adds elements at the end, in their order; all or none."""
        self._append([self._encoded(value) for value in values])

    def update(self, values: Iterable[T]) -> None:
        """Replaces the elements of this subtask."""
        data = [self._encoded(value) for value in values]
        self.clear()
        self._append(data)

    def clear(self) -> None:
        """Removes the elements of this subtask, not those of other subtasks in a union list."""
        self._kept = self._seen = []

    @property
    def kept(self) -> list[bytes]:
        """For the runtime only: what is written at the barrier."""
        return self._kept

    def mark(self) -> None:
        """For the runtime only: changes from now on may be taken back."""
        self._marked = (self._kept, len(self._kept), self._seen, len(self._seen))

    def take_back(self) -> None:
        """For the runtime only: as it was at the mark."""
        self._kept, kept, self._seen, seen = self._marked
        del self._kept[kept:]
        del self._seen[seen:]

    def _append(self, data: list[bytes]) -> None:
        self._kept += data
        if self._seen is not self._kept:
            self._seen += data

    def _encoded(self, value: T) -> bytes:
        if value is None:
            raise StateError("a list's element cannot be None", state=self.schema.name)
        return self._serializer.encode(value)


class BroadcastState(MapAccess[K, V]):
    """A map that is the same in every subtask; only rows of the broadcast stream change it.

    Args:
        descriptor: has the types of keys and values; a key of another type is refused by every method with StateError.
        entries: encoded.
        side: says which input the current row comes from.
    """

    def __init__(
        self,
        schema: StateSchema,
        descriptor: MapStateDescriptor[K, V],
        entries: dict[bytes, bytes],
        side: Side,
    ) -> None:
        self.schema = schema
        self._keys: MapKeys[K] = MapKeys(descriptor.key_type, descriptor.name)
        self._serializer: ValueSerializer[V] = ValueSerializer(descriptor.value_type, schema.name)
        self._entries = entries
        self._side = side
        self._before: dict[bytes, bytes | None] = {}

    def get(self, key: K) -> V | None:
        """The value of `key`; None when the map does not have it."""
        data = self._entries.get(self._keys.encode(key))
        return None if data is None else self._serializer.decode(data)

    def contains(self, key: K) -> bool:
        """Whether the map has `key`."""
        return self._keys.encode(key) in self._entries

    def items(self) -> Iterator[tuple[K, V]]:
        """The entries in order of keys, as they are now."""
        return (
            (self._keys.decode(key), self._serializer.decode(data))
            for key, data in sorted(self._entries.items())
        )

    def keys(self) -> Iterator[K]:
        """The keys in order."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V]:
        """The values in order of their keys."""
        return (value for _, value in self.items())

    def is_empty(self) -> bool:
        """Whether the map has no entry."""
        return not self._entries

    def put(self, key: K, value: V) -> None:
        """Sets the value of `key`. Raises StateError for None, and on the keyed side."""
        if value is None:
            raise StateError("a map's value cannot be None", hint="use remove", state=self.schema.name)
        self._set(self._keys.encode(key), self._serializer.encode(value))

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Sets many values."""
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: K) -> None:
        """Removes `key`; nothing happens when the map does not have it."""
        self._set(self._keys.encode(key), None)

    def clear(self) -> None:
        """Removes every entry."""
        self._check_side()
        for key in list(self._entries):
            self._set(key, None)

    @property
    def entries(self) -> dict[bytes, bytes]:
        """For the runtime only: what is written at the barrier."""
        return self._entries

    def mark(self) -> None:
        """For the runtime only: changes from now on may be taken back."""
        self._before = {}

    def take_back(self) -> None:
        """For the runtime only: as it was at the mark."""
        for key, data in self._before.items():
            self._replace(key, data)
        self._before = {}

    def _set(self, key: bytes, data: bytes | None) -> None:
        self._check_side()
        self._before.setdefault(key, self._entries.get(key))
        self._replace(key, data)

    def _replace(self, key: bytes, data: bytes | None) -> None:
        if data is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = data

    def _check_side(self) -> None:
        if not self._side.is_broadcast:
            raise StateError("broadcast state was changed by something else than a broadcast row", hint="change it in "
                             "process_broadcast_element: its copies in all subtasks must stay alike",
                             state=self.schema.name)  # fmt: skip


class Side:
    """Which side of a broadcast connection is worked on."""

    is_broadcast = False


class OperatorStateStore:
    """The operator state of one subtask in one batch.

    Args:
        known: what the base was written with.
        kept: what is this subtask's to keep.
        unions, broadcasts: what it sees of union lists and broadcast states.
    """

    def __init__(
        self,
        known: Iterable[StateSchema] = (),
        kept: OperatorContent | None = None,
        unions: Mapping[str, list[bytes]] | None = None,
        broadcasts: Mapping[str, dict[bytes, bytes]] | None = None,
    ) -> None:
        self.side = Side()
        self._known = {schema.name: schema for schema in known}
        self._kept = kept or OperatorContent()
        self._unions = unions or {}
        self._broadcasts = broadcasts or {}
        self._states: dict[str, _State] = {}
        self._asked: dict[str, tuple[object, BroadcastState[Any, Any]]] = {}

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> OperatorListState[T]:
        """A list whose elements are split evenly over the subtasks when their number changes.

        Raises StateError when the name is taken by another declaration, IncompatibleState when what is stored cannot be
        read as what is declared.
        """
        schema = _list_schema(descriptor, SPLIT)
        kept = self._kept.lists.get(descriptor.name, [])
        found: OperatorListState[T] = self._registered(
            schema, lambda: OperatorListState(schema, descriptor.element_type, list(kept))
        )
        return found

    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> OperatorListState[T]:
        """A list of which every subtask reads the elements of all subtasks; raises as `get_list_state` does."""
        schema = _list_schema(descriptor, UNION)
        kept, seen = (of.get(descriptor.name, []) for of in (self._kept.unions, self._unions))
        found: OperatorListState[T] = self._registered(
            schema, lambda: OperatorListState(schema, descriptor.element_type, list(kept), list(seen))
        )
        return found

    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """A map that is the same in all subtasks; raises as `get_list_state` does."""
        known = self._asked.get(descriptor.name)
        if known is not None and (known[0] is descriptor or known[0] == descriptor):
            # It is asked for with every row.
            return known[1]
        _refuse_keyed_options(descriptor)
        schema = state_schema(descriptor, BROADCAST, descriptor.value_type, descriptor.key_type)
        entries = self._broadcasts.get(descriptor.name, {})
        found: BroadcastState[K, V] = self._registered(
            schema, lambda: BroadcastState(schema, descriptor, dict(entries), self.side)
        )
        self._asked[descriptor.name] = descriptor, found
        return found

    @property
    def schemas(self) -> list[StateSchema]:
        """For the runtime only: what is declared, in order of names, with the types that stored values had before."""
        schemas = [self._states[name].schema for name in sorted(self._states)]
        return [replace(schema, **with_history(schema, self._known.get(schema.name))) for schema in schemas]

    @property
    def declarations(self) -> list[Declaration]:
        """For the runtime only: what is declared, apart from what is stored."""
        return [Declaration(self._states[name].schema) for name in sorted(self._states)]

    def content(self, keeps_broadcasts: bool) -> OperatorContent:
        """For the runtime only: what is to be written, raw streams as they were. What was not declared stays.

        Args:
            keeps_broadcasts: whether this is the subtask that keeps broadcast states for all.
        """
        lists, unions = dict(self._kept.lists), dict(self._kept.unions)
        broadcasts = dict(self._broadcasts)
        for name, state in self._states.items():
            if isinstance(state, BroadcastState):
                broadcasts[name] = state.entries
            elif isinstance(state, OperatorListState):
                (lists if state.schema.kind == SPLIT else unions)[name] = state.kept
        return OperatorContent(
            lists=_filled(lists), unions=_filled(unions),
            broadcasts={n: dict(sorted(e.items())) for n, e in sorted(broadcasts.items()) if e and keeps_broadcasts},
            raw=self._kept.raw, raw_keyed=self._kept.raw_keyed,
        )  # fmt: skip

    def mark(self) -> None:
        """For the runtime only: changes from now on may be taken back."""
        for state in self._states.values():
            state.mark()

    def take_back(self) -> None:
        """For the runtime only: everything as it was at the mark."""
        for state in self._states.values():
            state.take_back()

    def _registered(self, schema: StateSchema, make: Callable[[], _State]) -> Any:
        found = self._states.get(schema.name)
        if found is None:
            check_state(self._known.get(schema.name), Declaration(schema))
            found = self._states[schema.name] = make()
        elif found.schema != schema:
            raise StateError("an operator state is declared as something else than before", hint="give the new state "
                             "a new name", name=schema.name, before=_describe(found.schema),
                             declared=_describe(schema))  # fmt: skip
        return found


def _list_schema(descriptor: ListStateDescriptor[Any], kind: str) -> StateSchema:
    _refuse_keyed_options(descriptor)
    return state_schema(descriptor, kind, descriptor.element_type)


def _refuse_keyed_options(descriptor: StateDescriptor) -> None:
    if descriptor.ttl is not None or descriptor.queryable or descriptor.serializer is not None:
        raise StateError("operator state has neither a time to live nor a queryable name nor a serializer",
                         hint="only keyed state has", name=descriptor.name)  # fmt: skip


def _filled(lists: Mapping[str, list[bytes]]) -> dict[str, list[bytes]]:
    return {name: lists[name] for name in sorted(lists) if lists[name]}


def _describe(schema: StateSchema) -> str:
    return f"{schema.kind} {schema.key_type}{' -> ' if schema.key_type else ''}{schema.value_type}"
