"""The values of a frame, encoded as a state's serializer encodes them.

A value of a type without an Arrow column is given as `stateflow.read_state` returns it. A part without a type of Arrow,
such as a union, is JSON there; a tuple is a struct, and a value of a job's own serializer is a struct of its version
and its bytes. No conversion changes a value or drops a part of one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from types import UnionType
from typing import Annotated, TypeVar, Union, get_args, get_origin

import msgspec
import pyarrow as pa
from msgspec import inspect, structs

from stateflow.bootstrap.frames import (
    StateColumns,
    cast_column,
    check_fields,
    check_kind,
    has_repeated_keys,
    is_same_kind,
    plain_values,
)
from stateflow.config.settings import EntryLimits
from stateflow.errors import CorruptFile, DataError, JobDefinitionError, SchemaMismatch, StateflowError
from stateflow.query.value_types import FieldFacts, JsonText, value_type
from stateflow.state.backends.base import value_too_large
from stateflow.state.binary_columns import from_list, largest_of
from stateflow.state.column_serializer import ColumnSerializer, columns_of
from stateflow.state.key_columns import encode_key_columns, parts_of_column
from stateflow.state.kinds.maps.map_state import MapKeys
from stateflow.state.schema import from_json_text, type_schema
from stateflow.types.declared_types import all_types, from_builtin
from stateflow.types.serializers import VALUE_FORMAT, Codec, CustomValueSerializer, ValueSerializer

T = TypeVar("T")


@contextmanager
def name_state_in_errors(name: str) -> Iterator[None]:
    """Adds the name of a state to errors."""
    try:
        yield
    except StateflowError as e:
        e.add_facts(state=name)
        raise


def field_names(codec: Codec) -> frozenset[str]:
    """Returns the names of the columns that values have if their fields are columns; none for values without fields."""
    kind = value_type(type_schema(codec.value_type)).arrow if isinstance(codec, ValueSerializer) else None
    return frozenset(field.name for field in kind) if kind is not None and pa.types.is_struct(kind) else frozenset()


class ValueEncoder:
    """Encoder of the values of one state.

    Args:
        codec: the state's serializer.
        columns: the columns of the frame.
        limits: the largest values that may be written.
        name: name of the state, for errors.
    """

    def __init__(self, codec: Codec, columns: StateColumns, limits: EntryLimits, name: str) -> None:
        self._codec = codec
        self._columns = columns
        self._limits = limits
        self._name = name

    @cached_property
    def _by_columns(self) -> ColumnSerializer | None:
        try:
            return columns_of(self._codec)
        except JobDefinitionError:
            # The type, such as a set, has no Arrow column: its values are converted one by one.
            return None

    @cached_property
    def _restoration(self) -> Restoration | None:
        return restoration_of(self._codec) if isinstance(self._codec, ValueSerializer) else None

    def encode(self, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
        """Returns the encoded value of each row.

        Raises:
            DataError: a value is null.
            SchemaMismatch, StateError: a value is not of the declared type, or cannot be stored.
            EntryTooLarge: a value is larger than its limit.
        """
        column = self._column(batch)
        if column.null_count:
            raise DataError("a value of state is null", hint="filter these rows: a key without a row has no value")
        if has_repeated_keys(column):
            raise DataError("a map in a value has a key twice", hint="drop one of the entries")
        if self._by_columns is None or self._is_converted(column.type, self._by_columns.type):
            encoded = from_list(self._encode_each(column))
        else:
            check_kind(column.type, self._by_columns.type, self._columns.value or "the fields of the values")
            encoded = self._by_columns.encode_column(column)
        if (size := largest_of(encoded)) > self._limits.value_bytes:
            raise value_too_large(self._name, size, self._limits)
        return encoded

    def _is_converted(self, given: pa.DataType, wanted: pa.DataType) -> bool:
        """Returns whether values are converted one by one, although their type has columns of type `wanted`."""
        restoration = self._restoration
        if restoration is None or restoration.removes_nulls:
            return restoration is not None
        return not is_same_kind(given, wanted) and is_same_kind(given, restoration.type)

    def _column(self, batch: pa.RecordBatch) -> pa.Array:
        names = self._columns.fields
        if not names:
            return batch.column(self._columns.value)
        columns = [batch.column(name) for name in names]
        fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=fields)

    def _encode_each(self, column: pa.Array) -> list[bytes]:
        codec = self._codec
        if isinstance(codec, CustomValueSerializer) and (stored := serialized_bytes(column, codec)) is not None:
            return stored
        name = self._columns.value or "the fields of the values"
        values = plain_values(column, name)
        restoration = self._restoration
        if restoration is None or not isinstance(codec, ValueSerializer):
            return [codec.encode(value) for value in values]
        check_fields(column.type, restoration.type, name)
        if (restore := restoration.function) is not None:
            values = [restore(value) for value in values]
        return [codec.encode(convert_value(value, codec)) for value in values]


def encode_map_keys(
    keys: MapKeys[T], wanted: ColumnSerializer | None, column: pa.Array, name: str
) -> pa.LargeBinaryArray:
    """Returns the encoded keys of the entries of a map.

    Args:
        keys: the map's encoder of one key.
        wanted: the column serializer of the map's keys; None if they may have several types.
        column: the keys; null is the key None of several types.
        name: name of the column, for errors.

    Raises:
        DataError: a key is null.
        SchemaMismatch, StateError: a key is not of the declared type.
    """
    if wanted is None or pa.types.is_struct(column.type):
        return from_list([keys.encode(key) for key in parts_of_column(column, name)])
    if column.null_count:
        raise DataError("a key of a map is null", hint="filter these rows", column=name)
    column = cast_column(column, wanted.type, name)
    keys.check_column(column)
    return encode_key_columns([column])


Restore = Callable[[object], object]
Tags = dict[str, str | int]
_SERIALIZED = {"version", "data"}


@dataclass(frozen=True)
class Restoration:
    """How a value of a column becomes a plain one of the declared type.

    Attributes:
        function: None if they are equal. Raises SchemaMismatch for a text that is not JSON.
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


_Pair = tuple[object, object]
"""A given value, and what it was converted to."""


class _Changed(ValueError):
    """A converted value is not the given one."""


def convert_value(value: object, codec: ValueSerializer[T]) -> T:
    """Returns a plain value as one of the declared type.

    Args:
        value: dicts, lists and scalars.
        codec: the state's serializer.

    Raises:
        SchemaMismatch: it is of another type, has a field that the type does not have, has two keys that are equal in
            this type, or a number that the type would round.
    """
    try:
        found: T = msgspec.convert(value, codec.value_type, dec_hook=from_builtin)
        _check(value, found)
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as e:
        raise SchemaMismatch(
            "a value is not of the type of the state",
            hint="convert the column before it is written",
            declared=codec.type_name,
            value=repr(value)[:200],
            reason=str(e)[:200],
        ) from e
    return found


def _check(value: object, converted_value: object) -> None:
    """Raises _Changed if msgspec has dropped or merged a part of a value, or rounded a number."""
    pairs: list[_Pair] = [(value, converted_value)]
    while pairs:
        given, found = pairs.pop()
        if isinstance(given, dict):
            pairs += _parts_of_object(given, found)
        elif isinstance(given, list):
            pairs += _parts_of_list(given, found)
        elif isinstance(found, float):
            _check_number(given, found)


def _parts_of_object(given: dict[object, object], found: object) -> Iterator[_Pair]:
    """Yields the parts of an object with what they became; raises _Changed if one is missing."""
    if isinstance(found, dict):
        if len(found) < len(given):
            missing = [key for key in given if key not in found]
            raise _Changed(f"two of its keys are equal, or it has no field {missing[:3]}")
        parts = found if given.keys() == found.keys() else dict(zip(given, found.values(), strict=False))
    else:
        parts = _fields_of(found)
        if missing := [name for name in given if name not in parts and name != _tag_field(found)]:
            raise _Changed(f"the type has no field {missing[:3]}")
    yield from ((item, parts[name]) for name, item in given.items() if name in parts)


def _parts_of_list(given: list[object], found: object) -> Iterator[_Pair]:
    """Yields the elements of a list with what they became; raises _Changed if one is missing."""
    if isinstance(found, set | frozenset):
        if len(found) < len(given):
            raise _Changed("two elements of a set are equal")
        # A set has no order: numbers are compared with themselves.
        if any(isinstance(item, float) for item in found):
            yield from ((item, float(item)) for item in given if isinstance(item, int | Decimal))
        return
    parts = list(found if isinstance(found, list | tuple) else _elements_of(found))
    if len(parts) < len(given):
        raise _Changed(f"it has {len(given)} elements, and the type {len(parts)}")
    yield from zip(given, parts, strict=False)


def _fields_of(found: object) -> dict[object, object]:
    if isinstance(found, msgspec.Struct):
        return {field.encode_name: getattr(found, field.name) for field in structs.fields(found)}
    if dataclasses.is_dataclass(found):
        return {field.name: getattr(found, field.name, None) for field in dataclasses.fields(found)}
    names = getattr(found, "_fields", ())
    return dict(zip(names, found, strict=True)) if isinstance(found, tuple) else {}


def _elements_of(found: object) -> Iterable[object]:
    """Yields the tag and the fields of a class by position."""
    if isinstance(found, msgspec.Struct) and found.__struct_config__.tag is not None:
        yield found.__struct_config__.tag
    yield from _fields_of(found).values()


def _tag_field(found: object) -> object:
    return found.__struct_config__.tag_field if isinstance(found, msgspec.Struct) else None


def _check_number(given: object, found: float) -> None:
    is_changed = isinstance(given, int) and given != found
    if is_changed or (isinstance(given, Decimal) and Decimal(repr(found)) != given):
        raise _Changed(f"{given} is not exactly a float")
