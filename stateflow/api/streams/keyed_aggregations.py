"""Aggregations of a keyed stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from stateflow.api.aggregates.changelog_aggregates import ChangelogAggregates, Changes
from stateflow.api.aggregates.column_aggregates import ColumnAggregates
from stateflow.api.changelog import KIND_HINT, NO_KIND, Changelog, check_aggregated, row_kind_of
from stateflow.api.dead_letters import FAIL, DeadLetters
from stateflow.api.functions.adapters import AggregateRows, ReduceRows, StreamAggregateFunction
from stateflow.api.graph.event_time import event_time_of, ordered_by_event_time
from stateflow.api.graph.nodes import Edge, ProcessNode, ReducedNode
from stateflow.api.schema import RowSchema
from stateflow.api.streams.keyed_input import KeyedInput, Stream, check_callable, operator_name
from stateflow.errors import JobDefinitionError

In = TypeVar("In")
Out = TypeVar("Out")
Acc = TypeVar("Acc")


class KeyedAggregations(KeyedInput[Stream]):
    """Aggregations over all rows of a key, row by row or by columns."""

    def reduce(self, function: Callable[[In, In], In], *, uid: str = "", on_error: str | DeadLetters = FAIL) -> Stream:
        """Combines the rows of each key. Emits the current result for each row.

        Args:
            function: takes the result of the earlier rows and a row, and returns a row of the same class.
        """
        check_callable("reduce", function, uid)
        schema = self._node.schema
        reducer = ReduceRows(function, schema.row_class)
        return self._operator(reducer, schema, uid, operator_name("reduce", function), on_error)

    def aggregate(
        self,
        function: StreamAggregateFunction[In, Acc, Out],
        *,
        accumulator: object,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Aggregates the rows of each key. Emits the current result for each row.

        Args:
            function: an object with `create_accumulator`, `add` and `get_result`, as of an `AggregateFunction`.
            accumulator: type of the accumulator.
            output: row class of the result.

        Raises:
            JobDefinitionError: `function` lacks one of these methods.
        """
        wanted = ("create_accumulator", "add", "get_result")
        if isinstance(function, type) or not all(callable(getattr(function, name, None)) for name in wanted):
            raise JobDefinitionError(
                "aggregate needs an aggregate function object",
                hint=f"with the methods {', '.join(wanted)}",
                given=repr(function),
                uid=uid,
            )
        name = operator_name("aggregate", function)
        return self._operator(AggregateRows(function, accumulator), RowSchema.of(output), uid, name, on_error)

    def aggregate_columns(
        self,
        aggregates: Mapping[str, Sequence[str]],
        *,
        output: type[object],
        uid: str = "",
        divide_floats: bool = False,
        retract: bool = False,
    ) -> Stream:
        """Aggregates columns of each key, vectorized. Emits one row for each key that has rows in a batch.

        With a field of type `RowKind` in the output class, the result is a changelog by the key. Only then, the rows
        may be those of a changelog with retractions; its aggregates are all but ``first``, ``last`` and
        ``approx_distinct``.

        Args:
            aggregates: ``(kind, column)`` by output column, or ``(kind, column, filter)`` with a bool column: the rows
                in which it is true, as ``FILTER (WHERE …)`` of SQL. Kinds are ``sum``, ``count``, ``min``, ``max``,
                ``mean``, ``variance`` (of a sample), ``first``, ``last``, ``count_distinct`` (exact: the values are
                stored) and ``approx_distinct`` (error about 2 %). Nulls are ignored. Rows are also aggregated before
                the shuffle if the stream has no event time, no key column is a float, and every aggregate is ``count``
                or ``count_distinct`` of any column, ``sum`` or ``mean`` of an int, or ``min`` or ``max`` of a type
                other than float and timedelta.
            output: row class with the key columns and the aggregates.
            retract: emits each result that is replaced once more, with the kind `UPDATE_BEFORE`, which operators after
                this one need that add up rows.
            divide_floats: aggregates sums and means of floats before the shuffle as well. Their last digits then depend
                on how Spark divides the rows, as in Spark's own aggregations.

        Raises:
            JobDefinitionError: an aggregate does not exist, or does not fit its column or the output class.
        """
        schema = RowSchema.of(output)
        try:
            function = self._aggregates(aggregates, schema, retract)
        except JobDefinitionError as e:
            e.add_facts(operator=uid)
            raise
        name, kind = f"aggregate {', '.join(aggregates)}", row_kind_of(schema)
        made = Changelog(self._keying.columns, kind, retract) if kind else None
        # Tasks compute watermarks from the rows: with event time, all rows must reach the tasks.
        is_whole = self._changelog is not None or event_time_of(self._node)
        partial = None if is_whole else function.split(divide_floats)
        edge = ordered_by_event_time(self._edge, function)
        if partial is not None:
            edge = Edge(ReducedNode(self._node, partial), replace(self._keying, order_by=()))
        node = ProcessNode(uid, (edge,), function, schema, name, changelog=made)
        return self._add_operator(node)

    def _aggregates(self, wanted: Mapping[str, Sequence[str]], output: RowSchema, retract: bool) -> ColumnAggregates:
        kind, before = row_kind_of(output), self._changelog
        check_aggregated(before, kind)
        if retract and not kind:
            raise JobDefinitionError(NO_KIND, hint=KIND_HINT, output=output.row_class.__name__)
        if not kind:
            return ColumnAggregates(wanted, self._keying.columns, self._node.schema, output)
        changes = Changes(before.row_kind if before else "", kind, retract)
        return ChangelogAggregates(wanted, self._keying.columns, self._node.schema, output, changes)
