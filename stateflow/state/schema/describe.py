"""Creates the schemas of declared types: fields, types and defaults that stored bytes depend on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import inspect
from msgspec.structs import replace

from stateflow.state.handles import ClassSchema, FieldSchema, StateSchema, TypeNode, TypeSchema
from stateflow.state.schema.plain_json import json_text
from stateflow.types.arrow_types import NUMPY, python_type, to_builtin
from stateflow.types.custom_serializer import Serializer
from stateflow.types.declared_types import describe_type, member_types
from stateflow.types.descriptors import StateDescriptor
from stateflow.types.serializers import with_sorted_sets

_encoder = msgspec.msgpack.Encoder(enc_hook=to_builtin)
TYPE_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
_CONTAINERS = (list, dict, set, frozenset, tuple, bytearray)


def type_schema(value_type: object, serializer: Serializer[Any] | None = None) -> TypeSchema:
    """Returns the schema of a type.

    Args:
        value_type: a type that can be stored.
        serializer: the custom serializer; None for msgpack.
    """
    if serializer is not None:
        root = TypeNode(kind="serialized")
        return TypeSchema(root=root, serializer=serializer.name, serializer_version=serializer.version)
    describer = _Describer()
    root = describer.node(inspect.type_info(python_type(value_type)))
    return TypeSchema(root=root, classes=describer.classes)


def state_schema(descriptor: StateDescriptor, kind: str, value_type: object, key_type: object = None) -> StateSchema:
    """Returns the schema of a declared state.

    Args:
        descriptor: name and options of the state.
        kind: kind of the state, for example ``value``.
        value_type: type of the values, elements or accumulators.
        key_type: type of a map's keys.
    """
    return StateSchema(
        name=descriptor.name,
        kind=kind,
        value_type=describe_type(value_type),
        queryable=descriptor.queryable,
        arguments=descriptor.arguments,
        key_type="" if key_type is None else describe_type(key_type),
        type=type_schema(value_type, descriptor.serializer),
    )


def declaration_text(schema: StateSchema) -> str:
    """Returns kind and types of a state as readable text, for example ``map str -> int``."""
    return f"{schema.kind} {schema.key_type}{' -> ' if schema.key_type else ''}{schema.value_type}"


def type_text(node: TypeNode, classes: Sequence[ClassSchema]) -> str:
    """Returns a type as readable text in Python's notation."""
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


_ClassInfo = inspect.StructType | inspect.DataclassType | inspect.NamedTupleType | inspect.TypedDictType


class _Describer:
    def __init__(self) -> None:
        self.classes: list[ClassSchema] = []
        self._indexes: dict[object, int] = {}

    def node(self, info: inspect.Type) -> TypeNode:
        if isinstance(info, inspect.Metadata):
            return self.node(info.type)
        if isinstance(info, _ClassInfo):
            return TypeNode(kind="class", class_index=self._class(info))
        if isinstance(info, inspect.CustomType):
            return TypeNode(kind=NUMPY[info.cls])
        parts = [self.node(part) for part in member_types(info)]
        found = {name: getattr(info, name, None) for name in TYPE_LIMITS}
        limits = {name: limit for name, limit in found.items() if limit is not None}
        return TypeNode(kind=_kind(info), parts=parts, choices=_choices(info), limits=limits)

    def _class(self, info: _ClassInfo) -> int:
        known = self._indexes.get(info.cls)
        if known is not None:
            return known
        index = self._indexes[info.cls] = len(self.classes)
        # Add it before its fields: they may refer to the class itself.
        self.classes.append(_class_schema(info))
        fields = [_field(field, self.node(field.type)) for field in info.fields]
        self.classes[index] = replace(self.classes[index], fields=fields)
        return index


def _class_schema(info: _ClassInfo) -> ClassSchema:
    named_tuple = isinstance(info, inspect.NamedTupleType)
    cls = getattr(info.cls, "__origin__", info.cls)  # of a generic class
    config = getattr(cls, "__struct_config__", None)
    tag = f"{info.tag_field}={info.tag}" if isinstance(info, inspect.StructType) and info.tag is not None else ""
    return ClassSchema(
        name=cls.__name__,
        fields=[],
        positional=named_tuple or getattr(info, "array_like", False),
        closed=named_tuple or getattr(info, "forbid_unknown_fields", False),
        tag=tag,
        sparse=isinstance(info, inspect.TypedDictType) or bool(config and config.omit_defaults),
    )


def _field(field: inspect.Field, node: TypeNode) -> FieldSchema:
    return FieldSchema(name=field.encode_name, type=node, required=field.required, default=_default(field))


def _default(field: inspect.Field) -> str:
    if field.default is not msgspec.NODEFAULT:
        return _json(field.default)
    factory = field.default_factory
    if factory is msgspec.NODEFAULT:
        return ""
    # Only the name of other factories: they may return another value each time.
    return _json(factory()) if factory in _CONTAINERS else f"{getattr(factory, '__qualname__', factory)}()"


def _json(value: object) -> str:
    try:
        # As it would be stored, because the order of a set differs from process to process.
        return json_text(msgspec.msgpack.decode(with_sorted_sets(value, _encoder.encode(value))))
    except (TypeError, ValueError, msgspec.MsgspecError):
        return repr(value)[:200]


def _kind(info: inspect.Type) -> str:
    return type(info).__name__.removesuffix("Type").lower()


def _choices(info: inspect.Type) -> list[str]:
    if isinstance(info, inspect.EnumType):
        return sorted(_json(member.value) for member in info.cls)
    return sorted(map(_json, info.values)) if isinstance(info, inspect.LiteralType) else []
