"""Typed calls of functions and operators, with the conversions of their arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from stateflow.api.sql.expressions.dates import FORMATS
from stateflow.api.sql.expressions.functions import FUNCTIONS, SYNONYMS
from stateflow.api.sql.expressions.sql_types import BIGINT, BOOLEAN, DOUBLE, STRING, SqlType, decimal
from stateflow.api.sql.expressions.tree import Call, Constant, Expression
from stateflow.similar_names import did_you_mean

_ARITHMETIC = ("add", "sub", "mul")
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_BIGINT_DIGITS = 19
_CASTS: dict[str, tuple[str, ...]] = {
    "bigint": ("bigint", "double", "decimal", "string", "boolean"),
    "double": ("bigint", "double", "decimal", "string"),
    "decimal": ("bigint", "double", "decimal", "string"),
    "string": ("bigint", "string", "boolean", "date", "decimal"),
    "boolean": ("boolean", "bigint"),
    "date": ("date", "timestamp_ntz", "timestamp"),
    "timestamp_ntz": ("date", "timestamp_ntz", "timestamp"),
    "timestamp": ("date", "timestamp_ntz", "timestamp"),
    "binary": ("binary",),
}
"""What can be cast to a type, with the same result in Spark and in Python."""
_STRICT = [name for name in FUNCTIONS if name.isupper()]
NOT_DISTINCT = "is not distinct"
"""The function of IS NOT DISTINCT FROM: equality, for which null equals null."""
_OTHERS = ("COALESCE", "IFNULL", "NULLIF", "IF", "CONCAT", "REGEXP_EXTRACT")


def is_castable(given: SqlType, wanted: SqlType) -> bool:
    """Returns whether CAST is supported."""
    return given.name == "null" or given.name in _CASTS.get(wanted.name, ())


def cast(expression: Expression, wanted: SqlType) -> Expression:
    """Returns an expression of another type; null stays null."""
    if expression.type.equals(wanted):
        return expression
    if isinstance(expression, Constant) and expression.value is None:
        return Constant(None, wanted.with_null(True))
    return Call("cast", (expression,), wanted.with_null(expression.type.nullable))


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


def named_call(name: str, args: Sequence[Expression]) -> Expression | str:
    """Returns the call of a function of SQL, or what is wrong with it."""
    name = SYNONYMS.get(name, name)
    if name in _SPECIAL:
        return _SPECIAL[name](args) or "a function does not accept its arguments"
    if name not in _STRICT:
        return f"there is no such function; {did_you_mean(name, (*_STRICT, *_OTHERS))}"
    if name == "DATE_FORMAT" and len(args) == 2:
        pattern = args[1]
        if not isinstance(pattern, Constant) or FORMATS.unknown(str(pattern.value)):
            return f"a format of a time is not a literal of {', '.join(FORMATS.letters)}"
    if name in ("SQRT", "POWER"):
        args = [cast(args[0], DOUBLE) if args[0].type.is_numeric else args[0], *args[1:]] if args else args
        args = [cast(arg, DOUBLE) for arg in args] if name == "POWER" else args
    if name == "SUBSTRING" and len(args) == 2:
        return _strict("substring from", args) or "a function does not accept its arguments"
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
    """Returns arithmetic of exact numbers, whose results have all digits."""
    if any(arg.type.name == "double" for arg in args):
        return _strict(function, [cast(arg, DOUBLE) for arg in args])
    if not all(arg.type.is_decimal or arg.type.name == "bigint" for arg in args):
        return None
    exact = [arg if arg.type.is_decimal else cast(arg, _decimal_of(arg)) for arg in args]
    (p, s), (q, t) = (arg.type.digits for arg in exact)
    digits, scale = (p + q + 1, s + t) if function == "mul" else (max(p - s, q - t) + max(s, t) + 1, max(s, t))
    result = decimal(digits, scale)
    return Call(function, tuple(exact), result.with_null(_has_null(args))) if result else None


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
        return None
    return _strict("quotient", [cast(arg, DOUBLE) if arg.type.is_numeric else arg for arg in args])


def _regexp_extract(args: Sequence[Expression]) -> Expression | None:
    args = args if len(args) == 3 else [*args, Constant(0, BIGINT)]
    if len(args) != 3 or not _are(args, STRING, STRING, BIGINT):
        return None
    pattern, group = args[1:]
    if not isinstance(pattern, Constant) or not isinstance(group, Constant) or not isinstance(group.value, int):
        return None
    try:
        groups = re.compile(str(pattern.value)).groups
    except re.error:
        return None
    return Call("REGEXP_EXTRACT", tuple(args), STRING.with_null(True)) if 0 <= group.value <= groups else None


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
    if value.type.name == "bigint" and digits.value >= 0:
        return value
    return _rounded_decimal(value, digits.value) if value.type.is_decimal else _strict("ROUND", [value, digits])


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
    "REGEXP_EXTRACT": _regexp_extract,
    "ROUND": _round,
    "FLOOR": partial(_whole, "FLOOR"),
    "CEIL": partial(_whole, "CEIL"),
}
