"""Frames of the state that plain dictionaries describe, for the job of `tests.support.moved_state`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from stateflow import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from stateflow.api.source import CollectionSource
from stateflow.bootstrap.frames import KeyedStateFrame
from stateflow.bootstrap.writer import SavepointWriter
from stateflow.types.descriptors import StateDescriptor
from tests.support.moved_state import TTL, Brief, Expected, OneKey, Row
from tests.support.operators import Mean

KEY = {"key": "string", "shop": "bigint"}
_KEY_COLUMNS = [("key", pa.string()), ("shop", pa.int64())]
_TTL = StateTtlConfig.new_builder(TTL).build()
Shape = Callable[[pa.Table], Any]
Values = Iterator[dict[str, Any]]

ONE = ValueStateDescriptor("one", int)
TAGS = ValueStateDescriptor("tags", dict[str, set[int]])
ITEMS = ListStateDescriptor("items", int)
ENTRIES = MapStateDescriptor("entries", str, int)
SUM = ReducingStateDescriptor("sum", lambda a, b: a + b, int)
MEAN = AggregatingStateDescriptor("mean", Mean(), list[int])
BRIEF = ValueStateDescriptor("brief", int, ttl=_TTL)
BRIEF_ITEMS = ListStateDescriptor("brief items", int, ttl=_TTL)
BRIEF_ENTRIES = MapStateDescriptor("brief entries", str, int, ttl=_TTL)


def add_operators(writer: SavepointWriter, expected: Expected, began: datetime, shape: Shape) -> None:
    """Adds both operators of the job.

    Args:
        writer: the writer.
        expected: the state.
        began: when the clock of the job began.
        shape: makes a frame of a table.
    """
    given: list[tuple[StateDescriptor, pa.DataType, Callable[[OneKey], Values]]] = [
        (ONE, pa.int64(), lambda of: _one(of.one)),
        (TAGS, pa.map_(pa.string(), pa.list_(pa.int64())), _tags),
        (ITEMS, pa.int64(), lambda of: _many(of.items)),
        (ENTRIES, pa.int64(), lambda of: ({"map_key": k, "value": v} for k, v in of.entries.items())),
        (SUM, pa.int64(), lambda of: _one(sum(of.added) if of.added else None)),
        (MEAN, pa.list_(pa.int64()), lambda of: _one([len(of.added), sum(of.added)] if of.added else None)),
        (BRIEF, pa.int64(), lambda of: _brief([of.brief] if of.brief else [], began)),
        (BRIEF_ITEMS, pa.int64(), lambda of: _brief(of.brief_items, began)),
        (BRIEF_ENTRIES, pa.int64(), lambda of: _brief_entries(of, began)),
    ]
    states: list[KeyedStateFrame] = []
    for descriptor, kind, rows in given:
        is_brief, is_list = descriptor.name.startswith("brief"), isinstance(descriptor, ListStateDescriptor)
        more = [("written_at", pa.timestamp("ms", "UTC"))] if is_brief else []
        more += [("position", pa.int64())] if is_list else []
        more += [("map_key", pa.string())] if isinstance(descriptor, MapStateDescriptor) else []
        table = _table(expected, rows, [("value", kind), *more])
        # In another order than the keys have.
        states.append(KeyedStateFrame(descriptor, shape(table.take(pa.array(range(table.num_rows)[::-1], pa.int64())))))
    writer.with_operator("every", key=KEY, states=states, timers=shape(_timers(expected)))
    rates = pa.table({"map_key": list(expected.rates), "value": list(expected.rates.values())}, _rate_schema())
    writer.with_operator("rates", key=KEY).with_broadcast_state(
        "rates", MapStateDescriptor("rates", str, int), shape(rates)
    )


def source_of(rows: Sequence[Row]) -> CollectionSource:
    """The source of the job."""
    return CollectionSource(rows, Row)


def _rate_schema() -> pa.Schema:
    return pa.schema([("map_key", pa.string()), ("value", pa.int64())])


def _table(expected: Expected, rows: Callable[[OneKey], Values], columns: list[tuple[str, pa.DataType]]) -> pa.Table:
    found = [{"key": k, "shop": s, **row} for (k, s), of in expected.keys.items() for row in rows(of)]
    return pa.Table.from_pylist(found, pa.schema([*_KEY_COLUMNS, *columns]))


def _timers(expected: Expected) -> pa.Table:
    found = []
    for (key, shop), text in sorted(expected.timers):
        domain, time = text.split()
        found.append({"key": key, "shop": shop, "time": int(time), "domain": domain})
    return pa.Table.from_pylist(found, pa.schema([*_KEY_COLUMNS, ("time", pa.int64()), ("domain", pa.string())]))


def _one(value: Any) -> Values:
    if value is not None:
        yield {"value": value}


def _many(values: Sequence[Any]) -> Values:
    for position, value in enumerate(values):
        yield {"value": value, "position": position}


def _tags(of: OneKey) -> Values:
    if of.tags:
        yield {"value": [(name, sorted(found)) for name, found in of.tags.items()]}


def _brief(briefs: Sequence[Brief], began: datetime) -> Values:
    for position, brief in enumerate(briefs):
        yield {"value": brief.value, "written_at": began + brief.since, "position": position}


def _brief_entries(of: OneKey, began: datetime) -> Values:
    for name, brief in of.brief_entries.items():
        yield {"map_key": name, "value": brief.value, "written_at": began + brief.since}
