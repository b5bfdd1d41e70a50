"""Plans SELECT: columns, WHERE, GROUP BY, OVER, and the pattern of ROW_NUMBER()."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

from sqlglot import exp

from stateflow.api.aggregates.builtin import aggregate_for
from stateflow.api.over.frames import Preceding, Unbounded
from stateflow.api.schema import RowSchema
from stateflow.api.sql.analysis import Analysis, Scope
from stateflow.api.sql.calls import average, call, cast, resolve_call
from stateflow.api.sql.expressions import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INTERVAL,
    NAMED,
    NULL,
    STRING,
    TIMESTAMP,
    Call,
    Constant,
    Expression,
    Field,
    Ref,
    SqlType,
    canonical,
    columns_of,
    conjuncts,
    decimal,
    replace_columns,
    row_class,
)
from stateflow.api.sql.joins import push_conditions, select_columns
from stateflow.api.sql.parser import SqlText
from stateflow.api.sql.plan import (
    Computed,
    Filtered,
    FromTable,
    Grouped,
    Over,
    Path,
    Plan,
    Relation,
    RelationScope,
    RowNumber,
    Shared,
    SqlAggregate,
    SqlTopN,
    Windowed,
    WindowTable,
    name_computed_column,
    source_time,
    time_of,
)
from stateflow.api.windows.column_windows import BOUNDS
from stateflow.types.declared_types import decimal_digits

_EVERY = "all_rows"
"""The key of rows that have none."""


@dataclass(frozen=True)
class SelectPlanner:
    """Plans the clauses after FROM.

    Attributes:
        path: where the query stands.
    """

    text: SqlText
    path: Path

    def plan(self, node: exp.Select, relation: Relation) -> Plan:
        """Returns the plan. Raises JobDefinitionError with the position of what is not supported."""
        plan, scope = relation.plan, RelationScope(self.text, relation.sources)
        window = plan if isinstance(plan, WindowTable) else None
        if window is not None:
            plan = window.input
            scope = RelationScope(self.text, _with_bounds(relation.sources))
        plan = self._filtered(node, plan, scope)
        if window is not None or node.args.get("group") or any(map(has_aggregate, node.expressions)):
            return self._aggregated(node, plan, scope, window)
        having = node.args.get("having")
        if having:
            self.text.fail(having, "HAVING needs GROUP BY", "use WHERE")
        return self._distinct(node, self._computed(node, plan, relation.sources))

    def _filtered(self, node: exp.Select, plan: Plan, scope: RelationScope) -> Plan:
        """Returns the rows that pass WHERE."""
        conditions, _ = self._conditions(node, plan, scope)
        if not conditions:
            return plan
        at = self.text.of(node.args["where"])
        numbered = Numbered.of(plan, conditions)
        if numbered is not None:
            conditions = list(numbered.rest)
            used = {column for condition in conditions for column in columns_of(condition)}
            plan = numbered.top(used | ({numbered.name} if _uses(node, numbered.name) else set()))
        return push_conditions(plan, conditions, Filtered(plan, Constant(True, BOOLEAN), at))

    def _conditions(
        self, node: exp.Select, plan: Plan, scope: RelationScope
    ) -> tuple[list[Expression], list[Expression]]:
        """Returns the conditions of WHERE over the rows, and those over the windows of the rows.

        Raises:
            JobDefinitionError: a condition is over both.
        """
        where = node.args.get("where")
        if where is None:
            return [], []
        refuse_aggregates(self.text, where.this, "WHERE", "use HAVING, or WHERE of an outer query")
        own, of_rows, of_windows = {each.name for each in plan.fields}, list[Expression](), list[Expression]()
        for each in conjuncts(Analysis(self.text, scope).condition(where.this)):
            names = set(columns_of(each))
            if not names <= own and names & own:
                hint = "compare the bounds of a window with literals: a condition is over a row, or over its windows"
                self.text.fail(where, "a condition cannot compare a row with its windows", hint)
            (of_rows if names <= own else of_windows).append(each)
        return of_rows, of_windows

    # -- columns ------------------------------------------------------------------------------------------------------

    def _computed(self, node: exp.Select, plan: Plan, sources: tuple[FromTable, ...]) -> Plan:
        scope = OverScope(self.text, sources, plan)
        analysis = Analysis(self.text, scope)
        items: list[tuple[str, Expression]] = []
        for each in node.expressions:
            if isinstance(each, exp.Star):
                self._check_star(each)
                items += scope.star(each)
            elif isinstance(each, exp.Column) and isinstance(each.this, exp.Star):
                self._check_star(each.this)
                items += scope.star(each, each.table)
            else:
                name = self._name(each)
                scope.wanted = name if isinstance(each.unalias(), exp.Window) else ""
                items.append((name, analysis.of(each.unalias())))
        self._check_items(node, items, plan)
        if scope.frame is not None:
            plan = scope.plan(self.path, items, node)
        return select_columns(plan, items, self.text.of(node))

    def _check_star(self, star: exp.Star) -> None:
        if any(star.args.values()):
            self.text.fail(star, "a star with other clauses is not supported", "name the columns")

    def _name(self, node: exp.Expr) -> str:
        name = node.alias_or_name if isinstance(node, exp.Alias | exp.Column) else ""
        if not name:
            self.text.fail(node, "a computed column needs a name", "add AS name")
        return name

    def _check_items(self, node: exp.Select, items: list[tuple[str, Expression]], plan: Plan) -> None:
        names = [name.lower() for name, _ in items]
        time = source_time(plan)
        for at, (name, expression) in enumerate(items):
            where = node.expressions[at] if len(node.expressions) == len(items) else node
            if names.count(name.lower()) > 1 or not name.isidentifier() or name.startswith("_"):
                self.text.fail(
                    where,
                    "column names must be unique and valid Python identifiers",
                    "add AS with a name of letters, digits and _, which differs in more than case",
                    name=name,
                )
            if expression.type.name in ("null", "interval"):
                self.text.fail(where, "a column needs a type", "write CAST(… AS STRING)", name=name)
            is_time = isinstance(expression, Ref) and expression.name == time
            if name == time and not is_time:
                self.text.fail(
                    where, "a computed column cannot have the name of the event-time column", "add AS with another name"
                )

    def _distinct(self, node: exp.Select, plan: Plan) -> Plan:
        distinct = node.args.get("distinct")
        if distinct is None:
            return plan
        if distinct.args.get("on"):
            self.text.fail(distinct, "DISTINCT ON is not supported", "use ROW_NUMBER() and a condition on it")
        keys = tuple(each.name for each in plan.fields)
        return Grouped(plan, keys, (), plan.fields, self.path.uid("distinct"), self.text.of(distinct))

    # -- GROUP BY -----------------------------------------------------------------------------------------------------

    def _aggregated(self, node: exp.Select, plan: Plan, scope: RelationScope, window: WindowTable | None) -> Plan:
        fixed = self._bounds(node, scope, window)
        groups = Groups(self.text, scope, self._keys(node, scope, fixed, window), fixed)
        analysis = Analysis(self.text, groups)
        items: list[tuple[str, Expression]] = []
        for each in node.expressions:
            if isinstance(each, exp.Star):
                self.text.fail(each, "a query with GROUP BY cannot select *", "name the columns")
            name = self._name(each)
            groups.wanted = name if is_aggregate(each.unalias()) else ""
            items.append((name, analysis.of(each.unalias())))
        having = node.args.get("having")
        conditions = [analysis.condition(having.this)] if having else []
        if window is not None:
            # A window passes WHERE with all of its rows, or with none.
            bounds = {bound: Ref(name, TIMESTAMP) for bound, name in fixed.items()}
            of_rows, of_windows = self._conditions(node, window.input, scope)
            conditions += [replace_columns(each, bounds) for each in of_windows]
            used = {column for each in conditions for column in columns_of(each)}
            # A condition over the keys of sessions removes all sessions of a key.
            divides = any(not set(columns_of(each)) <= set(window.keys) for each in of_rows)
            if divides and window.window.kind == "SESSION" and used & set(fixed.values()):
                # Flink then forms the sessions of all rows, and without a condition over windows of those that pass.
                hint = "filter the rows in a query of WITH, and name that in SESSION(TABLE …)"
                self.text.fail(node.args["where"], "one query cannot filter rows and their sessions", hint)
        self._check_items(node, items, plan)
        made = self._operator(node, plan, window, groups, items=items, conditions=conditions)
        for each in conditions:
            made = Filtered(made, each, self.text.of(having or node.args["where"]))
        return self._distinct(node, select_columns(made, items, self.text.of(node)))

    def _bounds(self, node: exp.Select, scope: RelationScope, window: WindowTable | None) -> dict[str, str]:
        """Returns the columns of the result for bounds of the window in GROUP BY."""
        if window is None:
            return {}
        group = node.args.get("group")
        grouped = {each.name for each in group.expressions if isinstance(each, exp.Column)} if group else set()
        if not {"window_start", "window_end"} <= grouped:
            self.text.fail(
                group or node,
                "GROUP BY needs the bounds of the windows",
                "write GROUP BY window_start, window_end, and other keys",
            )
        aliases = {
            each.this.name: each.alias
            for each in node.expressions
            if isinstance(each, exp.Alias) and isinstance(each.this, exp.Column) and each.this.name in BOUNDS
        }
        return {bound: aliases.get(bound, bound) for bound in BOUNDS}

    def _keys(
        self, node: exp.Select, scope: RelationScope, fixed: dict[str, str], window: WindowTable | None
    ) -> dict[str, Expression]:
        """Returns the keys by name: that of a selected column that consists of the key, if there is one."""
        group = node.args.get("group")
        analysis = Analysis(self.text, scope)
        named = {each.unalias().sql(): self._name(each) for each in node.expressions if isinstance(each, exp.Alias)}
        if group:
            self._check_group(group)
        keys: dict[str, Expression] = {}
        for each in group.expressions if group else ():
            refuse_aggregates(self.text, each, "GROUP BY", "group by the result in an outer query")
            expression = analysis.of(each)
            if isinstance(expression, Ref) and expression.name in fixed:
                continue
            if isinstance(expression, Constant):
                self.text.fail(each, "GROUP BY does not support literals", "name a column; its number is not supported")
            keys[named.get(each.sql()) or name_computed_column("key", expression)] = expression
        grouped = {each.name for each in keys.values() if isinstance(each, Ref)}
        if window is not None and not set(window.keys) <= grouped:
            self.text.fail(group or node, "GROUP BY needs the keys of the sessions", "add them", keys=list(window.keys))
        if not keys and window is None:
            self.text.fail(
                node,
                "an aggregate over all rows is not supported",
                "add GROUP BY: a result that is corrected needs a key",
            )
        return keys or {_EVERY: Constant(0, BIGINT)}

    def _check_group(self, group: exp.Group) -> None:
        for name, value in group.args.items():
            if value and name != "expressions":
                self.text.fail(group, "a form of GROUP BY is not supported", "write one query for each of the groups")

    def _operator(
        self,
        node: exp.Select,
        plan: Plan,
        window: WindowTable | None,
        groups: Groups,
        *,
        items: list[tuple[str, Expression]],
        conditions: list[Expression],
    ) -> Plan:
        """Returns the aggregation.

        Args:
            items: name and expression of each selected column.
            conditions: of HAVING, and those of WHERE over windows.
        """
        if window is not None and not groups.aggregates:
            groups.wanted = "window_rows"
            groups.other(exp.Anonymous(this="COUNT", expressions=[exp.Star()]))
        every = [*(expression for _, expression in items), *conditions]
        used = {column for expression in every for column in columns_of(expression)}
        groups.fixed = {bound: name for bound, name in groups.fixed.items() if name in used}
        before = self._before(node, plan, groups, time_of(plan) if window is not None else "")
        keys, fields = tuple(groups.keys), _result_fields(groups, items)
        aggregates = tuple(aggregate for aggregate, _ in groups.aggregates.values())
        if window is None:
            uid = self.path.uid("aggregate" if aggregates else "distinct")
            return Grouped(before, keys, aggregates, fields, uid, self.text.of(node.args["group"]))
        bounds = tuple((name, bound) for bound, name in groups.fixed.items())
        return Windowed(before, window.window, keys, aggregates, bounds, fields, self.path.uid("window"), window.at)

    def _before(self, node: exp.Select, plan: Plan, groups: Groups, time: str) -> Plan:
        """Returns what is computed of each row before the aggregation."""
        items = dict(groups.before)
        own = {each.name for each in plan.fields}
        if any(not set(columns_of(each)) <= own for each in items.values()):
            hint = "use them in SELECT, HAVING or WHERE by themselves, or aggregate the windows in an outer query"
            self.text.fail(node, "keys and aggregates cannot use the bounds of windows", hint)
        if time:
            ref = next(Ref(time, each.type) for each in plan.fields if each.name == time)
            if items.setdefault(time, ref) != ref:
                self.text.fail(
                    node, "a computed key cannot have the name of the event-time column", "add AS another name"
                )
        return select_columns(plan, list(items.items()), self.text.of(node))


def _result_fields(groups: Groups, items: list[tuple[str, Expression]]) -> tuple[Field, ...]:
    """Returns the columns of an aggregation: those that are selected as they are first, in their order."""
    made = {name: Field(name, expression.type) for name, expression in groups.keys.items()}
    made |= {name: Field(name, of) for name, (_, of) in groups.aggregates.items()}
    made |= {name: Field(name, TIMESTAMP) for name in groups.fixed.values()}
    selected = (name for name, each in items if isinstance(each, Ref) and each.name == name)
    return tuple(made[name] for name in dict.fromkeys([*selected, *made]) if name in made)


def _uses(node: exp.Select, name: str) -> bool:
    """Returns whether the clauses after WHERE use a column of FROM."""
    parts = [*node.expressions, *(node.args[clause] for clause in ("group", "having") if node.args.get(clause))]
    if any(isinstance(each, exp.Star) for each in node.expressions):
        return True
    found = [column for part in parts for column in part.find_all(exp.Column)]
    return any(column.name == name or isinstance(column.this, exp.Star) for column in found)


def _with_bounds(sources: tuple[FromTable, ...]) -> tuple[FromTable, ...]:
    """Returns the table of a window function with the columns for the bounds of its windows."""
    (only,) = sources
    return (replace(only, columns={**{bound: Field(bound, TIMESTAMP) for bound in BOUNDS}, **only.columns}),)


_AGGREGATE_KINDS = {
    "COUNT": "count",
    "SUM": "sum",
    "MIN": "min",
    "MAX": "max",
    "AVG": "mean",
    "FIRST_VALUE": "first",
    "LAST_VALUE": "last",
    "VAR_SAMP": "variance",
    "VARIANCE": "variance",
    "VAR_POP": "variance",
    "STDDEV": "variance",
    "STDDEV_SAMP": "variance",
    "STDDEV_POP": "variance",
    "APPROX_COUNT_DISTINCT": "approx_distinct",
}
"""Kind of aggregate by function."""


def is_aggregate(node: exp.Expr) -> bool:
    """Returns whether a construct is an aggregate, without OVER."""
    call_node = node.this if isinstance(node, exp.Filter) else node
    return isinstance(call_node, exp.Anonymous) and str(call_node.name).upper() in _AGGREGATE_KINDS


def has_aggregate(node: exp.Expr) -> bool:
    """Returns whether an expression has an aggregate without OVER, outside of inner queries."""
    if isinstance(node, exp.Window | exp.Query):
        return False
    return is_aggregate(node) or any(has_aggregate(child) for child in node.iter_expressions())


def refuse_aggregates(text: SqlText, node: exp.Expr, clause: str, hint: str) -> None:
    """Raises JobDefinitionError if a clause, whose rows are not aggregated yet, has an aggregate."""
    found = next(filter(is_aggregate, node.find_all(exp.Anonymous)), None)
    if found is not None and has_aggregate(node):
        text.fail(found, f"{clause} cannot contain an aggregate", hint, function=str(found.name).upper())


@dataclass
class Groups(Scope):
    """The clauses of a query after GROUP BY: they can name keys and aggregates.

    Attributes:
        inner: the names of the rows.
        keys: name and expression of each key.
        fixed: keys that the operator itself makes, such as the bounds of windows: name by column of the rows.
        before: name and expression of what is computed of each row.
        aggregates: the aggregates so far, with the types of their results.
    """

    text: SqlText
    inner: RelationScope
    keys: dict[str, Expression]
    fixed: dict[str, str] = field(default_factory=dict)
    before: dict[str, Expression] = field(default_factory=dict)
    aggregates: dict[str, tuple[SqlAggregate, SqlType]] = field(default_factory=dict)
    wanted: str = ""
    """The name that the next aggregate gets, of the item that consists of it."""

    def __post_init__(self) -> None:
        self.before |= self.keys
        self._analysis = Analysis(self.text, self.inner)
        self._key_names = {canonical(expression): name for name, expression in self.keys.items()}

    def column(self, node: exp.Column) -> Expression:
        found = self.inner.column(node)
        self.text.fail(
            node,
            "a column is neither aggregated nor in GROUP BY",
            "add it to GROUP BY, or aggregate it",
            name=found.name if isinstance(found, Ref) else node.name,
        )

    def other(self, node: exp.Expr) -> Expression | None:
        if is_aggregate(node):
            return self._aggregate(node)
        if isinstance(node, exp.Literal | exp.Interval | exp.Boolean | exp.Null | exp.Paren) or has_aggregate(node):
            return None
        if not node.find(exp.Column):
            return None
        inner = self._analysis.of(node)
        if isinstance(inner, Ref) and inner.name in self.fixed:
            return Ref(self.fixed[inner.name], inner.type)
        name = self._key_names.get(canonical(inner))
        return None if name is None else Ref(name, self.keys[name].type)

    def _aggregate(self, node: exp.Expr) -> Expression:
        function = node.this if isinstance(node, exp.Filter) else node
        name, args = str(function.name).upper(), list(function.expressions)
        kind = _AGGREGATE_KINDS[name]
        if any(map(has_aggregate, args)):
            self.text.fail(
                node, "an aggregate cannot contain an aggregate", "aggregate in an inner query first", function=name
            )
        if args and isinstance(args[0], exp.Distinct):
            kind, args = self._distinct(node, kind), list(args[0].expressions)
        if len(args) != 1:
            self.text.fail(node, "an aggregate needs one argument", "write COUNT(*), or name one column")
        column, of = self._value(args[0], node, kind)
        where = ""
        if isinstance(node, exp.Filter):
            where = self._computed("where", self._analysis.condition(node.expression.this))
        declared = SqlAggregate("", kind, column, where)
        if kind == "mean" and (of.name == "bigint" or of.is_decimal):
            return self._exact_average(node, declared, of)
        if kind == "variance" and (name.endswith("_POP") or name.startswith("STDDEV")):
            return self._deviation(node, declared, of, name)
        return self._added(node, declared, of)

    def _distinct(self, node: exp.Expr, kind: str) -> str:
        if kind in ("min", "max"):
            return kind
        if kind != "count":
            self.text.fail(node, "only COUNT is supported with DISTINCT", "group by the value in an inner query first")
        return "count_distinct"

    def _value(self, arg: exp.Expr, node: exp.Expr, kind: str) -> tuple[str, SqlType]:
        """Returns the column that is aggregated, and its type."""
        if not isinstance(arg, exp.Star):
            value = self._analysis.of(arg)
            if kind == "count_distinct" and (value.type.is_decimal or value.type.name == "double"):
                # Both zeros are one value.
                zero = Constant(0.0, DOUBLE)
                value = cast(_must("add", value, zero) if value.type.name == "double" else value, STRING)
            if kind == "variance" and value.type.is_decimal:
                value = cast(value, DOUBLE)
            return self._computed("value", value), value.type
        if kind != "count":
            self.text.fail(node, "only COUNT accepts *", "name a column")
        for name, expression in self.keys.items():
            if not expression.type.nullable:
                return name, expression.type
        one = Constant(1, BIGINT)
        return self._computed("row", one), one.type

    def _computed(self, prefix: str, expression: Expression) -> str:
        name = name_computed_column(prefix, expression)
        if self.before.setdefault(name, expression) != expression:
            name = name_computed_column(prefix, Constant(canonical(expression), STRING))
            self.before[name] = expression
        return name

    def _deviation(self, node: exp.Expr, declared: SqlAggregate, of: SqlType, name: str) -> Expression:
        """Returns the variance of a population, or a standard deviation, from the variance of a sample."""
        wanted, self.wanted = self.wanted, ""
        made = self._added(node, replace(declared, name=wanted and f"{wanted}_variance"), of)
        if name.endswith("_POP"):
            count = self._added(node, replace(declared, name=wanted and f"{wanted}_count", kind="count"), of)
            one = Constant(1, BIGINT)
            less = _must("sub", cast(count, DOUBLE), Constant(1.0, DOUBLE))
            several = _must("div", _must("mul", made, less), cast(count, DOUBLE))
            alone = _must("case", _must("eq", count, one), Constant(0.0, DOUBLE), Constant(None, NULL))
            made = _must("case", _must("gt", count, one), several, alone)
        if not name.startswith("STDDEV"):
            return made
        root = resolve_call("SQRT", [made])
        assert not isinstance(root, str)
        return root

    def _exact_average(self, node: exp.Expr, declared: SqlAggregate, of: SqlType) -> Expression:
        """Returns the average of integers, an integer, or of decimals, a decimal, as in Flink."""
        wanted, self.wanted = self.wanted, ""
        total = self._added(node, replace(declared, name=wanted and f"{wanted}_sum", kind="sum"), of)
        count = self._added(node, replace(declared, name=wanted and f"{wanted}_count", kind="count"), of)
        if of.is_decimal:
            return average(total, count)
        made = _must("div", total, count)
        if total.type.nullable:
            made = _must("case", _must("eq", count, Constant(0, BIGINT)), Constant(None, NULL), made)
        return made

    def _added(self, node: exp.Expr, aggregate: SqlAggregate, of: SqlType) -> Expression:
        """Adds an aggregate, or finds an equal one; returns the column of its result."""
        result = self._result_type(node, aggregate, of)
        name = aggregate.name or self.wanted or self._default_name(aggregate)
        self.wanted = ""
        for known, kind in self.aggregates.values():
            if known.declared == aggregate.declared:
                return Ref(known.name, kind)
        if name in self.keys or name in self.aggregates:
            name = self._default_name(aggregate)
        self.aggregates[name] = (replace(aggregate, name=name), result)
        return Ref(name, result)

    def _default_name(self, aggregate: SqlAggregate) -> str:
        return name_computed_column(aggregate.kind, Constant(" ".join(aggregate.declared), STRING))

    def _result_type(self, node: exp.Expr, aggregate: SqlAggregate, of: SqlType) -> SqlType:
        if of.name not in ("other", "null", "interval"):
            column = RowSchema.of(row_class("Value", [Field(aggregate.column, of)])).column(aggregate.column)
            made = aggregate_for(aggregate.kind, column, aggregate.where)
            if made is not None:
                return _type_named(made.result_type, of).with_null(made.may_be_null)
        self.text.fail(
            node,
            "an aggregate does not accept the type of its column",
            "cast it to BIGINT or DOUBLE",
            aggregate=aggregate.kind,
            type=of.spark,
        )


def _must(function: str, *args: Expression) -> Expression:
    made = call(function, args)
    assert made is not None
    return made


def _type_named(name: str, of: SqlType) -> SqlType:
    if name == of.spark:
        return of
    made = decimal(*digits) if (digits := decimal_digits(name)) else NAMED[name]
    assert made is not None
    return made


_OVER_KINDS = {"COUNT": "count", "SUM": "sum", "MIN": "min", "MAX": "max", "AVG": "mean"}
_FRAME = ("kind", "start", "start_side", "end", "end_side")
Frame = tuple[tuple[str, ...], tuple[tuple[str, bool], ...], Preceding]
"""Keys, order, and the rows before a row."""


def has_over(node: exp.Expr) -> bool:
    """Returns whether an expression has OVER, outside of inner queries."""
    if isinstance(node, exp.Query):
        return False
    return isinstance(node, exp.Window) or any(map(has_over, node.iter_expressions()))


class OverScope(RelationScope):
    """The columns of FROM, and what OVER computes of them."""

    def __init__(self, text: SqlText, sources: tuple[FromTable, ...], plan: Plan) -> None:
        super().__init__(text, sources)
        self._inner = Analysis(text, RelationScope(text, sources))
        self._plan = plan
        self.before: dict[str, Expression] = {}
        self.aggregates: dict[str, tuple[SqlAggregate, SqlType]] = {}
        self.frame: Frame | None = None
        self.rank = ""
        self.wanted = ""
        self.first: exp.Window | None = None

    def other(self, node: exp.Expr) -> Expression | None:
        if not isinstance(node, exp.Window):
            return None
        function = node.this
        name = str(function.name).upper() if isinstance(function, exp.Anonymous) else ""
        if name != "ROW_NUMBER" and name not in _OVER_KINDS:
            self._text.fail(node, "a function is not supported with OVER", f"use ROW_NUMBER, {', '.join(_OVER_KINDS)}")
        frame = self._frame(node, numbered=name == "ROW_NUMBER")
        if self.frame not in (None, frame) or (self.first is not None and (name == "ROW_NUMBER" or self.rank)):
            self._text.fail(
                node, "a query cannot have different windows of OVER", "write an inner query for each of them"
            )
        self.frame, self.first = frame, node
        if name == "ROW_NUMBER":
            if not self.wanted:
                self._text.fail(node, "an expression cannot contain ROW_NUMBER()", "select it AS a name")
            self.rank = self.wanted
            return Ref(self.rank, BIGINT)
        return self._aggregate(node, function, name)

    def plan(self, path: Path, items: list[tuple[str, Expression]], node: exp.Select) -> Plan:
        """Returns the rows with what OVER computes, for the columns of a query."""
        assert self.frame is not None and self.first is not None
        keys, order, preceding = self.frame
        kinds = {each.name: each.type for each in self._plan.fields}
        made = {*self.aggregates, self.rank}
        before = dict(self.before)
        used = [name for _, item in items for name in columns_of(item) if name not in made]
        for name in dict.fromkeys(used):
            before.setdefault(name, Ref(name, kinds[name]))
        at = self._text.of(self.first)
        rows = Computed(self._plan, tuple(before.items()), self._text.of(node))
        if self.rank:
            if self.rank in before:
                self._text.fail(
                    self.first, "a column cannot have the name of the row number", "add AS with another name"
                )
            return RowNumber(rows, keys, order, self.rank, path.uid("top"), at)
        fields = (*rows.fields, *(Field(name, of) for name, (_, of) in self.aggregates.items()))
        aggregates = tuple(aggregate for aggregate, _ in self.aggregates.values())
        return Over(rows, keys, aggregates, preceding, fields, path.uid("over"), at)

    def _frame(self, node: exp.Window, *, numbered: bool) -> Frame:
        partition, ordered = node.args.get("partition_by") or [], node.args.get("order")
        if not partition or ordered is None:
            self._text.fail(node, "OVER needs a key and an order", "write OVER (PARTITION BY key ORDER BY column)")
        keys = tuple(self._column(each, "key") for each in partition)
        order = tuple(self._ordered(each) for each in ordered.expressions)
        if numbered:
            return keys, order, Unbounded.ROW
        time = time_of(self._plan)
        if order != ((time, False),):
            self._text.fail(
                ordered,
                "aggregates over rows need the order of event time",
                f"write ORDER BY {time}" if time else "register a stream with assign_timestamps_and_watermarks",
            )
        return keys, order, self._preceding(node)

    def _ordered(self, node: exp.Ordered) -> tuple[str, bool]:
        self._text.check_parts(node, {"this", "desc", "nulls_first"})
        descending = bool(node.args.get("desc"))
        if bool(node.args.get("nulls_first")) == descending:
            self._text.fail(node, "an order of nulls is not supported", "null is the lowest value: leave it out")
        return self._column(node.this, "order"), descending

    def _preceding(self, node: exp.Window) -> Preceding:
        spec = node.args.get("spec")
        if spec is None:
            return Unbounded.RANGE
        self._text.check_parts(spec, _FRAME)
        kind, start = spec.args.get("kind"), spec.args.get("start")
        if spec.args.get("start_side") == "PRECEDING" and spec.args.get("end") == "CURRENT ROW":
            if start == "UNBOUNDED":
                return Unbounded.ROW if kind == "ROWS" else Unbounded.RANGE
            if isinstance(start, exp.Expr):
                value = self._inner.constant(start, BIGINT if kind == "ROWS" else INTERVAL, "a bound of OVER").value
                assert isinstance(value, int | timedelta)
                return value
        self._text.fail(
            spec,
            "a frame of OVER is not supported",
            "write ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW, ROWS BETWEEN 5 PRECEDING AND CURRENT ROW, or "
            "RANGE BETWEEN INTERVAL '5' SECOND PRECEDING AND CURRENT ROW",
        )

    def _column(self, node: exp.Expr, prefix: str) -> str:
        expression = self._inner.of(node)
        name = name_computed_column(prefix, expression)
        self.before[name] = expression
        return name

    def _aggregate(self, node: exp.Window, function: exp.Anonymous, name: str) -> Expression:
        wanted, self.wanted = self.wanted, ""
        if len(function.expressions) != 1 or isinstance(function.expressions[0], exp.Distinct):
            self._text.fail(node, "an aggregate of OVER needs one argument, without DISTINCT", "name one column")
        (arg,) = function.expressions
        assert self.frame is not None
        value: Expression = Constant(1, BIGINT) if isinstance(arg, exp.Star) else self._inner.of(arg)
        if name != "COUNT" and value.type.name not in ("bigint", "double"):
            self._text.fail(node, "an aggregate of OVER needs a number", "cast it to BIGINT or DOUBLE")
        column = name_computed_column("value", value)
        self.before[column] = value
        kind = _OVER_KINDS[name]
        if kind == "mean" and value.type.name == "bigint":
            total = self._added(wanted and f"{wanted}_sum", "sum", column, value.type)
            count = self._added(wanted and f"{wanted}_count", "count", column, BIGINT)
            if value.type.nullable:
                is_zero = call("eq", [count, Constant(0, BIGINT)])
                divided = call("div", [total, count])
                assert is_zero is not None and divided is not None
                made = call("case", [is_zero, Constant(None, BIGINT.with_null(True)), divided])
            else:
                made = call("div", [total, count])
            assert made is not None
            return made
        of = {"count": BIGINT, "mean": DOUBLE.with_null(value.type.nullable)}.get(kind, value.type)
        return self._added(wanted, kind, column, of)

    def _added(self, wanted: str, kind: str, column: str, of: SqlType) -> Expression:
        taken = {each.name for each in self._plan.fields} | set(self.aggregates) | set(self.before)
        name = wanted if wanted and wanted not in taken else f"{kind}_{column}"
        while name in taken:
            name += "_"
        self.aggregates[name] = (SqlAggregate(name, kind, column), of)
        return Ref(name, of)


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
                (name, replace_columns(each, one))
                for name, each in self.plan.items
                if name != self.name or name in used
            )
            return replace(self.plan, input=self._top(numbered, ""), items=items)
        rank = numbered.rank if self.name in used or self._computes_with(numbered.rank) else ""
        items = self.plan.items if rank else tuple(item for item in self.plan.items if item[0] != self.name)
        return replace(self.plan, input=self._top(numbered, rank), items=items)

    def _top(self, numbered: RowNumber, rank: str) -> SqlTopN:
        return SqlTopN(numbered.input, numbered.keys, numbered.order, self.n, rank, numbered.uid, numbered.at)

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
