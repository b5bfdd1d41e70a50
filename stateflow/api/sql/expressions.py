"""Typed scalar expressions, and the types of SQL."""

from __future__ import annotations

import datetime
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Annotated

import msgspec

from stateflow.api.schema import Column, RowSchema
from stateflow.types.columns.precision import MOST_DIGITS, precision
from stateflow.types.columns.row_kind import RowKind
from stateflow.types.columns.shapes import Leaf
from stateflow.types.declared_types import BY_NAME, DECLARED, literal, quote_name

_DECIMAL = "decimal"
_OTHER = "other"
_TIMES = ("timestamp_ntz", "timestamp")
_UTC = Annotated[datetime.datetime, msgspec.Meta(tz=True)]


@dataclass(frozen=True)
class SqlType:
    """A type.

    Attributes:
        name: Spark's name of it; ``interval`` for a duration, ``null`` for the type of NULL, ``other`` for a column
            that can only be copied.
        nullable: whether a value may be null.
        digits: precision and scale of a decimal.
        annotation: type of a field of a row class, without None.
    """

    name: str
    nullable: bool = False
    digits: tuple[int, int] = (0, 0)
    annotation: object = field(default=None, repr=False)

    def __deepcopy__(self, memo: object) -> SqlType:
        """Returns the object itself, which is immutable."""
        return self

    @property
    def is_decimal(self) -> bool:
        """Whether it is an exact decimal number."""
        return self.name == _DECIMAL

    @property
    def is_numeric(self) -> bool:
        """Whether it is a number."""
        return self.name in ("bigint", "double", _DECIMAL)

    @property
    def is_time(self) -> bool:
        """Whether it is a timestamp, with or without time zone."""
        return self.name in _TIMES

    @property
    def spark(self) -> str:
        """Spark's name of it, with the digits of a decimal."""
        return f"decimal({self.digits[0]},{self.digits[1]})" if self.is_decimal else self.name

    def with_null(self, nullable: bool) -> SqlType:
        """Returns the type with or without null."""
        return replace(self, nullable=nullable)

    def equals(self, other: SqlType) -> bool:
        """Returns whether both are the same apart from null."""
        return (self.name, self.digits, self.annotation) == (other.name, other.digits, other.annotation)


BIGINT, DOUBLE, STRING, BOOLEAN, BINARY, DATE, TIMESTAMP = (
    SqlType(DECLARED[kind].spark, annotation=DECLARED[kind].python)
    for kind in ("int", "float", "str", "bool", "bytes", "date", "datetime")
)
TIMESTAMP_UTC = SqlType("timestamp", annotation=_UTC)
NAMED = {each.name: each for each in (BIGINT, DOUBLE, STRING, BOOLEAN, BINARY, DATE, TIMESTAMP, TIMESTAMP_UTC)}
"""The types of columns whose values expressions can use, by Spark's names, apart from decimals."""
INTERVAL = SqlType("interval")
NULL = SqlType("null", nullable=True)


def decimal(digits: int, scale: int) -> SqlType | None:
    """Returns the type of decimals; None if it has too many digits."""
    if not 1 <= digits <= MOST_DIGITS or not 0 <= scale <= digits:
        return None
    return SqlType(_DECIMAL, digits=(digits, scale), annotation=Annotated[Decimal, precision(digits, scale)])


@dataclass(frozen=True)
class Field:
    """A column of a table or of a result."""

    name: str
    type: SqlType


def fields_of(schema: RowSchema) -> tuple[Field, ...]:
    """Returns the columns of a stream, without that of type `RowKind`."""
    hints = typing.get_type_hints(schema.row_class, include_extras=True)
    return tuple(Field(c.name, _type_of(c, hints[c.name])) for c in schema.columns if not _is_row_kind(c))


def row_class(name: str, fields: Iterable[Field], more: Sequence[tuple[str, object]] = ()) -> type[object]:
    """Returns a row class with the columns of a result.

    Args:
        name: of the class.
        more: further fields, with their types.
    """
    make: Callable[..., type[object]] = msgspec.defstruct
    return make(name, [*((each.name, annotation(each.type)) for each in fields), *more])


def annotation(of: SqlType) -> object:
    """Returns the type of a field of a row class."""
    # A union of types and special forms, which the operator | does not accept for all of them.
    return typing.Union[of.annotation, None] if of.nullable else of.annotation  # noqa: UP007


def _is_row_kind(column: Column) -> bool:
    return isinstance(column.shape, Leaf) and column.shape.kind is RowKind


def _type_of(column: Column, hint: object) -> SqlType:
    shape, own = column.shape, _without_none(hint)
    if isinstance(shape, Leaf):
        if shape.kind is Decimal:
            digits = shape.arrow.precision, shape.arrow.scale
            return SqlType(_DECIMAL, shape.nullable, digits, own)
        # An Enum, a UUID and a duration can only be copied.
        if shape.spark in NAMED and BY_NAME[shape.spark].python is shape.kind:
            return SqlType(shape.spark, shape.nullable, annotation=own)
    return SqlType(_OTHER, shape.nullable, annotation=own)


def _without_none(hint: object) -> object:
    args = [each for each in typing.get_args(hint) if each is not type(None)]
    is_optional = type(None) in typing.get_args(hint)
    return args[0] if is_optional and len(args) == 1 else hint


Value = str | int | float | bool | bytes | Decimal | datetime.date | datetime.datetime | datetime.timedelta | None
"""A value of a literal, or of an expression with the values of a row."""


@dataclass(frozen=True)
class Ref:
    """A column of the rows."""

    name: str
    type: SqlType


@dataclass(frozen=True)
class Constant:
    """A value."""

    value: Value
    type: SqlType


@dataclass(frozen=True)
class Call:
    """A function or an operator with its arguments.

    Attributes:
        function: a name in `functions.FUNCTIONS`.
    """

    function: str
    args: tuple[Expression, ...]
    type: SqlType


Expression = Ref | Constant | Call


def columns_of(expression: Expression) -> Iterator[str]:
    """Yields the names of the columns that an expression uses, in order, with duplicates."""
    if isinstance(expression, Ref):
        yield expression.name
    elif isinstance(expression, Call):
        for arg in expression.args:
            yield from columns_of(arg)


def replace_columns(expression: Expression, columns: Mapping[str, Expression]) -> Expression:
    """Returns the expression with other expressions in place of columns."""
    if isinstance(expression, Ref):
        return columns.get(expression.name, expression)
    if isinstance(expression, Constant):
        return expression
    return replace(expression, args=tuple(replace_columns(arg, columns) for arg in expression.args))


def not_null(expression: Expression) -> Expression:
    """Returns the expression where its value is never null."""
    return replace(expression, type=expression.type.with_null(False))


def canonical(expression: Expression) -> str:
    """Returns a text that is the same for the same expression, however a statement spells it."""
    if isinstance(expression, Ref):
        return quote_name(expression.name)
    if isinstance(expression, Constant):
        return literal(f"{expression.type.spark} {expression.value!r}")
    return f"{expression.function}({','.join(map(canonical, expression.args))}):{expression.type.spark}"


def conjuncts(condition: Expression) -> list[Expression]:
    """Returns the conditions that AND connects."""
    if isinstance(condition, Call) and condition.function == "and":
        return [each for arg in condition.args for each in conjuncts(arg)]
    return [condition]
