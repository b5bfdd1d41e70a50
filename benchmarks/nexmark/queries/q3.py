"""Persons of three states who sell in category 10."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.queries.q20 import of_category
from benchmarks.nexmark.tables import Tables
from stateflow import DataStream


class Person(msgspec.Struct):
    """What the query needs of a person."""

    id: int
    name: str
    city: str
    state: str


class Auction(msgspec.Struct):
    """What the query needs of an auction."""

    id: int
    seller: int
    category: int


class Seller(msgspec.Struct):
    """A person and an auction."""

    name: str
    city: str
    state: str
    id: int


def of_states(persons: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the persons of three states."""
    return persons.filter(pc.is_in(persons.column("state"), pa.array(["OR", "ID", "CA"])))


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    persons, auctions = tables.views(person=Person, auction=Auction)
    some = persons.transform_columns(of_states).key_by("id")
    chosen = auctions.transform_columns(of_category).key_by("seller")
    return chosen.regular_join(some).select(Seller, {"id": "left.id"}, uid="sellers")
