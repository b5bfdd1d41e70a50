"""The functions that make the rows of joins in SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from types import SimpleNamespace

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


class PairCondition:
    """A condition of the rows of a pair.

    Args:
        condition: over columns of both rows.
        columns: for each of these its name, whether it is of the left row, and its name there.
    """

    def __init__(self, condition: Expression, columns: Sequence[tuple[str, bool, str]]) -> None:
        self._condition = condition
        self._columns = tuple(columns)

    @cached_property
    def _evaluate(self) -> Evaluate:
        return evaluation(self._condition)

    def __call__(self, left: object, right: object) -> bool:
        """Returns whether the condition is true."""
        values = {name: getattr(left if is_left else right, of) for name, is_left, of in self._columns}
        return self._evaluate(SimpleNamespace(**values)) is True


class PairWithVersion:
    """Makes the row of a left row and its version, or of the left row alone if a condition of the pair is not true.

    Args:
        pair: returns the row of a left row and its version, which may be None.
    """

    def __init__(self, pair: Callable[[object, object], object], condition: PairCondition) -> None:
        self._pair = pair
        self._condition = condition

    def __call__(self, left: object, version: object) -> object:
        """Returns the row."""
        is_valid = version is not None and self._condition(left, version)
        return self._pair(left, version if is_valid else None)
