"""Conversion of plain values to a declared type, which changes no value and drops no part of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import TypeVar

import msgspec
from msgspec import structs

from stateflow.errors import SchemaMismatch
from stateflow.types.arrow_types import from_builtin
from stateflow.types.serializers import ValueSerializer

T = TypeVar("T")
_Pair = tuple[object, object]
"""A given value, and what it was converted to."""


class _Changed(ValueError):
    """A converted value is not the given one."""


def converted(value: object, codec: ValueSerializer[T]) -> T:
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
