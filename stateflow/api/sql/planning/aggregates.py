"""GROUP BY: keys, aggregates, and what is computed before and after them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlglot import exp

from stateflow.api.aggregates.registry import aggregate_for
from stateflow.api.schema import RowSchema
from stateflow.api.sql.expressions.analysis import Analysis, Scope
from stateflow.api.sql.expressions.calls import average, call, cast, named_call
from stateflow.api.sql.expressions.sql_types import BIGINT, DOUBLE, NULL, STRING, Field, SqlType, decimal, row_class
from stateflow.api.sql.expressions.tree import Constant, Expression, Ref, canonical
from stateflow.api.sql.planning.names import RelationScope, computed_name
from stateflow.api.sql.planning.plan import Aggregate
from stateflow.api.sql.problems import SqlText

_KINDS = {
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
    return isinstance(call_node, exp.Anonymous) and str(call_node.name).upper() in _KINDS


def has_aggregate(node: exp.Expr) -> bool:
    """Returns whether an expression has an aggregate without OVER, outside of inner queries."""
    if isinstance(node, exp.Window | exp.Query):
        return False
    return is_aggregate(node) or any(has_aggregate(child) for child in node.iter_expressions())


def refuse_aggregates(text: SqlText, node: exp.Expr, clause: str, hint: str) -> None:
    """Raises JobDefinitionError if a clause, whose rows are not aggregated yet, has an aggregate."""
    found = next(filter(is_aggregate, node.find_all(exp.Anonymous)), None)
    if found is not None and has_aggregate(node):
        text.fail(found, f"an aggregate is in {clause}", hint, function=str(found.name).upper())


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
    aggregates: dict[str, tuple[Aggregate, SqlType]] = field(default_factory=dict)
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
        kind = _KINDS[name]
        if any(map(has_aggregate, args)):
            self.text.fail(node, "an aggregate is in an aggregate", "aggregate in an inner query first", function=name)
        if args and isinstance(args[0], exp.Distinct):
            kind, args = self._distinct(node, kind), list(args[0].expressions)
        if len(args) != 1:
            self.text.fail(node, "an aggregate needs one argument", "write COUNT(*), or name one column")
        column, of = self._value(args[0], node, kind)
        where = ""
        if isinstance(node, exp.Filter):
            where = self._computed("where", self._analysis.condition(node.expression.this))
        declared = Aggregate("", kind, column, where)
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
        name = computed_name(prefix, expression)
        if self.before.setdefault(name, expression) != expression:
            name = computed_name(prefix, Constant(canonical(expression), STRING))
            self.before[name] = expression
        return name

    def _deviation(self, node: exp.Expr, declared: Aggregate, of: SqlType, name: str) -> Expression:
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
        root = named_call("SQRT", [made])
        assert not isinstance(root, str)
        return root

    def _exact_average(self, node: exp.Expr, declared: Aggregate, of: SqlType) -> Expression:
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

    def _added(self, node: exp.Expr, aggregate: Aggregate, of: SqlType) -> Expression:
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

    def _default_name(self, aggregate: Aggregate) -> str:
        return computed_name(aggregate.kind, Constant(" ".join(aggregate.declared), STRING))

    def _result_type(self, node: exp.Expr, aggregate: Aggregate, of: SqlType) -> SqlType:
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
    if name.startswith("decimal("):
        digits, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
        made = decimal(int(digits), int(scale))
        assert made is not None
        return made
    return {"bigint": BIGINT, "double": DOUBLE}[name]
