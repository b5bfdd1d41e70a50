"""State descriptors: the declarations of a function's states."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar, Unpack, overload

from stateflow.errors import JobDefinitionError
from stateflow.types.custom_serializer import Serializer
from stateflow.types.ttl_config import StateTtlConfig, ttl_hint

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")

_NAME_LIMIT = 100

# Type checkers accept only classes for `type[T]`, not `int | None`. So the descriptors have overloads: from an argument
# declared as a union of both, they could not infer T, even for a class.
if TYPE_CHECKING:
    from types import UnionType
    from typing import _SpecialForm

    from typing_extensions import TypeAliasType

    _NotAClass = UnionType | _SpecialForm | TypeAliasType
    """With Any instead, type checkers would infer Any for a class too when another argument is a lambda."""


class ReduceFunction(ABC, Generic[T]):
    """A function that combines two values to one of the same type."""

    @abstractmethod
    def reduce(self, value1: T, value2: T) -> T:
        """Returns the combination of two values."""


class AggregateFunction(ABC, Generic[In, Acc, Out]):
    """A function that adds values to an accumulator, which is stored as state, and computes a result from it."""

    @abstractmethod
    def create_accumulator(self) -> Acc:
        """Returns an accumulator without values."""

    @abstractmethod
    def add(self, value: In, accumulator: Acc) -> Acc:
        """Returns the accumulator after adding `value`; it may be the same object."""

    @abstractmethod
    def get_result(self, accumulator: Acc) -> Out:
        """Returns the result of an accumulator."""

    @abstractmethod
    def merge(self, acc_a: Acc, acc_b: Acc) -> Acc:
        """Returns the combination of two accumulators; needed where windows merge."""


@dataclass(frozen=True)
class StateDescriptor:
    """Base class of state descriptors.

    Args:
        name: identifies the state within its operator, over all versions of the job.
        ttl: time to live of each entry; None for entries that do not expire.
        queryable: name for queries from outside the job; empty for a state that is not queryable.
        serializer: custom serializer of the values, elements or accumulators; by default msgpack of the declared type.
        arguments: what the meaning of stored values depends on, such as the order of a top-n; values that were stored
            with another text are refused. Empty for nothing.
    """

    name: str
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)
    queryable: str = field(default="", kw_only=True)
    serializer: Serializer[Any] | None = field(default=None, kw_only=True)
    arguments: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        self._check_queryable(self.queryable)
        if not isinstance(self.name, str) or not 0 < len(self.name) <= _NAME_LIMIT:
            raise JobDefinitionError(
                "a state's name must be a str of 1 to 100 characters",
                hint='name it, for example "total"',
                name=self.name,
            )
        if self.ttl is not None and not isinstance(self.ttl, StateTtlConfig):
            raise JobDefinitionError(
                "a state's ttl must be a StateTtlConfig", hint=ttl_hint(self.ttl), name=self.name, ttl=repr(self.ttl)
            )
        if self.serializer is not None and not isinstance(self.serializer, Serializer):
            raise JobDefinitionError(
                "a state's serializer must be a Serializer object",
                hint="pass an instance of a subclass of stateflow.Serializer",
                name=self.name,
                serializer=repr(self.serializer),
            )

    def set_queryable(self, name: str) -> Self:
        """Names the state for queries from outside the job; call it before the state is declared. Returns the object.

        Raises:
            JobDefinitionError: the state has another queryable name already, is a list, or the name is not valid.
        """
        self._check_queryable(name)
        if not name or self.queryable not in ("", name):
            raise JobDefinitionError(
                "a state has one queryable name, which is set once",
                hint="pass a name of 1 to 100 characters",
                name=self.name,
                queryable=self.queryable,
                given=name,
            )
        object.__setattr__(self, "queryable", name)
        return self

    def _check_queryable(self, queryable: str) -> None:
        if not isinstance(queryable, str) or len(queryable) > _NAME_LIMIT:
            raise JobDefinitionError(
                "a state's queryable name must be a str of at most 100 characters",
                hint="use a shorter name, or omit it",
                name=self.name,
                queryable=queryable,
            )

    def _check_function(self, argument: str, function: object, base: type | None = None) -> None:
        """Raises JobDefinitionError for an argument that is neither callable nor an instance of `base`."""
        is_object = base is not None and isinstance(function, base)
        if not is_object and (isinstance(function, type) or not callable(function)):
            raise JobDefinitionError(
                f"a state's {argument} must be a function",
                hint=f"check the order of the arguments of {type(self).__name__}",
                name=self.name,
                given=repr(function),
            )


class _Options(TypedDict, total=False):
    """The keyword arguments of all descriptors, for type checkers."""

    ttl: StateTtlConfig | None
    queryable: str
    serializer: Serializer[Any] | None
    arguments: str


@dataclass(frozen=True)
class ValueStateDescriptor(StateDescriptor, Generic[T]):
    """Declares one value per key.

    Attributes:
        value_type: type of the value; stored values are decoded as exactly this type.
        default: value of a key without a stored value. Each key gets a copy.
    """

    value_type: type[T] | object
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

        def __init__(self, name: str, value_type: object, **options: object) -> None: ...


@dataclass(frozen=True)
class ListStateDescriptor(StateDescriptor, Generic[T]):
    """Declares a list per key, which may be larger than memory; adding to it needs no read.

    Args:
        element_type: type of the elements.
    """

    element_type: type[T] | object

    def _check_queryable(self, queryable: str) -> None:
        if queryable:
            raise JobDefinitionError(
                "a list state cannot be queried, because a list may be larger than any answer",
                hint="keep the elements in a map state, which is queried page by page",
                name=self.name,
                queryable=queryable,
            )

    if TYPE_CHECKING:

        @overload
        def __init__(self, name: str, element_type: type[T], **options: Unpack[_Options]) -> None: ...

        @overload
        def __init__(
            self: ListStateDescriptor[Any], name: str, element_type: Any, **options: Unpack[_Options]
        ) -> None: ...

        def __init__(self, name: str, element_type: object, **options: object) -> None: ...


@dataclass(frozen=True)
class MapStateDescriptor(StateDescriptor, Generic[K, V]):
    """Declares a map per key, which may be larger than memory.

    Args:
        key_type: str, int, float, bool, bytes, date or datetime. Entries are iterated in its order, and keys must be
            of exactly this type.
        value_type: type of the values.
    """

    key_type: type[K] | object
    value_type: type[V] | object

    if TYPE_CHECKING:

        @overload
        def __init__(self, name: str, key_type: type[K], value_type: type[V], **options: Unpack[_Options]) -> None: ...

        @overload
        def __init__(
            self: MapStateDescriptor[K, Any], name: str, key_type: type[K], value_type: Any, **options: Unpack[_Options]
        ) -> None: ...

        def __init__(self, name: str, key_type: object, value_type: object, **options: object) -> None: ...


@dataclass(frozen=True)
class ReducingStateDescriptor(StateDescriptor, Generic[T]):
    """Declares one value per key, to which added values are reduced.

    Args:
        reduce_function: a `ReduceFunction`, or a function of two values.
        value_type: type of the values.
    """

    reduce_function: ReduceFunction[T] | Callable[[T, T], T]
    value_type: type[T] | object

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

        def __init__(self, name: str, reduce_function: object, value_type: object, **options: object) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_function("reduce_function", self.reduce_function, ReduceFunction)

    @property
    def reduce(self) -> Callable[[T, T], T]:
        """The reduce function as a callable."""
        given = self.reduce_function
        return given.reduce if isinstance(given, ReduceFunction) else given


@dataclass(frozen=True)
class AggregatingStateDescriptor(StateDescriptor, Generic[In, Acc, Out]):
    """Declares one accumulator per key, to which values are added.

    Args:
        agg_function: adds values to the accumulator and computes the result.
        accumulator_type: type of the accumulator, which is stored.
    """

    agg_function: AggregateFunction[In, Acc, Out]
    accumulator_type: type[Acc] | object

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.agg_function, AggregateFunction):
            raise JobDefinitionError(
                "a state's agg_function must be an AggregateFunction object",
                hint="pass an instance of a subclass of stateflow.AggregateFunction",
                name=self.name,
                given=repr(self.agg_function),
            )


@dataclass(frozen=True)
class FoldingStateDescriptor(StateDescriptor, Generic[In, Acc]):
    """Declares an aggregating state whose result is its accumulator; deprecated, as in Flink.

    Args:
        initial_value: accumulator before the first value. Each key gets a copy.
        fold_function: returns the new accumulator for an accumulator and a value.
        accumulator_type: type of the accumulator.
    """

    initial_value: Acc
    fold_function: Callable[[Acc, In], Acc]
    accumulator_type: type[Acc] | object

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_function("fold_function", self.fold_function)
        warnings.warn(
            "FoldingStateDescriptor is deprecated: use AggregatingStateDescriptor, which reads the same stored state",
            DeprecationWarning,
            stacklevel=3,
        )

    @property
    def aggregating(self) -> AggregatingStateDescriptor[In, Acc, Acc]:
        """The equivalent descriptor of an aggregating state."""
        return AggregatingStateDescriptor(
            self.name,
            _Fold(self.initial_value, self.fold_function),
            self.accumulator_type,
            ttl=self.ttl,
            queryable=self.queryable,
            serializer=self.serializer,
        )


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
        raise JobDefinitionError("a fold function cannot merge two accumulators", hint="use an AggregateFunction")
