"""Plans of queries, as data, and the scopes in which a query's names are resolved."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from sqlglot import exp

from stateflow.api.over.frames import Preceding
from stateflow.api.sql.analysis import Scope
from stateflow.api.sql.expressions import BIGINT, Expression, Field, Ref, canonical
from stateflow.api.sql.parser import SqlPosition, SqlText
from stateflow.helpers import did_you_mean

Items = tuple[tuple[str, Expression], ...]
"""Names and expressions of computed columns."""


@dataclass(frozen=True)
class Table:
    """The rows of a registered stream.

    Attributes:
        time: the column with the event time; empty without one.
    """

    name: str
    fields: tuple[Field, ...]
    time: str
    at: SqlPosition = field(compare=False)


@dataclass(frozen=True)
class LookupTable:
    """A table that a join looks rows up in; it is not a stream."""

    name: str
    fields: tuple[Field, ...]
    at: SqlPosition = field(compare=False)


@dataclass(frozen=True)
class Shared:
    """The result of a query that has a name: of WITH, or of a view. All uses of it share its operators.

    Attributes:
        time: the column with the event time; empty without one.
        is_view: whether other statements can use it.
    """

    name: str
    input: Plan
    time: str
    at: SqlPosition = field(compare=False)
    is_view: bool = False

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns."""
        return self.input.fields


@dataclass(frozen=True)
class Computed:
    """Columns that are computed from each row."""

    input: Plan
    items: Items
    at: SqlPosition = field(compare=False)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns."""
        return tuple(Field(name, expression.type) for name, expression in self.items)


@dataclass(frozen=True)
class Filtered:
    """The rows for which a condition is true."""

    input: Plan
    condition: Expression
    at: SqlPosition = field(compare=False)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns."""
        return self.input.fields


@dataclass(frozen=True)
class United:
    """The rows of several queries with the same columns."""

    inputs: tuple[Plan, ...]
    at: SqlPosition = field(compare=False)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns."""
        return self.inputs[0].fields


@dataclass(frozen=True)
class SqlAggregate:
    """An aggregate of `KeyedStream.aggregate_columns`.

    Attributes:
        name: column of the result.
        where: bool column of the rows that are aggregated; empty for all.
    """

    name: str
    kind: str
    column: str
    where: str = ""

    @property
    def declared(self) -> tuple[str, ...]:
        """The argument of `aggregate_columns`."""
        return (self.kind, self.column, self.where) if self.where else (self.kind, self.column)


@dataclass(frozen=True)
class Grouped:
    """Aggregates of all rows of a key; without aggregates, the distinct keys.

    Attributes:
        fields: columns of the result: keys and aggregates, in any order.
    """

    input: Plan
    keys: tuple[str, ...]
    aggregates: tuple[SqlAggregate, ...]
    fields: tuple[Field, ...]
    uid: str
    at: SqlPosition = field(compare=False)


@dataclass(frozen=True)
class Window:
    """The windows of a window function.

    Attributes:
        kind: ``TUMBLE``, ``HOP`` or ``SESSION``.
        size: length of a window, or gap of a session.
        slide: of windows that overlap.
        offset: of the beginnings of windows.
    """

    kind: str
    size: timedelta
    slide: timedelta = timedelta()
    offset: timedelta = timedelta()


@dataclass(frozen=True)
class LateRows:
    """How the windows of a statement treat rows that are late.

    Attributes:
        allowed_lateness: how long after its end, by the watermark, a window accepts rows.
        table: name of the table of the rows that windows do not accept; empty if they are dropped.
    """

    allowed_lateness: timedelta = timedelta()
    table: str = ""


@dataclass(frozen=True)
class WindowTable:
    """The rows of a table with their windows, which GROUP BY has to aggregate, or a join has to join.

    Attributes:
        keys: the columns of PARTITION BY, which are keys of a session.
    """

    input: Plan
    window: Window
    fields: tuple[Field, ...]
    keys: tuple[str, ...]
    at: SqlPosition = field(compare=False)


@dataclass(frozen=True)
class Windowed:
    """Aggregates of each window of a key.

    Attributes:
        bounds: column of the result and bound of the window.
        fields: columns of the result: keys, aggregates and bounds, in any order.
        late: how long windows accept late rows, and which table gets the rows that are too late for that.
    """

    input: Plan
    window: Window
    keys: tuple[str, ...]
    aggregates: tuple[SqlAggregate, ...]
    bounds: tuple[tuple[str, str], ...]
    fields: tuple[Field, ...]
    uid: str
    at: SqlPosition = field(compare=False)
    late: LateRows = LateRows()


@dataclass(frozen=True)
class RowNumber:
    """The rows of each key with their number in an order, which an outer query has to limit.

    Attributes:
        order: columns that order the rows, and whether they are descending.
        rank: the column with the number.
    """

    input: Plan
    keys: tuple[str, ...]
    order: tuple[tuple[str, bool], ...]
    rank: str
    uid: str
    at: SqlPosition = field(compare=False)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns."""
        return (*self.input.fields, Field(self.rank, BIGINT))


@dataclass(frozen=True)
class SqlTopN:
    """The first rows of each key.

    Attributes:
        n: how many.
        rank: the column with the number; empty without.
    """

    input: Plan
    keys: tuple[str, ...]
    order: tuple[tuple[str, bool], ...]
    n: int
    rank: str
    uid: str
    at: SqlPosition = field(compare=False)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns."""
        return (*self.input.fields, Field(self.rank, BIGINT)) if self.rank else self.input.fields


@dataclass(frozen=True)
class Over:
    """Each row with aggregates over rows before it.

    Attributes:
        preceding: how many rows before a row are aggregated with it, or how much earlier they are.
        fields: columns of the rows, and of the aggregates.
    """

    input: Plan
    keys: tuple[str, ...]
    aggregates: tuple[SqlAggregate, ...]
    preceding: Preceding
    fields: tuple[Field, ...]
    uid: str
    at: SqlPosition = field(compare=False)


@dataclass(frozen=True)
class Joined:
    """Pairs of rows with equal keys.

    Attributes:
        kind: ``regular``, ``interval``, ``temporal``, ``window``, or ``lookup`` in a `LookupTable`.
        how: ``inner``, ``left``, ``right`` or ``full``.
        left_keys, right_keys: the columns that are equal.
        columns: for each column of the result its name, whether it is of the left row, and its name there.
        bounds: of an interval join: how much later the right row may be, at least and at most.
        fields: the columns of the result, with their types.
        window: of a window join: the windows of both sides.
        window_bounds: of a window join: column of the result and bound of the window.
        condition: of an outer join: further condition of a pair; None without.
        tested: for each column of `condition` its name, whether it is of the left row, and its name there.
    """

    left: Plan
    right: Plan
    kind: str
    how: str
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    columns: tuple[tuple[str, bool, str], ...]
    fields: tuple[Field, ...]
    uid: str
    at: SqlPosition = field(compare=False)
    bounds: tuple[timedelta, timedelta] = (timedelta(), timedelta())
    window: Window | None = None
    window_bounds: tuple[tuple[str, str], ...] = ()
    condition: Expression | None = None
    tested: tuple[tuple[str, bool, str], ...] = ()


Plan = (
    Table
    | LookupTable
    | Shared
    | Computed
    | Filtered
    | United
    | Grouped
    | WindowTable
    | Windowed
    | RowNumber
    | SqlTopN
    | Over
    | Joined
)


def windows_of(plan: Plan) -> dict[str, Windowed]:
    """Returns the window aggregations of a statement by uid, without its views."""
    if isinstance(plan, Shared) and plan.is_view:
        return {}
    found = {uid: each for of in inputs_of(plan) for uid, each in windows_of(of).items()}
    return found | {plan.uid: plan} if isinstance(plan, Windowed) else found


def with_late_rows(plan: Plan, late: LateRows) -> Plan:
    """Returns a plan whose `windows_of` treat late rows in this way."""
    if isinstance(plan, Table | LookupTable) or (isinstance(plan, Shared) and plan.is_view):
        return plan
    if isinstance(plan, Joined):
        return replace(plan, left=with_late_rows(plan.left, late), right=with_late_rows(plan.right, late))
    if isinstance(plan, United):
        return replace(plan, inputs=tuple(with_late_rows(each, late) for each in plan.inputs))
    plan = replace(plan, input=with_late_rows(plan.input, late))
    return replace(plan, late=late) if isinstance(plan, Windowed) else plan


def inputs_of(plan: Plan) -> tuple[Plan, ...]:
    """Returns the plans whose rows a plan takes."""
    if isinstance(plan, Table | LookupTable):
        return ()
    if isinstance(plan, Joined):
        return plan.left, plan.right
    return plan.inputs if isinstance(plan, United) else (plan.input,)


def time_of(plan: Plan) -> str:
    """Returns the column with the event time; empty without one.

    As in the API, it is the column with the name of the table's column.
    """
    if isinstance(plan, Table | Shared):
        return plan.time
    found = {name for each in inputs_of(plan) if (name := time_of(each))}
    if len(found) != 1:
        return ""
    (name,) = found
    kinds = {each.name: each.type for each in plan.fields}
    return name if name in kinds and (kinds[name].is_time or kinds[name].name == "bigint") else ""


def is_stateless(plan: Plan) -> bool:
    """Returns whether a plan has no operator, and one table."""
    if isinstance(plan, Table):
        return True
    return isinstance(plan, Computed | Filtered | Shared) and is_stateless(plan.input)


def source_time(plan: Plan) -> str:
    """Returns the column with the event time of the table that rows are of, also if they do not have the column.

    Empty after an operator with state, or without event time.
    """
    if isinstance(plan, Table):
        return plan.time
    if isinstance(plan, Joined):
        return source_time(plan.left) if plan.kind == "lookup" else ""
    return source_time(plan.input) if isinstance(plan, Computed | Filtered | Shared) else ""


@dataclass(frozen=True)
class FromTable:
    """A table of FROM.

    Attributes:
        alias: the name that qualifies its columns.
        columns: the column of the plan for each of its columns.
    """

    alias: str
    columns: Mapping[str, Field]


@dataclass(frozen=True)
class Relation:
    """The result of FROM: a plan, and its columns by table."""

    plan: Plan
    sources: tuple[FromTable, ...]

    @classmethod
    def of(cls, plan: Plan, alias: str) -> Relation:
        """Returns the rows of one table."""
        return cls(plan, (FromTable(alias, {each.name: each for each in plan.fields}),))


class RelationScope(Scope):
    """The columns of the tables in FROM."""

    def __init__(self, text: SqlText, sources: tuple[FromTable, ...]) -> None:
        self._text = text
        self._sources = sources

    def column(self, node: exp.Column) -> Expression:
        table, name = node.table, node.name
        of = [each for each in self._sources if not table or each.alias == table]
        if not of:
            hint = did_you_mean(table, [each.alias for each in self._sources])
            self._text.fail(node, "FROM does not name the table", hint, table=table)
        found = [each.columns[name] for each in of if name in each.columns]
        if len(found) > 1:
            tables = [each.alias for each in of if name in each.columns]
            self._text.fail(node, "several tables have the column", f"write {tables[0]}.{name}", tables=tables)
        if not found:
            hint = did_you_mean(name, [each for source in of for each in source.columns])
            self._text.fail(node, "the column does not exist", hint, name=name)
        return Ref(found[0].name, found[0].type)

    def star(self, node: exp.Expr, table: str = "") -> list[tuple[str, Expression]]:
        """Returns all columns, or those of a table, for ``*``."""
        of = [each for each in self._sources if not table or each.alias == table]
        if not of:
            hint = did_you_mean(table, [each.alias for each in self._sources])
            self._text.fail(node, "FROM does not name the table", hint, table=table)
        return [(name, Ref(each.name, each.type)) for source in of for name, each in source.columns.items()]


@dataclass(frozen=True)
class Path:
    """The place of a query in a statement; the uids of its operators begin with it.

    Attributes:
        name: names of the statement, and of the queries around it, with dots.
    """

    name: str

    def child(self, name: str) -> Path:
        """Returns the path of a query inside this one."""
        return Path(f"{self.name}.{name}")

    def uid(self, kind: str) -> str:
        """Returns the uid of an operator of this query."""
        return f"{self.name}.{kind}"


def name_computed_column(prefix: str, expression: Expression) -> str:
    """Returns the name of a computed column that has none: the same for the same expression."""
    if isinstance(expression, Ref):
        return expression.name
    digest = hashlib.sha256(canonical(expression).encode()).hexdigest()
    return f"{prefix}_{digest[:10]}"
