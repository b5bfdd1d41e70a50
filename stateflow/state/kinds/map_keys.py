"""The user keys of a map: of the declared type, exactly.

Values that are equal in Python may be different keys: 1, 1.0 and True have different bytes. So what is put under a key
of another type than the declared one would not be found under the declared one.
"""

from __future__ import annotations

import datetime
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa
from msgspec import inspect

from stateflow.errors import JobDefinitionError, StateError
from stateflow.scalars import NUMPY, python_type
from stateflow.serializers import PART_ENCODERS, decode_key, describe_type

K = TypeVar("K")

_KINDS: dict[type, type] = {
    inspect.StrType: str,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.BoolType: bool,
    inspect.BytesType: bytes,
    inspect.DateType: datetime.date,
    inspect.DateTimeType: datetime.datetime,
    inspect.NoneType: type(None),
}
"""Each is one of `PART_ENCODERS`."""
_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")


class MapKeys(Generic[K]):
    """Encodes and decodes the keys of one map.

    Args:
        declared: the type of the keys; a union, a literal, `Any`, or a scalar of numpy or Arrow, too.
        state: its name, for errors.

    Raises JobDefinitionError for a type that cannot be one of keys.
    """

    def __init__(self, declared: Any, state: str) -> None:
        self._declared = declared
        self._state = state
        try:
            self._type = python_type(declared)
            info = inspect.type_info(self._type)
            self._kinds = frozenset(_kinds_of(info))
            self._encoders = {kind: PART_ENCODERS[kind] for kind in self._kinds}
        except TypeError as e:
            raise JobDefinitionError("a map's keys cannot be of this type", hint="declare str, int, float, bool, "
                                     "bytes, date or datetime", state=state, type=repr(declared),
                                     reason=str(e)) from e  # fmt: skip
        self.is_limited = _is_limited(info)
        """Whether not every value of the right class is a key."""

    def encode(self, key: K) -> bytes:
        """The bytes of a key. Raises StateError when it is not of the declared type."""
        # A look at the exact class costs no more than finding out how it is encoded.
        encode = self._encoders.get(type(key))
        if encode is None or self.is_limited:
            self._check(key)
        try:
            return encode(key)  # type: ignore[misc]
        except UnicodeEncodeError as e:
            raise StateError("a value cannot be part of a key", state=self._state, value=repr(key)[:200],
                             reason=str(e)) from e  # fmt: skip

    def decode(self, data: bytes) -> K:
        """The key in `data`. Raises CorruptFile."""
        key: K = decode_key(data)[0]  # type: ignore[assignment]
        return key

    def check_column(self, keys: pa.Array) -> None:
        """Raises as `encode` does for a key beyond the declared type's limits, in a column of the right Arrow type."""
        if self.is_limited:
            for key in keys.to_pylist():
                self._check(key)

    def _check(self, key: object) -> None:
        reason = "" if type(key) in self._kinds else f"it is of type {type(key).__name__}"
        if not reason and self.is_limited:
            try:
                msgspec.convert(key, self._type)
            except msgspec.ValidationError as e:
                reason = str(e)
        if reason:
            raise StateError("a map's key is not of the declared type", hint="convert it, or declare another key type "
                             "under a new name", state=self._state, declared=describe_type(self._declared),
                             map_key=repr(key)[:200], reason=reason)  # fmt: skip


def _kinds_of(info: Any) -> list[type]:
    """The Python types of the keys that a declared type allows. Raises TypeError when it allows others."""
    if isinstance(info, inspect.UnionType):
        return [kind for part in info.types for kind in _kinds_of(part)]
    if isinstance(info, inspect.LiteralType):
        return [type(value) for value in info.values]
    if isinstance(info, inspect.AnyType) or getattr(info, "cls", None) is object:
        return list(PART_ENCODERS)
    if isinstance(info, inspect.CustomType) and info.cls in NUMPY:
        return [type(info.cls().item())]
    kind = _KINDS.get(type(info))
    if kind is None:
        raise TypeError(f"{type(info).__name__.removesuffix('Type')} has no order of bytes")
    return [kind]


def _is_limited(info: Any) -> bool:
    if isinstance(info, inspect.UnionType):
        return any(map(_is_limited, info.types))
    return isinstance(info, inspect.LiteralType) or any(getattr(info, n, None) is not None for n in _LIMITS)
