"""Bounds of event times in the condition of a join."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from stateflow.api.sql.expressions.tree import Call, Constant, Expression, Ref

_MILLISECOND = timedelta(milliseconds=1)
_FLIPPED = {"le": "ge", "ge": "le", "lt": "gt", "gt": "lt", "eq": "eq"}


@dataclass(frozen=True)
class TimeBounds:
    """Bounds of how much later than the left row the right row may be.

    Attributes:
        left, right: the names that the joined rows have for the event times of both sides; of one column, or none.
        is_exact: whether these columns have whole milliseconds, as event times do; else the bounds of event times are
            the narrowest that no pair exceeds which meets the conditions.
    """

    left: Collection[str]
    right: Collection[str]
    is_exact: bool

    def of_all(self, conditions: Sequence[Expression]) -> tuple[timedelta, timedelta] | None:
        """Returns the bounds that conditions set together; None without two bounds."""
        found = [bound for each in conditions if (bound := self.of(each)) is not None]
        lower = [low for low, _ in found if low is not None]
        upper = [high for _, high in found if high is not None]
        if not lower or not upper:
            return None
        return max(lower) // _MILLISECOND * _MILLISECOND, -(-min(upper) // _MILLISECOND) * _MILLISECOND

    def of(self, condition: Expression) -> tuple[timedelta | None, timedelta | None] | None:
        """Returns the lower and the upper bound that a condition sets; None if it is no bound of times."""
        if not isinstance(condition, Call) or condition.function not in _FLIPPED or len(condition.args) != 2:
            return None
        function, one, other = condition.function, self._time(condition.args[0]), self._time(condition.args[1])
        if one is None or other is None or one[0] == other[0]:
            return None
        (is_left, first), (_, second) = one, other
        if not is_left:
            function, first, second = _FLIPPED[function], second, first
        later, shortest = first - second, _MILLISECOND if self.is_exact else timedelta()
        return {
            "ge": (None, later),
            "gt": (None, later - shortest),
            "le": (later, None),
            "lt": (later + shortest, None),
            "eq": (later, later),
        }[function]

    def _time(self, expression: Expression) -> tuple[bool, timedelta] | None:
        """Returns whether an expression is the event time of the left side, and what is added to it."""
        shift = timedelta()
        if isinstance(expression, Call) and expression.function == "shift":
            expression, interval = expression.args
            assert isinstance(interval, Constant) and isinstance(interval.value, timedelta)
            shift = interval.value
        if not isinstance(expression, Ref) or expression.name not in (*self.left, *self.right):
            return None
        return expression.name not in self.right, shift
