"""Operators of a keyed stream that keep some of the rows of a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Self

from stateflow.api.aggregates.partial.key_numbers import are_grouped_alike
from stateflow.api.changelog import Changelog, check_appends, check_retracted
from stateflow.api.functions.vectorized import VectorizedKeyedFunction
from stateflow.api.graph.event_time import event_time_of
from stateflow.api.graph.nodes import ColumnsNode, ProcessNode, RowsNode
from stateflow.api.graph.traversal import level_of
from stateflow.api.ranking.deduplicate import DEDUPLICATED, KeepByOrder, KeepFirst, KeepLast, check_order
from stateflow.api.ranking.materialize import Materialize
from stateflow.api.ranking.partial_ranking import PartialRanking
from stateflow.api.ranking.row_order import Order, SortKey, sort_keys
from stateflow.api.ranking.selection import Selection
from stateflow.api.ranking.top_n import TopN, TopNOutput
from stateflow.api.schema import RowSchema
from stateflow.api.streams.keyed_input import KeyedInput, Stream
from stateflow.errors import JobDefinitionError
from stateflow.types.ttl_config import StateTtlConfig

Keep = Literal["first", "last"]


class KeyedRanking(KeyedInput[Stream]):
    """Deduplication and top-n, by columns."""

    def deduplicate(
        self,
        *,
        keep: Keep = "first",
        order_by: str = "",
        output: type[object] | None = None,
        retract: bool = False,
        ttl: StateTtlConfig | None = None,
        uid: str = "",
    ) -> Stream:
        """Keeps one row of each key, as Flink SQL's deduplication does.

        Without `order_by`, the order is that of arrival. Then the first row is never replaced, and the result only
        appends rows. In all other cases it is a changelog of upserts by the key: a later row may replace the row that
        was emitted, and a batch emits at most one row of a key. Rows are also deduplicated before the shuffle if they
        are of a source without event time, and a function in Python passes them on, such as `filter`.

        Args:
            keep: ``"first"`` or ``"last"``.
            order_by: column that orders the rows, such as their event time. Of rows with the same value, the one that
                arrives first is the first one, and the one that arrives last the last one.
            output: row class with the columns of the rows and a field of type `RowKind` for the kind, `INSERT` or
                `UPDATE_AFTER`; not needed without. The operator then stores the row of each key.
            retract: emits each row that is replaced once more, with the kind `UPDATE_BEFORE`, which operators after
                this one need that add up rows.
            ttl: how long the operator remembers a key; by default forever.
            uid: identifies the operator's state across all versions of the job.

        Raises:
            JobDefinitionError: `keep` is another text, the column is not a scalar or may be null, the output class has
                other columns, no row is ever replaced by which to retract, or the stream is a changelog.
        """
        check_appends(self._changelog, "deduplicate", uid)
        if keep not in ("first", "last"):
            raise JobDefinitionError(
                "deduplicate keeps the first or the last row", hint='pass keep="first" or keep="last"', given=repr(keep)
            )
        is_first = keep == "first"
        if order_by:
            check_order(self._node.schema.column(order_by))
        if output is not None or retract:
            return self._stored_row(keep, order_by, self._output(output, "", retract), ttl, uid)
        upserts, reduced = Changelog(self._keying.columns), self._partially_ranked(_kept(keep, order_by))
        if order_by:
            column = self._node.schema.column(order_by)
            by_order = KeepByOrder(column, is_first=is_first, ttl=ttl)
            return reduced._ranking(by_order, uid, f"deduplicate {keep} by {order_by}", upserts)
        if is_first:
            return reduced._ranking(KeepFirst(ttl), uid, "deduplicate first", None)
        return reduced._ranking(KeepLast(), uid, "deduplicate last", upserts)

    def top_n(
        self,
        n: int,
        *,
        order_by: str | Sequence[Order],
        output: type[object] | None = None,
        rank: str = "",
        retract: bool = False,
        ttl: StateTtlConfig | None = None,
        uid: str = "",
    ) -> Stream:
        """Keeps the first `n` rows of each key, as Flink SQL's ``ROW_NUMBER()`` with a filter of the rank does.

        The result is a changelog. With `rank`, or if `n` is 1, each row replaces the row of its key and rank. Otherwise
        a row is emitted with the kind `INSERT` when it enters the top-n, and with `DELETE` when it leaves it. Rows are
        ranked before the shuffle as well where those of `deduplicate` are.

        Args:
            n: number of rows.
            order_by: columns that order the rows, each alone or as ``("price", "desc")``. Of equal rows, the one that
                arrived first comes first. Null is the lowest value.
            output: row class with the columns of the rows, the rank, and a field of type `RowKind` for the kind. Not
                needed without rank and kind.
            rank: column of the output class for the number of a row, from 1.
            retract: emits each row that is replaced once more, with the kind `UPDATE_BEFORE`, which operators after
                this one need that add up rows.
            ttl: how long the operator keeps the rows of a key after their last change; by default forever.
            uid: identifies the operator's state across all versions of the job.

        Raises:
            JobDefinitionError: an argument is malformed, the output class has other columns, or the stream is a
                changelog.
        """
        check_appends(self._changelog, "top_n", uid)
        selection = Selection(n, sort_keys(order_by, self._node.schema))
        return self._selected(selection, self._output(output, rank, retract), ttl, uid, f"top {n}")

    def materialize(self, *, ttl: StateTtlConfig | None = None, uid: str = "") -> Stream:
        """Emits the newest row of each key of a changelog, as Flink's `SinkUpsertMaterializer` before a sink.

        A changelog may have several rows of a key that is not its upsert key. The operator stores all of them; when the
        newest one is retracted, the one before it is emitted again. The result is a changelog of upserts by the key,
        which a sink with this key takes.

        Args:
            ttl: how long a row is kept, from its arrival, and again from when another row of its key was retracted;
                by default forever.
            uid: identifies the operator's state across all versions of the job.

        Raises:
            JobDefinitionError: the stream is not a changelog that retracts the rows that it replaces.
        """
        check_retracted(self._changelog, "materialize", uid)
        assert self._changelog is not None
        schema, kind = self._node.schema, self._changelog.row_kind
        upserts = Changelog(self._keying.columns, kind)
        function = Materialize(schema, kind, ttl)
        return self._add_operator(ProcessNode(uid, (self._edge,), function, schema, "materialize", changelog=upserts))

    def _stored_row(
        self, keep: Keep, order_by: str, output: TopNOutput, ttl: StateTtlConfig | None, uid: str
    ) -> Stream:
        """Adds a deduplication that stores rows: it is a top-1, which may also be in the order of arrival."""
        if not order_by and keep == "first":
            raise JobDefinitionError(
                "the first row that arrives is never replaced, so it has no row kind",
                hint="leave out output and retract, or name the column that orders rows: order_by=…",
                uid=uid,
            )
        name = f"deduplicate {keep}{f' by {order_by}' if order_by else ''}"
        return self._selected(_kept(keep, order_by), output, ttl, uid, name)

    def _selected(
        self, selection: Selection, output: TopNOutput, ttl: StateTtlConfig | None, uid: str, name: str
    ) -> Stream:
        changelog = output.changelog(self._keying.columns, selection.n)
        function = TopN(selection, self._node.schema, output, ttl)
        return self._partially_ranked(selection)._ranking(function, uid, name, changelog, output.schema)

    def _partially_ranked(self, selection: Selection) -> Self:
        """Returns the input without rows that cannot be kept, if that needs no pass over the rows of its own.

        With event time, all rows have to reach the tasks, which compute watermarks from them. An order that `key_by`
        declares is one of all rows of a key.
        """
        keys = [self._node.schema.column(key) for key in self._keying.columns]
        is_passed = isinstance(self._node, ColumnsNode | RowsNode) and level_of(self._node) == 0
        if not is_passed or event_time_of(self._node) or self._keying.order_by or not are_grouped_alike(keys):
            return self
        return self._reduced(PartialRanking(self._keying.columns, selection, self._node.schema))

    def _output(self, output: type[object] | None, rank: str, retract: bool) -> TopNOutput:
        given = self._node.schema
        return TopNOutput.of(given, RowSchema.of(output) if output else given, rank, retract)

    def _ranking(
        self,
        function: VectorizedKeyedFunction,
        uid: str,
        name: str,
        changelog: Changelog | None,
        schema: RowSchema | None = None,
    ) -> Stream:
        node = ProcessNode(uid, (self._edge,), function, schema or self._node.schema, name, appends=self._appends)
        return self._add_operator(replace(node, changelog=changelog))


def _kept(keep: Keep, order_by: str) -> Selection:
    """Returns which row a deduplication keeps."""
    is_last = keep == "last"
    order = (SortKey(order_by, descending=is_last),) if order_by else ()
    return Selection(1, order, newest_first=is_last, state=DEDUPLICATED)
