"""Persons who registered and opened an auction in the same ten seconds."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.tables import WATERMARKS, Tables
from stateflow import DataStream, TumblingEventTimeWindows


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
    """A person with a name, or an auction of a seller, who is the person."""

    id: int
    name: str | None
    seller: int | None
    dateTime: datetime


class EventsOfPerson(msgspec.Struct):
    """The name of a person who registered in a window, and the number of auctions that the person opened in it."""

    id: int
    name: str | None
    auctions: int
    starttime: datetime


class NewSeller(msgspec.Struct):
    """A person, and the start of the window."""

    id: int
    name: str
    starttime: datetime


def registrations(persons: pa.RecordBatch) -> pa.RecordBatch:
    """Returns persons as events."""
    return persons.append_column("seller", pa.nulls(len(persons), pa.int64()))


def openings(auctions: pa.RecordBatch) -> pa.RecordBatch:
    """Returns auctions as events."""
    with_id = auctions.append_column("id", auctions.column("seller"))
    return with_id.append_column("name", pa.nulls(len(auctions), pa.string()))


def new_sellers(events: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the persons who registered and opened an auction."""
    is_seller = pc.and_(events.column("name").is_valid(), pc.greater(events.column("auctions"), 0))
    return events.filter(is_seller).select(["id", "name", "starttime"])


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    persons, auctions = tables.views(person=Person, auction=Auction)
    registered = persons.transform_columns(registrations, output=Event)
    opened = auctions.transform_columns(openings, output=Event)
    events = registered.union(opened).assign_timestamps_and_watermarks(WATERMARKS)
    windows = events.key_by("id").window(TumblingEventTimeWindows.of(timedelta(seconds=10)))
    columns = {"name": ("first", "name"), "auctions": ("count", "seller"), "starttime": ("window_start",)}
    counts = windows.aggregate_columns(columns, output=EventsOfPerson, uid="new-sellers")
    return counts.transform_columns(new_sellers, output=NewSeller)
