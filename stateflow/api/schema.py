"""The columns of a row class, declared once for Spark, Arrow, Delta and user functions."""

from __future__ import annotations

import dataclasses
import datetime
import types
import typing
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from stateflow.errors import JobDefinitionError
from stateflow.similar_names import closest_first

_ARROW: dict[object, tuple[str, pa.DataType]] = {
    int: ("bigint", pa.int64()),
    float: ("double", pa.float64()),
    str: ("string", pa.string()),
    bool: ("boolean", pa.bool_()),
    bytes: ("binary", pa.binary()),
    datetime.date: ("date", pa.date32()),
    datetime.datetime: ("timestamp_ntz", pa.timestamp("us")),
}
_ZONED = ("timestamp", pa.timestamp("us", tz="UTC"))
_SUPPORTED = "int, float, str, bool, bytes, date, datetime, and each of these | None"


@dataclass(frozen=True)
class Column:
    """A column of a row class: its name, Spark type name, Arrow type, and whether it may be null."""

    name: str
    spark_type: str
    arrow_type: pa.DataType
    nullable: bool


@dataclass(frozen=True)
class RowSchema:
    """A row class and its columns, in order."""

    row_class: type[Any]
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, row_class: type[object]) -> RowSchema:
        """Returns the columns of a `msgspec.Struct` or dataclass.

        A datetime is a timestamp without time zone; ``Annotated[datetime, msgspec.Meta(tz=True)]`` is a timestamp in
        UTC.

        Raises:
            JobDefinitionError: the class or the type of a field is not supported.
        """
        names = _field_names(row_class)
        _check_names(row_class, names)
        hints = typing.get_type_hints(row_class, include_extras=True)
        return cls(row_class, tuple(_column(row_class, name, hints[name]) for name in names))

    def __deepcopy__(self, memo: object) -> RowSchema:
        """Returns the object itself, which is immutable: tasks without Spark deep-copy operators and their schemas."""
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(c.name for c in self.columns)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return pa.schema([pa.field(c.name, c.arrow_type, nullable=c.nullable) for c in self.columns])

    @property
    def ddl(self) -> str:
        """The columns in Spark's DDL syntax."""
        return ", ".join(f"`{c.name}` {c.spark_type}" for c in self.columns)

    def column(self, name: str) -> Column:
        """Returns the column `name`. Raises JobDefinitionError with the existing names, the most similar first."""
        for column in self.columns:
            if column.name == name:
                return column
        raise JobDefinitionError(
            "there is no such column",
            hint=f"columns are {', '.join(closest_first(str(name), self.names))}",
            column=name,
            row_class=self.row_class.__name__,
        )


def _field_names(row_class: type[object]) -> list[str]:
    if isinstance(row_class, type) and issubclass(row_class, msgspec.Struct):
        return list(row_class.__struct_fields__)
    if dataclasses.is_dataclass(row_class):
        return [f.name for f in dataclasses.fields(row_class)]
    raise JobDefinitionError(
        "a row class must be a msgspec.Struct or a dataclass",
        hint="declare one field per column",
        given=repr(row_class),
    )


def _check_names(row_class: type[object], names: list[str]) -> None:
    """Raises JobDefinitionError for names that differ only in case, as Spark ignores it, or that the runtime uses."""
    folded = [name.lower() for name in names]
    twice = sorted(n for n in names if folded.count(n.lower()) > 1)
    taken = [n for n in names if n.lower().startswith("_sf_")]
    if twice or taken:
        raise JobDefinitionError(
            "a row class has field names that cannot be column names",
            hint="use names that differ in more than case and do not begin with _sf_",
            row_class=row_class.__name__,
            fields=twice or taken,
        )


def _column(row_class: type[object], name: str, hint: object) -> Column:
    bare, nullable = _without_none(hint)
    zoned = False
    if typing.get_origin(bare) is Annotated:
        bare, *extras = typing.get_args(bare)
        zoned = any(isinstance(e, msgspec.Meta) and e.tz for e in extras)
        bare, inner = _without_none(bare)
        nullable = nullable or inner
    found = _ZONED if zoned and bare is datetime.datetime else _ARROW.get(bare)
    if found is None:
        raise JobDefinitionError(
            "a field's type is not supported",
            hint=f"use {_SUPPORTED}; for a JSON array or "
            "object, use str and decode it in the function with msgspec; for money, use int (cents) or str",
            field=f"{row_class.__name__}.{name}",
            type=str(hint),
        )
    return Column(name, *found, nullable)


def _without_none(hint: object) -> tuple[object, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    args = [a for a in typing.get_args(hint) if a is not type(None)]
    return (args[0] if len(args) == 1 else hint), len(args) < len(typing.get_args(hint))
