"""One value per key, to which each added value is reduced."""

from __future__ import annotations

from typing import TypeVar

from stateflow.descriptors import ReducingStateDescriptor
from stateflow.errors import StateError
from stateflow.serializers import value_serializer
from stateflow.state.cell import Cell
from stateflow.state.current import CurrentKey
from stateflow.state.ttl import Ttl
from stateflow.state.typeschema import state_schema

T = TypeVar("T")


class ReducingState(Cell[T]):
    """What the current key's added values reduce to."""

    def __init__(
        self, entries: CurrentKey, descriptor: ReducingStateDescriptor[T], ttl: Ttl | None = None
    ) -> None:
        codec = value_serializer(descriptor.value_type, descriptor.serializer, descriptor.name)
        schema = state_schema(descriptor, "reducing", descriptor.value_type)
        super().__init__(entries, schema, codec, ttl)
        self._reduce = descriptor.reduce

    def get(self) -> T | None:
        """The reduced value; None when nothing was added."""
        return self._get()

    def add(self, value: T) -> None:
        """Reduces what there is and `value` to one. Raises StateError for None, also when the function returns it."""
        if value is None:
            raise StateError("a state cannot take None", state=self.schema.name)
        before = self._get()
        reduced = value if before is None else self._reduce(before, value)
        if reduced is None:
            raise StateError("a reduce function returned None", state=self.schema.name)
        self._set(reduced)
