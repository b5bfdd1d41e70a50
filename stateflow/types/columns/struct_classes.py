"""Classes of structs that no process can import, in a form that workers receive with their fields.

Spark sends a class by value if a worker cannot import it, because `msgspec.defstruct` or a function made it. The worker
makes a class with the same bases and sets its attributes, but msgspec reads the fields of a struct while the class is
made, so the received class would have none. A class may declare its bases as an object that returns them when the
class is made (PEP 560). Here this object has the fields, and returns a base class with them.
"""

from __future__ import annotations

import copyreg
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

_BASES = "__orig_bases__"
_CONFIG = (
    *("frozen", "eq", "order", "array_like", "gc", "weakref", "dict", "cache_hash", "tag", "tag_field"),
    *("repr_omit_defaults", "omit_defaults", "forbid_unknown_fields"),
)
_FACTS = (
    *("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz"),
    *("title", "description", "examples", "extra_json_schema", "extra"),
)
_HOOK = "__post_init__"


@dataclass(frozen=True)
class _Field:
    """A field.

    Attributes:
        name, stored_name: its name in Python and in stored values.
        type: its type.
        default: its default or the function that makes it, by the name of the argument of `msgspec.field`.
    """

    name: str
    stored_name: str
    type: object
    default: tuple[tuple[str, object], ...]

    @classmethod
    def of(cls, info: msgspec.structs.FieldInfo, kind: object) -> _Field:
        given = (("default", info.default), ("default_factory", info.default_factory))
        # NODEFAULT must not be sent: it names no module, so that its name is looked up in all imported ones.
        return cls(info.name, info.encode_name, kind, tuple(each for each in given if each[1] is not msgspec.NODEFAULT))

    def declared(self) -> tuple[str, object, object]:
        """Returns the field as `msgspec.defstruct` takes it."""
        make: Callable[..., object] = msgspec.field
        return self.name, self.type, make(name=self.stored_name, **dict(self.default))


@dataclass(frozen=True)
class _StructBases:
    """The bases of a class, with its fields.

    Attributes:
        name, module: of the class.
        bases: its bases.
        fields: the fields that it declares itself.
        config: its settings by name, with `kw_only`.
        has_hook: whether it has a method that msgspec calls after it has made an object.
    """

    name: str
    module: str
    bases: tuple[type, ...]
    fields: tuple[_Field, ...]
    config: tuple[tuple[str, object], ...]
    has_hook: bool

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        """Returns the base class of the class that a worker makes."""
        make: Callable[..., type] = msgspec.defstruct
        fields = [each.declared() for each in self.fields]
        # msgspec looks for this method only while a class is made: the received one gets its methods later.
        namespace = {_HOOK: _call_hook} if self.has_hook else {}
        made = make(self.name, fields, bases=self.bases, module=self.module, namespace=namespace, **dict(self.config))
        return (made,)


def prepare_struct_classes() -> int:
    """Prepares all classes of structs that cannot be imported, so that objects that name them can be sent to workers.

    Generic classes, and those whose types have names that are not known, are left as they are. Call it before objects
    are sent, after the classes were made.

    Returns:
        how many classes were prepared that were not before.
    """
    found = [each for each in _subclasses(msgspec.Struct) if _BASES not in vars(each) and _needs_fields(each)]
    return sum(map(_prepare, found))


def _subclasses(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    remaining: list[type[msgspec.Struct]] = [base]
    seen = {base}
    while remaining:
        found: list[type[msgspec.Struct]] = type.__subclasses__(remaining.pop())
        for each in found:
            if each not in seen:
                seen.add(each)
                remaining.append(each)
                yield each


def _needs_fields(made: type[msgspec.Struct]) -> bool:
    """Returns whether a class is sent by value, and can be made with its fields."""
    if issubclass(made, typing.Generic):
        return False
    found: object = sys.modules.get(made.__module__) if made.__module__ != "__main__" else None
    for name in made.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is not made


def _prepare(made: type[msgspec.Struct]) -> bool:
    declared: dict[str, object] = vars(made).get("__annotations__", {})
    try:
        infos = {each.name: each for each in msgspec.structs.fields(made)}
    except Exception:
        # A type is a text with a name that its module does not have: msgspec cannot use the class either.
        return False
    fields = []
    for name in declared:
        if name in infos:
            info = infos[name]
            fields.append(_Field.of(info, _sent_type(declared[name], info.type)))
    settings = made.__struct_config__
    config: list[tuple[str, object]] = [(name, getattr(settings, name)) for name in _CONFIG]
    positional: object = getattr(made, "__match_args__", ())
    assert isinstance(positional, tuple)
    config.append(("kw_only", any(each.name not in positional for each in fields)))
    bases = _StructBases(
        made.__name__, made.__module__, made.__bases__, tuple(fields), tuple(config), hasattr(made, _HOOK)
    )
    setattr(made, _BASES, (bases,))
    return True


def _sent_type(declared: object, resolved: object) -> object:
    """Returns the type of a field to send.

    A type given as text is sent resolved. It stays text if it contains a class made at run time, which may be the class
    that has the field: the worker resolves it.
    """
    if isinstance(declared, str) and not _has_struct_made_at_runtime(resolved):
        return resolved
    return declared


def _has_struct_made_at_runtime(kind: object) -> bool:
    """Returns whether a type contains a class that workers cannot import."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _needs_fields(kind)
    return any(map(_has_struct_made_at_runtime, typing.get_args(kind)))


def _call_hook(made: object) -> None:
    hook: Callable[[object], None] = getattr(type(made), _HOOK)
    if hook is not _call_hook:
        hook(made)


def _reduced(meta: msgspec.Meta) -> tuple[Callable[..., msgspec.Meta], tuple[object, ...]]:
    """Returns how a worker makes an annotation again: msgspec's cannot be sent as they are."""
    return _meta, (tuple((name, value) for name in _FACTS if (value := getattr(meta, name)) is not None),)


def _meta(facts: Iterable[tuple[str, object]]) -> msgspec.Meta:
    make: Callable[..., msgspec.Meta] = msgspec.Meta
    return make(**dict(facts))


copyreg.dispatch_table[msgspec.Meta] = _reduced
