"""One accumulator per key, in which added values are collected."""

from __future__ import annotations

from typing import Generic, TypeVar

from stateflow.descriptors import AggregatingStateDescriptor
from stateflow.errors import StateError
from stateflow.serializers import value_serializer
from stateflow.state.cell import Cell
from stateflow.state.current import CurrentKey
from stateflow.state.ttl import Ttl
from stateflow.state.typeschema import state_schema

In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


class AggregatingState(Cell[Acc], Generic[In, Acc, Out]):
    """What the current key's added values aggregate to; the accumulator is what is stored."""

    def __init__(
        self,
        entries: CurrentKey,
        descriptor: AggregatingStateDescriptor[In, Acc, Out],
        ttl: Ttl | None = None,
    ) -> None:
        codec = value_serializer(descriptor.accumulator_type, descriptor.serializer, descriptor.name)
        schema = state_schema(descriptor, "aggregating", descriptor.accumulator_type)
        super().__init__(entries, schema, codec, ttl)
        self._function = descriptor.agg_function

    def get(self) -> Out | None:
        """The result of what was added; None when nothing was."""
        accumulator = self._get()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: In) -> None:
        """Adds `value`. Raises StateError for None, and when the function returns None for an accumulator."""
        if value is None:
            raise StateError("a state cannot take None", state=self.schema.name)
        before = self._get()
        after = self._function.add(value, self._function.create_accumulator() if before is None else before)
        if after is None:
            raise StateError("an aggregate function returned None for an accumulator", state=self.schema.name)
        self._set(after)
