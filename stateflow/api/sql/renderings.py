"""Expressions as Spark SQL, and as Python functions of rows and of joined pairs.

Tasks import this module: it does not import sqlglot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property, partial
from operator import attrgetter
from types import SimpleNamespace

from stateflow.api.column_origins import Derivation, HasColumnOrigins, Influence, Origin, Origins
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.rich import RichFilterFunction, RichMapFunction
from stateflow.api.joins.functions import JoinContext, PairColumns, ProcessJoinFunction
from stateflow.api.sql.calls import NOT_DISTINCT
from stateflow.api.sql.expressions import Call, Constant, Expression, Ref, SqlType, Value, columns_of
from stateflow.api.sql.sql_functions import CONVERSIONS, FUNCTIONS, with_digits
from stateflow.api.sql.text_patterns import is_simple_like, java_pattern, like_pattern
from stateflow.types.declared_types import literal, quote_name

_LONGEST = 80
"""Characters of an argument that a function may repeat in its text."""


def spark_sql(expression: Expression) -> str:
    """Returns the expression in Spark SQL; a result has exactly the type of the expression."""
    if isinstance(expression, Ref):
        return quote_name(expression.name)
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
        return _in_sql(call, args)
    if call.function == "case":
        pairs = zip(args[:-1:2], args[1::2], strict=True)
        whens = " ".join(f"WHEN {when} THEN {then}" for when, then in pairs)
        return f"(CASE {whens} ELSE {args[-1]} END)"
    if call.function in ("cast", "try cast"):
        return _cast_sql(call, args[0])
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


def _in_sql(call: Call, args: Sequence[str]) -> str:
    value, *others = args
    if call.args[0].type.name != "double":
        return f"({value} IN ({', '.join(others)}))"
    # Spark looks for an equal value of many, which then are bits: 0 is not -0, and NaN is NaN.
    equal = FUNCTIONS["eq"].of_doubles
    assert equal is not None
    return f"({' OR '.join(equal(value, other) for other in others)})"


def _cast_sql(call: Call, arg: str) -> str:
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

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        used = dict.fromkeys(columns_of(self._condition))
        return Origins(rows=tuple((Origin(name), Influence.FILTER) for name in used), passes_on=True)


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

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return Origins({name: _origins(expression) for name, expression in self._columns})


def _origins(expression: Expression) -> tuple[Origin, ...]:
    if isinstance(expression, Ref):
        return (Origin(expression.name),)
    return tuple(Origin(name, Derivation.TRANSFORMATION) for name in dict.fromkeys(columns_of(expression)))


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


class EmitPair(ProcessJoinFunction[object, object, object]):
    """Emits the row of each pair.

    Args:
        columns: returns the row of a pair.
    """

    def __init__(self, columns: PairColumns) -> None:
        self._columns = columns

    def process_element(self, left: object, right: object, ctx: JoinContext) -> Iterator[object]:
        yield self._columns(left, right)

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return self._columns.column_origins()


class PairCondition:
    """A condition of the rows of a pair.

    Args:
        condition: over columns of both rows.
        columns: for each of these its name, whether it is of the left row, and its name there.
    """

    def __init__(self, condition: Expression, columns: Sequence[tuple[str, bool, str]]) -> None:
        self._condition = condition
        self._columns = tuple(columns)

    @cached_property
    def _evaluate(self) -> Evaluate:
        return evaluation(self._condition)

    def __call__(self, left: object, right: object) -> bool:
        """Returns whether the condition is true."""
        values = {name: getattr(left if is_left else right, of) for name, is_left, of in self._columns}
        return self._evaluate(SimpleNamespace(**values)) is True


class PairWithVersion:
    """Makes the row of a left row and its version, or of the left row alone if a condition of the pair is not true.

    Args:
        pair: returns the row of a left row and its version, which may be None.
    """

    def __init__(self, pair: Callable[[object, object], object], condition: PairCondition) -> None:
        self._pair = pair
        self._condition = condition

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return self._pair.column_origins() if isinstance(self._pair, HasColumnOrigins) else Origins()

    def __call__(self, left: object, version: object) -> object:
        """Returns the row."""
        is_valid = version is not None and self._condition(left, version)
        return self._pair(left, version if is_valid else None)
