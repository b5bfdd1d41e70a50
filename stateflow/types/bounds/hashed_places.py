"""The places of a declared type at which decoding inserts keys into dicts and elements into sets.

Python hashes texts and binary data with a secret of the process. Numbers, timestamps, and what consists of them, have
the same hash in each process, so an attacker who forges a value can choose many that collide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from msgspec import inspect

from stateflow.types.declared_types import types_within

NUMBER, CHEAP, COSTLY = 1, 8, 32
"""Steps in which two keys are compared: numbers, of which few have the same hash, so that only hashes are compared; and
for each item of other keys, of types that are compared fast, and of others."""

_SETS = inspect.SetType | inspect.FrozenSetType
_LISTS = _SETS | inspect.ListType | inspect.VarTupleType
_CLASSES = inspect.StructType | inspect.DataclassType | inspect.NamedTupleType | inspect.TypedDictType
# A date is hashed as its bytes are. Of types with few values, a dict has few keys.
_SECRET = (
    inspect.StrType
    | inspect.BytesType
    | inspect.DateType
    | inspect.EnumType
    | inspect.LiteralType
    | inspect.BoolType
    | inspect.NoneType
)
_OF_NUMBERS = inspect.IntType | inspect.FloatType | inspect.CustomType
_TIMES = inspect.DateTimeType | inspect.TimeType | inspect.TimeDeltaType
_CHEAP_TYPES = (
    _SECRET
    | inspect.IntType
    | inspect.FloatType
    | inspect.AnyType
    | inspect.TupleType
    | inspect.VarTupleType
    | inspect.NamedTupleType
    | inspect.StructType
)
"""Types of keys that are compared without calling Python, and without searching in a set."""


class Place:
    """A place in values of a declared type, with the places of the items of a container there.

    Attributes:
        is_set: whether an array there can become a set of elements whose hashes are not secret.
        text_steps: what comparing a text takes that is a key or an element there; 0 if its hash is secret.
    """

    def __init__(self, types: Iterable[inspect.Type], known: dict[frozenset[int], Place]) -> None:
        self._types = tuple(types)
        # By identity: types of classes that refer to themselves have no end, but few are different.
        self._known = known
        self.is_set = have_sets(self._types)
        self.text_steps = max(map(_text_steps, _keys(self._types)), default=0)

    @cached_property
    def item(self) -> Place:
        """The place of all items of an array."""
        return self._place(inner for info in self._types for inner in _items(info))

    @cached_property
    def key(self) -> Place:
        """The place of all keys of a map."""
        return self._place(_keys(self._types))

    @cached_property
    def value(self) -> Place:
        """The place of all values of a map."""
        return self._place(inner for info in self._types for _, inner in _values(info))

    @cached_property
    def has_no_keys(self) -> bool:
        """Whether all keys and elements there and below have secret hashes."""
        return not hashed_types(_within(self._types))

    @cached_property
    def has_number_keys(self) -> bool:
        """Whether the keys of a map are numbers, and there are no others below it whose hashes are not secret."""
        inner = _within(inner for info in self._types for _, inner in _values(info))
        are_numbers = largest_steps(_keys(self._types)) == NUMBER and not self.text_steps
        return are_numbers and not hashed_types(inner)

    @cached_property
    def fields(self) -> dict[bytes, Place]:
        """The places of values by the names of fields."""
        found = [pair for info in self._types for pair in _values(info)]
        names = {name for name, _ in found if name is not None}
        return {name.encode(): self._place(i for other, i in found if other in (name, None)) for name in names}

    def _place(self, types: Iterable[inspect.Type]) -> Place:
        chosen = list(_choices(types))
        identity = frozenset(map(id, chosen))
        if identity not in self._known:
            self._known[identity] = Place(chosen, self._known)
        return self._known[identity]


def _text_steps(info: inspect.Type) -> int:
    if isinstance(info, inspect.DecimalType | inspect.UUIDType):
        return COSTLY
    return NUMBER if isinstance(info, _TIMES) else 0


def hashed_types(types: Iterable[inspect.Type]) -> list[inspect.Type]:
    """Returns the types of keys and elements in values of these types, without those whose hashes are secret."""
    return [info for info in _keys(types) if not isinstance(info, _SECRET)]


def item_steps(keys: Iterable[inspect.Type]) -> int:
    """Returns the steps for an item of a key of these types that is no number."""
    return CHEAP if all(isinstance(info, _CHEAP_TYPES) for info in _within(keys)) else COSTLY


def largest_steps(keys: Iterable[inspect.Type]) -> int:
    """Returns the steps for an item of any key of these types."""
    return NUMBER if all(isinstance(info, _SECRET | _OF_NUMBERS | _TIMES) for info in keys) else item_steps(keys)


def have_sets(types: Iterable[inspect.Type]) -> bool:
    """Returns whether values of these types have sets whose elements' hashes are not secret."""
    return any(isinstance(info, _SETS) and hashed_types([info]) for info in types)


def have_sets_in(keys: Iterable[inspect.Type]) -> bool:
    """Returns whether keys of these types contain sets."""
    return any(isinstance(info, _SETS) for info in _within(keys))


def _within(keys: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    return (info for key in keys for info in types_within(key))


def _choices(types: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    """Yields the types without annotations, and those of which unions consist, in their place."""
    found = list(types)
    while found:
        info = found.pop()
        if isinstance(info, inspect.Metadata):
            found.append(info.type)
        elif isinstance(info, inspect.UnionType):
            found += info.types
        else:
            yield info


def _items(info: inspect.Type) -> Iterable[inspect.Type]:
    if isinstance(info, _LISTS):
        return (info.item_type,)
    if isinstance(info, inspect.TupleType):
        return info.item_types
    if isinstance(info, _CLASSES):
        return (field.type for field in info.fields)
    return (info,) if isinstance(info, inspect.AnyType) else ()


def _keys(types: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    for info in types:
        if isinstance(info, inspect.DictType):
            yield from _choices([info.key_type])
        elif isinstance(info, _SETS):
            yield from _choices([info.item_type])
        elif isinstance(info, inspect.AnyType):
            yield info


def _values(info: inspect.Type) -> Iterator[tuple[str | None, inspect.Type]]:
    """Yields the types of a map's values, with the names of their fields; None for all names."""
    if isinstance(info, inspect.DictType):
        yield None, info.value_type
    elif isinstance(info, inspect.AnyType):
        yield None, info
    elif isinstance(info, _CLASSES):
        yield from ((field.encode_name, field.type) for field in info.fields)
