"""The state of the current key: registration, prefetching, and writing back.

Rows come sorted by key, so a key is current once per stretch of rows. `KeyedState.switch` makes one current; each
state then loads its value at most once, and gives it back when the next key comes. Between `begin_stretch` and
`end_stretch` nothing is written to the backend that a later key could read, so one multi-get answers all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from stateflow.descriptors import MapStateDescriptor, ValueStateDescriptor
from stateflow.errors import StateError
from stateflow.state.backend import KeyedStateBackend
from stateflow.state.current import CurrentKey
from stateflow.state.handles import StateSchema
from stateflow.state.map_state import MapState
from stateflow.state.value_state import ValueState

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class KeyedState:
    """All states of one operator's subtask, for one key at a time.

    Args:
        known: the states that the base was written with; declaring one of them as something else is refused, because
            its bytes would be taken for what they are not.
    """

    def __init__(self, backend: KeyedStateBackend, known: Iterable[StateSchema] = ()) -> None:
        self._entries = CurrentKey(backend)
        self._known = {schema.name: schema for schema in known}
        self._states: dict[str, ValueState[Any] | MapState[Any, Any]] = {}
        self._values: list[ValueState[Any]] = []

    def value_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """The state that `descriptor` declares; the same object when it is asked for again.

        Raises StateError when the name is taken by a state of another kind or type.
        """
        wanted = ValueState(self._entries, descriptor)
        found: ValueState[T] = self._register(wanted)
        if found is wanted:
            self._values.append(wanted)
        return found

    def map_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """As `value_state`, for a map."""
        found: MapState[K, V] = self._register(MapState(self._entries, descriptor))
        return found

    @property
    def schemas(self) -> list[StateSchema]:
        """What is declared, in order of names."""
        return [self._states[name].schema for name in sorted(self._states)]

    @property
    def current(self) -> tuple[bytes, bytes] | None:
        """Key group and key, while there is a current key."""
        return self._entries.address

    def switch(self, group: bytes, key: bytes) -> None:
        """Makes a key current.

        Args:
            group: its key group, 2 bytes.
            key: the key as `encode_key` encodes it.
        """
        self.leave()
        self._entries.address = (group, key)

    def leave(self) -> None:
        """Takes back what the current key's states hold; no key is current then."""
        if self._entries.address is not None:
            for state in self._states.values():
                state.give_back()
            self._entries.address = None

    def begin_stretch(self, keys: Sequence[tuple[bytes, bytes]]) -> None:
        """Reads the value states of many (group, key) pairs at once."""
        for state in self._values:
            state.prefetch(keys)

    def end_stretch(self) -> None:
        """Writes back what was changed since the last stretch."""
        self.leave()
        self._entries.write_through()
        for state in self._values:
            state.forget_prefetched()

    def _register(self, wanted: Any) -> Any:
        schema = wanted.schema
        found = self._states.get(schema.name)
        if found is not None:
            if found.schema != schema:
                raise StateError("a state name is used for two different states", hint="use another name",
                                 name=schema.name, first=found.schema.value_type, second=schema.value_type)  # fmt: skip
            return found
        stored = self._known.get(schema.name, schema)
        if stored != schema:
            raise StateError("a state is declared as something else than what is stored", hint="give the new "
                             "state a new name", name=schema.name, stored=_describe(stored),
                             declared=_describe(schema))  # fmt: skip
        for other in self._states.values():
            if other.id == wanted.id:
                raise StateError("two state names have the same id", hint="rename one of them", first=schema.name,
                                 second=other.schema.name)  # fmt: skip
        self._states[schema.name] = wanted
        return wanted


def _describe(schema: StateSchema) -> str:
    return f"{schema.kind} {schema.key_type}{' -> ' if schema.key_type else ''}{schema.value_type}"
