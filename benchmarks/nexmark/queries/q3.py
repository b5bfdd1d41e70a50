"""Persons of three states who sell in category 10."""

from __future__ import annotations

import msgspec

from benchmarks.nexmark.tables import Tables, select
from stateflow.api.streams.data_stream import DataStream


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


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    persons, auctions = tables.views(person=Person, auction=Auction)
    of_states = select(persons, Person, ["*"], where="state IN ('OR', 'ID', 'CA')").key_by("id")
    of_category = select(auctions, Auction, ["*"], where="category = 10").key_by("seller")
    return of_category.regular_join(of_states).select(Seller, {"id": "left.id"}, uid="sellers")
