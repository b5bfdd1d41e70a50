"""Descriptors of states whose class stateflow makes while it runs, in a form that tasks of Spark can receive.

The accumulators of `aggregate_columns` are of such a class. No task can import it, and a copy of the class that is
pickled has no fields; so its fields are sent, and the task makes the class again.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

import msgspec

from stateflow.types.descriptors import StateDescriptor

_MADE_BY = "stateflow."
_Field = tuple[str, object] | tuple[str, object, object]


@dataclass(frozen=True)
class _SentStruct:
    """A class of structs.

    Attributes:
        name: name of the class.
        fields: names, types and defaults of its fields.
        frozen: whether its instances are hashable and do not change.
    """

    name: str
    fields: tuple[_Field, ...]
    frozen: bool

    @classmethod
    def of(cls, made: type[msgspec.Struct]) -> _SentStruct:
        fields: list[_Field] = []
        for field in msgspec.structs.fields(made):
            has_default = field.default is not msgspec.NODEFAULT
            fields.append((field.name, field.type, field.default) if has_default else (field.name, field.type))
        return cls(made.__name__, tuple(fields), made.__struct_config__.frozen)

    def made(self) -> type[msgspec.Struct]:
        is_optional = [len(field) == 3 for field in self.fields]
        # A required field after an optional one: the class was made so, and msgspec accepts no other form of it.
        kw_only = is_optional != sorted(is_optional)
        return msgspec.defstruct(self.name, self.fields, frozen=self.frozen, kw_only=kw_only)


def to_sent(descriptor: StateDescriptor) -> StateDescriptor:
    """Returns a descriptor that can be pickled; `from_sent` returns an equal one of it."""
    sent = {name: _SentStruct.of(value) for name, value in _types_of(descriptor).items() if _is_made_at_runtime(value)}
    return _with(descriptor, sent) if sent else descriptor


def from_sent(descriptor: StateDescriptor) -> StateDescriptor:
    """Returns the descriptor that was passed to `to_sent`."""
    made = {name: value.made() for name, value in _types_of(descriptor).items() if isinstance(value, _SentStruct)}
    return _with(descriptor, made) if made else descriptor


def _with(descriptor: StateDescriptor, types: Mapping[str, object]) -> StateDescriptor:
    changed = copy.copy(descriptor)
    for name, value in types.items():
        # Not `dataclasses.replace`: a descriptor checks its types, and what is sent is none.
        object.__setattr__(changed, name, value)
    return changed


def _types_of(descriptor: StateDescriptor) -> dict[str, object]:
    return {field.name: getattr(descriptor, field.name) for field in dataclasses.fields(descriptor) if field.init}


def _is_made_at_runtime(value: object) -> TypeGuard[type[msgspec.Struct]]:
    if not (isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__.startswith(_MADE_BY)):
        return False
    return getattr(sys.modules.get(value.__module__), value.__name__, None) is not value
