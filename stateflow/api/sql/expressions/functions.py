"""The scalar functions: types of their results, Spark SQL, and the same in Python.

A function is strict unless it says otherwise: its result is null if an argument is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal

from stateflow.api.sql.expressions.dates import FORMATS, in_utc
from stateflow.api.sql.expressions.sql_types import BIGINT, BOOLEAN, DOUBLE, INTERVAL, STRING, SqlType, decimal
from stateflow.api.sql.expressions.tree import Value

_WHOLE = 1 << 53
"""From here on, all numbers of type DOUBLE are whole."""
Types = Sequence[SqlType]
Binary = Callable[[Value, Value], Value]
EXACT = Context(prec=100)
"""Computes with all digits that the largest decimals can have, also of a product."""
_ALL_DIGITS = Context(prec=400)
"""Those of the greatest DOUBLE."""
Result = Callable[[Types], SqlType | None]
"""The type of a result, without null; None if there is no such function of these types."""


@dataclass(frozen=True)
class Function:
    """A function.

    Attributes:
        result: the type of its result.
        spark: Spark SQL, with ``{0}`` and so on for the arguments.
        python: the function of the arguments' values.
        may_be_null: whether the result may be null without an argument that is.
    """

    result: Result
    spark: str
    python: Callable[..., Value]
    may_be_null: bool = False


def takes(result: SqlType, *args: SqlType) -> Result:
    """Returns the rule of a function with arguments of these types, and a result of the type `result`."""
    names = [each.name for each in args]
    return lambda types: result if [each.name for each in types] == names else None


def _number(types: Types) -> SqlType | None:
    """Returns the type of the first argument, if all have this type and are numbers."""
    same = all(each.is_numeric and each.equals(types[0]) for each in types)
    return types[0] if same else None


def _bigint_or_double(types: Types) -> SqlType | None:
    found = _number(types)
    return None if found is None or found.is_decimal else found


def _rounded_type(types: Types) -> SqlType | None:
    value, digits = types
    return value if value.name in ("bigint", "double") and digits.name == "bigint" else None


def _whole_decimal(types: Types) -> SqlType | None:
    (value,) = types
    return decimal(value.digits[0], 0) if value.is_decimal else None


def _comparable(types: Types) -> SqlType | None:
    first, second = types
    known = first.name not in ("other", "null", "interval")
    return BOOLEAN if known and first.equals(second) else None


def _shifted(types: Types) -> SqlType | None:
    return types[0] if types[0].is_time and types[1] == INTERVAL else None


def _of_time(types: Types) -> SqlType | None:
    return BIGINT if len(types) == 1 and types[0].is_time else None


def _formatted(types: Types) -> SqlType | None:
    return STRING if types[0].is_time and types[1].name == "string" else None


# -- values -----------------------------------------------------------------------------------------------------------


def ordered(value: Value) -> Value | tuple[bool, float]:
    """Returns a value that is ordered as SQL orders `value`: NaN is the greatest, and equal to itself."""
    return (value != value, 0.0 if value != value else value) if isinstance(value, float) else value


def _exact(function: Callable[[Value, Value], Value], exact: Callable[[Decimal, Decimal], Decimal]) -> Binary:
    """Returns an operator that applies `exact` to decimals, which Python rounds to 28 digits otherwise."""
    return lambda x, y: exact(x, y) if isinstance(x, Decimal) and isinstance(y, Decimal) else function(x, y)


def _exact_unary(function: Callable[..., Value], exact: Callable[[Decimal], Decimal]) -> Callable[[Value], Value]:
    """Returns a function that applies `exact` to decimals, which Python rounds to 28 digits otherwise."""
    return lambda x: exact(x) if isinstance(x, Decimal) else function(x)


def _compared(compare: Callable[..., bool]) -> Callable[[Value, Value], bool]:
    return lambda left, right: compare(ordered(left), ordered(right))


def _divided(left: int | float, right: int | float) -> int | float:
    """Returns the quotient; that of integers is rounded toward zero."""
    if isinstance(left, float):
        return left / right
    quotient = abs(left) // abs(int(right))
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int | float, right: int | float) -> int | float:
    """Returns the remainder, with the sign of the dividend."""
    return math.fmod(left, right) if isinstance(left, float) else left - right * _divided(left, right)


def _rounded(value: float | int | Decimal, digits: int) -> float | int | Decimal:
    if isinstance(value, Decimal):
        return _rounded_decimal(value, digits)
    if not math.isfinite(value) or (digits >= 0 and abs(value) >= _WHOLE):
        return value
    rounded = _rounded_decimal(Decimal(repr(value)), digits)
    # Not -0.0, which Spark does not return.
    return int(rounded) if isinstance(value, int) else float(rounded) + 0.0


def _rounded_decimal(value: Decimal, digits: int) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, _ALL_DIGITS)


def _within(bits: int) -> Callable[[int], int]:
    """Returns a function that returns an integer. It raises OverflowError for one of more bits."""

    def checked(value: int) -> int:
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise OverflowError(f"{value} has more than {bits} bits")
        return value

    return checked


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    return lambda value: float(function(value)) if abs(value) < _WHOLE else value


def _whole_sql(function: str) -> str:
    # In Spark the result is a BIGINT, which the greatest numbers and NaN do not fit into.
    return f"CASE WHEN abs({{0}}) < {_WHOLE}D THEN CAST({function}({{0}}) AS DOUBLE) ELSE {{0}} END"


def _substring(text: str, start: int, length: int | None = None) -> str:
    """Returns a part of a text; `start` counts from 1, or from the end if it is negative, as in Spark."""
    begin = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    end = len(text) if length is None else begin + length
    return text[max(begin, 0) : max(end, 0)]


def _split_index(text: str, separator: str, index: int) -> str | None:
    parts = text.split(separator) if separator and text else []
    return parts[index] if 0 <= index < len(parts) else None


def _part(name: str) -> Callable[[datetime], int]:
    return lambda value: int(getattr(in_utc(value), name))


def _date_format(value: datetime, pattern: str) -> str:
    return FORMATS.text(in_utc(value), pattern)


def _split_index_sql() -> str:
    separators = "(char_length({0}) - char_length(replace({0}, {1}, ''))) div char_length({1})"
    is_part = f"{{0}} <> '' AND {{1}} <> '' AND {{2}} BETWEEN 0 AND {separators}"
    return f"CASE WHEN {is_part} THEN split_part({{0}}, {{1}}, CAST({{2}} + 1 AS INT)) END"


_BINARY: dict[str, Function] = {
    "add": Function(_number, "({0} + {1})", _exact(operator.add, EXACT.add)),
    "sub": Function(_number, "({0} - {1})", _exact(operator.sub, EXACT.subtract)),
    "mul": Function(_number, "({0} * {1})", _exact(operator.mul, EXACT.multiply)),
    "neg": Function(_number, "(- {0})", _exact_unary(operator.neg, EXACT.minus)),
    "eq": Function(_comparable, "({0} = {1})", _compared(operator.eq)),
    "ne": Function(_comparable, "({0} <> {1})", _compared(operator.ne)),
    "lt": Function(_comparable, "({0} < {1})", _compared(operator.lt)),
    "le": Function(_comparable, "({0} <= {1})", _compared(operator.le)),
    "gt": Function(_comparable, "({0} > {1})", _compared(operator.gt)),
    "ge": Function(_comparable, "({0} >= {1})", _compared(operator.ge)),
    "shift": Function(_shifted, "({0} + {1})", operator.add),
}
_MATH: dict[str, Function] = {
    "div": Function(takes(BIGINT, BIGINT, BIGINT), "({0} div {1})", _divided),
    "quotient": Function(takes(DOUBLE, DOUBLE, DOUBLE), "({0} / {1})", _divided),
    "MOD": Function(_bigint_or_double, "({0} % {1})", _remainder),
    "ABS": Function(_number, "abs({0})", _exact_unary(abs, EXACT.abs)),
    "FLOOR": Function(takes(DOUBLE, DOUBLE), _whole_sql("floor"), _whole(math.floor)),
    "CEIL": Function(takes(DOUBLE, DOUBLE), _whole_sql("ceil"), _whole(math.ceil)),
    "floor of decimal": Function(_whole_decimal, "floor({0})", lambda x: x.to_integral_value(ROUND_FLOOR)),
    "ceil of decimal": Function(_whole_decimal, "ceil({0})", lambda x: x.to_integral_value(ROUND_CEILING)),
    "ROUND": Function(_rounded_type, "round({0}, CAST({1} AS INT))", _rounded),
    "int": Function(takes(BIGINT, BIGINT), "CAST(CAST({0} AS INT) AS BIGINT)", _within(32)),
    "smallint": Function(takes(BIGINT, BIGINT), "CAST(CAST({0} AS SMALLINT) AS BIGINT)", _within(16)),
    "tinyint": Function(takes(BIGINT, BIGINT), "CAST(CAST({0} AS TINYINT) AS BIGINT)", _within(8)),
    "SQRT": Function(takes(DOUBLE, DOUBLE), "sqrt({0})", lambda x: math.sqrt(x) if x >= 0 else math.nan),
    "POWER": Function(takes(DOUBLE, DOUBLE, DOUBLE), "power({0}, {1})", math.pow),
}
_TEXTS: dict[str, Function] = {
    "LOWER": Function(takes(STRING, STRING), "lower({0})", str.lower),
    "UPPER": Function(takes(STRING, STRING), "upper({0})", str.upper),
    "CHAR_LENGTH": Function(takes(BIGINT, STRING), "CAST(char_length({0}) AS BIGINT)", len),
    "TRIM": Function(takes(STRING, STRING), "trim({0})", lambda text: text.strip(" ")),
    "LTRIM": Function(takes(STRING, STRING), "ltrim({0})", lambda text: text.lstrip(" ")),
    "RTRIM": Function(takes(STRING, STRING), "rtrim({0})", lambda text: text.rstrip(" ")),
    "concat": Function(takes(STRING, STRING, STRING), "concat({0}, {1})", operator.add),
    "REPLACE": Function(
        takes(STRING, STRING, STRING, STRING),
        "replace({0}, {1}, {2})",
        lambda text, old, new: text.replace(old, new) if old else text,
    ),
    "substring from": Function(takes(STRING, STRING, BIGINT), "substring({0}, CAST({1} AS INT))", _substring),
    "SUBSTRING": Function(
        takes(STRING, STRING, BIGINT, BIGINT), "substring({0}, CAST({1} AS INT), CAST({2} AS INT))", _substring
    ),
    "SPLIT_INDEX": Function(takes(STRING, STRING, STRING, BIGINT), _split_index_sql(), _split_index, may_be_null=True),
}
_DATES: dict[str, Function] = {
    "YEAR": Function(_of_time, "CAST(year({0}) AS BIGINT)", _part("year")),
    "MONTH": Function(_of_time, "CAST(month({0}) AS BIGINT)", _part("month")),
    "DAYOFMONTH": Function(_of_time, "CAST(day({0}) AS BIGINT)", _part("day")),
    "HOUR": Function(_of_time, "CAST(hour({0}) AS BIGINT)", _part("hour")),
    "MINUTE": Function(_of_time, "CAST(minute({0}) AS BIGINT)", _part("minute")),
    "SECOND": Function(_of_time, "CAST(second({0}) AS BIGINT)", _part("second")),
    "DATE_FORMAT": Function(_formatted, "date_format({0}, {1})", _date_format),
}
FUNCTIONS: Mapping[str, Function] = {**_BINARY, **_MATH, **_TEXTS, **_DATES}
"""Strict functions by name: of SQL in capitals, and of operators."""
SYNONYMS: Mapping[str, str] = {
    "CHARACTER_LENGTH": "CHAR_LENGTH",
    "CEILING": "CEIL",
    "SUBSTR": "SUBSTRING",
    "DAY": "DAYOFMONTH",
    "POW": "POWER",
}
