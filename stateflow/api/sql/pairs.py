"""The function that emits the rows of a join in SQL."""

from __future__ import annotations

from collections.abc import Iterator

from stateflow.api.joins.functions import JoinContext, PairColumns, ProcessJoinFunction


class EmitPair(ProcessJoinFunction[object, object, object]):
    """Emits the row of each pair.

    Args:
        columns: returns the row of a pair.
    """

    def __init__(self, columns: PairColumns) -> None:
        self._columns = columns

    def process_element(self, left: object, right: object, ctx: JoinContext) -> Iterator[object]:
        yield self._columns(left, right)
