"""Operator state: state of a subtask rather than of a key, as redistributed lists and broadcast maps.

All of it is in memory while a task runs, and is written as a whole at a barrier when it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from msgspec.structs import replace

from stateflow.config.settings import EntryLimits
from stateflow.errors import StateError
from stateflow.state.backends.base import map_key_too_large, value_too_large
from stateflow.state.handles import OperatorContent, StateSchema
from stateflow.state.kinds.maps.map_state import MapAccess, MapKeys
from stateflow.state.schema import declaration_text, state_schema
from stateflow.state.schema_compatibility import Declaration, check_state, with_history
from stateflow.types.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from stateflow.types.serializers import ValueSerializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

SPLIT, UNION, BROADCAST = "split-list", "union-list", "broadcast"


class _State(Protocol):
    """The part of every kind of operator state that the store uses."""

    schema: StateSchema

    def savepoint(self) -> None: ...

    def rollback(self) -> None: ...


S = TypeVar("S", bound=_State)


class OperatorListState(Generic[T]):
    """A list of a subtask.

    Args:
        schema: schema of the declared state.
        element_type: type of the elements.
        own: the encoded elements that this subtask stores.
        visible: the encoded elements that it reads, if these are more: in a union list, those of all subtasks.
        limits: the largest elements that may be added.
    """

    def __init__(
        self,
        schema: StateSchema,
        element_type: type[T] | object,
        own: list[bytes],
        visible: list[bytes] | None = None,
        limits: EntryLimits = EntryLimits(),
    ) -> None:
        self.schema = schema
        self._limits = limits
        self._serializer: ValueSerializer[T] = ValueSerializer(element_type, schema.name)
        self._own = own
        self._visible = own if visible is None else visible
        self._saved = (self._own, len(self._own), self._visible, len(self._visible))

    def get(self) -> Iterator[T]:
        """Returns the elements in order, as of now.

        For a union list these are the elements of all subtasks as of the last checkpoint, then those added here; after
        `clear` or `update`, only those of this subtask.
        """
        return map(self._serializer.decode, list(self._visible))

    def add(self, value: T) -> None:
        """Appends an element.

        Raises:
            StateError: the value is None or cannot be stored.
        """
        self._append([self._encoded(value)])

    def add_all(self, values: Iterable[T]) -> None:
        """Appends elements in their order; none of them when one raises StateError as in `add`."""
        self._append([self._encoded(value) for value in values])

    def update(self, values: Iterable[T]) -> None:
        """Replaces the elements of this subtask; raises as `add` does, and changes nothing then."""
        data = [self._encoded(value) for value in values]
        self.clear()
        self._append(data)

    def clear(self) -> None:
        """Removes the elements of this subtask, not those of other subtasks in a union list."""
        self._own = self._visible = []

    @property
    def own(self) -> list[bytes]:
        """For the runtime only: the encoded elements to write at the barrier."""
        return self._own

    def savepoint(self) -> None:
        """For the runtime only: marks the point that `rollback` returns to."""
        self._saved = (self._own, len(self._own), self._visible, len(self._visible))

    def rollback(self) -> None:
        """For the runtime only: undoes the changes since the last call of `savepoint()`."""
        self._own, own_length, self._visible, visible_length = self._saved
        del self._own[own_length:]
        del self._visible[visible_length:]

    def _append(self, data: list[bytes]) -> None:
        self._own += data
        if self._visible is not self._own:
            self._visible += data

    def _encoded(self, value: T) -> bytes:
        if value is None:
            raise StateError("a list's element cannot be None", state=self.schema.name)
        return _encoded_value(self._serializer, value, self.schema.name, self._limits)


class BroadcastState(MapAccess[K, V]):
    """A map that is identical in all subtasks; only rows of the broadcast stream change it.

    Args:
        schema: schema of the declared state.
        descriptor: types of keys and values. Every method raises StateError for a key of another type.
        entries: the encoded entries.
        side: the input that the current row comes from.
        limits: the largest entries that may be put.
    """

    def __init__(
        self,
        schema: StateSchema,
        descriptor: MapStateDescriptor[K, V],
        entries: dict[bytes, bytes],
        side: InputSide,
        limits: EntryLimits = EntryLimits(),
    ) -> None:
        self.schema = schema
        self._limits = limits
        self._keys: MapKeys[K] = MapKeys(descriptor.key_type, descriptor.name)
        self._serializer: ValueSerializer[V] = ValueSerializer(descriptor.value_type, schema.name)
        self._entries = entries
        self._side = side
        self._before: dict[bytes, bytes | None] = {}

    def get(self, key: K) -> V | None:
        """Returns the value of `key`; None when the map does not have it."""
        data = self._entries.get(self._keys.encode(key))
        return None if data is None else self._serializer.decode(data)

    def contains(self, key: K) -> bool:
        """Returns whether the map has `key`."""
        return self._keys.encode(key) in self._entries

    def items(self) -> Iterator[tuple[K, V]]:
        """Returns the entries in order of keys, as of now."""
        return ((self._keys.decode(key), self._serializer.decode(data)) for key, data in sorted(self._entries.items()))

    def keys(self) -> Iterator[K]:
        """Returns the keys in order."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V]:
        """Returns the values in order of their keys."""
        return (value for _, value in self.items())

    def is_empty(self) -> bool:
        """Returns whether the map has no entry."""
        return not self._entries

    def put(self, key: K, value: V) -> None:
        """Sets the value of `key`.

        Raises:
            StateError: the value is None, or the current row is not a broadcast row.
            EntryTooLarge: the encoded key or value is larger than its limit.
        """
        if value is None:
            raise StateError("a map's value cannot be None", hint="use remove", state=self.schema.name)
        encoded = self._keys.encode(key)
        if len(encoded) > self._limits.map_key_bytes:
            raise map_key_too_large(self.schema.name, len(encoded), self._limits)
        self._set(encoded, _encoded_value(self._serializer, value, self.schema.name, self._limits))

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Sets the values of many keys; raises as `put` does."""
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: K) -> None:
        """Removes `key`; does nothing when the map does not have it."""
        self._set(self._keys.encode(key), None)

    def clear(self) -> None:
        """Removes every entry."""
        self._check_side()
        for key in list(self._entries):
            self._set(key, None)

    @property
    def entries(self) -> dict[bytes, bytes]:
        """For the runtime only: the encoded entries to write at the barrier."""
        return self._entries

    def savepoint(self) -> None:
        """For the runtime only: marks the point that `rollback` returns to."""
        self._before = {}

    def rollback(self) -> None:
        """For the runtime only: undoes the changes since the last call of `savepoint()`."""
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
            raise StateError(
                "broadcast state was changed outside of a broadcast row",
                hint="change it in process_broadcast_element only: its copies in all subtasks must stay identical",
                state=self.schema.name,
            )


class InputSide:
    """The input of a broadcast connection that the current row comes from.

    Attributes:
        is_broadcast: whether it is the broadcast stream.
    """

    is_broadcast = False


class OperatorStateStore:
    """The operator state of one subtask in one batch.

    Args:
        stored: schemas of the states in the base checkpoint.
        own: the content that this subtask stores.
        unions: the encoded elements of all subtasks, by union list.
        broadcasts: the encoded entries, by broadcast state.
        limits: the largest entries that may be written.

    Attributes:
        side: the input that the current row comes from.
    """

    def __init__(
        self,
        stored: Iterable[StateSchema] = (),
        own: OperatorContent | None = None,
        unions: Mapping[str, list[bytes]] | None = None,
        broadcasts: Mapping[str, dict[bytes, bytes]] | None = None,
        limits: EntryLimits = EntryLimits(),
    ) -> None:
        self._limits = limits
        self.side = InputSide()
        self._stored = {schema.name: schema for schema in stored}
        self._own = own or OperatorContent()
        self._unions = unions or {}
        self._broadcasts = broadcasts or {}
        self._states: dict[str, _State] = {}
        self._broadcast_states: dict[str, tuple[object, BroadcastState[Any, Any]]] = {}

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> OperatorListState[T]:
        """Returns a list whose elements are split evenly over the subtasks when the parallelism changes.

        Raises:
            StateError: another declaration has the name.
            IncompatibleState: the stored values cannot be read as declared.
        """
        schema, own = _list_schema(descriptor, SPLIT), self._own.lists.get(descriptor.name, [])
        make = partial(OperatorListState[T], schema, descriptor.element_type, list(own), None, self._limits)
        return self._register(schema, make)

    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> OperatorListState[T]:
        """Returns a list of which every subtask reads the elements of all; raises as `get_list_state` does."""
        schema = _list_schema(descriptor, UNION)
        own, visible = (of.get(descriptor.name, []) for of in (self._own.unions, self._unions))
        make = partial(OperatorListState[T], schema, descriptor.element_type, list(own), list(visible), self._limits)
        return self._register(schema, make)

    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """Returns a map that is identical in all subtasks; raises as `get_list_state` does."""
        known = self._broadcast_states.get(descriptor.name)
        if known is not None and (known[0] is descriptor or known[0] == descriptor):
            # Functions request it for every row.
            return known[1]
        _refuse_keyed_options(descriptor)
        schema = state_schema(descriptor, BROADCAST, descriptor.value_type, descriptor.key_type)
        entries = self._broadcasts.get(descriptor.name, {})
        make = partial(BroadcastState[K, V], schema, descriptor, dict(entries), self.side, self._limits)
        found = self._register(schema, make)
        self._broadcast_states[descriptor.name] = descriptor, found
        return found

    @property
    def schemas(self) -> list[StateSchema]:
        """For the runtime only: the schemas to store in the manifest, in order of names."""
        schemas = [self._states[name].schema for name in sorted(self._states)]
        return [replace(schema, **with_history(schema, self._stored.get(schema.name))) for schema in schemas]

    @property
    def declarations(self) -> list[Declaration]:
        """For the runtime only: the states as declared, without the history of the stored ones."""
        return [Declaration(self._states[name].schema) for name in sorted(self._states)]

    def content(self, keeps_broadcasts: bool) -> OperatorContent:
        """For the runtime only: returns the content to write at the barrier.

        Raw state, and states that are not declared, are unchanged.

        Args:
            keeps_broadcasts: whether this subtask stores the broadcast states for all subtasks.
        """
        lists, unions = dict(self._own.lists), dict(self._own.unions)
        broadcasts = dict(self._broadcasts)
        for name, state in self._states.items():
            if isinstance(state, BroadcastState):
                broadcasts[name] = state.entries
            elif isinstance(state, OperatorListState):
                (lists if state.schema.kind == SPLIT else unions)[name] = state.own
        return OperatorContent(
            lists=_non_empty(lists),
            unions=_non_empty(unions),
            broadcasts={n: dict(sorted(e.items())) for n, e in sorted(broadcasts.items()) if e and keeps_broadcasts},
            raw=self._own.raw,
            raw_keyed=self._own.raw_keyed,
        )

    def savepoint(self) -> None:
        """For the runtime only: marks the point that `rollback` returns to."""
        for state in self._states.values():
            state.savepoint()

    def rollback(self) -> None:
        """For the runtime only: undoes the changes of all states since `savepoint`."""
        for state in self._states.values():
            state.rollback()

    def _register(self, schema: StateSchema, make: Callable[[], S]) -> S:
        found = self._states.get(schema.name)
        if found is None:
            check_state(self._stored.get(schema.name), Declaration(schema))
            made = self._states[schema.name] = make()
            return made
        if found.schema != schema:
            raise StateError(
                "an operator state name is used for two different states",
                hint="give the new state a new name",
                name=schema.name,
                before=declaration_text(found.schema),
                declared=declaration_text(schema),
            )
        # The schema has the kind of state, so `make` returns this type of state.
        return cast(S, found)


def _encoded_value(serializer: ValueSerializer[T], value: T, state: str, limits: EntryLimits) -> bytes:
    data = serializer.encode(value)
    if len(data) > limits.value_bytes:
        raise value_too_large(state, len(data), limits)
    return data


def _list_schema(descriptor: ListStateDescriptor[T], kind: str) -> StateSchema:
    _refuse_keyed_options(descriptor)
    return state_schema(descriptor, kind, descriptor.element_type)


def _refuse_keyed_options(descriptor: StateDescriptor) -> None:
    if descriptor.ttl is not None or descriptor.queryable or descriptor.serializer is not None:
        raise StateError(
            "operator state does not support a TTL, a queryable name or a serializer",
            hint="remove these options, or use keyed state",
            name=descriptor.name,
        )


def _non_empty(lists: Mapping[str, list[bytes]]) -> dict[str, list[bytes]]:
    return {name: lists[name] for name in sorted(lists) if lists[name]}
