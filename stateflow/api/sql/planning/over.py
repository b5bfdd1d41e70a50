"""OVER: numbers of rows in an order, and aggregates over the rows before a row."""

from __future__ import annotations

from datetime import timedelta

from sqlglot import exp

from stateflow.api.over.frames import Preceding, Unbounded
from stateflow.api.sql.expressions.analysis import Analysis
from stateflow.api.sql.expressions.calls import call
from stateflow.api.sql.expressions.sql_types import BIGINT, DOUBLE, INTERVAL, Field, SqlType
from stateflow.api.sql.expressions.tree import Constant, Expression, Ref, columns_of
from stateflow.api.sql.planning.names import Path, RelationScope, Source, computed_name
from stateflow.api.sql.planning.plan import Aggregate, Computed, Over, Plan, RowNumber, time_of
from stateflow.api.sql.problems import SqlText

_KINDS = {"COUNT": "count", "SUM": "sum", "MIN": "min", "MAX": "max", "AVG": "mean"}
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

    def __init__(self, text: SqlText, sources: tuple[Source, ...], plan: Plan) -> None:
        super().__init__(text, sources)
        self._inner = Analysis(text, RelationScope(text, sources))
        self._plan = plan
        self.before: dict[str, Expression] = {}
        self.aggregates: dict[str, tuple[Aggregate, SqlType]] = {}
        self.frame: Frame | None = None
        self.rank = ""
        self.wanted = ""
        self.first: exp.Window | None = None

    def other(self, node: exp.Expr) -> Expression | None:
        if not isinstance(node, exp.Window):
            return None
        function = node.this
        name = str(function.name).upper() if isinstance(function, exp.Anonymous) else ""
        if name != "ROW_NUMBER" and name not in _KINDS:
            self._text.fail(node, "a function is not supported with OVER", f"use ROW_NUMBER, {', '.join(_KINDS)}")
        frame = self._frame(node, numbered=name == "ROW_NUMBER")
        if self.frame not in (None, frame) or (self.first is not None and (name == "ROW_NUMBER" or self.rank)):
            self._text.fail(node, "a query has different windows of OVER", "write an inner query for each of them")
        self.frame, self.first = frame, node
        if name == "ROW_NUMBER":
            if not self.wanted:
                self._text.fail(node, "ROW_NUMBER() is part of an expression", "select it AS a name")
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
                self._text.fail(self.first, "a column has the name of the number of rows", "add AS with another name")
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
        name = computed_name(prefix, expression)
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
        column = computed_name("value", value)
        self.before[column] = value
        kind = _KINDS[name]
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
        self.aggregates[name] = (Aggregate(name, kind, column), of)
        return Ref(name, of)
