"""Persons of three states who sell in category 10."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from benchmarks.nexmark.tables import Tables
from stateflow import Context, KeyedCoProcessFunction, ListStateDescriptor, RuntimeContext, ValueStateDescriptor
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


class Sellers(KeyedCoProcessFunction[Person, Auction, Seller]):
    """Joins a person and the person's auctions, which may come before the person."""

    def open(self, ctx: RuntimeContext) -> None:
        self.person = ctx.get_state(ValueStateDescriptor("person", Person))
        self.auctions = ctx.get_list_state(ListStateDescriptor("auctions", int))

    def process_element1(self, row: Person, ctx: Context) -> Iterator[Seller]:
        self.person.update(row)
        for auction in self.auctions.get():
            yield Seller(row.name, row.city, row.state, auction)

    def process_element2(self, row: Auction, ctx: Context) -> Iterator[Seller]:
        self.auctions.add(row.id)
        person = self.person.value()
        if person is not None:
            yield Seller(person.name, person.city, person.state, row.id)


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    persons, auctions = tables.views(person=Person, auction=Auction)
    of_states = persons.filter(lambda person: person.state in ("OR", "ID", "CA")).key_by("id")
    of_category = auctions.filter(lambda auction: auction.category == 10).key_by("seller")
    return of_states.connect(of_category).process(Sellers(), output=Seller, uid="sellers")
