"""Values of types without an Arrow column, as `stateflow.read_state` returns them: JSON texts, tuples, bytes.

A part of a value without a type of Arrow, such as a union, is JSON there. A tuple is a struct, and a value of a job's
own serializer is a struct of its version and its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

import msgspec
import pyarrow as pa
from msgspec import inspect, structs

from stateflow.errors import CorruptFile, SchemaMismatch
from stateflow.query.columns.value_types import FieldFacts, JsonText, value_type
from stateflow.state.schema.describe import type_schema
from stateflow.state.schema.plain_json import from_json_text
from stateflow.types.declared_types import all_types
from stateflow.types.serializers import VALUE_FORMAT, CustomValueSerializer, ValueSerializer

Restore = Callable[[object], object]
Tags = dict[str, str | int]
_SERIALIZED = {"version", "data"}


@dataclass(frozen=True)
class Restoration:
    """How a value of a column becomes a plain one of the declared type.

    Attributes:
        function: None if they are equal. Raises SchemaMismatch for a text that is no JSON.
        removes_nulls: whether a null field may be an absent one.
        type: the type of the column, as `stateflow.read_state` returns it.
    """

    function: Restore | None
    removes_nulls: bool
    type: pa.DataType


def restoration_of(codec: ValueSerializer[object]) -> Restoration:
    """Returns how values of a state are restored.

    Args:
        codec: the state's serializer.
    """
    restorer = _Restorer(_tags_of(codec.value_type))
    plain = value_type(type_schema(codec.value_type))
    function = restorer.of(plain.python)
    return Restoration(function, restorer.removes_nulls, plain.arrow)


def serialized_bytes(column: pa.Array, codec: CustomValueSerializer[object]) -> list[bytes] | None:
    """Returns stored values of a job's own serializer; None if the column does not have their versions and bytes.

    Args:
        column: the column of the values.
        codec: the serializer.

    Raises:
        SchemaMismatch: the serializer cannot decode a value.
    """
    kind = column.type
    if not pa.types.is_struct(kind) or {field.name for field in kind} != _SERIALIZED:
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


def _tags_of(value_type: object) -> Tags:
    """Returns the tags of all classes within a type, by the texts that schemas have."""
    structs_within = (info for info in all_types(value_type) if isinstance(info, inspect.StructType))
    return {f"{info.tag_field}={info.tag}": info.tag for info in structs_within if info.tag is not None}


@dataclass
class _Restorer:
    """Builds the functions for the parts of a type.

    Attributes:
        tags: the declared tags by their recorded texts.
        removes_nulls: as for `Restoration`, of the types so far.
    """

    tags: Tags
    removes_nulls: bool = False

    def of(self, kind: object) -> Restore | None:
        """Returns the function for the values of a type of `value_types`; None if they are equal."""
        origin, parts = get_origin(kind), get_args(kind)
        if kind is JsonText:
            return _from_json
        if origin is Annotated:
            return self.of(parts[0])
        if isinstance(kind, UnionType) or origin is Union:
            return self.of(*(part for part in parts if part is not type(None)))
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._of_record(kind)
        of_items = self.of(parts[-1]) if origin in (list, dict) else None
        if of_items is None:
            return None
        restore = of_items
        if origin is list:
            return lambda given: [restore(item) for item in given] if isinstance(given, list) else given
        return lambda given: {k: restore(item) for k, item in given.items()} if isinstance(given, dict) else given

    def _of_record(self, kind: type[msgspec.Struct]) -> Restore | None:
        """Returns the function for a record: of one by position, the list of its tag and of its fields in order."""
        fields = [(field.encode_name, _facts_of(field.type), self.of(field.type)) for field in structs.fields(kind)]
        absent = frozenset(name for name, facts, _ in fields if facts.may_be_absent)
        self.removes_nulls |= bool(absent)
        functions = {name: function for name, _, function in fields if function}
        is_positional = kind.__struct_config__.array_like
        if not is_positional and not absent and not functions:
            return None
        tag = [self.tags[facts.tag] for _, facts, _ in fields if facts.tag]
        names = [name for name, facts, _ in fields if not facts.tag]

        def restore(given: object) -> object:
            if not isinstance(given, dict):
                return given
            found = {name: functions[name](part) if name in functions else part for name, part in given.items()}
            if is_positional and found.keys() == set(names):
                return tag + [found[name] for name in names]
            return {name: part for name, part in found.items() if part is not None or name not in absent}

        return restore


def _facts_of(kind: object) -> FieldFacts:
    given = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((each for each in given if isinstance(each, FieldFacts)), FieldFacts())


def _from_json(given: object) -> object:
    if not isinstance(given, str):
        return given
    try:
        return from_json_text(given)
    except (ValueError, RecursionError) as e:
        raise SchemaMismatch(
            "a part of a value whose type has no column is not JSON",
            hint="write it as JSON, as stateflow.read_state returns it: a text in quotation marks",
            value=given[:200],
            reason=str(e)[:200],
        ) from e
