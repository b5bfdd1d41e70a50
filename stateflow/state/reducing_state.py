"""One value per key, to which each added value is reduced."""

from __future__ import annotations

from typing import TypeVar

from stateflow.descriptors import ReducingStateDescriptor
from stateflow.errors import StateError
from stateflow.serializers import describe_type
from stateflow.state.cell import Cell
from stateflow.state.current import CurrentKey
from stateflow.state.handles import StateSchema
from stateflow.state.ttl import Ttl

T = TypeVar("T")


class ReducingState(Cell[T]):
    """What the current key's added values reduce to."""

    def __init__(
        self, entries: CurrentKey, descriptor: ReducingStateDescriptor[T], ttl: Ttl | None = None
    ) -> None:
        schema = StateSchema(
            name=descriptor.name, kind="reducing", value_type=describe_type(descriptor.value_type),
            queryable=descriptor.queryable,
        )  # fmt: skip
        super().__init__(entries, schema, descriptor.value_type, ttl)
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
