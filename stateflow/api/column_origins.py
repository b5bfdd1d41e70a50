"""Of which columns a function computes the columns of its rows, for lineage events.

Functions of users are opaque. The functions of SQL, and of aggregates, rankings and joins by name, have a method
`column_origins`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol, runtime_checkable


class Derivation(IntEnum):
    """How a column follows from another one; of two in a row, the higher one counts. Names are OpenLineage's."""

    IDENTITY = 1
    TRANSFORMATION = 2
    AGGREGATION = 3


class Influence(IntEnum):
    """How a column decides which rows there are. Names are OpenLineage's."""

    FILTER = 1
    JOIN = 2
    GROUP_BY = 3
    SORT = 4
    WINDOW = 5


@dataclass(frozen=True)
class Origin:
    """A column that a function takes.

    Attributes:
        column: its name in the rows of the input.
        derivation: how the result follows from it.
        input: number of the input: 0, or 1 for the second of connected streams.
    """

    column: str
    derivation: Derivation = Derivation.IDENTITY
    input: int = 0


@dataclass(frozen=True)
class Origins:
    """The origins of a function's rows.

    Attributes:
        columns: of each column that is known; nothing for a constant.
        rows: the columns that decide which rows there are, in addition to keys.
        passes_on: whether the rows also have the columns of the first input, unchanged.
    """

    columns: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict)
    rows: tuple[tuple[Origin, Influence], ...] = ()
    passes_on: bool = False


@runtime_checkable
class HasColumnOrigins(Protocol):
    """A function that knows which columns it computes of which."""

    def column_origins(self) -> Origins:
        """Returns the origins of the function's rows."""


def of_pairs(columns: Iterable[tuple[str, bool, str]]) -> Origins:
    """Returns the origins of the pairs of a join.

    Args:
        columns: for each column of the result its name, whether it is of the left row, and its name there.
    """
    return Origins({name: (Origin(of, input=0 if is_left else 1),) for name, is_left, of in columns})


def origins_of(function: object) -> Origins:
    """Returns the origins that a function of a join knows; none for a user's function."""
    return function.column_origins() if isinstance(function, HasColumnOrigins) else Origins()
