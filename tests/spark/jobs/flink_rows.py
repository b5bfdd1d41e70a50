"""Row classes of `flink_cases`.

All cases share few inputs: Spark plans a job with an input for each case slowly. So each operator has the rows of all
cases, under keys of their own, and a table has the results of one case.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta

import msgspec

from stateflow import RowKind
from stateflow.api.streams.data_stream import DataStream

WATERMARK = "watermark"
"""The key of rows that only advance the watermark: a millisecond later than in Flink's case, at a batch's end."""


class Timed(msgspec.Struct, frozen=True):
    """A row with event time in milliseconds; `side` is ``left`` or ``right`` for joins."""

    key: str
    value: int
    at: int = 0
    side: str = ""


class Total(msgspec.Struct, frozen=True):
    """The sum of a window."""

    key: str
    total: int
    start: int
    end: int


class Pair(msgspec.Struct, frozen=True):
    """The times of two joined rows."""

    key: str
    left: int
    right: int


class Group(msgspec.Struct, frozen=True):
    """The numbers of rows of both sides of a window."""

    key: str
    start: int
    left: int
    right: int


class Change(msgspec.Struct, frozen=True):
    """A result of an outer join: the values of both rows."""

    key: str
    kind: RowKind
    left: int | None
    right: int | None


Out = Callable[[DataStream, str, str], None]
"""Writes the rows of a case, by its name, to a table."""


def ms(milliseconds: int) -> timedelta:
    """Returns a duration."""
    return timedelta(milliseconds=milliseconds)


def of_case(case: str, rows: Iterable[Timed]) -> list[Timed]:
    """Returns the rows of a case with the keys that they have in the job."""
    return [row if row.key == WATERMARK else msgspec.structs.replace(row, key=f"{case}/{row.key}") for row in rows]


def on_side(side: str, rows: Iterable[Timed]) -> list[Timed]:
    """Returns the rows as those of a side."""
    return [msgspec.structs.replace(row, side=side) for row in rows]
