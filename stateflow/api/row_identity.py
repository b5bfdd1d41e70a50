"""The content of a row by which operators find the earlier row that it retracts or replaces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import msgspec

from stateflow.api.schema import Column
from stateflow.types.columns.shapes import Entries, Items, Leaf, Record, Shape

_DIGEST_BYTES = 20
_NAN = float("nan")
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True)
class RowIdentity:
    """The values that equal rows have in common, whatever the order of their fields and of the entries of their dicts.

    NaN equals NaN; null equals null, and nothing else. As in Flink, 0.0 and -0.0 are different.

    Attributes:
        columns: the columns that are compared, by name.
    """

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, columns: Iterable[Column]) -> RowIdentity:
        """Returns the identity by some columns, in any order."""
        return cls(tuple(sorted(columns, key=lambda column: column.name)))

    @property
    def text(self) -> str:
        """Names and types of the columns, on which the digests depend, but not whether a column may be null."""
        return ", ".join(f"{column.name} {_type_text(column.shape)}" for column in self.columns)

    def content(self, row: object) -> bytes:
        """Returns the values of the columns as bytes."""
        return _ENCODER.encode([_plain(column.shape, getattr(row, column.name)) for column in self.columns])

    def digest(self, row: object) -> bytes:
        """Returns 20 bytes that equal rows have in common, and no others."""
        return hashlib.blake2b(self.content(row), digest_size=_DIGEST_BYTES).digest()


def _plain(shape: Shape, value: object) -> object:
    """Returns a value whose msgpack depends on neither an order nor the bits of NaN."""
    if isinstance(shape, Leaf):
        return value if value == value else _NAN
    if value is None:
        return None
    if isinstance(shape, Items):
        return [_plain(shape.item, item) for item in cast("list[object]", value)]
    if isinstance(shape, Entries):
        entries = cast("dict[object, object]", value).items()
        # No two keys have the same bytes, so that values are not compared.
        return sorted([_ENCODER.encode(_plain(shape.key, key)), _plain(shape.value, each)] for key, each in entries)
    return [_plain(field, getattr(value, name)) for _, name, field in _fields(shape)]


def _type_text(shape: Shape) -> str:
    """Returns Spark's name of a type, with the fields of classes by name."""
    if isinstance(shape, Items):
        return f"array<{_type_text(shape.item)}>"
    if isinstance(shape, Entries):
        return f"map<{_type_text(shape.key)},{_type_text(shape.value)}>"
    if isinstance(shape, Record):
        return f"struct<{','.join(f'{key}:{_type_text(field)}' for key, _, field in _fields(shape))}>"
    return shape.spark


def _fields(shape: Record) -> Iterator[tuple[str, str, Shape]]:
    """Yields stored name, name and shape of each field, by stored name, or by position if that is how it is stored."""
    fields = zip(shape.keys or shape.names, shape.names, shape.fields, strict=True)
    yield from sorted(fields, key=lambda field: field[0]) if shape.keys else fields
