"""Values of types without an Arrow column, as `stateflow.read_state` returns them: JSON texts, tuples, bytes.

A part of a value without a type of Arrow, such as a union, is JSON there. A tuple is a struct, and a value of a job's
own serializer is a struct of its version and its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import get_args, get_origin

import msgspec
import pyarrow as pa

from stateflow.errors import CorruptFile, SchemaMismatch
from stateflow.query.columns.value_types import JsonText, value_type
from stateflow.state.schema.describe import type_schema
from stateflow.types.serializers import VALUE_FORMAT, CustomValueSerializer, ValueSerializer

Restore = Callable[[object], object]
_SERIALIZED = ["version", "data"]


def restored_by(codec: ValueSerializer[object]) -> Restore | None:
    """Returns the function from a value of a column to a plain one of the declared type; None if they are equal.

    The function raises SchemaMismatch for a text that is no JSON.

    Args:
        codec: the state's serializer.
    """
    return _restore_of(value_type(type_schema(codec.value_type)).python)


def serialized_bytes(column: pa.Array, codec: CustomValueSerializer[object]) -> list[bytes] | None:
    """Returns stored values of a job's own serializer; None if the column does not have their versions and bytes.

    Args:
        column: the column of the values.
        codec: the serializer.

    Raises:
        SchemaMismatch: the serializer cannot decode a value.
    """
    kind = column.type
    if not pa.types.is_struct(kind) or [field.name for field in kind] != _SERIALIZED:
        return None
    return [_checked(codec, each["version"], each["data"]) for each in column.to_pylist()]


def _checked(codec: CustomValueSerializer[object], version: object, data: object) -> bytes:
    stored = VALUE_FORMAT + msgspec.msgpack.encode((version, data))
    try:
        codec.decode(stored)
    except CorruptFile as e:
        raise SchemaMismatch(
            "the state's serializer cannot decode a value",
            hint="pass the values of a state with this serializer",
            serializer=codec.custom.name,
            reason=str(e)[:200],
        ) from e
    return stored


def _restore_of(kind: object) -> Restore | None:
    if kind is JsonText:
        return _from_json
    if isinstance(kind, UnionType):
        (of,) = (part for part in get_args(kind) if part is not type(None))
        return _restore_of(of)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _record_of(kind)
    of_items = _restore_of(get_args(kind)[-1]) if get_origin(kind) in (list, dict) else None
    if of_items is None:
        return None
    restore = of_items
    if get_origin(kind) is list:
        return lambda given: [restore(item) for item in given] if isinstance(given, list) else given
    return lambda given: {k: restore(item) for k, item in given.items()} if isinstance(given, dict) else given


def _record_of(kind: type[msgspec.Struct]) -> Restore | None:
    """Returns the function for a record: of one by position, the list of its fields in their order."""
    fields = {field.encode_name: _restore_of(field.type) for field in msgspec.structs.fields(kind)}
    is_positional = kind.__struct_config__.array_like
    if not is_positional and not any(fields.values()):
        return None

    def restore(given: object) -> object:
        if not isinstance(given, dict):
            return given
        found = {name: of(given[name]) if (of := fields.get(name)) else given[name] for name in given}
        return list(found.values()) if is_positional and list(found) == list(fields) else found

    return restore


def _from_json(given: object) -> object:
    if not isinstance(given, str):
        return given
    try:
        return msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError) as e:
        raise SchemaMismatch(
            "a part of a value whose type has no column is not JSON",
            hint="write it as JSON, as stateflow.read_state returns it: a text in quotation marks",
            value=given[:200],
            reason=str(e)[:200],
        ) from e
