"""Builds the streams of a plan: calls the API for each step."""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from stateflow.api.changelog import after_filter, after_map, row_kind_of
from stateflow.api.functions.rich import RowStep, StepKind
from stateflow.api.graph import RowsNode, TransformNode, WatermarkNode, event_time_of, level_of
from stateflow.api.joins.functions import PairColumns
from stateflow.api.joins.lookup_join import LookupColumns, LookupJoin, name_of
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag
from stateflow.api.sql.expressions import Expression, Field, Ref, SqlType, annotation, replace_columns, row_class
from stateflow.api.sql.parser import SqlPosition, error_at
from stateflow.api.sql.plan import (
    Computed,
    Filtered,
    Grouped,
    Items,
    Joined,
    LookupTable,
    Over,
    Plan,
    RowNumber,
    Shared,
    SqlTopN,
    Table,
    United,
    Window,
    Windowed,
    WindowTable,
    inputs_of,
    is_stateless,
    time_of,
)
from stateflow.api.sql.renderings import ComputeRows, EmitPair, KeepRows, PairCondition, PairWithVersion, spark_sql
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.windows.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from stateflow.errors import ConfigError, JobDefinitionError
from stateflow.types.columns.row_kind import RowKind
from stateflow.types.declared_types import quote_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from stateflow.api.changelog import Changelog
    from stateflow.api.joins.lookup_join import ReadTable


ROW_KIND = "row_kind"
"""The column for the kind of a row, where results can be retracted."""


@dataclass(frozen=True)
class DownstreamNeeds:
    """Requirements of the downstream operators.

    Attributes:
        retracts: rows that are replaced are retracted first.
        time: event time.
        keyed: an operator takes the rows, which needs the column with the event time if the stream has one.
    """

    retracts: bool = False
    time: bool = False
    keyed: bool = False


@dataclass(frozen=True)
class StreamBuilder:
    """Makes streams of plans.

    Attributes:
        tables: the registered streams by name.
        lookups: what reads the registered look-up tables, by name.
        shared: the streams of queries with a name, which are made once.
        uses: how often each of these queries is used.
        late: the streams of rows that are too late for windows, by the name of their table.
    """

    tables: Mapping[str, DataStream]
    lookups: Mapping[str, ReadTable] = field(default_factory=dict)
    shared: dict[str, DataStream] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)
    late: dict[str, DataStream] = field(default_factory=dict)

    def build(self, plan: Plan, needs: DownstreamNeeds) -> DataStream:
        """Returns the stream of the plan of a statement. Raises as `stream`."""
        self._count_uses(plan)
        return self.stream(plan, needs)

    def stream(self, plan: Plan, needs: DownstreamNeeds) -> DataStream:
        """Returns the stream of a plan.

        Raises:
            JobDefinitionError: an operator refuses its input; the error has the position of the clause.
        """
        with _position(plan.at):
            return self._MAKERS[type(plan)](self, plan, needs)

    def _table(self, plan: Table, needs: DownstreamNeeds) -> DataStream:
        stream = self.tables[plan.name]
        node = stream._node
        if isinstance(node, WatermarkNode) and not needs.time:
            # Without event time, rows are aggregated before the shuffle, and need no column for it.
            return DataStream(stream._graph, node.parent, stream._changelog)
        return stream

    def _count_uses(self, plan: Plan) -> None:
        if isinstance(plan, Shared):
            self.uses[plan.name] += 1
            if self.uses[plan.name] > 1:
                return
        for each in inputs_of(plan):
            self._count_uses(each)

    def _shared(self, plan: Shared, needs: DownstreamNeeds) -> DataStream:
        if is_stateless(plan) or (self.uses[plan.name] == 1 and not plan.is_view):
            return self.stream(plan.input, needs)
        if plan.name not in self.shared:
            # Its consumers may differ in what they need.
            self.shared[plan.name] = self.stream(plan.input, DownstreamNeeds(retracts=True, time=True, keyed=True))
        return self.shared[plan.name]

    def _computed(self, plan: Computed, needs: DownstreamNeeds) -> DataStream:
        stream = self.stream(plan.input, needs)
        try:
            return compute_columns(stream, plan.items, is_keyed=needs.keyed)
        except JobDefinitionError as e:
            if "upsert_key" not in e.facts or stream._changelog is None:
                raise
            hint = "select the columns of GROUP BY, or those that identify a row, under their names"
            key = list(stream._changelog.keys)
            raise error_at(plan.at, "a query must select the key of results that are updated", hint, key=key) from e

    def _filtered(self, plan: Filtered, needs: DownstreamNeeds) -> DataStream:
        return filter_rows(self.stream(plan.input, replace(needs, retracts=True)), plan.condition)

    def _united(self, plan: United, needs: DownstreamNeeds) -> DataStream:
        first, *others = (self.stream(each, needs) for each in plan.inputs)
        return first.union(*others)

    def _unfinished(self, plan: WindowTable | RowNumber, needs: DownstreamNeeds) -> DataStream:
        if isinstance(plan, RowNumber):
            raise error_at(plan.at, "ROW_NUMBER() needs a limit", f"add an outer query WHERE {plan.rank} <= 10")
        raise error_at(plan.at, "rows with windows must be aggregated", "add GROUP BY window_start, window_end")

    def _grouped(self, plan: Grouped, needs: DownstreamNeeds) -> DataStream:
        stream = self.stream(plan.input, DownstreamNeeds(retracts=True, keyed=True))
        keyed = stream.key_by(*plan.keys)
        if not plan.aggregates and stream._changelog is None:
            distinct = keyed.deduplicate(keep="first", uid=plan.uid)
            # The rows of a source may have had the column with their event time as well.
            return compute_columns(
                distinct, tuple((each.name, Ref(each.name, each.type)) for each in plan.fields), is_keyed=True
            )
        aggregates = {each.name: each.declared for each in plan.aggregates}
        if not aggregates:
            raise error_at(plan.at, "DISTINCT needs rows that are not updated", "count the rows: add COUNT(*)")
        if stream._changelog is None and not needs.retracts:
            made = keyed.aggregate_columns(aggregates, output=_rows("Aggregates", plan.fields), uid=plan.uid)
            return made.as_changelog(*plan.keys)
        output = _rows("Aggregates", plan.fields, has_kind=True)
        return keyed.aggregate_columns(aggregates, output=output, uid=plan.uid, retract=needs.retracts)

    def _windowed(self, plan: Windowed, needs: DownstreamNeeds) -> DataStream:
        late = plan.late
        rows = _with_every_column(plan.input) if late.table else plan.input
        stream = self.stream(rows, DownstreamNeeds(time=True, keyed=True))
        aggregates: dict[str, tuple[str, ...]] = {each.name: each.declared for each in plan.aggregates}
        aggregates |= {name: (bound,) for name, bound in plan.bounds}
        windows = stream.key_by(*plan.keys).window(_assigner(plan.window)).allowed_lateness(late.allowed_lateness)
        tag = OutputTag(late.table or "late", stream.schema.row_class)
        if late.table:
            windows = windows.side_output_late_data(tag)
        made = windows.aggregate_columns(aggregates, output=_rows("Windows", plan.fields), uid=plan.uid)
        if late.table:
            inner = plan.input.input if isinstance(plan.input, Computed) else plan.input
            items = tuple((each.name, Ref(each.name, each.type)) for each in inner.fields)
            self.late[late.table] = compute_columns(made.get_side_output(tag), items, is_keyed=False)
        if not late.allowed_lateness:
            return made
        if not plan.bounds:
            hint = "select window_start, or window_end"
            raise error_at(plan.at, "windows with an allowed lateness need a bound in their results", hint)
        # A window that fires again replaces its result, which one of its bounds identifies.
        return made.as_changelog(*(name for name in plan.keys if name in made.schema.names), plan.bounds[0][0])

    def _top(self, plan: SqlTopN, needs: DownstreamNeeds) -> DataStream:
        stream = self.stream(plan.input, DownstreamNeeds(retracts=True, keyed=True))
        keyed = stream.key_by(*plan.keys)
        ((column, descending), *others) = plan.order
        is_null = {each.name: each.type.nullable for each in plan.input.fields}[column]
        if plan.n == 1 and not others and column == time_of(plan.input) and not is_null:
            # Of rows with the same time, the last one is that which arrives last; in a top-n, it is the first one.
            kinds = _with_columns("Kept", stream, [(ROW_KIND, RowKind)]) if needs.retracts else None
            return keyed.deduplicate(
                keep="last" if descending else "first",
                order_by=column,
                output=kinds,
                retract=needs.retracts,
                uid=plan.uid,
            )
        has_kind = needs.retracts or (plan.n > 1 and not plan.rank)
        more: list[tuple[str, object]] = [(plan.rank, int)] if plan.rank else []
        more += [(ROW_KIND, RowKind)] if has_kind else []
        order = [(name, "desc" if down else "asc") for name, down in plan.order]
        output = _with_columns("Ranked", stream, more) if more else None
        return keyed.top_n(plan.n, order_by=order, output=output, rank=plan.rank, retract=needs.retracts, uid=plan.uid)

    def _over(self, plan: Over, needs: DownstreamNeeds) -> DataStream:
        stream = self.stream(plan.input, DownstreamNeeds(time=True, keyed=True))
        made = {each.name: (each.kind, each.column) for each in plan.aggregates}
        fields = [each for each in plan.fields if each.name in made]
        output = _with_columns("Over", stream, [(each.name, annotation(each.type)) for each in fields])
        return stream.key_by(*plan.keys).over_columns(made, output=output, preceding=plan.preceding, uid=plan.uid)

    def _joined(self, plan: Joined, needs: DownstreamNeeds) -> DataStream:
        if plan.kind == "lookup":
            # With event time, the rows of a source keep its column.
            before = replace(needs, retracts=True, keyed=needs.keyed or needs.time)
            return look_up_rows(self.stream(plan.left, before), plan, self.lookups)
        own = DownstreamNeeds(retracts=True, time=plan.kind != "regular", keyed=True)
        if plan.window is not None:
            return self._joined_windows(plan, plan.window, own)
        left = self.stream(plan.left, own).key_by(*plan.left_keys)
        right = self.stream(plan.right, own).key_by(*plan.right_keys)
        is_corrected = plan.how != "inner" or (left._changelog, right._changelog) != (None, None)
        has_kind = plan.kind == "regular" and is_corrected
        output = _rows("Joined", plan.fields, has_kind=has_kind)
        condition = None if plan.condition is None else PairCondition(plan.condition, plan.tested)
        if plan.kind == "temporal":
            pair: Callable[[object, object], object] = PairColumns(output, plan.columns)
            if condition is not None:
                pair = PairWithVersion(pair, condition)
            return left.temporal_join(right, how=plan.how).apply(pair, output=output, uid=plan.uid)
        if plan.kind == "interval":
            within = left.interval_join(right).between(*plan.bounds)
            return within.process(EmitPair(PairColumns(output, plan.columns)), output=output, uid=plan.uid)
        pairs = left.regular_join(right, how=plan.how)
        if has_kind:
            columns = PairColumns(output, plan.columns, {ROW_KIND: RowKind.INSERT})
            return pairs.apply(columns, output=output, where=condition, uid=plan.uid)
        return pairs.select(output, _origins(plan), uid=plan.uid)

    def _joined_windows(self, plan: Joined, window: Window, needs: DownstreamNeeds) -> DataStream:
        left, right = self.stream(plan.left, needs), self.stream(plan.right, needs)
        keyed = left.join(right).where(*plan.left_keys).equal_to(*plan.right_keys)
        columns = {**_origins(plan), **dict(plan.window_bounds)}
        return keyed.window(_assigner(window)).select(_rows("Joined", plan.fields), columns, uid=plan.uid)

    _MAKERS: ClassVar[dict[type[Plan], Callable[..., DataStream]]] = {
        Table: _table,
        Shared: _shared,
        Computed: _computed,
        Filtered: _filtered,
        United: _united,
        Grouped: _grouped,
        WindowTable: _unfinished,
        Windowed: _windowed,
        RowNumber: _unfinished,
        SqlTopN: _top,
        Over: _over,
        Joined: _joined,
    }


def _with_every_column(plan: Plan) -> Plan:
    """Returns the rows of windows with all columns of the query's rows, for those that are late."""
    if not isinstance(plan, Computed):
        return plan
    items = {each.name: Ref(each.name, each.type) for each in plan.input.fields}
    return replace(plan, items=tuple((items | dict(plan.items)).items()))


def _with_columns(name: str, stream: DataStream, more: list[tuple[str, object]]) -> type[object]:
    hints = typing.get_type_hints(stream.schema.row_class, include_extras=True)
    return row_class(name, (), [*((each, hints[each]) for each in stream.schema.names), *more])


def _origins(plan: Joined) -> dict[str, str]:
    """Returns the columns of a join as `select` takes them."""
    return {name: f"{'left' if is_left else 'right'}.{of}" for name, is_left, of in plan.columns}


def _rows(name: str, fields: tuple[Field, ...], *, has_kind: bool = False) -> type[object]:
    if not has_kind:
        return row_class(name, fields)
    return row_class(name, fields, [(ROW_KIND, RowKind)])


def _assigner(window: Window) -> WindowAssigner[object]:
    if window.kind == "TUMBLE":
        return TumblingEventTimeWindows.of(window.size, window.offset)
    if window.kind == "HOP":
        return SlidingEventTimeWindows.of(window.size, window.slide, window.offset)
    return EventTimeSessionWindows.with_gap(window.size)


@contextmanager
def _position(at: SqlPosition) -> Iterator[None]:
    """Adds the position of a clause to an error of the API; the innermost clause counts."""
    try:
        yield
    except ConfigError as e:
        if "line" not in e.facts:
            e.add_facts(line=at.line, column=at.column, sql=at.text)
        raise


class SelectColumns:
    """Computes the columns of a DataFrame.

    Args:
        columns: each in Spark SQL, with its name.
    """

    def __init__(self, columns: list[str]) -> None:
        self._columns = columns

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Returns the columns."""
        return frame.selectExpr(*self._columns)


class FilterRows:
    """Filters a DataFrame.

    Args:
        condition: in Spark SQL.
    """

    def __init__(self, condition: str) -> None:
        self._condition = condition

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Returns the rows for which the condition is true."""
        return frame.where(self._condition)


def compute_columns(stream: DataStream, items: Items, *, is_keyed: bool) -> DataStream:
    """Returns computed columns, and the kinds of the rows if the stream has them.

    Args:
        is_keyed: whether an operator takes the rows. It needs the event time of the rows of sources, and no upsert key
            if replaced rows are retracted.

    Raises:
        JobDefinitionError: the stream is a changelog, and columns of its upsert key are missing.
    """
    names = [name for name, _ in items]
    time = event_time_of(stream._node) if is_keyed and not level_of(stream._node) else ""
    more = [name for name in (row_kind_of(stream.schema), time) if name and name not in names]
    if _is_same(stream.schema, items, more):
        return stream
    hints = typing.get_type_hints(stream.schema.row_class, include_extras=True)
    fields = [Field(name, expression.type) for name, expression in items]
    row = row_class("Columns", fields, [(name, hints[name]) for name in more])
    every = (*items, *((name, Ref(name, SqlType("other"))) for name in more))
    step = RowStep(StepKind.MAP, ComputeRows(row, every), RowSchema.of(row))
    before = stream._changelog
    if before is not None and before.retracts and is_keyed and not set(before.keys) <= set(names):
        before = replace(before, keys=())
    changelog = after_map(before, stream.schema, step.schema)
    if level_of(stream._node):
        return DataStream(stream._graph, stream._graph.add_rows(RowsNode(stream._node, step)), changelog)
    columns = [f"{spark_sql(each)} AS {quote_name(name)}" for name, each in every]
    return _transformed(stream, SelectColumns(columns), step, changelog)


def filter_rows(stream: DataStream, condition: Expression) -> DataStream:
    """Returns the rows for which a condition is true.

    Raises:
        JobDefinitionError: the rows are upserts.
    """
    function = KeepRows(condition)
    if level_of(stream._node):
        return stream.filter(function)
    step = RowStep(StepKind.FILTER, function, stream.schema)
    return _transformed(stream, FilterRows(spark_sql(condition)), step, after_filter(stream._changelog))


def _transformed(
    stream: DataStream, function: Callable[[DataFrame], DataFrame], step: RowStep, changelog: Changelog | None
) -> DataStream:
    return DataStream(stream._graph, TransformNode(stream._node, function, step.schema, step), changelog)


def _is_same(schema: RowSchema, items: Items, more: list[str]) -> bool:
    """Returns whether the columns are those that the rows have already, in the same order."""
    if [*(name for name, _ in items), *more] != list(schema.names):
        return False
    given = {column.name: column for column in schema.columns}
    return all(
        isinstance(each, Ref) and each.name == name and each.type.nullable == given[name].nullable
        for name, each in items
    )


def look_up_rows(stream: DataStream, plan: Joined, lookups: Mapping[str, ReadTable]) -> DataStream:
    """Returns the rows of a stream with the columns of a table.

    Args:
        stream: the left side of the join.
        lookups: what reads the registered tables, by name.

    Raises:
        JobDefinitionError: rows of the stream are corrected later.
    """
    if stream._changelog is not None:
        # A row that retracts another one would be looked up in a later content of the table.
        raise error_at(
            plan.at, "a look-up join needs rows that are not updated", "look up before the rows are aggregated"
        )
    assert isinstance(plan.right, LookupTable)
    read, names = lookups[plan.right.name], [each.name for each in plan.fields]
    # The event time of the rows of sources is kept, also where the query does not name it.
    time = event_time_of(stream._node) if not level_of(stream._node) else ""
    hints = typing.get_type_hints(stream.schema.row_class, include_extras=True)
    more = [(time, hints[time])] if time and time not in names else []
    condition = ""
    if plan.condition is not None:
        left, right = ({each.name: each.type for each in side.fields} for side in (plan.left, plan.right))
        named = {
            name: Ref(of, left[of]) if is_left else Ref(name_of(of), right[of]) for name, is_left, of in plan.tested
        }
        condition = spark_sql(replace_columns(plan.condition, named))
    columns = LookupColumns(
        on=dict(zip(plan.left_keys, plan.right_keys, strict=True)),
        output=[*names, *(name for name, _ in more)],
        how=plan.how,
        of_table={name: of for name, is_left, of in plan.columns if not is_left},
        condition=condition,
    )
    return stream.transform(LookupJoin(read, columns), row_class("LookedUp", plan.fields, more))
