"""Descriptors of classes that stateflow makes at run time: a task of Spark receives their fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec
from pyspark import cloudpickle

from stateflow import MapStateDescriptor, ValueStateDescriptor
from stateflow.api.aggregates.numeric import Count, Sum
from stateflow.api.column_windows.accumulators import AccumulatorColumns
from stateflow.api.schema import RowSchema
from stateflow.bootstrap.keyed_files.sent_types import from_sent, to_sent
from stateflow.types.descriptors import StateDescriptor


class Row(msgspec.Struct):
    number: int


def test_a_task_receives_the_fields_of_a_class_that_was_made_at_run_time() -> None:
    number = RowSchema.of(Row).column("number")
    # A field with a default, and one without.
    columns = AccumulatorColumns({"rows": Count(number), "total": Sum(number)}, frozenset({"total"}))
    made = cast("type[msgspec.Struct]", columns.stored_class())
    assert [each.required for each in msgspec.structs.fields(made)] == [False, True]
    pickled: Callable[[object], bytes] = cloudpickle.dumps
    for descriptor in (ValueStateDescriptor("contents", made), MapStateDescriptor("contents", str, made)):
        received = from_sent(cloudpickle.loads(pickled(to_sent(descriptor))))
        assert isinstance(received, type(descriptor)) and received.name == "contents"
        found = _made(received)
        assert msgspec.structs.fields(found) == msgspec.structs.fields(made) and found.__name__ == made.__name__
        assert _made(descriptor) is made


def test_other_descriptors_are_sent_as_they_are() -> None:
    for descriptor in (ValueStateDescriptor("row", Row), ValueStateDescriptor("number", int)):
        assert to_sent(descriptor) is descriptor and from_sent(descriptor) is descriptor


def _made(descriptor: StateDescriptor) -> type[msgspec.Struct]:
    found: type[msgspec.Struct] = getattr(descriptor, "value_type")  # noqa: B009 - of both kinds
    return found
