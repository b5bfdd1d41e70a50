"""The functions that make the rows of joins in SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from stateflow.api.joins.functions import JoinContext, PairColumns, ProcessJoinFunction
from stateflow.api.sql.expressions.rows import Evaluate, evaluation
from stateflow.api.sql.expressions.tree import Expression


class EmitPair(ProcessJoinFunction[object, object, object]):
    """Emits the row of each pair.

    Args:
        columns: returns the row of a pair.
    """

    def __init__(self, columns: PairColumns) -> None:
        self._columns = columns

    def process_element(self, left: object, right: object, ctx: JoinContext) -> Iterator[object]:
        yield self._columns(left, right)


class PairWithVersion:
    """Makes the row of a left row and its version, or of the left row alone if a condition of the version is not true.

    Args:
        pair: returns the row of a left row and its version, which may be None.
        condition: over the columns of the version.
    """

    def __init__(self, pair: Callable[[object, object], object], condition: Expression) -> None:
        self._pair = pair
        self._condition = condition

    @cached_property
    def _evaluate(self) -> Evaluate:
        return evaluation(self._condition)

    def __call__(self, left: object, version: object) -> object:
        """Returns the row."""
        is_valid = version is not None and self._evaluate(version) is True
        return self._pair(left, version if is_valid else None)
