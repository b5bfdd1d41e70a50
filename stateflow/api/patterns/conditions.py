"""Conditions of patterns: which rows a stage of a pattern accepts."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from stateflow.errors import JobDefinitionError

Row = TypeVar("Row")

Predicate = Callable[..., bool]
"""A function of a row, or of a row and the `MatchedRows` of the partial match that the row would extend."""


class StagePath(ABC):
    """The numbers of the rows of a partial match by stage."""

    __slots__ = ()

    @abstractmethod
    def first(self, stage: str) -> int | None:
        """Returns the number of the first row of a stage; None without one."""

    @abstractmethod
    def last(self, stage: str) -> int | None:
        """Returns the number of the last row of a stage; None without one."""

    @abstractmethod
    def rows(self, stage: str) -> list[int]:
        """Returns the numbers of the rows of a stage in their order."""


class MatchedRows(Generic[Row]):
    """The rows that a partial match has so far, for conditions that compare a row with earlier ones.

    Args:
        path: the numbers of the rows.
        row_of: returns the row of a number.
    """

    __slots__ = ("_path", "_row_of")

    def __init__(self, path: StagePath, row_of: Callable[[int], Row]) -> None:
        self._path = path
        self._row_of = row_of

    def rows(self, stage: str) -> list[Row]:
        """Returns the rows of a stage in their order; none if the stage has matched no row yet."""
        return [self._row_of(number) for number in self._path.rows(stage)]

    def first(self, stage: str) -> Row | None:
        """Returns the first row of a stage; None if it has matched no row yet."""
        number = self._path.first(stage)
        return None if number is None else self._row_of(number)

    def last(self, stage: str) -> Row | None:
        """Returns the last row of a stage; None if it has matched no row yet."""
        number = self._path.last(stage)
        return None if number is None else self._row_of(number)


@dataclass(frozen=True)
class FunctionCondition:
    """A condition that a function decides.

    Attributes:
        function: the function.
        is_iterative: whether it takes the matched rows, too.
    """

    function: Predicate
    is_iterative: bool

    @classmethod
    def of(cls, function: object, stage: str) -> FunctionCondition:
        """Returns the condition of a function.

        Raises:
            JobDefinitionError: it cannot be called with a row, or with a row and the matched rows.
        """
        count = _required_arguments(function) if callable(function) and not isinstance(function, type) else 0
        if count not in (1, 2) or not callable(function):
            raise JobDefinitionError(
                "a condition of a pattern must be a function of one or two arguments",
                hint="lambda row: …, or lambda row, matched: … for a condition that compares it with earlier rows",
                stage=stage,
                given=repr(function)[:200],
            )
        return cls(function, count == 2)


@dataclass(frozen=True)
class Not:
    """A condition that holds if another one does not."""

    of: Condition


@dataclass(frozen=True)
class AllOf:
    """A condition that holds if all others do; without others, always."""

    of: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class AnyOf:
    """A condition that holds if one of the others does."""

    of: tuple[Condition, ...]


Condition = FunctionCondition | Not | AllOf | AnyOf

ALWAYS = AllOf()


class Evaluation(Generic[Row]):
    """Evaluates conditions for a row and a partial match, and calls each function at most once.

    Args:
        row: the row.
        matched: the rows of the partial match.
        of_row: results of conditions that take the row alone, by the identity of the condition; shared by all partial
            matches that the row is compared with.
    """

    __slots__ = ("_matched", "_of_match", "_of_row", "_row")

    def __init__(self, row: Row, matched: Callable[[], MatchedRows[Row]], of_row: dict[int, bool]) -> None:
        self._row = row
        self._matched = matched
        self._of_row = of_row
        self._of_match: dict[int, bool] = {}

    def holds(self, condition: Condition) -> bool:
        """Returns whether a condition holds."""
        if isinstance(condition, FunctionCondition):
            return self._call(condition)
        if isinstance(condition, AllOf):
            return all(self.holds(each) for each in condition.of)
        if isinstance(condition, Not):
            return not self.holds(condition.of)
        return any(self.holds(each) for each in condition.of)

    def _call(self, where: FunctionCondition) -> bool:
        known = self._of_match if where.is_iterative else self._of_row
        result = known.get(id(where))
        if result is None:
            result = bool(
                where.function(self._row, self._matched()) if where.is_iterative else where.function(self._row)
            )
            known[id(where)] = result
        return result


def _required_arguments(function: Callable[..., object]) -> int:
    """Returns the number of positional arguments without a default; 1 for functions that do not show them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.default is inspect.Parameter.empty]
    if any(each.kind is inspect.Parameter.KEYWORD_ONLY for each in needed):
        return 0
    takes_any = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in needed)
    return max(sum(each.kind in positional for each in needed), int(takes_any))
