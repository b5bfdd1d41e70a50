"""Expressions as Spark SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal

from stateflow.api.sql.expressions.calls import NOT_DISTINCT
from stateflow.api.sql.expressions.functions import CONVERSIONS, FUNCTIONS
from stateflow.api.sql.expressions.patterns import is_simple_like, java_pattern, like_pattern
from stateflow.api.sql.expressions.sql_types import SqlType
from stateflow.api.sql.expressions.tree import Call, Constant, Expression, Ref
from stateflow.types.spark_sql import literal, quoted

_LONGEST = 80
"""Characters of an argument that a function may repeat in its text."""


def spark_sql(expression: Expression) -> str:
    """Returns the expression in Spark SQL; a result has exactly the type of the expression."""
    if isinstance(expression, Ref):
        return quoted(expression.name)
    if isinstance(expression, Constant):
        return _constant(expression)
    args = [spark_sql(arg) for arg in expression.args]
    repeated = [n for n, arg in enumerate(expression.args) if isinstance(arg, Call) and len(args[n]) > _LONGEST]
    if not repeated or not _repeats(expression):
        return _called(expression, args)
    # A text that grew with each level would have a length exponential in the levels. Inside, names are names of fields.
    fields = ", ".join(f"'{n}', {arg}" for n, arg in enumerate(args))
    of = [_constant(arg) if isinstance(arg, Constant) else f"x.`{n}`" for n, arg in enumerate(expression.args)]
    return f"element_at(transform(array(named_struct({fields})), x -> {_called(expression, of)}), 1)"


def _repeats(call: Call) -> bool:
    """Returns whether the text of a call has an argument more than once."""
    if call.function == "in":
        return call.args[0].type.name == "double"
    if call.function == "REGEXP_EXTRACT":
        return True
    marks = [_constant(arg) if isinstance(arg, Constant) else f"\x00{n}\x00" for n, arg in enumerate(call.args)]
    made = _called(call, marks)
    return any(made.count(f"\x00{n}\x00") > 1 for n in range(len(marks)))


def _called(call: Call, args: Sequence[str]) -> str:
    if call.function not in FUNCTIONS:
        return _special(call, args)
    function = FUNCTIONS[call.function]
    is_double = function.of_doubles is not None and call.args[0].type.name == "double"
    made = function.of_doubles(*args) if function.of_doubles and is_double else function.spark(*args)
    # Spark has own rules for the digits of decimals, and for timestamps without a time zone.
    return f"CAST({made} AS {call.type.spark})" if call.type.is_decimal or call.type.is_time else made


def _special(call: Call, args: Sequence[str]) -> str:
    if call.function in ("and", "or"):
        return f"({f' {call.function.upper()} '.join(args)})"
    if call.function == "in":
        return _in(call, args)
    if call.function == "case":
        pairs = zip(args[:-1:2], args[1::2], strict=True)
        whens = " ".join(f"WHEN {when} THEN {then}" for when, then in pairs)
        return f"(CASE {whens} ELSE {args[-1]} END)"
    if call.function in ("cast", "try cast"):
        return _cast(call, args[0])
    if call.function == NOT_DISTINCT:
        left, right = args
        is_nan = f" AND NOT isnan({left})" if call.args[0].type.name == "double" else ""
        return f"(({left} <=> {right}){is_nan})"
    if call.function == "LIKE":
        normal = _value(call.args[1])
        if is_simple_like(normal):
            return f"({args[0]} LIKE {args[1]})"
        return f"({args[0]} RLIKE {literal(like_pattern(normal))})"
    if call.function == "REGEXP_EXTRACT":
        text, pattern, group = args[0], java_pattern(_value(call.args[1])).text, call.args[2]
        found = f"regexp_extract({text}, {literal(pattern)}, {spark_sql(group)})"
        return f"(CASE WHEN {found} <> '' OR {text} RLIKE {_with_group(pattern, group)} THEN {found} END)"
    if call.function == "coalesce":
        return f"coalesce({', '.join(args)})"
    return f"({args[0]} IS NULL)" if call.function == "is null" else f"(NOT {args[0]})"


def _in(call: Call, args: Sequence[str]) -> str:
    value, *others = args
    if call.args[0].type.name != "double":
        return f"({value} IN ({', '.join(others)}))"
    # Spark looks for an equal value of many, which then are bits: 0 is not -0, and NaN is NaN.
    equal = FUNCTIONS["eq"].of_doubles
    assert equal is not None
    return f"({' OR '.join(equal(value, other) for other in others)})"


def _cast(call: Call, arg: str) -> str:
    source, target = call.args[0].type, call.type
    conversion = CONVERSIONS.get((source.name, target.name))
    is_tried = call.function == "try cast"
    make = conversion.checked if conversion and conversion.checked and not is_tried else conversion and conversion.spark
    made = make(arg) if make else arg
    may_fail = is_tried or (target.is_decimal and target.nullable)
    return f"{'try_cast' if may_fail else 'CAST'}({made} AS {target.spark})"


def _value(expression: Expression) -> str:
    assert isinstance(expression, Constant)
    return str(expression.value)


def _with_group(pattern: str, group: Expression) -> str:
    """Returns a pattern for texts in which REGEXP_EXTRACT finds the group: for others, Spark has an empty text."""
    assert isinstance(group, Constant) and isinstance(group.value, int)
    if not group.value:
        return literal(pattern)
    # Atomic, so that only the first match of the pattern counts. A back reference to a group without a match fails.
    return literal(rf"\A(?>(?s:.*?)(?:{pattern}))\{group.value}")


def _constant(constant: Constant) -> str:
    value = constant.value
    if value is None:
        return f"CAST(NULL AS {_known(constant.type)})"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, timedelta):
        return f"INTERVAL '{value // timedelta(microseconds=1) / 10**6:.6f}' SECOND"
    if isinstance(value, datetime | date):
        return f"CAST({literal(str(value))} AS {constant.type.spark})"
    text = format(value, "f") if isinstance(value, Decimal) else repr(value)
    return f"CAST({literal(text)} AS {constant.type.spark})"


def _known(of: SqlType) -> str:
    return "STRING" if of.name == "null" else of.spark
