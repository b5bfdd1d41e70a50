"""Arrow types of recorded values: a type to decode and its column, built from the schema alone. Pure.

The classes of a job are not imported: a stored class is decoded as a class that is made from its recorded fields. Parts
that have no column become JSON text, and only these parts:

========================================  =========================================================
recorded type                             column
========================================  =========================================================
bool, int, float, str, bytes, date, time  the same; NumPy's numbers likewise
datetime                                  ``timestamp[us]``: in UTC if its zone is declared as required; otherwise
                                          without a zone, and values with a zone are converted to UTC
timedelta                                 ``duration[us]``
Decimal, UUID                             text
Enum, Literal                             text or int64 if all values are of one of these types
list, set, frozenset, tuple[T, ...]       list
tuple[A, B]                               struct with fields ``_1``, ``_2``
dict                                      map, if its keys are scalars
class                                     struct, by the stored names of its fields
T | None                                  the column of T, with nulls
anything else, a recursive class          text: the value as JSON of `state.schema.json_text`
========================================  =========================================================
"""

from __future__ import annotations

import datetime
import decimal
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import GenericAlias
from typing import Annotated, Any, get_args

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, UnsetType

from stateflow.errors import CorruptFile, StateError, StateflowError
from stateflow.state.column_serializer import decode_column
from stateflow.state.handles import ClassSchema, FieldSchema, StateSchema, TypeNode, TypeSchema
from stateflow.state.key_columns import decode_times
from stateflow.state.schema import from_json_text, json_text
from stateflow.types.columns.conversion import to_column
from stateflow.types.columns.shapes import Entries, Items, Leaf, Record, Shape
from stateflow.types.declared_types import BY_NAME, DECLARED, ScalarType, scalar_of
from stateflow.types.decoders import PLAIN, value_decoder
from stateflow.types.serializers import payload_start, timestamp_of

_MOST_NODES = 10_000
_DEEPEST = 64
_LARGEST_DEFAULT = 4 << 10
"""Bytes of JSON: each value without the field gets a copy of its default."""


class JsonText(str):
    """A part of a value as JSON."""

    __slots__ = ()


class DecimalText(str):
    """A Decimal as text: the digits after its point are not recorded."""

    __slots__ = ()


class Refused(enum.Flag):
    """Values that their column would change, which a reader may refuse.

    Attributes:
        ZONE: datetimes with a zone that their type does not declare.
        ABSENT: absent fields whose type has None: in the column, both are null.
    """

    NOTHING = 0
    ZONE = enum.auto()
    ABSENT = enum.auto()


class LocalDatetime(datetime.datetime):
    """A datetime without a zone; decoding one with a zone is an error."""


@dataclass(frozen=True)
class FieldFacts:
    """The part of a record's type that the type of a field lacks: an annotation.

    Attributes:
        may_be_absent: whether null means that the field is absent.
        tag: for the first element of a class by position, its recorded tag.
    """

    may_be_absent: bool = False
    tag: str = ""


@dataclass(frozen=True)
class ValueType:
    """A type that values are decoded as, and its column.

    Attributes:
        python: the type for msgspec's decoder, whose hook is `from_plain`.
        shape: shape of the decoded objects, whose fields have names of their own.
        arrow: the type of the column: the shape's type, with the recorded names; all parts are nullable, since they
            are null within a null.
    """

    python: Any
    shape: Shape
    arrow: pa.DataType

    @property
    def nullable(self) -> ValueType:
        """The type with None."""
        by_columns = self.shape.by_columns and isinstance(self.shape, Leaf)
        return replace(self, python=self.python | None, shape=replace(self.shape, nullable=True, by_columns=by_columns))


def value_type(schema: TypeSchema, refused: Refused = Refused.NOTHING) -> ValueType:
    """Returns the type of the column for values of a recorded type; JSON text if it has no other column.

    Args:
        schema: the type of the newest values, written by msgpack.
        refused: values whose decoding is an error.
    """
    try:
        found = _Builder(schema.classes, refused).build(schema.root, ())
        value_decoder(found.python, from_plain)
    except (ValueError, TypeError, IndexError, RecursionError):
        # This version does not write the recorded type, or msgspec refuses its name.
        return _json_type()
    return found


def accepts_local_datetimes(schema: TypeSchema) -> bool:
    """Returns whether values of a type may have datetimes without a zone."""
    found = [schema.root, *(field.type for each in schema.classes for field in each.fields)]
    while found:
        node = found.pop()
        if node.kind == "any" or (node.kind == "datetime" and node.limits.get("tz") is not True):
            return True
        found += node.parts
    return False


def from_plain(kind: type, stored: object) -> object:
    """Decodes a part without a column of its own type: a hook of msgspec's decoder."""
    if kind is JsonText:
        return JsonText(json_text(stored))
    if kind is DecimalText:
        return DecimalText(msgspec.convert(stored, decimal.Decimal))
    if kind is LocalDatetime:
        return _local(msgspec.convert(stored, datetime.datetime))
    raise TypeError(f"values of type {kind!r} are not decoded")


def _local(value: datetime.datetime) -> LocalDatetime:
    if value.tzinfo is None:
        return LocalDatetime.combine(value.date(), value.time())
    raise StateError(
        "a datetime has a zone that its type does not declare: its column would lose the zone",
        hint="declare Annotated[datetime, msgspec.Meta(tz=True)] in the descriptor, and return this column with the "
        "zone UTC, by pyarrow.compute.assume_timezone",
        value=value.isoformat(),
    )


class _TooComplex(ValueError):
    """A recorded type has more parts than any declared one."""


_BY_COLUMNS = (bool, int, float, str, bytes)


def _leaf(found: ScalarType, python: object = None) -> ValueType:
    by_columns = python is None and found.python in _BY_COLUMNS
    shape = Leaf(found.python, found.arrow, "", by_columns=by_columns)
    return ValueType(found.python if python is None else python, shape, found.arrow)


def _json_type() -> ValueType:
    return _leaf(DECLARED["str"], JsonText)


_INT, _TEXT, _NO_ZONE = (_leaf(DECLARED[kind]) for kind in ("int", "str", "datetime"))
_UTC = _leaf(BY_NAME["timestamp"])
_LOCAL = replace(_NO_ZONE, python=LocalDatetime)
_OTHERS = {
    "uuid": _TEXT,
    "decimal": _leaf(DECLARED["str"], DecimalText),
    **dict.fromkeys(("bytearray", "memoryview"), _leaf(DECLARED["bytes"])),
    # Its largest numbers exceed those of bigint.
    "numpy.uint64": _leaf(replace(DECLARED["int"], arrow=pa.uint64()), int),
}
"""Types of columns that `DECLARED` does not have, or has with a type that does not hold all values."""


class _Builder:
    """Builds types from recorded nodes.

    Args:
        classes: the recorded classes.
        refused: as for `value_type`.
    """

    def __init__(self, classes: Sequence[ClassSchema], refused: Refused) -> None:
        self._classes = classes
        self._no_zone = _LOCAL if Refused.ZONE in refused else _NO_ZONE
        self._refuses_absent = Refused.ABSENT in refused
        self._nodes = 0

    def build(self, node: TypeNode, enclosing: tuple[int, ...], depth: int = 0) -> ValueType:
        """Returns the type of a node.

        Raises:
            _TooComplex: there are more nodes than any job declares.
            IndexError: the node refers to no class.
        """
        self._nodes += 1
        if self._nodes > _MOST_NODES or depth > _DEEPEST:
            raise _TooComplex
        if node.kind == "union":
            return self._optional(node, enclosing, depth)
        if node.kind == "class":
            return self._class(node.class_index, enclosing, depth)
        if node.kind in ("enum", "literal"):
            return _choice(node.choices)
        if node.kind == "datetime":
            return _UTC if node.limits.get("tz") is True else self._no_zone
        parts = [self.build(part, enclosing, depth + 1) for part in node.parts]
        return _container(node.kind, parts) if parts else _scalar(node)

    def _optional(self, node: TypeNode, enclosing: tuple[int, ...], depth: int) -> ValueType:
        others = [part for part in node.parts if part.kind != "none"]
        found = self.build(others[0], enclosing, depth + 1) if len(others) == 1 else _json_type()
        return found.nullable if len(node.parts) > len(others) else found

    def _class(self, index: int, enclosing: tuple[int, ...], depth: int) -> ValueType:
        if index in enclosing:
            return _json_type()
        if index < 0:
            raise IndexError(index)
        schema = self._classes[index]
        types = [self._field(field, (*enclosing, index), depth) for field in schema.fields]
        if not types or len({field.name for field in schema.fields}) < len(types):
            return _json_type()
        return _record(schema, types)

    def _field(self, field: FieldSchema, enclosing: tuple[int, ...], depth: int) -> ValueType:
        """Returns the type of a field: nullable if it may be absent, and has no recorded default."""
        found = self.build(field.type, enclosing, depth + 1)
        if field.required or _has_default(field, found):
            return found
        if not found.shape.nullable:
            return replace(found.nullable, python=Annotated[found.nullable.python, FieldFacts(may_be_absent=True)])
        if not self._refuses_absent:
            return found
        # UNSET has no representation in the column, so the conversion fails for it.
        return replace(found, python=found.python | UnsetType, shape=replace(found.shape, by_columns=False))


def _scalar(node: TypeNode) -> ValueType:
    if node.kind in _OTHERS:
        return _OTHERS[node.kind]
    found = scalar_of(node.kind)
    return _leaf(found) if found else _json_type()


def _choice(choices: Sequence[str]) -> ValueType:
    values = [msgspec.json.decode(choice) for choice in choices]
    kinds = {type(value) for value in values}
    nullable = type(None) in kinds
    kinds.discard(type(None))
    if kinds not in ({str}, {int}):
        return _json_type()
    found = _TEXT if kinds == {str} else _INT
    return found.nullable if nullable else found


def _container(kind: str, parts: Sequence[ValueType]) -> ValueType:
    if kind in ("list", "set", "frozenset", "vartuple"):
        (item,) = parts[:1]
        arrow = pa.list_(pa.field("item", item.arrow))
        return ValueType(GenericAlias(list, (item.python,)), Items(item.shape), arrow)
    if kind == "dict" and len(parts) == 2:
        key, value = parts
        if isinstance(key.shape, Leaf) and not key.shape.nullable and key.python is not JsonText:
            arrow = pa.map_(key.arrow, pa.field("value", value.arrow))
            return ValueType(GenericAlias(dict, (key.python, value.python)), Entries(key.shape, value.shape), arrow)
    if kind == "tuple":
        node = TypeNode(kind="any")
        fields = [FieldSchema(name=f"_{number}", type=node) for number in range(1, len(parts) + 1)]
        return _record(ClassSchema(name="tuple", fields=fields, positional=True), parts)
    return _json_type()


def _record(schema: ClassSchema, types: Sequence[ValueType]) -> ValueType:
    """Returns the type of a class: a struct whose attributes are numbered, since stored names may be any text."""
    attributes = [f"f{number}" for number in range(len(types))]
    fields = [
        (attribute, found.python, _default(field, found))
        for attribute, field, found in zip(attributes, schema.fields, types, strict=True)
    ]
    names = [field.name for field in schema.fields]
    # The tag of a class by position is its first element; among named fields it is one that is not declared.
    is_tagged = schema.positional and bool(schema.tag)
    cls = msgspec.defstruct(
        "Stored",
        [("tag", Annotated[Any, FieldFacts(tag=schema.tag)], msgspec.field())] * is_tagged + fields,
        rename=dict(zip(attributes, names, strict=True)),
        array_like=schema.positional,
        kw_only=True,
    )
    by_columns = not is_tagged and all(found.shape.by_columns for found in types)
    keys = () if schema.positional else tuple(names)
    shape = Record(cls, tuple(attributes), tuple(found.shape for found in types), keys, by_columns=by_columns)
    columns = zip(names, types, strict=True)
    arrow = pa.struct([pa.field(name, found.arrow) for name, found in columns])
    return ValueType(cls, shape, arrow)


def _has_default(field: FieldSchema, found: ValueType) -> bool:
    """Returns whether the recorded default is a value: the result of a job's own factory is not recorded."""
    try:
        _decode_default(field, found)
    except (msgspec.MsgspecError, ValueError):
        return False
    return True


def _decode_default(field: FieldSchema, found: ValueType) -> object:
    if len(field.default) > _LARGEST_DEFAULT:
        raise ValueError("the default is too large")
    return msgspec.convert(from_json_text(field.default), found.python, dec_hook=from_plain)


def _default(field: FieldSchema, found: ValueType) -> object:
    if field.required:
        return msgspec.field()
    if not _has_default(field, found):
        return UNSET if UnsetType in get_args(found.python) else None
    value = _decode_default(field, found)
    if isinstance(value, list | dict | msgspec.Struct):
        return msgspec.field(default_factory=lambda: _decode_default(field, found))
    return value


_SERIALIZED = pa.struct([pa.field("version", pa.int64(), False), pa.field("data", pa.binary(), False)])
_FAILURES = (StateflowError, msgspec.MsgspecError, pa.ArrowException, ValueError, TypeError, OverflowError)
WRITTEN_AT = pa.field("written_at", pa.int64())
"""Milliseconds since 1970, not a timestamp of Arrow: event time can be any number of 64 bits."""


class ValueReader:
    """Decoder of the values of one state.

    Args:
        schema: the recorded schema. Values of earlier types are read as values of the newest one.
        refused: values that are errors, although they could be read.

    Attributes:
        field: the column ``value``. Values of a job's own serializer are structs of its ``version`` and their
            ``data``; for other types see `value_types`.
    """

    def __init__(self, schema: StateSchema, refused: Refused = Refused.NOTHING) -> None:
        self._decode: Callable[[Sequence[bytes]], pa.Array]
        if schema.type.serializer:
            self.field = pa.field("value", _SERIALIZED, nullable=False)
            self._decode = self._decode_each = _serialized
            return
        found = value_type(schema.type, refused)
        self.field = pa.field("value", found.arrow, nullable=found.shape.nullable)
        decoder = value_decoder(found.python, from_plain)

        def decode_each(stored: Sequence[bytes]) -> pa.Array:
            return to_column(found.shape, [decoder.decode(_checked_payload(data)) for data in stored])

        self._decode_each = decode_each
        self._decode = lambda stored: decode_column(found.shape, list(stored), decode_each).view(found.arrow)

    def read(self, stored: Sequence[bytes], describe: Callable[[int], dict[str, object]]) -> pa.Array:
        """Returns the column of stored values.

        Args:
            stored: the values.
            describe: returns the facts of an error for the value at a position: operator, state and key.

        Raises:
            CorruptFile: a value does not decode as the recorded type.
            StateError: Arrow cannot represent a value, for example an integer beyond 64 bits.
        """
        try:
            return self._decode(stored)
        except (*_FAILURES, RecursionError):
            # Only now one by one, to name the key.
            for position, data in enumerate(stored):
                self._check(data, partial(describe, position))
            raise

    def _check(self, data: bytes, describe: Callable[[], dict[str, object]]) -> None:
        try:
            self._decode_each([data])
        except StateError as e:
            e.add_facts(**describe())
            raise
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, CorruptFile) as e:
            raise CorruptFile(
                "a stored value cannot be decoded as the recorded type",
                hint="read another checkpoint or savepoint; verify --deep finds damaged files",
                reason=str(e),
                **describe(),
            ) from e
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as e:
            raise StateError(
                "a stored value has no representation in an Arrow column",
                hint="read the other columns only (columns=…), or the state's entries one by one",
                reason=str(e)[:200],
                **describe(),
            ) from e


def _checked_payload(data: bytes) -> bytes:
    """Returns the msgpack of a stored value; raises ValueError or CorruptFile for one that may take too much memory.

    A value that a job could write is within this bound of plain values.
    """
    payload = data[payload_start(data) :]
    PLAIN.check(payload)
    return payload


def _serialized(stored: Sequence[bytes]) -> pa.Array:
    pairs = [msgspec.msgpack.decode(_checked_payload(data), type=tuple[int, bytes]) for data in stored]
    versions = pa.array([version for version, _ in pairs], pa.int64())
    contents = pa.array([content for _, content in pairs], pa.binary())
    return pa.StructArray.from_arrays([versions, contents], fields=list(_SERIALIZED))


def decode_write_times(stored: Sequence[bytes], time: str) -> pa.Array:
    """Returns the column of the timestamps that the TTL of values counts from, null for values without one.

    Args:
        stored: the values.
        time: the time domain of the TTL, ``processing`` or ``event``.

    Raises:
        CorruptFile: a value has a truncated timestamp.
    """
    heads = b"".join([data[:9] for data in stored])
    if len(heads) == 9 * len(stored):
        table = np.frombuffer(heads, np.uint8).reshape(-1, 9)
        has_time = table[:, 0] == _TIME_FORMATS[time]
        return pa.array(decode_times(table[:, 1:].tobytes()), pa.int64(), mask=~has_time)
    return pa.array([timestamp_of(data, time) for data in stored], pa.int64())


_TIME_FORMATS = {"processing": 2, "event": 3}
