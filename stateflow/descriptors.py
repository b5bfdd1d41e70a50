"""What a function declares about its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stateflow.errors import JobDefinitionError

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_NAME_LIMIT = 100


@dataclass(frozen=True)
class ValueStateDescriptor(Generic[T]):
    """One value per key.

    Args:
        name: identifies the state within its operator, over all versions of the job.
        value_type: type of the value; everything read is decoded as exactly this type.
    """

    name: str
    value_type: type[T] | Any

    def __post_init__(self) -> None:
        _check_name(self.name)


@dataclass(frozen=True)
class MapStateDescriptor(Generic[K, V]):
    """A map per key, which may be larger than memory.

    Args:
        name: identifies the state within its operator, over all versions of the job.
        key_type: str, int, float, bool, bytes, date or datetime; entries come back in its order.
        value_type: type of the values.
    """

    name: str
    key_type: type[K] | Any
    value_type: type[V] | Any

    def __post_init__(self) -> None:
        _check_name(self.name)


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_LIMIT:
        raise JobDefinitionError("a state's name must be a text of 1 to 100 characters", name=name)
