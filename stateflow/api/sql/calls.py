"""Typed calls of functions and operators, with the conversions of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from stateflow.api.sql.dates import FORMATS
from stateflow.api.sql.expressions import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    NULL,
    STRING,
    Call,
    Constant,
    Expression,
    SqlType,
    decimal,
)
from stateflow.api.sql.sql_functions import CONVERSIONS, FUNCTIONS, SYNONYMS
from stateflow.api.sql.text_patterns import java_pattern
from stateflow.helpers import did_you_mean
from stateflow.types.columns.precision import MOST_DIGITS

_ARITHMETIC = ("add", "sub", "mul")
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_BIGINT_DIGITS = 19
_INT_DIGITS = 10
_LONGEST = (1 << 31) - 1
_MOST_PLACES = 324
"""A DOUBLE that is not zero has a digit at one of so many places, before or after the point."""
_ZERO = Constant(0, BIGINT)
_LEAST_SCALE = 6
"""The digits after the point that a quotient of decimals keeps, even if digits before it are lost."""
_OF_DOUBLES = ("SQRT", "POWER", "EXP", "LN", "LOG10", "SIGN")
_STRICT = [name for name in FUNCTIONS if name.isupper()]
NOT_DISTINCT = "is not distinct"
"""The function of IS NOT DISTINCT FROM: equality, for which null equals null."""
_OTHERS = ("COALESCE", "IFNULL", "NULLIF", "IF", "CONCAT", "REGEXP_EXTRACT", "LOG", "LOG2", "POSITION", "INSTR")


def is_castable(given: SqlType, wanted: SqlType) -> bool:
    """Returns whether CAST is supported."""
    return given.name in ("null", wanted.name) or (given.name, wanted.name) in CONVERSIONS


def cast(expression: Expression, wanted: SqlType) -> Expression:
    """Returns an expression of another type; null stays null, and a decimal that does not fit is null, as in Flink."""
    if expression.type.equals(wanted):
        return expression
    if isinstance(expression, Constant) and expression.value is None:
        return Constant(None, wanted.with_null(True))
    nullable = expression.type.nullable or (wanted.is_decimal and not _fits(expression, wanted))
    return Call("cast", (expression,), wanted.with_null(nullable))


def try_cast(expression: Expression, wanted: SqlType) -> Expression:
    """Returns an expression of another type, which is null where a cast has no value."""
    made = cast(expression, wanted)
    return replace(made, function="try cast", type=wanted.with_null(True)) if isinstance(made, Call) else made


def _fits(expression: Expression, wanted: SqlType) -> bool:
    """Returns whether each value of an expression has few enough digits for a type of decimals."""
    of, (digits, scale) = expression.type, wanted.digits
    if of.name == "bigint":
        of = _decimal_of(expression)
    if not of.is_decimal:
        return False
    # Rounding may add a digit before the point.
    return of.digits[0] - of.digits[1] + (scale < of.digits[1]) <= digits - scale


def common(types: Sequence[SqlType]) -> SqlType | None:
    """Returns the type that values of several types are converted to; None if there is none."""
    known = [each for each in types if each.name != "null"]
    nullable = any(each.nullable for each in types)
    if not known:
        return None
    first = known[0]
    if all(each.equals(first) for each in known):
        return first.with_null(nullable)
    if not all(each.is_numeric for each in known):
        return None
    if any(each.name == "double" for each in known):
        return DOUBLE.with_null(nullable)
    digits = [each.digits if each.is_decimal else (_BIGINT_DIGITS, 0) for each in known]
    scale = max(each[1] for each in digits)
    made = decimal(max(each[0] - each[1] for each in digits) + scale, scale)
    return made.with_null(nullable) if made else None


def call(function: str, args: Sequence[Expression]) -> Expression | None:
    """Returns a call with converted arguments; None if the function does not accept their types."""
    if function in ("and", "or", "not"):
        return Call(function, tuple(args), BOOLEAN.with_null(_has_null(args)))
    if function == "case":
        return _case(args)
    if function in ("in", "coalesce"):
        return _of_common_type(function, args)
    if function == NOT_DISTINCT:
        equal = call("eq", args)
        return Call(function, equal.args, BOOLEAN) if isinstance(equal, Call) else None
    if function == "LIKE":
        return Call(function, tuple(args), BOOLEAN.with_null(_has_null(args))) if _are(args, STRING) else None
    if function in _ARITHMETIC and len(args) == 2 and any(arg.type.name == "interval" for arg in args):
        return _shifted(function, args)
    if function in _ARITHMETIC and any(arg.type.is_decimal for arg in args):
        return _of_decimals(function, args)
    if function == "div":
        return _division(args)
    if function in (*_ARITHMETIC, *_COMPARED, "MOD"):
        target = common([arg.type for arg in args])
        args = [cast(arg, target) for arg in args] if target else args
    return _strict(function, args)


def resolve_call(name: str, args: Sequence[Expression]) -> Expression | str:
    """Returns the call of a function of SQL, or what is wrong with it."""
    name = SYNONYMS.get(name, name)
    if name in _SPECIAL:
        try:
            return _SPECIAL[name](args) or "a function does not accept its arguments"
        except (IndexError, ValueError):
            return "a function has another number of arguments"
    if name not in _STRICT:
        return f"the function does not exist; {did_you_mean(name, (*_STRICT, *_OTHERS))}"
    if name == "DATE_FORMAT" and len(args) == 2:
        pattern = args[1]
        if not isinstance(pattern, Constant) or FORMATS.unknown(str(pattern.value)):
            return f"a format of a time is not a literal of {', '.join(FORMATS.letters)}"
        args = [args[0], Constant(FORMATS.quote_literals(str(pattern.value)), STRING)]
    if name in _OF_DOUBLES:
        args = [cast(arg, DOUBLE) if arg.type.is_numeric else arg for arg in args]
    return call(name, args) or "a function does not accept its arguments"


def _strict(function: str, args: Sequence[Expression]) -> Expression | None:
    known = FUNCTIONS.get(function)
    if known is None or not args:
        return None
    try:
        result = known.result([arg.type for arg in args])
    except (IndexError, ValueError):
        return None  # Another number of arguments.
    nullable = known.may_be_null or _has_null(args)
    return Call(function, tuple(args), result.with_null(nullable)) if result else None


def _has_null(args: Sequence[Expression]) -> bool:
    return any(arg.type.nullable for arg in args)


def _are(args: Sequence[Expression], *types: SqlType) -> bool:
    wanted = types if len(types) > 1 else types * len(args)
    return [arg.type.name for arg in args] == [each.name for each in wanted]


def _of_common_type(function: str, args: Sequence[Expression]) -> Expression | None:
    target = common([arg.type for arg in args])
    if target is None or target.name in ("other", "interval"):
        return None
    converted = tuple(cast(arg, target) for arg in args)
    if function == "in":
        return Call(function, converted, BOOLEAN.with_null(_has_null(args)))
    return Call(function, converted, target.with_null(all(arg.type.nullable for arg in args)))


def _case(args: Sequence[Expression]) -> Expression | None:
    results = [*args[1::2], args[-1]]
    target = common([each.type for each in results])
    if target is None or target.name in ("other", "interval"):
        return None
    made: list[Expression] = []
    for at, each in enumerate(args):
        made.append(each if at % 2 == 0 and at < len(args) - 1 else cast(each, target))
    return Call("case", tuple(made), target)


def _shifted(function: str, args: Sequence[Expression]) -> Expression | None:
    time, interval = args if args[1].type.name == "interval" else (args[1], args[0])
    length = interval.value if isinstance(interval, Constant) else None
    if not isinstance(length, timedelta) or function == "mul" or (time is args[1] and function == "sub"):
        return None
    return _strict("shift", [time, Constant(-length if function == "sub" else length, interval.type)])


def _of_decimals(function: str, args: Sequence[Expression]) -> Expression | None:
    """Returns arithmetic of exact numbers, of Flink's type: with all digits, or at least six after the point of 38."""
    if any(arg.type.name == "double" for arg in args):
        return _strict(function, [cast(arg, DOUBLE) for arg in args])
    if not all(arg.type.is_decimal or arg.type.name == "bigint" for arg in args):
        return None
    exact = [arg if arg.type.is_decimal else cast(arg, _decimal_of(arg)) for arg in args]
    (p, s), (q, t) = (arg.type.digits for arg in exact)
    digits, scale = (p + q + 1, s + t) if function == "mul" else (max(p - s, q - t) + max(s, t) + 1, max(s, t))
    return Call(function, tuple(exact), _of_digits(digits, scale).with_null(_has_null(args)))


def _of_digits(digits: int, scale: int) -> SqlType:
    """Returns a type of decimals; with too many digits, one with fewer after the point, but six of them at least."""
    if digits > MOST_DIGITS:
        scale = max(MOST_DIGITS - (digits - scale), min(scale, _LEAST_SCALE))
    made = decimal(min(digits, MOST_DIGITS), scale)
    assert made is not None
    return made


def _decimal_of(expression: Expression) -> SqlType:
    digits = _BIGINT_DIGITS
    if isinstance(expression, Constant):
        digits = len(str(abs(int(str(expression.value)))))
    made = decimal(digits, 0)
    assert made is not None
    return made


def _division(args: Sequence[Expression]) -> Expression | None:
    if _are(args, BIGINT):
        return _strict("div", args)
    if any(arg.type.is_decimal for arg in args) and not any(arg.type.name == "double" for arg in args):
        return _decimal_quotient(args)
    return _strict("quotient", [cast(arg, DOUBLE) if arg.type.is_numeric else arg for arg in args])


def _decimal_quotient(args: Sequence[Expression]) -> Expression | None:
    """Returns the quotient of exact numbers, of Flink's type: with six digits after the point, or more if they fit."""
    if not all(arg.type.is_decimal or arg.type.name == "bigint" for arg in args):
        return None
    exact = [arg if arg.type.is_decimal else cast(arg, _operand_of(arg)) for arg in args]
    (p, s), (q, t) = (arg.type.digits for arg in exact)
    scale = max(_LEAST_SCALE, s + q + 1)
    return Call("quotient of decimals", tuple(exact), _of_digits(p - s + t + scale, scale).with_null(_has_null(args)))


def _operand_of(expression: Expression) -> SqlType:
    """Returns the type of an integer in a quotient of decimals: as in Flink, a literal has the digits of an INT."""
    value = expression.value if isinstance(expression, Constant) else None
    made = decimal(_INT_DIGITS if isinstance(value, int) and abs(value) <= _LONGEST else _BIGINT_DIGITS, 0)
    assert made is not None
    return made


def average(total: Expression, count: Expression) -> Expression:
    """Returns the average of decimals with Flink's digits; null without a value."""
    made, is_zero = decimal(MOST_DIGITS, max(total.type.digits[1], _LEAST_SCALE)), call("eq", [count, _ZERO])
    assert made is not None and is_zero is not None
    divisor = call("case", [is_zero, Constant(None, NULL), cast(count, _decimal_of(count))])
    assert divisor is not None
    return Call("quotient of decimals", (total, divisor), made.with_null(total.type.nullable))


def _regexp_extract(args: Sequence[Expression]) -> Expression | str | None:
    args = args if len(args) == 3 else [*args, Constant(0, BIGINT)]
    if len(args) != 3 or not _are(args, STRING, STRING, BIGINT):
        return None
    pattern, group = args[1:]
    if not isinstance(pattern, Constant) or not isinstance(group, Constant) or not isinstance(group.value, int):
        return None
    try:
        groups = java_pattern(str(pattern.value)).groups
    except ValueError as e:
        return f"a regular expression is not supported: {e}"
    if not 0 <= group.value <= groups:
        return f"a regular expression has {groups} groups"
    return Call("REGEXP_EXTRACT", tuple(args), STRING.with_null(True))


def _whole(function: str, args: Sequence[Expression]) -> Expression | None:
    if len(args) != 1 or not args[0].type.is_numeric:
        return None
    if args[0].type.name != "double" and not args[0].type.digits[1]:
        return args[0]
    return _strict(f"{function.lower()} of decimal" if args[0].type.is_decimal else function, args)


def _round(args: Sequence[Expression]) -> Expression | str | None:
    if len(args) not in (1, 2):
        return None
    value, digits = [*args, Constant(0, BIGINT)][:2]
    if not isinstance(digits, Constant) or not isinstance(digits.value, int):
        return "the number of digits of ROUND is not a literal"
    # No number has more digits, before or after the point.
    places = max(-_MOST_PLACES, min(digits.value, _MOST_PLACES))
    if value.type.name == "bigint" and places >= 0:
        return value
    if value.type.is_decimal:
        return _rounded_decimal(value, places)
    return _strict("ROUND", [value, Constant(places, BIGINT)])


def _rounded_decimal(value: Expression, places: int) -> Expression | str:
    """Returns a rounded decimal of Flink's type, where rounding may add a digit before the point, or what is wrong."""
    precision, scale = value.type.digits
    if places >= scale:
        return value
    result = decimal(precision - scale + 1 + max(places, 0), max(places, 0))
    if result is None:
        return "a rounded number may have more than 38 digits"
    return Call("ROUND", (value, Constant(places, BIGINT)), result.with_null(value.type.nullable))


def _nullif(args: Sequence[Expression]) -> Expression | None:
    if len(args) != 2:
        return None
    same = call("eq", args)
    nothing = Constant(None, args[0].type.with_null(True))
    return None if same is None else call("case", [same, nothing, args[0]])


def _if(args: Sequence[Expression]) -> Expression | None:
    return _case(args) if len(args) == 3 and args[0].type.name == "boolean" else None


def _substring(args: Sequence[Expression]) -> Expression | None:
    if len(args) != 3:
        return _strict("substring", [*args, Constant(_LONGEST, BIGINT)]) if len(args) == 2 else None
    length = args[2]
    is_known = isinstance(length, Constant) and isinstance(length.value, int) and length.value >= 0
    return _strict("substring" if is_known else "SUBSTRING", args)


def _trim(name: str, args: Sequence[Expression]) -> Expression | None:
    return _strict(name, args if len(args) == 2 else [*args, Constant(" ", STRING)])


def _ranked(name: str, args: Sequence[Expression]) -> Expression | None:
    target = common([arg.type for arg in args])
    return _strict(name, [cast(arg, target) for arg in args]) if target else None


def _locate(args: Sequence[Expression]) -> Expression | None:
    return _strict("LOCATE", args)


def _logarithm(args: Sequence[Expression]) -> Expression | None:
    """Returns the natural logarithm, or one of another base, which is the first argument."""
    if not all(arg.type.is_numeric for arg in args) or len(args) > 2:
        return None
    logarithms = [_strict("LN", [cast(arg, DOUBLE)]) for arg in args]
    if len(logarithms) == 2 and logarithms[0] and logarithms[1]:
        return _strict("quotient", [logarithms[1], logarithms[0]])
    return logarithms[0] if logarithms else None


def _concat(args: Sequence[Expression]) -> Expression | None:
    if not args or not _are(args, STRING):
        return None
    made = args[0]
    for each in args[1:]:
        made = Call("concat", (made, each), STRING.with_null(made.type.nullable or each.type.nullable))
    return made


_SPECIAL: dict[str, Callable[[Sequence[Expression]], Expression | str | None]] = {
    "COALESCE": lambda args: _of_common_type("coalesce", args) if args else None,
    "IFNULL": lambda args: _of_common_type("coalesce", args) if len(args) == 2 else None,
    "NULLIF": _nullif,
    "IF": _if,
    "CONCAT": _concat,
    "SUBSTRING": _substring,
    **{name: partial(_trim, name) for name in ("TRIM", "LTRIM", "RTRIM")},
    **{name: partial(_ranked, name) for name in ("GREATEST", "LEAST")},
    "POSITION": _locate,
    "INSTR": lambda args: _locate(args[::-1]),
    "LOG": _logarithm,
    "LOG2": lambda args: _logarithm([Constant(2.0, DOUBLE), *args]) if len(args) == 1 else None,
    "REGEXP_EXTRACT": _regexp_extract,
    "ROUND": _round,
    "FLOOR": partial(_whole, "FLOOR"),
    "CEIL": partial(_whole, "CEIL"),
}
