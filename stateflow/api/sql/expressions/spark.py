"""Expressions as Spark SQL."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from decimal import Decimal

from stateflow.api.sql.expressions.calls import NOT_DISTINCT
from stateflow.api.sql.expressions.functions import FUNCTIONS
from stateflow.api.sql.expressions.sql_types import SqlType
from stateflow.api.sql.expressions.tree import Call, Constant, Expression, Ref
from stateflow.types.spark_sql import literal, quoted


def spark_sql(expression: Expression) -> str:
    """Returns the expression in Spark SQL; a result has exactly the type of the expression."""
    if isinstance(expression, Ref):
        return quoted(expression.name)
    if isinstance(expression, Constant):
        return _constant(expression)
    args = [spark_sql(arg) for arg in expression.args]
    if expression.function in FUNCTIONS:
        made = FUNCTIONS[expression.function].spark.format(*args)
        # Spark has own rules for the digits of decimals.
        return f"CAST({made} AS {expression.type.spark})" if expression.type.is_decimal else made
    return _special(expression, args)


def _special(call: Call, args: list[str]) -> str:
    if call.function in ("and", "or"):
        return f"({f' {call.function.upper()} '.join(args)})"
    if call.function == "in":
        return f"({args[0]} IN ({', '.join(args[1:])}))"
    if call.function == "case":
        pairs = zip(args[:-1:2], args[1::2], strict=True)
        whens = " ".join(f"WHEN {when} THEN {then}" for when, then in pairs)
        return f"(CASE {whens} ELSE {args[-1]} END)"
    if call.function == "REGEXP_EXTRACT":
        found = f"regexp_extract({', '.join(args)})"
        return f"(CASE WHEN {found} <> '' OR {args[0]} RLIKE {_with_group(call)} THEN {found} END)"
    made = {
        "not": "(NOT {0})",
        "is null": "({0} IS NULL)",
        NOT_DISTINCT: "({0} <=> {1})",
        "coalesce": f"coalesce({', '.join(args)})",
        "cast": f"CAST({{0}} AS {call.type.spark})",
        "text of boolean": "upper(CAST({0} AS STRING))",
        "LIKE": "({0} LIKE {1})",
    }["text of boolean" if _is_text_of_boolean(call) else call.function]
    return made.format(*args)


def _with_group(call: Call) -> str:
    """Returns a pattern for texts in which REGEXP_EXTRACT finds the group: for others, Spark has an empty text."""
    _, pattern, group = call.args
    assert isinstance(pattern, Constant) and isinstance(group, Constant) and isinstance(group.value, int)
    if not group.value:
        return _constant(pattern)
    # Atomic, so that only the first match of the pattern counts. A back reference to a group without a match fails. The
    # end of a line ends a comment of the pattern.
    text = str(pattern.value)
    end = "\n" if re.compile(text).flags & re.VERBOSE else ""
    return literal(rf"\A(?>(?s:.*?)(?:{text}{end}))\{group.value}")


def _is_text_of_boolean(call: Call) -> bool:
    return call.function == "cast" and call.type.name == "string" and call.args[0].type.name == "boolean"


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
