"""The operator of regular outer joins, whose results are corrected when a partner arrives.

The rows that it emits are those of Flink's `StreamingJoinOperator`: a row without a partner is emitted with None; when
its first partner arrives, that result is deleted, and the pair is emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stateflow.api.changelog import with_kind
from stateflow.api.functions.connected import KeyedCoProcessFunction
from stateflow.api.functions.process import Context, RuntimeContext
from stateflow.api.joins.functions import Untyped, has_null
from stateflow.api.joins.pairs import ComparedPairs
from stateflow.api.joins.regular_join import KeptRows
from stateflow.state.kinds.list_state import ListState
from stateflow.types.columns.row_kind import RowKind
from stateflow.types.descriptors import ListStateDescriptor

LEFT_UNMATCHED, RIGHT_UNMATCHED = "left-unmatched", "right-unmatched"
"""Names of the states with the rows that have had no partner yet; part of the stored format."""
_Pair = Callable[[Untyped, Untyped], object]
"""Takes a row and its partner, or None in place of either; returns the row to emit."""


@dataclass(frozen=True)
class JoinKind:
    """Which rows without a partner are emitted.

    Attributes:
        left, right: whether those of this side are.
    """

    left: bool
    right: bool


@dataclass(frozen=True)
class _Side:
    """The rows of one side.

    Attributes:
        matched: those that have had a partner; all rows of a side whose rows without a partner are not emitted.
        unmatched: those without a partner, which were emitted with None; None for a side that has none.
    """

    matched: ListState[object]
    unmatched: ListState[object] | None


class OuterJoin(KeyedCoProcessFunction[object, object, object]):
    """Calls a function with each pair of rows, and with each row without a partner.

    Args:
        function: takes a left and a right row, one of which may be None, and returns the row to emit.
        row_kind: the field of that row that gets its `RowKind`.
    """

    _left: _Side
    _right: _Side

    def __init__(self, rows: KeptRows, kind: JoinKind, function: _Pair, row_kind: str) -> None:
        self.function = function
        self._rows = rows
        self._kind = kind
        self._row_kind = row_kind

    def open(self, ctx: RuntimeContext) -> None:
        left, right = self._rows.descriptors
        ttl, classes = self._rows.ttl, (self._rows.left.row_class, self._rows.right.row_class)
        names, is_outer = (LEFT_UNMATCHED, RIGHT_UNMATCHED), (self._kind.left, self._kind.right)
        unmatched = [
            ctx.get_list_state(ListStateDescriptor(name, row_class, ttl=ttl)) if outer else None
            for name, row_class, outer in zip(names, classes, is_outer, strict=True)
        ]
        self._left = _Side(ctx.get_list_state(left), unmatched[0])
        self._right = _Side(ctx.get_list_state(right), unmatched[1])
        self._pairs = ComparedPairs()
        self.hot_keys = self._pairs.hot

    def process_element1(self, row: object, ctx: Context) -> Iterator[object]:
        return self._arrive(row, ctx, self._left, self._right, self.function)

    def process_element2(self, row: object, ctx: Context) -> Iterator[object]:
        return self._arrive(row, ctx, self._right, self._left, lambda own, other: self.function(other, own))

    def _arrive(self, row: object, ctx: Context, own: _Side, other: _Side, pair: _Pair) -> Iterator[object]:
        if has_null(ctx.get_current_key()):
            # It never gets a partner, so its result is never deleted, and it is not stored.
            if own.unmatched is not None:
                yield with_kind(pair(row, None), self._row_kind, RowKind.INSERT)
            return
        partners = list(other.matched.get())
        waiting = [] if other.unmatched is None else list(other.unmatched.get())
        self._pairs.add(ctx.get_current_key(), len(partners) + len(waiting))
        if own.unmatched is not None and not partners and not waiting:
            own.unmatched.add(row)
            yield with_kind(pair(row, None), self._row_kind, RowKind.INSERT)
            return
        own.matched.add(row)
        if waiting and other.unmatched is not None:
            other.unmatched.clear()
            other.matched.add_all(waiting)
        for partner in waiting:
            yield with_kind(pair(None, partner), self._row_kind, RowKind.DELETE)
        for partner in (*partners, *waiting):
            yield with_kind(pair(row, partner), self._row_kind, RowKind.INSERT)
