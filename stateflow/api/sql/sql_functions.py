"""The scalar functions: types of their results, Spark SQL, and the same in Python.

A function is strict unless it says otherwise: its result is null if an argument is. Results are Flink's where Spark has
others. No text of Spark SQL is formatted again: an argument may have any characters.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal, InvalidOperation

from stateflow.api.sql import dates
from stateflow.api.sql.expressions import BIGINT, BOOLEAN, DATE, DOUBLE, INTERVAL, STRING, SqlType, Value, decimal
from stateflow.api.sql.text_patterns import END
from stateflow.types.declared_types import literal

_WHOLE = 1 << 53
"""From here on, all numbers of type DOUBLE are whole."""
_SMALLEST = math.ulp(0.0)
_INT = (1 << 31) - 1
Types = Sequence[SqlType]
Binary = Callable[[Value, Value], Value]
SqlOf = Callable[..., str]
"""Returns Spark SQL for arguments in Spark SQL."""
EXACT = Context(prec=100)
"""Computes with all digits that the largest decimals can have, also of a product."""
_ALL_DIGITS = Context(prec=400)
"""Computes with all digits that the greatest DOUBLE can have."""
Result = Callable[[Types], SqlType | None]
"""The type of a result, without null; None if there is no such function of these types."""


@dataclass(frozen=True)
class Function:
    """A function.

    Attributes:
        result: the type of its result.
        spark: Spark SQL. An argument that it names twice is short.
        python: the function of the arguments' values.
        may_be_null: whether the result may be null without an argument that is.
        of_doubles: Spark SQL where the first argument is a DOUBLE, if another is needed.
    """

    result: Result
    spark: SqlOf
    python: Callable[..., Value]
    may_be_null: bool = False
    of_doubles: SqlOf | None = None


@dataclass(frozen=True)
class Conversion:
    """A conversion from one type to another.

    Attributes:
        spark: Spark SQL of a value that is then cast to the other type.
        python: the function of the value.
        checked: Spark SQL for a cast that is null for a value without place, and fails for a text that has no value.
    """

    spark: SqlOf
    python: Callable[..., Value]
    checked: SqlOf | None = None


def takes(result: SqlType, *args: SqlType) -> Result:
    """Returns the rule of a function with arguments of these types, and a result of the type `result`."""
    names = [each.name for each in args]
    return lambda types: result if [each.name for each in types] == names else None


def _number(types: Types) -> SqlType | None:
    """Returns the type of the first argument, if all have this type and are numbers."""
    same = all(each.is_numeric and each.equals(types[0]) for each in types)
    return types[0] if same else None


def _modulo(types: Types) -> SqlType | None:
    """Returns the type of a remainder; of decimals, as in Flink, it has the digits that it may need."""
    first, second = types
    if not (first.is_decimal and second.is_decimal):
        found = _number(types)
        return None if found is None or found.is_decimal else found
    (p, s), (q, t) = first.digits, second.digits
    return decimal(min(p - s, q - t) + max(s, t), max(s, t))


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


def _ranked(types: Types) -> SqlType | None:
    known = types[0].name not in ("other", "null", "interval", "binary")
    return types[0] if known and all(each.equals(types[0]) for each in types) else None


def _shifted(types: Types) -> SqlType | None:
    return types[0] if types[0].is_time and types[1] == INTERVAL else None


def _of_time(types: Types) -> SqlType | None:
    return BIGINT if len(types) == 1 and types[0].is_time else None


def _of_day(types: Types) -> SqlType | None:
    return BIGINT if len(types) == 1 and (types[0].is_time or types[0] == DATE.with_null(types[0].nullable)) else None


def _formatted(types: Types) -> SqlType | None:
    return STRING if types[0].is_time and types[1].name == "string" else None


def _unit_of_time(types: Types) -> SqlType | None:
    unit, value = types
    return value if unit.name == "string" and value.is_time else None


def _added_time(types: Types) -> SqlType | None:
    unit, number, value = types
    return value if (unit.name, number.name) == ("string", "bigint") and value.is_time else None


def _between_times(types: Types) -> SqlType | None:
    unit, first, second = types
    return (
        BIGINT
        if unit.name == "string" and all(each.is_time or each.name == "date" for each in (first, second))
        else None
    )


# -- Spark SQL --------------------------------------------------------------------------------------------------------


def _infix(sign: str) -> SqlOf:
    return lambda x, y: f"({x} {sign} {y})"


def _named(name: str, before: str = "", after: str = "") -> SqlOf:
    return lambda *args: f"{before}{name}({', '.join(args)}){after}"


def _as_bigint(name: str) -> SqlOf:
    return _named(name, "CAST(", " AS BIGINT)")


def _int(text: str) -> str:
    """Returns an INT for a BIGINT: the nearest one, as a place in a text."""
    # Not greatest and least, which ignore null.
    return f"CAST(CASE WHEN {text} > {_INT} THEN {_INT}L WHEN {text} < -{_INT} THEN -{_INT}L ELSE {text} END AS INT)"


def _double(value: str) -> str:
    return f"CAST('{value}' AS DOUBLE)"


# In Spark NaN is equal to itself and greater than all other numbers; here, as in Flink and IEEE 754, it is neither. A
# comparison with null stays null.
def _less(sign: str) -> SqlOf:
    return lambda x, y: f"({x} {sign} {y} AND ({x} IS NULL OR NOT isnan({y})))"


def _greater(sign: str) -> SqlOf:
    return lambda x, y: f"({x} {sign} {y} AND ({y} IS NULL OR NOT isnan({x})))"


def _quotient_sql(x: str, y: str) -> str:
    # Spark refuses to divide by zero; the power of a zero is an infinity with its sign.
    return f"(CASE WHEN {y} = 0D THEN {x} * power({y}, -1D) ELSE {x} / {y} END)"


def _remainder_sql(x: str, y: str) -> str:
    return f"(CASE WHEN {y} = 0D THEN {x} * {_double('NaN')} ELSE {x} % {y} END)"


def _logarithm_sql(name: str) -> SqlOf:
    # In Spark a logarithm is null where it is not a number.
    return lambda x: (
        f"(CASE WHEN {x} > 0D THEN {name}({x}) WHEN {x} = 0D THEN {_double('-Infinity')} "
        f"ELSE {x} * {_double('NaN')} END)"
    )


def _whole_sql(function: str) -> SqlOf:
    # In Spark the result is a BIGINT, which the greatest numbers and NaN do not fit into.
    return lambda x: f"(CASE WHEN abs({x}) < {_WHOLE}D THEN CAST({function}({x}) AS DOUBLE) ELSE {x} END)"


def _substring_sql(text: str, start: str, length: str = f"{_INT}L") -> str:
    part, nothing = f"substring({text}, {_int(start)}, {_int(length)})", f"substring({text}, 1, {_int(length)} * 0)"
    return f"(CASE WHEN {length} < 0 THEN NULL WHEN {start} < -char_length({text}) THEN {nothing} ELSE {part} END)"


def _replace_sql(text: str, old: str, new: str) -> str:
    letters = f"array_join(split({text}, ''), {new})"
    between = f"CASE WHEN {text} = '' THEN {new} ELSE concat({new}, {letters}, {new}) END"
    return f"(CASE WHEN {old} = '' THEN {between} ELSE replace({text}, {old}, {new}) END)"


def _split_index_sql(text: str, separator: str, index: str) -> str:
    separators = f"(char_length({text}) - char_length(replace({text}, {separator}, ''))) div char_length({separator})"
    words = f"get(split({text}, {literal(_JAVA_SPACE)}, -1), {_int(index)})"
    return (
        f"(CASE WHEN {text} = '' OR {index} < 0 THEN NULL WHEN {separator} = '' THEN {words} "
        f"WHEN {index} <= {separators} THEN split_part({text}, {separator}, {_int(index)} + 1) END)"
    )


def _padded_sql(name: str) -> SqlOf:
    return lambda text, length, pad: (
        f"(CASE WHEN {length} < 0 OR {pad} = '' THEN NULL ELSE {name}({text}, {_int(length)}, {pad}) END)"
    )


def _strictly(name: str) -> SqlOf:
    """Returns a function that Spark ignores nulls in."""
    return lambda *args: (
        f"(CASE WHEN {' AND '.join(f'{x} IS NOT NULL' for x in args)} THEN {name}({', '.join(args)}) END)"
    )


# -- values -----------------------------------------------------------------------------------------------------------


def _ordered(value: float) -> tuple[bool, float]:
    """Returns a value that is ordered as `ORDER BY` orders `value`: NaN is the greatest."""
    return (value != value, 0.0) if isinstance(value, float) and value != value else (False, value)


def _exact(function: Callable[[Value, Value], Value], exact: Callable[[Decimal, Decimal], Decimal]) -> Binary:
    """Returns an operator that applies `exact` to decimals, which Python rounds to 28 digits otherwise."""
    return lambda x, y: exact(x, y) if isinstance(x, Decimal) and isinstance(y, Decimal) else function(x, y)


def _exact_unary(function: Callable[..., Value], exact: Callable[[Decimal], Decimal]) -> Callable[[Value], Value]:
    """Returns a function that applies `exact` to decimals, which Python rounds to 28 digits otherwise."""
    return lambda x: exact(x) if isinstance(x, Decimal) else function(x)


def _divided(left: int, right: int) -> int:
    """Returns the quotient, rounded toward zero."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _quotient(left: float, right: float) -> float:
    return left / right if right else left * math.copysign(math.inf, right)


def _remainder(left: Value, right: Value) -> Value:
    """Returns the remainder, with the sign of the dividend."""
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return EXACT.remainder(left, right)
    if isinstance(left, float) and isinstance(right, float):
        return math.fmod(left, right) if right and math.isfinite(left) else math.nan
    assert isinstance(left, int) and isinstance(right, int)
    return left - right * _divided(left, right)


def _power(base: float, exponent: float) -> float:
    """Returns a power as Java does: where it is not a number, NaN, and an infinity where it is too large."""
    if exponent != exponent or (abs(base) == 1 and math.isinf(exponent)):
        return math.nan
    is_odd = exponent % 2 == 1 if math.isfinite(exponent) else False
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -math.inf if base < 0 and is_odd else math.inf
    except ValueError:
        # A negative power of zero, or a broken power of a negative number.
        return math.nan if base else math.copysign(math.inf, base) if is_odd else math.inf


def _exponential(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _logarithm(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: function(x) if x > 0 else math.nan if x else -math.inf


def _sign(value: float) -> float:
    return value if value != value or not value else math.copysign(1.0, value)


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


def with_digits(value: Value, of: SqlType) -> Decimal | None:
    """Returns a value with the digits of a type of decimals; None if it does not fit."""
    if value is None:
        return None
    digits, scale = of.digits
    # Of a float, the digits that it is written with.
    exact = value if isinstance(value, Decimal) else Decimal(str(value))
    try:
        made = exact.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, EXACT)
    except InvalidOperation:
        return None
    # Not -0, which Spark does not have.
    return EXACT.plus(made) if made.is_finite() and len(made.as_tuple().digits) <= digits else None


def _within(bits: int) -> Callable[[int], int]:
    """Returns a function that returns an integer. It raises OverflowError for one of more bits."""

    def checked(value: int) -> int:
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise OverflowError(f"{value} has more than {bits} bits")
        return value

    return checked


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    return lambda value: float(function(value)) if abs(value) < _WHOLE else value


def _substring(text: str, start: int, length: int = _INT) -> str | None:
    """Returns a part of a text; `start` counts from 1, or from the end if it is negative."""
    begin = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    if length < 0:
        return None
    return text[begin : begin + length] if begin >= 0 else ""


_JAVA_SPACE = "[\\t-\\r\\x1c-\\x20\u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000]"
"""White space as Java defines it."""
_SPACES = re.compile(_JAVA_SPACE)


def _split_index(text: str, separator: str, index: int) -> str | None:
    parts = (text.split(separator) if separator else _SPACES.split(text)) if text else []
    return parts[index] if 0 <= index < len(parts) else None


def _padded(text: str, length: int, pad: str, *, left: bool) -> str | None:
    if length < 0 or not pad:
        return None
    if length > _INT:
        raise OverflowError(f"a text of {length} characters")
    missing = length - len(text)
    more = (pad * (missing // len(pad) + 1))[:missing] if missing > 0 else ""
    return (more + text if left else text + more)[:length]


def _part(name: str) -> Callable[[datetime], int]:
    return lambda value: int(getattr(dates.in_utc(value), name))


def _date_format(value: datetime, pattern: str) -> str:
    return dates.FORMATS.text(dates.in_utc(value), pattern)


_BINARY: dict[str, Function] = {
    "add": Function(_number, _infix("+"), _exact(operator.add, EXACT.add)),
    "sub": Function(_number, _infix("-"), _exact(operator.sub, EXACT.subtract)),
    "mul": Function(_number, _infix("*"), _exact(operator.mul, EXACT.multiply)),
    "neg": Function(_number, lambda x: f"(- {x})", _exact_unary(operator.neg, EXACT.minus)),
    "eq": Function(
        _comparable,
        _infix("="),
        operator.eq,
        of_doubles=lambda x, y: f"({x} = {y} AND NOT (isnan({x}) AND isnan({y})))",
    ),
    "ne": Function(
        _comparable, _infix("<>"), operator.ne, of_doubles=lambda x, y: f"({x} <> {y} OR (isnan({x}) AND isnan({y})))"
    ),
    "lt": Function(_comparable, _infix("<"), operator.lt, of_doubles=_less("<")),
    "le": Function(_comparable, _infix("<="), operator.le, of_doubles=_less("<=")),
    "gt": Function(_comparable, _infix(">"), operator.gt, of_doubles=_greater(">")),
    "ge": Function(_comparable, _infix(">="), operator.ge, of_doubles=_greater(">=")),
    "shift": Function(_shifted, _infix("+"), operator.add),
    "GREATEST": Function(_ranked, _strictly("greatest"), lambda *args: max(args, key=_ordered)),
    "LEAST": Function(_ranked, _strictly("least"), lambda *args: min(args, key=_ordered)),
}
_MATH: dict[str, Function] = {
    "div": Function(takes(BIGINT, BIGINT, BIGINT), _infix("div"), _divided),
    "quotient": Function(takes(DOUBLE, DOUBLE, DOUBLE), _quotient_sql, _quotient),
    "quotient of decimals": Function(_number, _infix("/"), EXACT.divide),
    "MOD": Function(_modulo, _infix("%"), _remainder, of_doubles=_remainder_sql),
    "ABS": Function(_number, _named("abs"), _exact_unary(abs, EXACT.abs)),
    "SIGN": Function(takes(DOUBLE, DOUBLE), _named("sign"), _sign),
    "FLOOR": Function(takes(DOUBLE, DOUBLE), _whole_sql("floor"), _whole(math.floor)),
    "CEIL": Function(takes(DOUBLE, DOUBLE), _whole_sql("ceil"), _whole(math.ceil)),
    "floor of decimal": Function(_whole_decimal, _named("floor"), lambda x: x.to_integral_value(ROUND_FLOOR)),
    "ceil of decimal": Function(_whole_decimal, _named("ceil"), lambda x: x.to_integral_value(ROUND_CEILING)),
    "ROUND": Function(_rounded_type, lambda x, digits: f"round({x}, CAST({digits} AS INT))", _rounded),
    "int": Function(takes(BIGINT, BIGINT), lambda x: f"CAST(CAST({x} AS INT) AS BIGINT)", _within(32)),
    "smallint": Function(takes(BIGINT, BIGINT), lambda x: f"CAST(CAST({x} AS SMALLINT) AS BIGINT)", _within(16)),
    "tinyint": Function(takes(BIGINT, BIGINT), lambda x: f"CAST(CAST({x} AS TINYINT) AS BIGINT)", _within(8)),
    "SQRT": Function(takes(DOUBLE, DOUBLE), _named("sqrt"), lambda x: math.nan if x < 0 else math.sqrt(x)),
    "POWER": Function(takes(DOUBLE, DOUBLE, DOUBLE), _named("power"), _power),
    "EXP": Function(takes(DOUBLE, DOUBLE), _named("exp"), _exponential),
    "LN": Function(takes(DOUBLE, DOUBLE), _logarithm_sql("ln"), _logarithm(math.log)),
    "LOG10": Function(takes(DOUBLE, DOUBLE), _logarithm_sql("log10"), _logarithm(math.log10)),
}
_TEXTS: dict[str, Function] = {
    "LOWER": Function(takes(STRING, STRING), _named("lower"), str.lower),
    "UPPER": Function(takes(STRING, STRING), _named("upper"), str.upper),
    "REVERSE": Function(takes(STRING, STRING), _named("reverse"), lambda text: text[::-1]),
    "CHAR_LENGTH": Function(takes(BIGINT, STRING), _as_bigint("char_length"), len),
    "TRIM": Function(
        takes(STRING, STRING, STRING),
        lambda text, letters: f"trim(BOTH {letters} FROM {text})",
        lambda text, letters: text.strip(letters),
    ),
    "LTRIM": Function(
        takes(STRING, STRING, STRING),
        lambda text, letters: f"trim(LEADING {letters} FROM {text})",
        lambda text, letters: text.lstrip(letters),
    ),
    "RTRIM": Function(
        takes(STRING, STRING, STRING),
        lambda text, letters: f"trim(TRAILING {letters} FROM {text})",
        lambda text, letters: text.rstrip(letters),
    ),
    "concat": Function(takes(STRING, STRING, STRING), _named("concat"), operator.add),
    "REPLACE": Function(
        takes(STRING, STRING, STRING, STRING), _replace_sql, lambda text, old, new: text.replace(old, new)
    ),
    "SUBSTRING": Function(takes(STRING, STRING, BIGINT, BIGINT), _substring_sql, _substring, may_be_null=True),
    # Never null: of literals with a length that is not negative, or without one.
    "substring": Function(takes(STRING, STRING, BIGINT, BIGINT), _substring_sql, _substring),
    "SPLIT_INDEX": Function(takes(STRING, STRING, STRING, BIGINT), _split_index_sql, _split_index, may_be_null=True),
    "LPAD": Function(
        takes(STRING, STRING, BIGINT, STRING),
        _padded_sql("lpad"),
        lambda text, length, pad: _padded(text, length, pad, left=True),
        may_be_null=True,
    ),
    "RPAD": Function(
        takes(STRING, STRING, BIGINT, STRING),
        _padded_sql("rpad"),
        lambda text, length, pad: _padded(text, length, pad, left=False),
        may_be_null=True,
    ),
    "LOCATE": Function(
        takes(BIGINT, STRING, STRING),
        lambda part, text: f"CAST(instr({text}, {part}) AS BIGINT)",
        lambda part, text: text.find(part) + 1,
    ),
}
_DATES: dict[str, Function] = {
    "YEAR": Function(_of_day, _as_bigint("year"), _part("year")),
    "QUARTER": Function(_of_day, _as_bigint("quarter"), lambda value: (dates.in_utc(value).month + 2) // 3),
    "MONTH": Function(_of_day, _as_bigint("month"), _part("month")),
    "WEEK": Function(_of_day, _as_bigint("weekofyear"), lambda value: dates.in_utc(value).isocalendar().week),
    "DAYOFYEAR": Function(_of_day, _as_bigint("dayofyear"), lambda value: dates.in_utc(value).timetuple().tm_yday),
    "DAYOFMONTH": Function(_of_day, _as_bigint("day"), _part("day")),
    "DAYOFWEEK": Function(_of_day, _as_bigint("dayofweek"), lambda value: dates.in_utc(value).isoweekday() % 7 + 1),
    "HOUR": Function(_of_time, _as_bigint("hour"), _part("hour")),
    "MINUTE": Function(_of_time, _as_bigint("minute"), _part("minute")),
    "SECOND": Function(_of_time, _as_bigint("second"), _part("second")),
    "DATE_FORMAT": Function(_formatted, _named("date_format"), _date_format),
    "FLOOR TO": Function(_unit_of_time, dates.floor_sql, dates.floor),
    "CEIL TO": Function(_unit_of_time, dates.ceil_sql, dates.ceil),
    "TIMESTAMPADD": Function(_added_time, dates.render_addition, dates.add_units),
    "TIMESTAMPDIFF": Function(_between_times, dates.difference_sql, dates.difference),
}
FUNCTIONS: Mapping[str, Function] = {**_BINARY, **_MATH, **_TEXTS, **_DATES}
"""Strict functions by name: of SQL in capitals, and of operators."""
SYNONYMS: Mapping[str, str] = {
    "CHARACTER_LENGTH": "CHAR_LENGTH",
    "CEILING": "CEIL",
    "SUBSTR": "SUBSTRING",
    "DAY": "DAYOFMONTH",
    "DOY": "DAYOFYEAR",
    "DOW": "DAYOFWEEK",
    "POW": "POWER",
}


# -- conversions ------------------------------------------------------------------------------------------------------

_INTEGER = rf"\A *(?=[+-]?[0-9.])([+-]?)([0-9]*)(?:\.[0-9]*)? *{END}"
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_DOUBLE = rf"\A[\x00-\x20]*([+-]?(?:NaN|Infinity|{_NUMBER}(?:[eE][+-]?[0-9]+)?[dDfF]?))[\x00-\x20]*{END}"
# An exponent of many digits would take Java a number of as many.
_EXACT_NUMBER = rf"\A *([+-]?{_NUMBER}(?:[eE][+-]?[0-9]{{1,3}})?) *{END}"
_TRUE, _FALSE = ("1", "t", "true", "y", "yes"), ("0", "f", "false", "n", "no")


def _no_value(text: str) -> str:
    return f"concat('no value: ', {text})"


def _failing(text: str) -> str:
    return f"CAST(CAST({_no_value(text)} AS BIGINT) AS STRING)"


def _valid(pattern: str, made: Callable[[str], str], otherwise: Callable[[str], str] = _no_value) -> SqlOf:
    """Returns what Spark casts a text to: a part of it where the text has a pattern, else a text that has no value."""
    return lambda x: f"CASE WHEN {x} RLIKE {literal(pattern)} THEN {made(x)} ELSE {otherwise(x)} END"


def _group_sql(pattern: str, group: int) -> Callable[[str], str]:
    return lambda text: f"regexp_extract({text}, {literal(pattern)}, {group})"


def _read(pattern: str, of: str, made: Callable[[re.Match[str]], Value]) -> Callable[[str, SqlType], Value]:
    """Returns the function that reads a text. It raises ValueError for a text without the pattern."""
    compiled = re.compile(pattern)

    def read(text: str, _of: SqlType) -> Value:
        found = compiled.match(text)
        if found is None:
            raise ValueError(f"{text[:100]!r} is not a {of}")
        return made(found)

    return read


def _integer_sql(text: str) -> str:
    # A text such as .5 has no digit before the point.
    return f"concat({_group_sql(_INTEGER, 1)(text)}, '0', {_group_sql(_INTEGER, 2)(text)})"


def _exact_of_text(text: str, of: SqlType) -> Value:
    exact = _read(_EXACT_NUMBER, "DECIMAL", lambda found: Decimal(found[1]))(text, of)
    return with_digits(exact, of)


def _boolean_sql(text: str) -> str:
    word = f"lower(trim({text}))"
    known = "', '".join((*_TRUE, *_FALSE))
    return f"CASE WHEN {word} IN ('{known}') THEN {word} ELSE {_no_value(text)} END"


def _boolean(text: str, of: SqlType) -> bool:
    word = text.strip(" ").lower()
    if word not in (*_TRUE, *_FALSE):
        raise ValueError(f"{text[:100]!r} is not a BOOLEAN")
    return word in _TRUE


def _java_text(value: float, _of: SqlType) -> str:
    """Returns a number as Java writes it: with an exponent if it is smaller than 0.001, or at least 10 million."""
    if not math.isfinite(value) or not value:
        return {math.inf: "Infinity", -math.inf: "-Infinity", 0.0: repr(value)}.get(value, "NaN")
    negative, digits, _ = Decimal(repr(value)).as_tuple()
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    if 1e-3 <= abs(value) < 1e7:
        fixed = f"{Decimal(repr(value)):f}"
        return fixed if "." in fixed else f"{fixed}.0"
    # Java writes two digits at least, and of the smallest number the two nearest.
    shown = "49" if abs(value) == _SMALLEST else shown
    return f"{'-' * negative}{shown[0]}.{shown[1:] or '0'}E{Decimal(repr(value)).adjusted()}"


def _date(value: date, _of: SqlType) -> date:
    return dates.in_utc(value).date() if isinstance(value, datetime) else value


def _time(value: date, _of: SqlType) -> datetime:
    return dates.in_utc(value) if isinstance(value, datetime) else datetime.combine(value, time())


def _same(value: str) -> str:
    return value


_NUMBERS = ("bigint", "double", "decimal")
_TIMES = ("date", "timestamp_ntz", "timestamp")
CONVERSIONS: Mapping[tuple[str, str], Conversion] = {
    **{(each, "bigint"): Conversion(_same, lambda value, _of: int(value)) for each in (*_NUMBERS, "boolean")},
    **{(each, "double"): Conversion(_same, lambda value, _of: float(value)) for each in _NUMBERS},
    **{(each, "decimal"): Conversion(_same, with_digits) for each in _NUMBERS},
    ("bigint", "boolean"): Conversion(_same, lambda value, _of: bool(value)),
    ("string", "bigint"): Conversion(
        _valid(_INTEGER, _integer_sql), _read(_INTEGER, "BIGINT", lambda found: int(f"{found[1]}0{found[2]}"))
    ),
    ("string", "double"): Conversion(
        _valid(_DOUBLE, _group_sql(_DOUBLE, 1)), _read(_DOUBLE, "DOUBLE", lambda found: float(found[1].rstrip("dDfF")))
    ),
    ("string", "decimal"): Conversion(
        _valid(_EXACT_NUMBER, _group_sql(_EXACT_NUMBER, 1)),
        _exact_of_text,
        checked=_valid(_EXACT_NUMBER, _group_sql(_EXACT_NUMBER, 1), _failing),
    ),
    ("string", "boolean"): Conversion(_boolean_sql, _boolean),
    ("bigint", "string"): Conversion(_same, lambda value, _of: str(value)),
    ("double", "string"): Conversion(_same, _java_text),
    # A decimal has all digits of its type already.
    ("decimal", "string"): Conversion(_same, lambda value, _of: f"{value:f}"),
    ("boolean", "string"): Conversion(lambda x: f"upper(CAST({x} AS STRING))", lambda x, _of: str(x).upper()),
    ("date", "string"): Conversion(_same, lambda value, _of: str(value)),
    **{
        (each, "string"): Conversion(
            lambda x: f"date_format({x}, 'yyyy-MM-dd HH:mm:ss.SSSSSS')",
            lambda value, _of: dates.in_utc(value).isoformat(" ", "microseconds"),
        )
        for each in _TIMES[1:]
    },
    **{(each, "date"): Conversion(_same, _date) for each in _TIMES},
    **{(each, "timestamp_ntz"): Conversion(_same, _time) for each in _TIMES},
    **{
        (each, "timestamp"): Conversion(_same, lambda value, of: _time(value, of).replace(tzinfo=UTC))
        for each in _TIMES
    },
}
"""Conversions by the names of both types; a conversion to the same type may be one as well."""
