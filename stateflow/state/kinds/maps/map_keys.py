"""Encoding of a map's user keys, which must be of exactly the declared type.

Values that are equal in Python may be different keys: 1, 1.0 and True are encoded differently. A value that is put
under a key of another type than the declared one would not be found under a key of the declared type.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import msgspec
import pyarrow as pa
from msgspec import inspect

from stateflow.errors import JobDefinitionError, StateError
from stateflow.state.schema.describe import TYPE_LIMITS
from stateflow.types.arrow_types import NUMPY, python_type
from stateflow.types.declared_types import describe_type
from stateflow.types.key_encoding import PART_ENCODERS, decode_key

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
"""Python type of the keys by msgspec type; each has an entry in `PART_ENCODERS`."""


class MapKeys(Generic[K]):
    """Encoder and decoder of one map's keys.

    Args:
        declared: type of the keys, which may be a union, a literal, `Any`, or a NumPy or Arrow scalar type.
        state: name of the state, for errors.

    Attributes:
        is_limited: whether some values of the Python type are not valid keys.

    Raises:
        JobDefinitionError: the type cannot be that of a key.
    """

    def __init__(self, declared: object, state: str) -> None:
        self._declared = declared
        self._state = state
        try:
            self._type = python_type(declared)
            info = inspect.type_info(self._type)
            self._kinds = frozenset(_kinds_of(info))
            self._encoders = {kind: PART_ENCODERS[kind] for kind in self._kinds}
        except TypeError as e:
            raise JobDefinitionError(
                "a map's keys cannot be of this type",
                hint="declare str, int, float, bool, bytes, date or datetime",
                state=state,
                type=repr(declared),
                reason=str(e),
            ) from e
        self.is_limited = _is_limited(info)

    def encode(self, key: K) -> bytes:
        """Returns the bytes of a key.

        Raises:
            StateError: the key is not of the declared type.
        """
        # Checking the exact type costs nothing extra: the encoder is looked up by it.
        encode = self._encoders.get(type(key))
        if encode is None or self.is_limited:
            encode = self._checked_encoder(key)
        try:
            return encode(key)
        except UnicodeEncodeError as e:
            raise StateError(
                "a value cannot be part of a key", state=self._state, value=repr(key)[:200], reason=str(e)
            ) from e

    def decode(self, data: bytes) -> K:
        """Returns the key in `data`; raises CorruptFile when there is none."""
        # Only keys that `encode` has checked are stored, so it is a K; a damaged one still is some key.
        return cast(K, decode_key(data)[0])

    def check_column(self, keys: pa.Array) -> None:
        """Raises StateError for a key beyond the declared type's limits, in a column of the declared Arrow type."""
        if self.is_limited:
            for key in keys.to_pylist():
                self._checked_encoder(key)

    def _checked_encoder(self, key: object) -> Callable[[object], bytes]:
        reason = "" if type(key) in self._kinds else f"it is of type {type(key).__name__}"
        if not reason and self.is_limited:
            try:
                msgspec.convert(key, self._type)
            except msgspec.ValidationError as e:
                reason = str(e)
        if reason:
            raise StateError(
                "a map's key is not of the declared type",
                hint="convert the key, or declare a state with another key type and a new name",
                state=self._state,
                declared=describe_type(self._declared),
                map_key=repr(key)[:200],
                reason=reason,
            )
        return self._encoders[type(key)]


def _kinds_of(info: inspect.Type) -> list[type]:
    """Returns the Python types of keys that a declared type allows; raises TypeError when it allows others."""
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
        raise TypeError(f"{type(info).__name__.removesuffix('Type')} has no order-preserving encoding")
    return [kind]


def _is_limited(info: inspect.Type) -> bool:
    if isinstance(info, inspect.UnionType):
        return any(map(_is_limited, info.types))
    return isinstance(info, inspect.LiteralType) or any(getattr(info, n, None) is not None for n in TYPE_LIMITS)
