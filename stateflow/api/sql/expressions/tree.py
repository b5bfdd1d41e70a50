"""Scalar expressions with types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal

from stateflow.api.sql.expressions.sql_types import SqlType
from stateflow.types.spark_sql import literal, quoted

Value = str | int | float | bool | bytes | Decimal | date | datetime | timedelta | None
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


def replaced(expression: Expression, columns: Mapping[str, Expression]) -> Expression:
    """Returns the expression with other expressions in place of columns."""
    if isinstance(expression, Ref):
        return columns.get(expression.name, expression)
    if isinstance(expression, Constant):
        return expression
    return replace(expression, args=tuple(replaced(arg, columns) for arg in expression.args))


def not_null(expression: Expression) -> Expression:
    """Returns the expression where its value is never null."""
    return replace(expression, type=expression.type.with_null(False))


def canonical(expression: Expression) -> str:
    """Returns a text that is the same for the same expression, however a statement spells it."""
    if isinstance(expression, Ref):
        return quoted(expression.name)
    if isinstance(expression, Constant):
        return literal(f"{expression.type.spark} {expression.value!r}")
    return f"{expression.function}({','.join(map(canonical, expression.args))}):{expression.type.spark}"


def conjuncts(condition: Expression) -> list[Expression]:
    """Returns the conditions that AND connects."""
    if isinstance(condition, Call) and condition.function == "and":
        return [each for arg in condition.args for each in conjuncts(arg)]
    return [condition]
