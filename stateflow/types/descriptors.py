"""What a function declares about its state."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, overload

from stateflow.errors import JobDefinitionError
from stateflow.time_to_live import StateTtlConfig

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")

_NAME_LIMIT = 100

# A type checker takes only a class for `type[T]`, and not `int | None`. So the descriptors have overloads: from a type
# that may be both it could not tell what T is, even for a class.
if TYPE_CHECKING:
    from types import UnionType
    from typing import _SpecialForm

    from typing_extensions import TypeAliasType

    _NotAClass = UnionType | _SpecialForm | TypeAliasType
    """Beside a lambda, Any would make a type checker choose Any for a class as well."""


class ReduceFunction(ABC, Generic[T]):
    """Combines two values to one of the same type."""

    @abstractmethod
    def reduce(self, value1: T, value2: T) -> T:
        """The two values as one."""


class AggregateFunction(ABC, Generic[In, Acc, Out]):
    """Collects values in an accumulator, which is what state keeps, and makes a result of it."""

    @abstractmethod
    def create_accumulator(self) -> Acc:
        """An accumulator without any value."""

    @abstractmethod
    def add(self, value: In, accumulator: Acc) -> Acc:
        """The accumulator with `value` in it; it may be the same object, changed."""

    @abstractmethod
    def get_result(self, accumulator: Acc) -> Out:
        """What the accumulator stands for."""

    @abstractmethod
    def merge(self, acc_a: Acc, acc_b: Acc) -> Acc:
        """Two accumulators as one; needed where windows merge."""


class Compatibility(Enum):
    """What a serializer can do with values that another version of it wrote."""

    AS_IS = "as is"
    AFTER_MIGRATION = "after migration"
    INCOMPATIBLE = "incompatible"


class Serializer(ABC, Generic[T]):
    """Turns a state's values into bytes and back, where a declared type is not enough.

    Each value is stored with the version that wrote it. A value of an older version is decoded when it is read, and
    has the newest version once it is written again: `decode` must know every version that `compatibility` accepts.

    Attributes:
        name: says whose bytes these are, over all versions of the job; a state's serializer cannot be exchanged for
            one with another name.
        version: of what `encode` writes; from 1 on.
    """

    name: str
    version: int = 1

    @abstractmethod
    def encode(self, value: T) -> bytes:
        """The bytes of a value. What it raises is told as a StateError."""

    @abstractmethod
    def decode(self, data: bytes, version: int) -> T:
        """The value that `encode` of this version made `data` of. What it raises is told as a CorruptFile. `data` may
        be damaged: it must never choose what code runs."""

    def compatibility(self, stored_version: int) -> Compatibility:
        """Whether values of this version can be decoded; asked before a run claims the job. By default only those of
        `version` itself."""
        return Compatibility.AS_IS if stored_version == self.version else Compatibility.INCOMPATIBLE


@dataclass(frozen=True)
class StateDescriptor:
    """What all states have.

    Args:
        name: identifies the state within its operator, over all versions of the job.
        ttl: how long an entry lives; for ever if None.
        queryable: the name under which the state can be asked for from outside; empty if it cannot.
        serializer: what encodes the state's values, elements or accumulators; by default msgpack of the declared type.
    """

    name: str
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)
    queryable: str = field(default="", kw_only=True)
    serializer: Serializer[Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= _NAME_LIMIT:
            raise JobDefinitionError("a state's name must be a text of 1 to 100 characters", name=self.name)
        if not isinstance(self.queryable, str) or len(self.queryable) > _NAME_LIMIT:
            raise JobDefinitionError("a state's queryable name must be a text of at most 100 characters",
                                     name=self.name, queryable=self.queryable)  # fmt: skip
        if self.ttl is not None and not isinstance(self.ttl, StateTtlConfig):
            raise JobDefinitionError("a state's ttl must be a StateTtlConfig", hint=_ttl_hint(self.ttl), name=self.name,
                                     ttl=repr(self.ttl))  # fmt: skip
        if self.serializer is not None and not isinstance(self.serializer, Serializer):
            raise JobDefinitionError("a state's serializer must be an object of a Serializer class",
                                     hint="pass an object of a class that extends stateflow.Serializer",
                                     name=self.name, serializer=repr(self.serializer))  # fmt: skip

    def _check_function(self, argument: str, function: object, base: type | None = None) -> None:
        """Raises JobDefinitionError for an argument that is neither callable nor an object of `base`."""
        is_object = base is not None and isinstance(function, base)
        if not is_object and (isinstance(function, type) or not callable(function)):
            raise JobDefinitionError(f"a state's {argument} must be a function", hint="is the order of the arguments "
                                     f"that of {type(self).__name__}?", name=self.name,
                                     given=repr(function))  # fmt: skip


def _ttl_hint(given: object) -> str:
    """How to write a time to live, with the duration that was given where it has a short form."""
    if not isinstance(given, timedelta) or given <= timedelta(0):
        return "StateTtlConfig.new_builder(Time.days(7)).build()"
    units = {"days": timedelta(days=1), "hours": timedelta(hours=1), "minutes": timedelta(minutes=1),
             "seconds": timedelta(seconds=1), "milliseconds": timedelta(milliseconds=1)}  # fmt: skip
    unit = next((name for name, length in units.items() if not given % length), "milliseconds")
    return f"StateTtlConfig.new_builder(Time.{unit}({given // units[unit]})).build()"


class _Options(TypedDict, total=False):
    """What all descriptors take by keyword, for type checkers."""

    ttl: StateTtlConfig | None
    queryable: str
    serializer: Serializer[Any] | None


@dataclass(frozen=True)
class ValueStateDescriptor(StateDescriptor, Generic[T]):
    """One value per key.

    Args:
        value_type: type of the value; everything read is decoded as exactly this type.
        default: what a key without a value has. Each key gets a copy.
    """

    value_type: type[T] | Any
    default: T | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:

        @overload
        def __init__(
            self, name: str, value_type: type[T], *, default: T | None = None, **options: Unpack[_Options]
        ) -> None: ...

        @overload
        def __init__(
            self: ValueStateDescriptor[Any],
            name: str,
            value_type: Any,
            *,
            default: Any = None,
            **options: Unpack[_Options],
        ) -> None: ...

        def __init__(self, name: str, value_type: Any, **options: Any) -> None: ...


@dataclass(frozen=True)
class ListStateDescriptor(StateDescriptor, Generic[T]):
    """A list per key, which may be larger than memory; adding to it reads nothing.

    Args:
        element_type: type of the elements.
    """

    element_type: type[T] | Any

    if TYPE_CHECKING:

        @overload
        def __init__(self, name: str, element_type: type[T], **options: Unpack[_Options]) -> None: ...

        @overload
        def __init__(
            self: ListStateDescriptor[Any], name: str, element_type: Any, **options: Unpack[_Options]
        ) -> None: ...

        def __init__(self, name: str, element_type: Any, **options: Any) -> None: ...


@dataclass(frozen=True)
class MapStateDescriptor(StateDescriptor, Generic[K, V]):
    """A map per key, which may be larger than memory.

    Args:
        key_type: str, int, float, bool, bytes, date or datetime; entries come back in its order. Keys must be of
            exactly this type.
        value_type: type of the values.
    """

    key_type: type[K] | Any
    value_type: type[V] | Any

    if TYPE_CHECKING:

        @overload
        def __init__(
            self, name: str, key_type: type[K], value_type: type[V], **options: Unpack[_Options]
        ) -> None: ...

        @overload
        def __init__(
            self: MapStateDescriptor[K, Any],
            name: str,
            key_type: type[K],
            value_type: Any,
            **options: Unpack[_Options],
        ) -> None: ...

        def __init__(self, name: str, key_type: Any, value_type: Any, **options: Any) -> None: ...


@dataclass(frozen=True)
class ReducingStateDescriptor(StateDescriptor, Generic[T]):
    """One value per key, to which each added value is reduced.

    Args:
        reduce_function: a `ReduceFunction`, or a function of two values.
        value_type: type of the values.
    """

    reduce_function: ReduceFunction[T] | Callable[[T, T], T]
    value_type: type[T] | Any

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            name: str,
            reduce_function: ReduceFunction[T] | Callable[[T, T], T],
            value_type: type[T],
            **options: Unpack[_Options],
        ) -> None: ...

        @overload
        def __init__(
            self: ReducingStateDescriptor[Any],
            name: str,
            reduce_function: ReduceFunction[Any] | Callable[[Any, Any], Any],
            value_type: _NotAClass,
            **options: Unpack[_Options],
        ) -> None: ...

        def __init__(self, name: str, reduce_function: Any, value_type: Any, **options: Any) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_function("reduce_function", self.reduce_function, ReduceFunction)

    @property
    def reduce(self) -> Callable[[T, T], T]:
        """The function."""
        given = self.reduce_function
        return given.reduce if isinstance(given, ReduceFunction) else given


@dataclass(frozen=True)
class AggregatingStateDescriptor(StateDescriptor, Generic[In, Acc, Out]):
    """One accumulator per key, in which added values are collected.

    Args:
        agg_function: how.
        accumulator_type: type of the accumulator, which is what is stored.
    """

    agg_function: AggregateFunction[In, Acc, Out]
    accumulator_type: type[Acc] | Any

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.agg_function, AggregateFunction):
            raise JobDefinitionError("a state's agg_function must be an object of an AggregateFunction class",
                                     hint="pass an object of a class that extends stateflow.AggregateFunction",
                                     name=self.name, given=repr(self.agg_function))  # fmt: skip


@dataclass(frozen=True)
class FoldingStateDescriptor(StateDescriptor, Generic[In, Acc]):
    """Deprecated, as in Flink: an aggregating state whose result is its accumulator.

    Args:
        initial_value: what the first value is folded into. Each key gets a copy.
        fold_function: of the accumulator and a value, gives the new accumulator.
        accumulator_type: type of the accumulator.
    """

    initial_value: Acc
    fold_function: Callable[[Acc, In], Acc]
    accumulator_type: type[Acc] | Any

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_function("fold_function", self.fold_function)
        warnings.warn("FoldingStateDescriptor is deprecated: use AggregatingStateDescriptor, which finds the same "
                      "stored state", DeprecationWarning, stacklevel=3)  # fmt: skip

    @property
    def aggregating(self) -> AggregatingStateDescriptor[In, Acc, Acc]:
        """The same state as what it should be declared as."""
        return AggregatingStateDescriptor(
            self.name, _Fold(self.initial_value, self.fold_function), self.accumulator_type, ttl=self.ttl,
            queryable=self.queryable, serializer=self.serializer,
        )  # fmt: skip


@dataclass(frozen=True)
class _Fold(AggregateFunction[In, Acc, Acc]):
    initial_value: Acc
    fold_function: Callable[[Acc, In], Acc]

    def create_accumulator(self) -> Acc:
        return copy.deepcopy(self.initial_value)

    def add(self, value: In, accumulator: Acc) -> Acc:
        return self.fold_function(accumulator, value)

    def get_result(self, accumulator: Acc) -> Acc:
        return accumulator

    def merge(self, acc_a: Acc, acc_b: Acc) -> Acc:
        raise JobDefinitionError("a fold cannot merge two accumulators", hint="use an AggregateFunction")
