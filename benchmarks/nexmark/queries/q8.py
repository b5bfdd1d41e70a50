"""Persons who registered and opened an auction in the same ten seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import msgspec

from benchmarks.nexmark.queries.q11 import timestamp
from benchmarks.nexmark.tables import WATERMARKS, Tables, select
from stateflow import TimeWindow, TumblingEventTimeWindows
from stateflow.api.streams.data_stream import DataStream


class Person(msgspec.Struct):
    """What the query needs of a person."""

    id: int
    name: str
    dateTime: datetime


class Auction(msgspec.Struct):
    """What the query needs of an auction."""

    seller: int
    dateTime: datetime


class Event(msgspec.Struct):
    """A person with a name, or an auction of the person."""

    id: int
    name: str | None
    dateTime: datetime


class NewSeller(msgspec.Struct):
    """A person, and the start of the window."""

    id: int
    name: str
    starttime: datetime


def new_sellers(person: int, window: TimeWindow, events: Iterable[Event]) -> Iterator[NewSeller]:
    """Yields the person if there are an event of the person and one of an auction."""
    names = [event.name for event in events]
    if None in names:
        for name in names:
            if name is not None:
                yield NewSeller(person, name, timestamp(window.start))


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    persons, auctions = tables.views(person=Person, auction=Auction)
    registered = select(persons, Event, ["id", "name", "dateTime"])
    opened = select(auctions, Event, ["seller AS id", "CAST(NULL AS STRING) AS name", "dateTime"])
    events = registered.union(opened).assign_timestamps_and_watermarks(WATERMARKS)
    windows = events.key_by("id").window(TumblingEventTimeWindows.of(timedelta(seconds=10)))
    return windows.apply(new_sellers, output=NewSeller, uid="new-sellers")
