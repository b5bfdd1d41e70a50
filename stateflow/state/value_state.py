"""One value per key."""

from __future__ import annotations

from typing import TypeVar

from stateflow.descriptors import ValueStateDescriptor
from stateflow.serializers import value_serializer
from stateflow.state.cell import Cell
from stateflow.state.current import CurrentKey
from stateflow.state.ttl import Ttl
from stateflow.state.typeschema import state_schema

T = TypeVar("T")


class ValueState(Cell[T]):
    """One value for the current key."""

    def __init__(
        self, entries: CurrentKey, descriptor: ValueStateDescriptor[T], ttl: Ttl | None = None
    ) -> None:
        codec = value_serializer(descriptor.value_type, descriptor.serializer, descriptor.name)
        schema = state_schema(descriptor, "value", descriptor.value_type)
        super().__init__(entries, schema, codec, ttl, descriptor.default)

    def value(self) -> T | None:
        """The current key's value; the default, or None, when it has none. Change it by `update`, not in place."""
        if self._stored_key is None:
            self._load()
        return self._value

    def update(self, value: T | None) -> None:
        """Sets the current key's value; None clears it."""
        if value is None:
            self.clear()
            return
        if self._stored_key is None:
            self._stored_key = self._entries.stored_key(self.id)
        self._value = value
        self._changed = True
