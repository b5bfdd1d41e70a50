"""Parsed expressions as typed ones."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import NoReturn

from sqlglot import exp

from stateflow.api.sql.calls import NOT_DISTINCT, call, cast, is_castable, resolve_call, try_cast
from stateflow.api.sql.dates import LENGTHS, MONTHS
from stateflow.api.sql.expressions import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTERVAL,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_UTC,
    Call,
    Constant,
    Expression,
    SqlType,
    decimal,
)
from stateflow.api.sql.parser import SqlText
from stateflow.api.sql.sql_functions import FUNCTIONS, SYNONYMS
from stateflow.api.sql.text_patterns import normal_like

_OPERATORS: dict[type[exp.Expr], str] = {
    exp.Add: "add",
    exp.Sub: "sub",
    exp.Mul: "mul",
    exp.Div: "div",
    exp.Mod: "MOD",
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
    exp.DPipe: "concat",
    exp.NullSafeEQ: NOT_DISTINCT,
}
_UNITS = {"SECOND": "seconds", "MINUTE": "minutes", "HOUR": "hours", "DAY": "days", "MILLISECOND": "milliseconds"}
_TYPES: dict[exp.DType, SqlType] = {
    **dict.fromkeys((exp.DType.BIGINT, exp.DType.INT, exp.DType.SMALLINT, exp.DType.TINYINT), BIGINT),
    **dict.fromkeys((exp.DType.TEXT, exp.DType.VARCHAR), STRING),
    exp.DType.DOUBLE: DOUBLE,
    exp.DType.BOOLEAN: BOOLEAN,
    exp.DType.DATE: DATE,
    exp.DType.TIMESTAMP: TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: TIMESTAMP,
    exp.DType.TIMESTAMPLTZ: TIMESTAMP_UTC,
    exp.DType.VARBINARY: BINARY,
}
_NARROW = {exp.DType.INT: "int", exp.DType.SMALLINT: "smallint", exp.DType.TINYINT: "tinyint"}
"""The function that checks the range of integers of a type."""
_LONGEST = 2**31 - 1
_SIZES = {
    exp.DType.VARCHAR: range(1, _LONGEST + 1),
    # Timestamps have microseconds.
    **dict.fromkeys((exp.DType.TIMESTAMP, exp.DType.TIMESTAMPNTZ, exp.DType.TIMESTAMPLTZ), range(6, 10)),
}
"""The lengths and precisions that a type may have."""
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(rf"{_DATE.pattern}(?:[ T][0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:\.[0-9]{{1,6}})?)?)?")
_CLOCKS = (
    exp.CurrentTimestamp,
    exp.CurrentDate,
    exp.CurrentTime,
    exp.CurrentDatetime,
    exp.Localtimestamp,
    exp.Localtime,
)
_NOT_REPEATABLE = ("PROCTIME", "NOW", "RAND", "RAND_INTEGER", "UUID", "CURRENT_ROW_TIMESTAMP", "CURRENT_WATERMARK")
_WAY_OUT = "compute it with transform or map of the stream, and register the result"


class Scope(ABC):
    """The names that expressions of a clause can use."""

    @abstractmethod
    def column(self, node: exp.Column) -> Expression:
        """Returns the column that a name means. Raises JobDefinitionError."""

    def other(self, node: exp.Expr) -> Expression | None:
        """Returns the expression of a construct that only some clauses have, such as an aggregate; None if nothing."""
        return None


class Analysis:
    """Analyses the expressions of a clause.

    Args:
        text: the statement.
        scope: what its names mean.
    """

    def __init__(self, text: SqlText, scope: Scope) -> None:
        self._text = text
        self._scope = scope

    def condition(self, node: exp.Expr) -> Expression:
        """Returns a condition. Raises JobDefinitionError if it is not of type BOOLEAN."""
        found = self.of(node)
        if found.type.name != "boolean":
            self._text.fail(node, "a condition is not BOOLEAN", "compare it with a value", type=found.type.spark)
        return found

    def of(self, node: exp.Expr) -> Expression:
        """Returns the typed expression. Raises JobDefinitionError with the position of what is not supported."""
        self._text.check_parts(node, _PARTS.get(type(node), node.args))
        own = self._scope.other(node)
        if own is not None:
            return own
        if type(node) in _OPERATORS:
            return self._called(node, _OPERATORS[type(node)], [node.this, node.expression])
        handler = _HANDLERS.get(type(node))
        return handler(self, node) if handler is not None else self._refuse(node)

    def constant(self, node: exp.Expr, of: SqlType, what: str) -> Constant:
        """Returns a literal. Raises JobDefinitionError if the expression is something else."""
        found = self.of(node)
        if not isinstance(found, Constant) or found.type.name != of.name:
            self._text.fail(node, f"{what} is not a literal", f"write a {of.name.upper()} literal")
        return found

    def _refuse(self, node: exp.Expr) -> NoReturn:
        if isinstance(node, _CLOCKS):
            self._refuse_clock(node)
        self._text.fail(node, "a construct is not supported in an expression", _WAY_OUT, construct=type(node).__name__)

    def _refuse_clock(self, node: exp.Expr) -> NoReturn:
        self._text.fail(
            node,
            "a query cannot use a function that is not deterministic",
            "give the rows a time before they are read; PROCTIME() is allowed in FOR SYSTEM_TIME AS OF only",
        )

    # -- literals and names -------------------------------------------------------------------------------------------

    def _column(self, node: exp.Column) -> Expression:
        return self._scope.column(node)

    def _literal(self, node: exp.Literal) -> Expression:
        text = str(node.this)
        if node.is_string:
            return Constant(text, STRING)
        if text.isdigit():
            value = int(text)
            if value >= 1 << 63:
                self._text.fail(node, "an integer has more than 64 bits", "write it as a decimal: 1.0")
            return Constant(value, BIGINT)
        if "e" in text.lower():
            return Constant(float(text), DOUBLE)
        exact = Decimal(text)
        digits, scale = exact.as_tuple().digits, -int(exact.as_tuple().exponent)
        kind = decimal(max(len(digits), scale), scale)
        if kind is None:
            self._text.fail(node, "a decimal has more than 38 digits", "write it with an exponent, as a DOUBLE: 1E0")
        return Constant(exact, kind)

    def _boolean(self, node: exp.Boolean) -> Expression:
        return Constant(bool(node.this), BOOLEAN)

    def _null(self, node: exp.Null) -> Expression:
        return Constant(None, NULL)

    def _paren(self, node: exp.Paren) -> Expression:
        return self.of(node.this)

    def _interval(self, node: exp.Interval) -> Expression:
        unit = str(node.args["unit"]).upper().removesuffix("S") if node.args.get("unit") else ""
        try:
            number = float(str(node.this.this))
            return Constant(timedelta(**{_UNITS[unit]: number}), INTERVAL)
        except (KeyError, ValueError, AttributeError, OverflowError):
            self._text.fail(
                node, "an interval is not supported", f"write INTERVAL '10' SECOND; units are {', '.join(_UNITS)}"
            )

    # -- operators ----------------------------------------------------------------------------------------------------

    def _called(self, node: exp.Expr, function: str, args: Sequence[exp.Expr]) -> Expression:
        return self._made(node, function, [self.of(arg) for arg in args])

    def _made(self, node: exp.Expr, function: str, args: Sequence[Expression]) -> Expression:
        made = call(function, args)
        if made is None:
            types = [f"{arg.type.spark}{' or null' if arg.type.nullable else ''}" for arg in args]
            self._text.fail(
                node,
                "an operator or function does not accept the types of its arguments",
                f"convert them with CAST; {_WAY_OUT}",
                function=function,
                types=types,
            )
        return made

    def _neg(self, node: exp.Neg) -> Expression:
        found = self.of(node.this)
        value = found.value if isinstance(found, Constant) else None
        if isinstance(value, int | float | Decimal | timedelta) and not isinstance(value, bool):
            return Constant(FUNCTIONS["neg"].python(value), found.type)
        return self._made(node, "neg", [found])

    def _logic(self, node: exp.And | exp.Or) -> Expression:
        name = "and" if isinstance(node, exp.And) else "or"
        return self._made(node, name, [self.condition(node.this), self.condition(node.expression)])

    def _not(self, node: exp.Not) -> Expression:
        return self._made(node, "not", [self.condition(node.this)])

    def _is(self, node: exp.Is) -> Expression:
        tested = node.expression
        if isinstance(tested, exp.Null):
            return Call("is null", (self.of(node.this),), BOOLEAN)
        if isinstance(tested, exp.Boolean):
            value = Constant(not tested.this, BOOLEAN)
            known = Call("coalesce", (self.condition(node.this), value), BOOLEAN)
            return self._made(node, "eq", [known, Constant(bool(tested.this), BOOLEAN)])
        self._refuse(node)

    def _distinct(self, node: exp.NullSafeNEQ) -> Expression:
        return self._made(node, "not", [self._called(node, NOT_DISTINCT, [node.this, node.expression])])

    def _in(self, node: exp.In) -> Expression:
        if node.args.get("query") or not node.expressions:
            self._text.fail(node, "IN with a query is not supported", "join with the query, or list the values")
        args = [self.of(node.this), *(self.of(each) for each in node.expressions)]
        return self._made(node, "in", args)

    def _between(self, node: exp.Between) -> Expression:
        value, low, high = self.of(node.this), self.of(node.args["low"]), self.of(node.args["high"])
        within = self._within(node, value, low, high)
        if not node.args.get("symmetric"):
            return within
        return self._made(node, "or", [within, self._within(node, value, high, low)])

    def _within(self, node: exp.Expr, value: Expression, low: Expression, high: Expression) -> Expression:
        is_above, is_below = self._made(node, "ge", [value, low]), self._made(node, "le", [value, high])
        return self._made(node, "and", [is_above, is_below])

    def _like(self, node: exp.Like, escape: str = "\\") -> Expression:
        pattern = self.constant(node.expression, STRING, "the pattern of LIKE")
        try:
            normal = Constant(normal_like(str(pattern.value), escape), STRING)
        except ValueError as e:
            self._text.fail(node.expression, str(e), f"write {escape}{escape} for the character {escape}")
        found = self._made(node, "LIKE", [self.of(node.this), normal])
        return self._made(node, "not", [found]) if node.args.get("negate") else found

    def _escape(self, node: exp.Escape) -> Expression:
        escape = str(self.constant(node.expression, STRING, "the escape character of LIKE").value)
        if len(escape) != 1 or not isinstance(node.this, exp.Like):
            self._text.fail(node, "ESCAPE needs LIKE and one character", "write LIKE '50!%' ESCAPE '!'")
        self._text.check_parts(node.this, _PARTS[exp.Like])
        return self._like(node.this, escape)

    def _case(self, node: exp.Case) -> Expression:
        args: list[Expression] = []
        value = self.of(node.this) if node.this else None
        for each in node.args["ifs"]:
            when = self.condition(each.this) if value is None else self._made(each, "eq", [value, self.of(each.this)])
            args += [when, self.of(each.args["true"])]
        default = node.args.get("default")
        return self._made(node, "case", [*args, self.of(default) if default else Constant(None, NULL)])

    def _if(self, node: exp.If) -> Expression:
        other = node.args.get("false")
        args = [self.condition(node.this), self.of(node.args["true"])]
        return self._made(node, "case", [*args, self.of(other) if other else Constant(None, NULL)])

    def _cast(self, node: exp.Cast) -> Expression:
        found, target = self.of(node.this), self._type(node, node.to)
        if isinstance(found, Constant) and isinstance(found.value, str) and target.name in ("date", "timestamp_ntz"):
            return self._time_literal(node, found.value, target)
        if not is_castable(found.type, target):
            self._text.fail(
                node, "a value cannot be cast to this type", _WAY_OUT, given=found.type.spark, wanted=target.spark
            )
        of, is_tried = node.to.this, isinstance(node, exp.TryCast)
        if is_tried and of in _NARROW:
            self._text.fail(node, "TRY_CAST to this type is not supported", "use BIGINT", type=node.to.sql()[:100])
        made = try_cast(found, target) if is_tried else cast(found, target)
        if of in _NARROW:
            return self._made(node, _NARROW[of], [made])
        length = int(node.to.expressions[0].name) if of is exp.DType.VARCHAR and node.to.expressions else _LONGEST
        if length == _LONGEST:
            return made
        return self._made(node, "substring", [made, Constant(1, BIGINT), Constant(length, BIGINT)])

    def _time_literal(self, node: exp.Expr, text: str, target: SqlType) -> Expression:
        is_date = target.name == "date"
        try:
            if not (_DATE if is_date else _TIME).fullmatch(text):
                raise ValueError
            value = date.fromisoformat(text) if is_date else datetime.fromisoformat(text)
        except ValueError:
            self._text.fail(
                node, "a literal is not a valid time", "write TIMESTAMP '2026-01-31 12:00:00'", given=text[:100]
            )
        return Constant(value, target)

    def _type(self, node: exp.Cast, to: exp.DataType) -> SqlType:
        made, kind = None, to.this
        digits = [int(each.name) if each.name.isdigit() else -1 for each in to.expressions]
        if kind is exp.DType.DECIMAL:
            made = decimal(*([*digits, 0, 0] if digits else [10, 0])[:2])
        elif not digits or digits[0] in _SIZES.get(kind, ()):
            made = _TYPES.get(kind)
        if made is None:
            self._text.fail(
                node,
                "a type is not supported",
                "use BIGINT, DOUBLE, DECIMAL(p, s), STRING, VARCHAR(n), BOOLEAN, DATE, TIMESTAMP or TIMESTAMP_LTZ",
                type=to.sql()[:100],
            )
        return made

    # -- functions ----------------------------------------------------------------------------------------------------

    def _extract(self, node: exp.Extract) -> Expression:
        return self._function(node, str(node.name).upper(), [node.expression])

    def _substring(self, node: exp.Substring) -> Expression:
        args = [node.this, *(node.args[name] for name in ("start", "length") if node.args.get(name))]
        return self._function(node, "SUBSTRING", args)

    def _trim(self, node: exp.Trim) -> Expression:
        name = {"LEADING": "LTRIM", "TRAILING": "RTRIM"}.get(str(node.args.get("position") or "").upper(), "TRIM")
        return self._function(node, name, [node.this, *([node.expression] if node.expression else [])])

    def _position(self, node: exp.StrPosition) -> Expression:
        return self._function(node, "POSITION", [node.args["substr"], node.this])

    def _with_unit(self, node: exp.Anonymous, name: str, unit: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
        """Returns the call of a function of times, whose unit is the first argument."""
        named, known = unit.name.upper(), [*LENGTHS, *MONTHS]
        if named not in known:
            self._text.fail(unit, "a unit is not supported", f"use {', '.join(known)}", unit=named)
        return self._made(node, name, [Constant(named, STRING), *map(self.of, nodes)])

    def _anonymous(self, node: exp.Anonymous) -> Expression:
        name, args = str(node.name).upper(), node.expressions
        if name in ("FLOOR", "CEIL", "CEILING") and args and isinstance(args[-1], exp.Var):
            return self._with_unit(node, f"{SYNONYMS.get(name, name)} TO", args[1], args[:1])
        if name in _NOT_REPEATABLE:
            self._refuse_clock(node)
        if name.partition("_")[0] in ("TUMBLE", "HOP", "SESSION"):
            hint = "FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(time), size)), and GROUP BY window_start, window_end"
            self._text.fail(node, "a window function is not in FROM", hint, function=name)
        if name in ("TIMESTAMPADD", "TIMESTAMPDIFF") and len(args) == 3:
            return self._with_unit(node, name, args[0], args[1:])
        return self._function(node, name, args)

    def _function(self, node: exp.Expr, name: str, nodes: Sequence[exp.Expr]) -> Expression:
        args = [self.of(each) for each in nodes]
        made = resolve_call(name, args)
        if isinstance(made, str):
            self._text.fail(node, made, _WAY_OUT, function=name, types=[arg.type.spark for arg in args])
        return made


_HANDLERS: dict[type[exp.Expr], Callable[..., Expression]] = {
    exp.Column: Analysis._column,
    exp.Literal: Analysis._literal,
    exp.Boolean: Analysis._boolean,
    exp.Null: Analysis._null,
    exp.Paren: Analysis._paren,
    exp.Interval: Analysis._interval,
    exp.Neg: Analysis._neg,
    exp.And: Analysis._logic,
    exp.Or: Analysis._logic,
    exp.Not: Analysis._not,
    exp.Is: Analysis._is,
    exp.NullSafeNEQ: Analysis._distinct,
    exp.In: Analysis._in,
    exp.Between: Analysis._between,
    exp.Like: Analysis._like,
    exp.Escape: Analysis._escape,
    exp.Case: Analysis._case,
    exp.If: Analysis._if,
    exp.Cast: Analysis._cast,
    exp.TryCast: Analysis._cast,
    exp.Extract: Analysis._extract,
    exp.Substring: Analysis._substring,
    exp.Trim: Analysis._trim,
    exp.StrPosition: Analysis._position,
    exp.Anonymous: Analysis._anonymous,
}
_OPERANDS = frozenset({"this", "expression"})
_PARTS: dict[type[exp.Expr], frozenset[str]] = {
    **dict.fromkeys((*_OPERATORS, *_HANDLERS, exp.Filter), _OPERANDS),
    exp.DPipe: _OPERANDS | {"safe"},
    exp.Column: frozenset({"this", "table"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Interval: frozenset({"this", "unit"}),
    exp.In: frozenset({"this", "expressions", "query"}),
    exp.Between: frozenset({"this", "low", "high", "symmetric"}),
    exp.Like: _OPERANDS | {"negate"},
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.If: frozenset({"this", "true", "false"}),
    exp.Cast: frozenset({"this", "to"}),
    exp.TryCast: frozenset({"this", "to", "safe"}),
    exp.StrPosition: frozenset({"this", "substr"}),
    exp.Substring: frozenset({"this", "start", "length"}),
    exp.Trim: _OPERANDS | {"position"},
    exp.Anonymous: frozenset({"this", "expressions"}),
    exp.Window: frozenset({"this", "partition_by", "order", "spec", "over"}),
}
"""The parts of a construct that are read: sqlglot may add others, which must not be ignored."""
