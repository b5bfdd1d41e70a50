"""Key groups: the unit of state redistribution, computed by Spark for rows and by Python for lookups.

A key's group is ``pmod(xxhash64(columns), max_parallelism)``. Spark chains its hash: the first column is hashed with
seed 42, each further one with the previous hash as seed; a null leaves the seed as it is. Types matter: Spark hashes an
int as 4 bytes and a long as 8, so the declared type of a key column is part of the format. Algorithm: XXH64,
https://xxhash.com; the byte layout of each type follows Spark's ``XxHash64`` expression.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from stateflow.errors import ConfigError, StateError
from stateflow.types.declared_types import decimal_digits

SPARK_SEED = 42
MAX_PARALLELISM_LIMIT = 1 << 15
_U64 = 1 << 64
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1)
_EXACT = decimal.Context(prec=100)
"""Python's default precision of 28 digits would round Spark's decimals, which have up to 38."""


@dataclass(frozen=True)
class KeyGroupRange:
    """The key groups from `first` to `last`, both included."""

    first: int
    last: int

    def __contains__(self, group: int) -> bool:
        return self.first <= group <= self.last

    def __len__(self) -> int:
        return self.last - self.first + 1

    def overlap(self, other: KeyGroupRange) -> KeyGroupRange | None:
        """Returns the key groups in both ranges; None without any."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return KeyGroupRange(first, last) if first <= last else None


DEFAULT_MAX_PARALLELISM = 4096
"""The max parallelism of a new job root unless it is configured."""


def check_max_parallelism(value: int) -> int:
    """Returns `value` if it is a valid max parallelism; raises ConfigError otherwise."""
    if not 1 <= value <= MAX_PARALLELISM_LIMIT:
        raise ConfigError(
            "max_parallelism is out of range", hint=f"set it to 1 to {MAX_PARALLELISM_LIMIT}", value=value
        )
    return value


def range_of(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Returns the key groups that subtask `subtask` of `parallelism` owns."""
    first = -(-subtask * max_parallelism // parallelism)
    last = -(-(subtask + 1) * max_parallelism // parallelism) - 1
    return KeyGroupRange(first, last)


def subtask_of(group: int, parallelism: int, max_parallelism: int) -> int:
    """Returns the subtask that owns key group `group`."""
    return group * parallelism // max_parallelism


def key_hash(values: Sequence[object], types: Sequence[str]) -> int:
    """Returns Spark's ``xxhash64`` of the columns as a signed 64-bit integer.

    Args:
        values: one value per key column; None for null.
        types: Spark's simple type name of each column, for example ``bigint``.

    Raises:
        StateError: a value is not of its type.
    """
    seed = SPARK_SEED
    for value, name in zip(values, types, strict=True):
        if value is not None:
            seed = xxhash.xxh64_intdigest(_hash_bytes(value, name), seed)
    return seed - _U64 if seed >= _U64 >> 1 else seed


def key_group(values: Sequence[object], types: Sequence[str], max_parallelism: int) -> int:
    """Returns the key group of a key; see `key_hash` for arguments and errors."""
    return key_hash(values, types) % max_parallelism


def check_key_type(name: str, column: str) -> str:
    """Returns a Spark type name if its values have the same hash in Spark and Python.

    Args:
        name: Spark's simple type name.
        column: name of the key column, for the error.

    Raises:
        ConfigError: columns of the type cannot be part of a key.
    """
    if name in _ENCODERS or name.startswith("decimal("):
        return name
    reason = "equal collated strings may have different bytes" if "collate" in name else "it has no stable hash"
    advice = "cast it to string or bigint"
    if name.startswith(("struct<", "array<", "map<")):
        reason, advice = "only scalars can be keys", "add a column with a part of it in a transform or map"
    raise ConfigError(
        "a column of this type cannot be part of a key", hint=f"{reason}; {advice}", column=column, type=name
    )


def _hash_bytes(value: object, name: str) -> bytes:
    encode = _ENCODERS.get(name)
    try:
        return encode(value) if encode else _decimal(value, name)
    except (TypeError, ValueError, ArithmeticError, AttributeError, struct.error) as e:
        raise StateError("a key's value does not have its declared type", value=value, type=name) from e


def _int(value: int) -> bytes:
    return struct.pack("<i", value)


def _long(value: int) -> bytes:
    return struct.pack("<q", value)


def _float(value: float) -> bytes:
    number = value + 0.0  # -0.0 and 0.0 are one key
    return b"\0\0\xc0\x7f" if number != number else struct.pack("<f", number)


def _double(value: float) -> bytes:
    number = value + 0.0  # -0.0 and 0.0 are one key
    return b"\0\0\0\0\0\0\xf8\x7f" if number != number else struct.pack("<d", number)


def _timestamp(value: object) -> bytes:
    if not isinstance(value, datetime.datetime):
        raise TypeError(value)
    aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
    return struct.pack("<q", (aware - _EPOCH) // datetime.timedelta(microseconds=1))


def _time(value: object) -> bytes:
    """Spark counts times in nanoseconds."""
    if not isinstance(value, datetime.time) or value.tzinfo is not None:
        raise TypeError(value)
    since = datetime.datetime.combine(_EPOCH_DAY, value) - datetime.datetime.combine(_EPOCH_DAY, datetime.time())
    return struct.pack("<q", since // datetime.timedelta(microseconds=1) * 1000)


def _interval(value: object) -> bytes:
    if not isinstance(value, datetime.timedelta):
        raise TypeError(value)
    return struct.pack("<q", value // datetime.timedelta(microseconds=1))


def _date(value: object) -> bytes:
    if not isinstance(value, datetime.date):
        raise TypeError(value)
    return struct.pack("<i", (value - _EPOCH_DAY).days)


def _decimal(value: Any, name: str) -> bytes:
    digits = decimal_digits(name)
    if digits is None:
        raise ValueError(name)
    precision, scale = digits
    unscaled = int(decimal.Decimal(value).scaleb(scale, _EXACT))
    if precision <= 18:
        return struct.pack("<q", unscaled)
    return unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)


_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "string": lambda v: v.encode(),
    "binary": lambda v: bytes(memoryview(v)),  # bytes(5) would be five zeros
    **dict.fromkeys(("boolean", "tinyint", "smallint", "int"), _int),
    "bigint": _long,
    "float": _float,
    "double": _double,
    "date": _date,
    **dict.fromkeys(("timestamp", "timestamp_ntz"), _timestamp),
    "time(6)": _time,
    "interval day to second": _interval,
}
