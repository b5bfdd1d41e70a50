"""The pattern of ROW_NUMBER() in an inner query, and a limit of it in the outer one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stateflow.api.sql.expressions.sql_types import BIGINT
from stateflow.api.sql.expressions.tree import Call, Constant, Expression, Ref, columns_of, replaced
from stateflow.api.sql.planning.plan import Computed, Plan, RowNumber, Shared, TopN


@dataclass(frozen=True)
class Numbered:
    """An inner query with numbers of rows, limited by conditions of the outer query.

    Attributes:
        plan: the inner query.
        name: the column of the inner query with the number.
        n: how many rows of a key are wanted.
        rest: the conditions that do not limit the number.
    """

    plan: Computed
    name: str
    n: int
    rest: tuple[Expression, ...]

    @classmethod
    def of(cls, plan: Plan, conditions: list[Expression]) -> Numbered | None:
        """Returns the pattern; None if it is another query."""
        if isinstance(plan, Shared):
            plan = plan.input
        if not isinstance(plan, Computed) or not isinstance(plan.input, RowNumber):
            return None
        names = [name for name, each in plan.items if isinstance(each, Ref) and each.name == plan.input.rank]
        for at, condition in enumerate(conditions):
            n = _limit(condition, names)
            if n is not None:
                return cls(plan, names[0], n, (*conditions[:at], *conditions[at + 1 :]))
        return None

    def top(self, used: set[str]) -> Plan:
        """Returns the first rows of each key.

        Args:
            used: the columns of the inner query that the outer one uses.
        """
        numbered = self.plan.input
        assert isinstance(numbered, RowNumber)
        if self.n == 1:
            # As in Flink: then it is a deduplication, whether the number is used or not.
            one = {numbered.rank: Constant(1, BIGINT)}
            items = tuple(
                (name, replaced(each, one)) for name, each in self.plan.items if name != self.name or name in used
            )
            return replace(self.plan, input=self._top(numbered, ""), items=items)
        rank = numbered.rank if self.name in used or self._computes_with(numbered.rank) else ""
        items = self.plan.items if rank else tuple(item for item in self.plan.items if item[0] != self.name)
        return replace(self.plan, input=self._top(numbered, rank), items=items)

    def _top(self, numbered: RowNumber, rank: str) -> TopN:
        return TopN(numbered.input, numbered.keys, numbered.order, self.n, rank, numbered.uid, numbered.at)

    def _computes_with(self, rank: str) -> bool:
        return any(rank in columns_of(each) for name, each in self.plan.items if name != self.name)


def _limit(condition: Expression, names: list[str]) -> int | None:
    """Returns the number of rows to which a condition limits them; None if it is another condition."""
    if not isinstance(condition, Call) or len(condition.args) != 2:
        return None
    function, (left, right) = condition.function, condition.args
    if isinstance(left, Constant):
        function, left, right = {"ge": "le", "gt": "lt", "eq": "eq"}.get(function, ""), right, left
    if not (isinstance(left, Ref) and left.name in names and isinstance(right, Constant)):
        return None
    value = right.value
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    n = {"le": value, "lt": value - 1, "eq": value if value == 1 else 0}.get(function, 0)
    return n if n > 0 else None
