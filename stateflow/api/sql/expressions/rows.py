"""Expressions as Python functions of a row, for rows that no longer are in Spark, and for runs without it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.rich import RichFilterFunction, RichMapFunction
from stateflow.api.sql.expressions.calls import NOT_DISTINCT
from stateflow.api.sql.expressions.functions import CONVERSIONS, FUNCTIONS, with_digits
from stateflow.api.sql.expressions.patterns import java_pattern, like_pattern
from stateflow.api.sql.expressions.sql_types import SqlType
from stateflow.api.sql.expressions.tree import Call, Constant, Expression, Ref, Value

Evaluate = Callable[[object], Value]
_LARGEST = 1 << 63


class KeepRows(RichFilterFunction[object]):
    """Keeps the rows for which a condition is true.

    Args:
        condition: the condition.
    """

    def __init__(self, condition: Expression) -> None:
        self._condition = condition

    def open(self, ctx: RuntimeContext) -> None:
        self._evaluate = evaluation(self._condition)

    def filter(self, row: object) -> bool:
        return self._evaluate(row) is True


class ComputeRows(RichMapFunction[object, object]):
    """Computes the columns of a row.

    Args:
        row_class: class of the result.
        columns: the expression of each of its fields.
    """

    def __init__(self, row_class: type[object], columns: Sequence[tuple[str, Expression]]) -> None:
        self._row_class = row_class
        self._columns = tuple(columns)

    def open(self, ctx: RuntimeContext) -> None:
        self._names = tuple(name for name, _ in self._columns)
        self._evaluate = tuple(evaluation(expression) for _, expression in self._columns)

    def map(self, row: object) -> object:
        values = (evaluate(row) for evaluate in self._evaluate)
        return self._row_class(**dict(zip(self._names, values, strict=True)))


def evaluation(expression: Expression) -> Evaluate:
    """Returns a function that computes an expression for a row."""
    if isinstance(expression, Ref):
        return attrgetter(expression.name)
    if isinstance(expression, Constant):
        value = expression.value
        return lambda row: value
    args = [evaluation(arg) for arg in expression.args]
    if expression.function in FUNCTIONS:
        return _checked(_strict(FUNCTIONS[expression.function].python, args), expression.type)
    return _SPECIAL[expression.function](expression, args)


def _strict(function: Callable[..., Value], args: Sequence[Evaluate]) -> Evaluate:
    """Returns a function whose result is None if an argument is."""
    if len(args) == 1:
        (only,) = args

        def unary(row: object) -> Value:
            value = only(row)
            return None if value is None else function(value)

        return unary
    if len(args) == 2:
        first, second = args

        def binary(row: object) -> Value:
            left, right = first(row), second(row)
            return None if left is None or right is None else function(left, right)

        return binary

    def any_number(row: object) -> Value:
        values = [arg(row) for arg in args]
        return None if None in values else function(*values)

    return any_number


def _checked(evaluate: Evaluate, of: SqlType) -> Evaluate:
    """Adds the digits of decimals, and the error for integers of more than 64 bits, as Spark has them."""
    if of.name != "bigint" and not of.is_decimal:
        return evaluate

    def checked(row: object) -> Value:
        value = evaluate(row)
        if value is None:
            return None
        if isinstance(value, int):
            if not -_LARGEST <= value < _LARGEST:
                raise OverflowError("a BIGINT of more than 64 bits")
            return value
        made = with_digits(value, of)
        if made is None:
            raise OverflowError(f"{value!s} does not fit into {of.spark}")
        return made

    return checked


def _connective(call: Call, args: Sequence[Evaluate], *, decisive: bool) -> Evaluate:
    """Returns AND, which one false argument decides, or OR, which one true argument decides; else null if any is."""

    def decided(row: object) -> Value:
        result: Value = not decisive
        for arg in args:
            value = arg(row)
            if value is decisive:
                return decisive
            result = None if value is None else result
        return result

    return decided


def _in(call: Call, args: Sequence[Evaluate]) -> Evaluate:
    first, *others = args

    def is_in(row: object) -> Value:
        value = first(row)
        if value is None:
            return None
        found = [other(row) for other in others]
        # Not `in`, for which a NaN is equal to itself.
        return True if any(value == each for each in found) else None if None in found else False

    return is_in


def _case(call: Call, args: Sequence[Evaluate]) -> Evaluate:
    pairs = list(zip(args[:-1:2], args[1::2], strict=True))
    default = args[-1]

    def case(row: object) -> Value:
        for when, then in pairs:
            if when(row) is True:
                return then(row)
        return default(row)

    return case


def _coalesce(call: Call, args: Sequence[Evaluate]) -> Evaluate:
    return lambda row: next((value for arg in args if (value := arg(row)) is not None), None)


def _not(call: Call, args: Sequence[Evaluate]) -> Evaluate:
    return _strict(lambda value: not value, args)


def _is_null(call: Call, args: Sequence[Evaluate]) -> Evaluate:
    (arg,) = args
    return lambda row: arg(row) is None


def _is_not_distinct(call: Call, args: Sequence[Evaluate]) -> Evaluate:
    left, right = args
    return lambda row: left(row) == right(row)


def _like(call: Call, args: Sequence[Evaluate]) -> Evaluate:
    pattern = call.args[1]
    assert isinstance(pattern, Constant)
    search = re.compile(like_pattern(str(pattern.value))).search
    return _strict(lambda text: search(text) is not None, args[:1])


def _regexp_extract(call: Call, args: Sequence[Evaluate]) -> Evaluate:
    pattern, group = call.args[1:]
    assert isinstance(pattern, Constant) and isinstance(group, Constant) and isinstance(group.value, int)
    return _strict(java_pattern(str(pattern.value)).extractor(group.value), args[:1])


def _cast(call: Call, args: Sequence[Evaluate]) -> Evaluate:
    source, target = call.args[0].type, call.type
    if source.name == "null" or (source.name == target.name and not target.is_decimal):
        return args[0]
    convert = CONVERSIONS[source.name, target.name].python
    if source.is_decimal and target.name == "string":
        # With all digits of the type, as in Spark.
        return _strict(lambda value: convert(with_digits(value, source), target), args)
    made = _strict(lambda value: convert(value, target), args)
    return made if target.is_decimal and target.nullable else _checked(made, target)


def _try_cast(call: Call, args: Sequence[Evaluate]) -> Evaluate:
    evaluate = _cast(call, args)

    def tried(row: object) -> Value:
        try:
            return evaluate(row)
        except (ValueError, OverflowError):
            return None

    return tried


_SPECIAL: dict[str, Callable[[Call, Sequence[Evaluate]], Evaluate]] = {
    "and": partial(_connective, decisive=False),
    "or": partial(_connective, decisive=True),
    "in": _in,
    "case": _case,
    "coalesce": _coalesce,
    "not": _not,
    "is null": _is_null,
    NOT_DISTINCT: _is_not_distinct,
    "LIKE": _like,
    "REGEXP_EXTRACT": _regexp_extract,
    "cast": _cast,
    "try cast": _try_cast,
}
