"""The stream of rows by key, and its operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Never, Self, TypeVar, overload

from stateflow.api.aggregates.changelog_aggregates import ChangelogAggregates, Changes
from stateflow.api.aggregates.column_aggregates import ColumnAggregates
from stateflow.api.aggregates.partial import are_grouped_alike
from stateflow.api.changelog import (
    KIND_HINT,
    NO_KIND,
    Changelog,
    check_aggregated,
    check_appends,
    check_retracted,
    check_row_kind,
    row_kind_of,
)
from stateflow.api.dead_letters import FAIL, DeadLetters
from stateflow.api.functions.adapters import (
    AggregateRows,
    FilterRowsWithState,
    FlatMapRowsWithState,
    MapRowsWithState,
    ReduceRows,
    RowStepFunction,
    StreamAggregateFunction,
)
from stateflow.api.functions.process import Context, KeyedProcessFunction, RuntimeContext
from stateflow.api.functions.rich import RichFilterFunction, RichFlatMapFunction, RichMapFunction, RowStep, StepKind
from stateflow.api.functions.vectorized import VectorizedKeyedFunction
from stateflow.api.graph import (
    ColumnsNode,
    Edge,
    Node,
    ProcessNode,
    ReducedNode,
    RowsNode,
    event_time_of,
    level_of,
    order_by_event_time,
)
from stateflow.api.over.frames import Frame, Preceding, Unbounded
from stateflow.api.over.over_aggregates import OverAggregates, OverColumns
from stateflow.api.patterns.pattern import Pattern
from stateflow.api.ranking import (
    DEDUPLICATED,
    KeepByOrder,
    KeepFirst,
    KeepLast,
    Materialize,
    Order,
    PartialRanking,
    Selection,
    SortKey,
    TopN,
    TopNOutput,
    check_order,
    sort_keys,
)
from stateflow.api.schema import RowSchema
from stateflow.api.streams.connected_streams import (
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
    check_pair,
)
from stateflow.api.streams.joins.inputs import changelog_pair, join_pair, join_versions
from stateflow.api.streams.joins.interval_joined import IntervalJoinedStreams
from stateflow.api.streams.joins.regular_joined import RegularJoinedStreams
from stateflow.api.streams.joins.temporal_joined import TemporalJoinedStreams
from stateflow.api.streams.operator_input import OperatorInput, Stream, check_callable, operator_name
from stateflow.api.streams.pattern_stream import PatternStream
from stateflow.api.streams.windowed_stream import WindowedStream
from stateflow.api.windows.assigners import WindowAssigner
from stateflow.errors import JobDefinitionError
from stateflow.types.descriptors import ReducingStateDescriptor, StateDescriptor, ValueStateDescriptor
from stateflow.types.ttl_config import StateTtlConfig


class _KeepQueryableRow(KeyedProcessFunction[object, object]):
    """Stores the newest row of each key, or adds each row to a reducing state; emits nothing.

    Args:
        name: the queryable name.
        row_class: class of the rows.
        descriptor: declares the state; None for a value state.

    Raises:
        JobDefinitionError: the descriptor declares a state of another kind, or the name is not valid.
    """

    def __init__(self, name: str, row_class: type[object], descriptor: StateDescriptor | None) -> None:
        declared = ValueStateDescriptor("row", row_class) if descriptor is None else descriptor
        if not isinstance(declared, ValueStateDescriptor | ReducingStateDescriptor):
            raise JobDefinitionError(
                "as_queryable_state needs a value or reducing state",
                hint="pass a ValueStateDescriptor or ReducingStateDescriptor of the row class, or no descriptor",
                name=name,
                given=type(declared).__name__,
            )
        # A copy: the caller may pass one descriptor to several streams.
        self._descriptor = replace(declared).set_queryable(name)

    def open(self, ctx: RuntimeContext) -> None:
        if isinstance(self._descriptor, ReducingStateDescriptor):
            self._store = ctx.get_reducing_state(self._descriptor).add
        else:
            self._store = ctx.get_state(self._descriptor).update

    def process_element(self, row: object, ctx: Context) -> None:
        self._store(row)


In = TypeVar("In")
Out = TypeVar("Out")
State = TypeVar("State")
Acc = TypeVar("Acc")
Keep = Literal["first", "last"]


class KeyedStream(OperatorInput[Stream]):
    """A stream that is partitioned by key. `Stream` is the class of the streams that its operators return."""

    def process(
        self,
        function: KeyedProcessFunction[Never, object] | VectorizedKeyedFunction,
        *,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Runs a stateful function over the rows of each key, or of many keys at once if it is vectorized.

        Args:
            function: an instance; tasks receive a new copy for each batch.
            output: row class of the rows that it emits.
            uid: identifies the operator's state across all versions of the job.
            on_error: ``"fail"``: the run fails when the function raises, and nothing of the batch is committed. Or
                `DeadLetters`: such rows go to a side output. State is then encoded once per row instead of per key.

        Raises:
            JobDefinitionError: `function` is not an instance of these classes, or is vectorized and has dead letters.
        """
        if not isinstance(function, KeyedProcessFunction | VectorizedKeyedFunction):
            raise JobDefinitionError(
                "process needs a KeyedProcessFunction object",
                hint="pass an instance: process(MyFunction(), …)",
                given=repr(function),
                uid=uid,
            )
        if isinstance(function, VectorizedKeyedFunction) and on_error != FAIL:
            raise JobDefinitionError(
                "a vectorized function does not support dead letters",
                hint="it receives many rows per call: filter bad rows in the function, or use a KeyedProcessFunction",
                uid=uid,
            )
        check_row_kind(self._changelog, "process", uid)
        return self._any_operator(function, RowSchema.of(output), uid, type(function).__qualname__, on_error)

    # -- rows, without state or with one value per key -----------------------------------------------------------------

    def map(
        self,
        function: Callable[[In], Out] | RichMapFunction[In, Out],
        *,
        output: type[object] | None = None,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Emits one row per row. As `DataStream.map`; a `RichMapFunction` may use keyed state."""
        return self._row_step(RowStep(StepKind.MAP, function, _output_of(self._node, output)), uid, on_error)

    def flat_map(
        self,
        function: Callable[[In], Iterable[Out] | None] | RichFlatMapFunction[In, Out],
        *,
        output: type[object] | None = None,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Emits zero or more rows per row. As `DataStream.flat_map`; a `RichFlatMapFunction` may use keyed state."""
        return self._row_step(RowStep(StepKind.FLAT_MAP, function, _output_of(self._node, output)), uid, on_error)

    def filter(
        self,
        function: Callable[[In], bool] | RichFilterFunction[In],
        *,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Keeps rows for which the function is true. As `DataStream.filter`; a `RichFilterFunction` may use state."""
        return self._row_step(RowStep(StepKind.FILTER, function, _output_of(self._node, None)), uid, on_error)

    def map_with_state(
        self,
        function: Callable[[In, State], tuple[Out, State | None]],
        *,
        state: object,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Emits one row per row, with one state value per key.

        Args:
            function: takes a row and the key's value, initially None. Returns a row and the new value; None clears it.
            state: type of the value.
            output: row class of the result.
        """
        name = _checked_name("map_with_state", function, uid)
        return self._operator(MapRowsWithState(function, state), RowSchema.of(output), uid, name, on_error)

    def flat_map_with_state(
        self,
        function: Callable[[In, State], tuple[Iterable[Out], State | None]],
        *,
        state: object,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Emits any number of rows per row, with one state value per key. As `map_with_state`."""
        name = _checked_name("flat_map_with_state", function, uid)
        return self._operator(FlatMapRowsWithState(function, state), RowSchema.of(output), uid, name, on_error)

    def filter_with_state(
        self,
        function: Callable[[In, State], tuple[bool, State | None]],
        *,
        state: object,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Keeps rows for which the function returns true, with one state value per key. As `map_with_state`."""
        name = _checked_name("filter_with_state", function, uid)
        kept = FilterRowsWithState(function, state)
        return self._operator(kept, self._node.schema, uid, name, on_error)

    def _row_step(self, step: RowStep, uid: str, on_error: str | DeadLetters) -> Stream:
        return self._operator(RowStepFunction(step), step.schema, uid, f"{step.kind.value} {step.name}", on_error)

    # -- aggregates over all rows of a key -----------------------------------------------------------------------------

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
        edge = order_by_event_time(self._edge, function)
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

    # -- aggregates over the rows before a row -------------------------------------------------------------------------

    def over_columns(
        self,
        aggregates: Mapping[str, tuple[str, str]],
        *,
        output: type[object],
        preceding: Preceding = Unbounded.RANGE,
        uid: str = "",
    ) -> Stream:
        """Emits each row once, with aggregates over it and the rows of its key before it, as ``OVER`` of Flink SQL.

        A row is emitted when the watermark reaches its time. Rows that are late by then are dropped.

        Args:
            aggregates: ``(kind, column)`` by output column. Kinds are ``count``, ``sum``, ``min``, ``max`` and
                ``mean``. Nulls are ignored.
            output: row class with the columns of the rows and the aggregates.
            preceding: how many rows before the row belong to its frame, as ``ROWS BETWEEN n PRECEDING AND CURRENT
                ROW``; or, as a duration, how much earlier they may be, as ``RANGE BETWEEN …``. All rows of the same
                time belong to a range. `Unbounded.RANGE`, the default as in SQL, and `Unbounded.ROW` are all rows
                before.
            uid: identifies the operator's state across all versions of the job.

        Raises:
            JobDefinitionError: the stream has no event time or is a changelog, an aggregate does not exist, or the
                output class has other columns.
        """
        if not event_time_of(self._node):
            raise JobDefinitionError(
                "aggregates over rows need a stream with event time",
                hint="declare it: source.assign_timestamps_and_watermarks(…), and keep the column in the row class",
                uid=uid,
            )
        frame, schema = Frame.of(preceding), RowSchema.of(output)
        columns = OverColumns(dict(aggregates), self._node.schema, schema)
        return self._operator(OverAggregates(columns, frame), schema, uid, "over_columns", FAIL)

    # -- windows and patterns ------------------------------------------------------------------------------------------

    def window(self, assigner: WindowAssigner[Never]) -> WindowedStream[Stream]:
        """Divides the rows of each key into windows.

        Args:
            assigner: such as ``TumblingEventTimeWindows.of(timedelta(minutes=5))``.

        Raises:
            JobDefinitionError: `assigner` is not a window assigner, or needs event time and the stream has none,
                or the stream is a changelog.
        """
        return WindowedStream.of(self, assigner)

    def match_pattern(self, pattern: Pattern) -> PatternStream[Stream]:
        """Matches the rows of each key with a pattern, in the order of event time.

        Args:
            pattern: such as ``Pattern.begin("low", lambda row: row.price < 10).next("high", lambda row: …)``.

        Raises:
            JobDefinitionError: `pattern` is not a pattern or cannot be matched, or the stream has no event time or is a
                changelog.
        """
        return PatternStream.of(self, pattern)

    # -- two streams ---------------------------------------------------------------------------------------------------

    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream[Stream]: ...

    @overload
    def connect(self, other: KeyedStream[Stream]) -> ConnectedStreams[Stream]: ...

    def connect(
        self, other: KeyedStream[Stream] | BroadcastStream
    ) -> ConnectedStreams[Stream] | BroadcastConnectedStream[Stream]:
        """Connects this stream with another one, for a function that processes both.

        Args:
            other: a stream with keys of the same types, for a `KeyedCoProcessFunction`: both streams share its state.
                Or a broadcast stream, for a `KeyedBroadcastProcessFunction`.

        Raises:
            JobDefinitionError: `other` is not such a stream of this job, or its keys have other types.
        """
        check_row_kind(self._changelog, "connect")
        if isinstance(other, BroadcastStream) and other.graph is self._graph:
            return BroadcastConnectedStream(self._add_operator, (self._edge, Edge(other.node, None)))
        if isinstance(other, KeyedStream) and other._graph is self._graph:
            check_row_kind(other._changelog, "connect")
            return ConnectedStreams(self._add_operator, check_pair(self._edge, other._edge))
        raise JobDefinitionError(
            "connect needs a keyed or broadcast stream of the same job",
            hint="call key_by or broadcast on the other stream",
            given=type(other).__name__,
        )

    def interval_join(self, other: OperatorInput[Stream]) -> IntervalJoinedStreams[Stream]:
        """Joins each row with the rows of the same key whose event time is within bounds of its own.

        Args:
            other: the right stream, with a key of the same types. Both need event time.

        Raises:
            JobDefinitionError: `other` is not such a stream, or a stream has no event time or is a changelog.
        """
        return IntervalJoinedStreams(self._add_operator, join_pair(self, other, "interval_join"))

    def regular_join(
        self, other: OperatorInput[Stream], *, how: str = "inner", ttl: StateTtlConfig | None = None
    ) -> RegularJoinedStreams[Stream]:
        """Joins each row with all rows of the same key, whenever they arrived, as Flink SQL's joins.

        All rows of both streams are kept as state, unless `ttl` limits it. The streams may be changelogs: the results
        of a row that is retracted, or replaced by a row with its upsert key, are retracted.

        Args:
            other: the right stream, with a key of the same types.
            how: ``inner``, ``left``, ``right`` or ``full``. An outer join also emits rows without a partner, and
                deletes such a result when a partner arrives.
            ttl: how long a row is kept, from its arrival; by default for ever. In Flink: `table.exec.state.ttl`.

        Raises:
            JobDefinitionError: `other` is not such a stream, `how` is unknown, or a changelog is keyed with an order.
        """
        return RegularJoinedStreams(self._add_operator, changelog_pair(self, other, "regular_join"), how, ttl)

    def temporal_join(self, versions: OperatorInput[Stream], *, how: str = "inner") -> TemporalJoinedStreams[Stream]:
        """Joins each row with the version of its key that was valid at its event time.

        Flink SQL's ``FOR SYSTEM_TIME AS OF``: a version is valid from its event time until the time of the next
        version. A row waits until the watermark reaches its time.

        Args:
            versions: the stream of versions, with a key of the same types. Both need event time. It may be a changelog
                with this key as its upsert key: a row of kind `DELETE` ends a version at its event time.
            how: ``inner``: rows without a version are dropped; ``left``: they are joined with None.

        Raises:
            JobDefinitionError: `versions` is not such a stream, `how` is another text, a stream has no event time, or
                this stream is a changelog.
        """
        return TemporalJoinedStreams(self._add_operator, join_versions(self, versions, "temporal_join"), how)

    # -- deduplication and ranking -------------------------------------------------------------------------------------

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

        Without `order_by`, rows have the order of arrival. Then the first row is never replaced, and the result only
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
                "keep must be first or last", hint='pass keep="first" or keep="last"', given=repr(keep)
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
        return self._with_reduced_rows(PartialRanking(self._keying.columns, selection, self._node.schema))

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

    # -- queryable state -----------------------------------------------------------------------------------------------

    def as_queryable_state(self, name: str, descriptor: StateDescriptor | None = None, *, uid: str) -> None:
        """Keeps the newest row of each key as a state that can be queried; the stream ends here, as in Flink.

        Args:
            name: the queryable name.
            descriptor: a `ValueStateDescriptor` of the row class, or a `ReducingStateDescriptor` that reduces the rows.
                Any other one is a JobDefinitionError: a list may grow without a limit.
        """
        function = _KeepQueryableRow(name, self._node.schema.row_class, descriptor)
        upserts = Changelog(self._keying.columns)
        if self._changelog != upserts:
            check_appends(self._changelog, "as_queryable_state", uid)
        self._any_operator(function, self._node.schema, uid, f"queryable {name}", FAIL)


def _output_of(node: Node, row_class: type[object] | None) -> RowSchema:
    return RowSchema.of(row_class) if row_class else node.schema


def _checked_name(method: str, function: object, uid: str) -> str:
    check_callable(method, function, uid)
    return operator_name(method, function)


def _kept(keep: Keep, order_by: str) -> Selection:
    """Returns which row a deduplication keeps."""
    is_last = keep == "last"
    order = (SortKey(order_by, descending=is_last),) if order_by else ()
    return Selection(1, order, newest_first=is_last, state=DEDUPLICATED)
