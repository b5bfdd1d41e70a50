"""A partitioned source of lists in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from stateflow import PartitionedSource, Split
from stateflow.config.settings import SourceSettings

NO_LIMITS = SourceSettings()


class Item(msgspec.Struct):
    name: str
    number: int
    note: str | None = None


class Lists(PartitionedSource):
    """Partitions in memory: a list of items by name, of which the first ones may be gone."""

    needs_spark = False

    def __init__(self, items: Mapping[str, Sequence[object]], row: type = Item, **arguments: Any) -> None:
        super().__init__(schema=row, **arguments)
        self.items = dict(items)
        self.first: dict[str, int] = {}

    @property
    def description(self) -> str:
        return "Lists"

    def starts(self) -> Mapping[str, int]:
        return self.first

    def ends(self) -> Mapping[str, int]:
        return {name: len(items) for name, items in self.items.items()}

    def read_split(self, split: Split) -> Iterator[object]:
        yield from self.items[split.partition][split.start : split.end]


def items_of(name: str, count: int, first: int = 0) -> list[object]:
    return [Item(name, number) for number in range(first, first + count)]


def rows_of(source: Lists, position: str | None = None, limits: SourceSettings = NO_LIMITS) -> list[object]:
    found = source.read(position, limits)
    return [] if found is None else list(found.rows)
