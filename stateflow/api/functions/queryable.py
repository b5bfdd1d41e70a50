"""The function of `KeyedStream.as_queryable_state`."""

from __future__ import annotations

from dataclasses import replace

from stateflow.api.functions.process import Context, KeyedProcessFunction, RuntimeContext
from stateflow.errors import JobDefinitionError
from stateflow.types.descriptors import ReducingStateDescriptor, StateDescriptor, ValueStateDescriptor


class KeepQueryableRow(KeyedProcessFunction[object, object]):
    """Stores the newest row of each key, or adds each row to a reducing state; emits nothing.

    Args:
        name: the queryable name.
        row_class: class of the rows.
        descriptor: declares the state; None for a value state.

    Raises:
        JobDefinitionError: the descriptor declares a state of another kind, or the name is not valid.
    """

    def __init__(self, name: str, row_class: type[object], descriptor: StateDescriptor | None) -> None:
        declared = ValueStateDescriptor("row", row_class) if descriptor is None else descriptor
        if not isinstance(declared, ValueStateDescriptor | ReducingStateDescriptor):
            raise JobDefinitionError(
                "as_queryable_state needs a value or reducing state",
                hint="pass a ValueStateDescriptor or ReducingStateDescriptor of the row class, or no descriptor",
                name=name,
                given=type(declared).__name__,
            )
        # A copy: the caller may pass one descriptor to several streams.
        self._descriptor = replace(declared).set_queryable(name)

    def open(self, ctx: RuntimeContext) -> None:
        if isinstance(self._descriptor, ReducingStateDescriptor):
            self._store = ctx.get_reducing_state(self._descriptor).add
        else:
            self._store = ctx.get_state(self._descriptor).update

    def process_element(self, row: object, ctx: Context) -> None:
        self._store(row)
