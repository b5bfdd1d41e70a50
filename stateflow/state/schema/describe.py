"""From a declared type to its schema in a manifest: fields, types, defaults, as the bytes of values depend on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import inspect
from msgspec.structs import replace

from stateflow.descriptors import Serializer, StateDescriptor
from stateflow.scalars import NUMPY, python_type, to_builtin
from stateflow.serializers import describe_type
from stateflow.state.handles import ClassSchema, FieldSchema, StateSchema, TypeNode, TypeSchema

_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
_CONTAINERS = (list, dict, set, frozenset, tuple, bytearray)


def type_schema(value_type: Any, serializer: Serializer[Any] | None = None) -> TypeSchema:
    """The schema of a type whose values can be stored."""
    if serializer is not None:
        root = TypeNode(kind="serialized")
        return TypeSchema(root=root, serializer=serializer.name, serializer_version=serializer.version)
    describer = _Describer()
    root = describer.node(inspect.type_info(python_type(value_type)))
    return TypeSchema(root=root, classes=describer.classes)


def state_schema(
    descriptor: StateDescriptor, kind: str, value_type: Any, key_type: Any = None
) -> StateSchema:
    """The schema of a declared state.

    Args:
        key_type: of a map's keys.
    """
    return StateSchema(
        name=descriptor.name, kind=kind, value_type=describe_type(value_type), queryable=descriptor.queryable,
        key_type="" if key_type is None else describe_type(key_type),
        type=type_schema(value_type, descriptor.serializer),
    )  # fmt: skip


def type_text(node: TypeNode, classes: Sequence[ClassSchema]) -> str:
    """A type for people, as Python writes it."""
    if node.kind == "class":
        return classes[node.class_index].name
    parts = [type_text(part, classes) for part in node.parts]
    if node.kind == "union":
        return " | ".join(parts)
    if node.kind == "vartuple":
        return f"tuple[{parts[0]}, ...]"
    inside = parts + node.choices + [f"{name}={limit}" for name, limit in node.limits.items()]
    name = "None" if node.kind == "none" else node.kind
    return f"{name}[{', '.join(inside)}]" if inside else name


class _Describer:
    def __init__(self) -> None:
        self.classes: list[ClassSchema] = []
        self._indexes: dict[Any, int] = {}

    def node(self, info: Any) -> TypeNode:
        if isinstance(info, inspect.Metadata):
            return self.node(info.type)
        if hasattr(info, "fields"):
            return TypeNode(kind="class", class_index=self._class(info))
        if isinstance(info, inspect.CustomType):
            return TypeNode(kind=NUMPY[info.cls])
        parts = [self.node(part) for part in _parts(info)]
        found = {name: getattr(info, name, None) for name in _LIMITS}
        limits = {name: limit for name, limit in found.items() if limit is not None}
        return TypeNode(kind=_kind(info), parts=parts, choices=_choices(info), limits=limits)

    def _class(self, info: Any) -> int:
        known = self._indexes.get(info.cls)
        if known is not None:
            return known
        index = self._indexes[info.cls] = len(self.classes)
        # A place for it first: its fields may lead back to it.
        self.classes.append(_class_schema(info))
        fields = [_field(field, self.node(field.type)) for field in info.fields]
        self.classes[index] = replace(self.classes[index], fields=fields)
        return index


def _class_schema(info: Any) -> ClassSchema:
    named_tuple = isinstance(info, inspect.NamedTupleType)
    cls = getattr(info.cls, "__origin__", info.cls)  # of a generic class
    config = getattr(cls, "__struct_config__", None)
    tag = getattr(info, "tag", None)
    return ClassSchema(
        name=cls.__name__, fields=[], positional=named_tuple or getattr(info, "array_like", False),
        closed=named_tuple or getattr(info, "forbid_unknown_fields", False),
        tag="" if tag is None else f"{info.tag_field}={tag}",
        sparse=isinstance(info, inspect.TypedDictType) or bool(config and config.omit_defaults),
    )  # fmt: skip


def _field(field: inspect.Field, node: TypeNode) -> FieldSchema:
    return FieldSchema(name=field.encode_name, type=node, required=field.required, default=_default(field))


def _default(field: inspect.Field) -> str:
    if field.default is not msgspec.NODEFAULT:
        return _json(field.default)
    factory = field.default_factory
    if factory is msgspec.NODEFAULT:
        return ""
    # Of another factory only the name: it may give something else each time.
    return _json(factory()) if factory in _CONTAINERS else f"{getattr(factory, '__qualname__', factory)}()"


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=to_builtin).decode()
    except (TypeError, ValueError, msgspec.MsgspecError):
        return repr(value)[:200]


def _kind(info: Any) -> str:
    return type(info).__name__.removesuffix("Type").lower()


def _parts(info: Any) -> list[Any]:
    named = [getattr(info, a) for a in ("key_type", "value_type", "item_type") if hasattr(info, a)]
    return named + list(getattr(info, "item_types", None) or getattr(info, "types", None) or ())


def _choices(info: Any) -> list[str]:
    if isinstance(info, inspect.EnumType):
        return sorted(_json(member.value) for member in info.cls)
    return sorted(map(_json, info.values)) if isinstance(info, inspect.LiteralType) else []
