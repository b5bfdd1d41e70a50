"""Conversion of decoded Avro values to the columns of a row class; pure."""

from __future__ import annotations

import datetime
import enum
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow

import pyarrow as pa

from stateflow.api.schema import Column
from stateflow.connectors.kafka.avro.avro_schema import (
    DECIMAL,
    AvroSchema,
    Decoded,
    DecodedMap,
    Node,
    NotDecodable,
    values_of_map,
)
from stateflow.types.columns.conversion import with_nullable_parts
from stateflow.types.columns.shapes import Entries, Items, Leaf, Record, Shape

Convert = Callable[[Decoded], Decoded]

_PRIMITIVES: Mapping[str, type] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "fixed": bytes,
    "string": str,
    "enum": str,
}
_LOGICAL: Mapping[str, type] = {
    "int-date": datetime.date,
    "int-time-millis": datetime.time,
    "long-time-micros": datetime.time,
    "long-timestamp-millis": datetime.datetime,
    "long-timestamp-micros": datetime.datetime,
    "long-local-timestamp-millis": datetime.datetime,
    "long-local-timestamp-micros": datetime.datetime,
    f"bytes-{DECIMAL}": Decimal,
    f"fixed-{DECIMAL}": Decimal,
    "string-uuid": uuid.UUID,
}
"""Python types of values as fastavro decodes them."""


# -- whether a schema fits ---------------------------------------------------------------------------------------------


def misfits(schema: AvroSchema, columns: Sequence[Column]) -> Iterator[str]:
    """Yields why columns cannot be read from records of a schema. Raises UnusableSchema if it is of something else."""
    fields = schema.fields
    for column in columns:
        if column.name in fields:
            yield from _misfits(schema, fields[column.name], column.shape, column.name)
        elif not column.nullable:
            yield f"{column.name} is not in the schema"


def _misfits(schema: AvroSchema, node: Node, shape: Shape, path: str) -> Iterator[str]:
    node = schema.resolved(node)
    if isinstance(node, list):
        branches = [list(_misfits(schema, each, shape, path)) for each in node if each != "null"]
        # With several types, it depends on the value.
        yield from min(branches, key=len, default=[])
        return
    kind = node["type"] if isinstance(node, dict) else node
    if isinstance(shape, Record) and kind == "record":
        fields = {field["name"]: field["type"] for field in node["fields"]}
        for name, part in zip(shape.names, shape.fields, strict=True):
            if name in fields:
                yield from _misfits(schema, fields[name], part, f"{path}.{name}")
            elif not part.nullable:
                yield f"{path}.{name} is not in the schema"
    elif isinstance(shape, Entries) and (values := values_of_map(node)) is not None:
        yield from _misfits(schema, "string", shape.key, f"{path} (key)")
        yield from _misfits(schema, values, shape.value, f"{path}[]")
    elif isinstance(shape, Items) and kind == "array" and values_of_map(node) is None:
        yield from _misfits(schema, node["items"], shape.item, f"{path}[]")
    elif not isinstance(shape, Leaf) or _python_type(node) not in _accepted(shape):
        yield f"{path} is {_described(node)} in the schema, and declared as {shape.spark}"


def _python_type(node: Node) -> type | None:
    kind = node["type"] if isinstance(node, dict) else node
    logical = node.get("logicalType", "") if isinstance(node, dict) else ""
    return _LOGICAL.get(f"{kind}-{logical}") or _PRIMITIVES.get(kind)


def _described(node: Node) -> str:
    kind = str(node.get("logicalType") or node["type"]) if isinstance(node, dict) else str(node)
    return kind.removeprefix("stateflow-")


# -- values ------------------------------------------------------------------------------------------------------------


def to_struct(columns: Sequence[Column], values: Sequence[Mapping[str, Decoded] | None]) -> pa.Array:
    """Returns the column of converted records. Raises ValueError, TypeError or OverflowError if Arrow refuses one."""
    parts = pa.struct([pa.field(column.name, column.arrow_type) for column in columns])
    return pa.array(values, with_nullable_parts(parts))


def record_converter(columns: Sequence[Column]) -> Callable[[Mapping[str, Decoded]], dict[str, Decoded]]:
    """Returns the function that converts a decoded record to its columns; a missing field is null.

    It raises NotDecodable, with the path of the value that cannot be converted.
    """
    parts = [(column.name, _within(column.name, _converter(column.shape))) for column in columns]
    return lambda record: {name: convert(record.get(name)) for name, convert in parts}


def _within(path: str, convert: Convert) -> Convert:
    def converted(value: Decoded) -> Decoded:
        if value is None:
            return None
        try:
            return convert(value)
        except NotDecodable as e:
            joined = "" if str(e)[:1] in ".[" else " "
            raise NotDecodable(f"{path}{joined}{e}") from e

    return converted


def _converter(shape: Shape) -> Convert:
    if isinstance(shape, Leaf):
        return _leaf_converter(shape)
    if isinstance(shape, Record):
        return _of_type(dict, _record_converter(shape))
    if isinstance(shape, Items):
        item = _within("[]", _converter(shape.item))
        return _of_type(list, lambda values: [item(value) for value in values])
    key, part = _within("(key)", _converter(shape.key)), _within("[]", _converter(shape.value))
    return lambda value: [(key(name), part(each)) for name, each in _entries(value)]


def _entries(value: Decoded) -> Iterable[tuple[str, Decoded]]:
    if type(value) is dict:  # a default of the reader's schema
        return value.items()
    if type(value) is DecodedMap:
        return value.pairs()
    raise NotDecodable(f"has the type {type(value).__name__}")


def _record_converter(shape: Record) -> Convert:
    named = zip(shape.names, shape.fields, strict=True)
    parts = [(name, _within(f".{name}", _converter(part))) for name, part in named]
    return lambda record: {name: convert(record.get(name)) for name, convert in parts}


def _of_type(kind: type, convert: Convert) -> Convert:
    def converted(value: Decoded) -> Decoded:
        if type(value) is not kind:
            raise NotDecodable(f"has the type {type(value).__name__}")
        return convert(value)

    return converted


def _leaf_converter(shape: Leaf) -> Convert:
    accepted = _accepted(shape)

    def converted(value: Decoded) -> Decoded:
        convert = accepted.get(type(value))
        if convert is None:
            raise NotDecodable(f"has the type {type(value).__name__}")
        return convert(value)

    return converted


def _accepted(shape: Leaf) -> Mapping[type, Convert]:
    """Returns the Python types of decoded values that a scalar takes, each with its conversion."""
    if issubclass(shape.kind, enum.Enum):
        values = frozenset(member.value for member in shape.kind)
        return {type(next(iter(values))): _member_of(shape.kind.__name__, values)}
    if shape.kind is datetime.datetime:
        return {datetime.datetime: _zoned if shape.arrow.tz else _naive}
    if shape.kind is Decimal:
        fitted = _fitted(shape.arrow.precision, shape.arrow.scale)
        return {Decimal: fitted, int: lambda value: fitted(Decimal(value))}
    if shape.kind is float:
        return {float: _same, int: float}
    if shape.kind is uuid.UUID:
        return {uuid.UUID: str, str: _uuid_of_text, bytes: _uuid_of_bytes}
    # No type of Avro is a timedelta: its durations have months.
    return {} if shape.kind is datetime.timedelta else {shape.kind: _same}


def _same(value: Decoded) -> Decoded:
    return value


def _member_of(name: str, values: frozenset[Decoded]) -> Convert:
    def member(value: Decoded) -> Decoded:
        if value not in values:
            raise NotDecodable(f"is no member of {name}")
        return value

    return member


def _zoned(value: datetime.datetime) -> datetime.datetime:
    if value.tzinfo is None:
        raise NotDecodable("is a local timestamp, and the declared one has a time zone")
    return value


def _naive(value: datetime.datetime) -> datetime.datetime:
    # Timestamps of Avro are in UTC.
    return value.replace(tzinfo=None)


def _fitted(precision: int, scale: int) -> Convert:
    context = Context(prec=precision, traps=[Inexact, InvalidOperation, Overflow])
    unit = Decimal(1).scaleb(-scale)

    def fitted(value: Decimal) -> Decimal:
        try:
            return value.quantize(unit, context=context)
        except (Inexact, InvalidOperation, Overflow):
            raise NotDecodable(f"does not fit decimal({precision},{scale})") from None

    return fitted


def _uuid_of_text(value: str) -> str:
    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise NotDecodable("is not a UUID") from None


def _uuid_of_bytes(value: bytes) -> str:
    try:
        return str(uuid.UUID(bytes=value))
    except ValueError:
        raise NotDecodable("is not a UUID") from None
