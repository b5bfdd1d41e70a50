"""Schemas of declared types: the fields, types and defaults that stored bytes depend on.

`json_text` writes plain values, such as defaults, as JSON from which they can be restored exactly. `name_fields` names
the fields of decoded values for display, since a class may be stored as an array.

In plain JSON, a value of JSON is itself. What JSON does not have is an object with one name:

====================================  ==========================================
value                                 JSON
====================================  ==========================================
NaN, an infinity                      ``{"$float": "NaN"}``, ``"Infinity"``, ``"-Infinity"``
bytes                                 ``{"$bytes": "<base64>"}``
datetime with a zone                  ``{"$datetime": "2026-01-31T10:00:00+00:00"}``
dict with keys that are not texts     ``{"$dict": [[key, value], …]}``; also one that looks like an object above
extension of msgpack                  ``{"$extension": [code, "<base64>"]}``
====================================  ==========================================
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import inspect
from msgspec.structs import replace

from stateflow.state.handles import ClassSchema, FieldSchema, StateSchema, TypeNode, TypeSchema
from stateflow.types.custom_serializer import Serializer
from stateflow.types.declared_types import (
    NOT_FINITE,
    NUMPY,
    describe_type,
    kind_of,
    member_types,
    python_type,
    special_float,
    to_builtin,
)
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
        return TypeNode(kind=kind_of(info), parts=parts, choices=_choices(info), limits=limits)

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


def _choices(info: inspect.Type) -> list[str]:
    if isinstance(info, inspect.EnumType):
        return sorted(_json(member.value) for member in info.cls)
    return sorted(map(_json, info.values)) if isinstance(info, inspect.LiteralType) else []


_FLOAT, _BYTES, _DATETIME, _DICT, _EXTENSION = "$float", "$bytes", "$datetime", "$dict", "$extension"
_NAMES = frozenset((_FLOAT, _BYTES, _DATETIME, _DICT, _EXTENSION))


def json_text(value: object) -> str:
    """Returns the JSON text of a value of dicts, lists, tuples and scalars, as msgpack decodes them without a type.

    Raises:
        RecursionError: it is nested some 900 levels deep.
    """
    return msgspec.json.encode(_to_json(value)).decode()


def from_json_text(text: str) -> object:
    """Returns the value of a text; tuples are lists, except in keys of dicts.

    Raises:
        ValueError, RecursionError: it is not JSON, has a name twice in an object, or has an object of the table above
            with another content.
    """
    return json.loads(text, object_pairs_hook=_from_object, parse_constant=_refuse, parse_float=_finite)


def _to_json(value: object) -> object:
    # One Python frame per level, by `map`: the interpreter limits them.
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: special_float(value)}
    if isinstance(value, dict):
        items = list(map(_to_json, value.values()))
        if _needs_pairs(value):
            return {_DICT: list(map(list, zip(map(_to_json, value), items, strict=True)))}
        return dict(zip(value, items, strict=True))
    if isinstance(value, (list, tuple)):
        return list(map(_to_json, value))
    if isinstance(value, bytes):
        return {_BYTES: _text_of(value)}
    if isinstance(value, datetime.datetime):
        return {_DATETIME: value.isoformat()}
    if isinstance(value, msgspec.msgpack.Ext):
        return {_EXTENSION: [value.code, _text_of(bytes(value.data))]}
    return value


def _needs_pairs(value: dict[object, object]) -> bool:
    return any(not isinstance(key, str) for key in value) or (len(value) == 1 and not _NAMES.isdisjoint(value))


def _text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_object(pairs: list[tuple[str, object]]) -> object:
    """Returns the value of an object, whose parts are values already."""
    if len(pairs) == 1:
        ((name, content),) = pairs
        if name in _RESTORED:
            return _restored(name, content)
    return _without_repetition(pairs)


def _without_repetition(pairs: list[tuple[object, object]] | list[tuple[str, object]]) -> dict[object, object]:
    found: dict[object, object] = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in an object")
    return found


def _restored(name: str, content: object) -> object:
    try:
        return _RESTORED[name](content)
    except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f"an object {name} has another content: {type(e).__name__}: {e}") from e


def _bytes_of(content: object) -> bytes:
    return base64.b64decode(msgspec.convert(content, str), validate=True)


def _dict_of(content: object) -> dict[object, object]:
    pairs = msgspec.convert(content, list[tuple[object, object]])
    return _without_repetition([(_key(key), item) for key, item in pairs])


def _key(value: object) -> object:
    return tuple(map(_key, value)) if isinstance(value, list) else value


def _extension_of(content: object) -> msgspec.msgpack.Ext:
    code, data = msgspec.convert(content, tuple[int, str])
    return msgspec.msgpack.Ext(code, _bytes_of(data))


def _refuse(constant: str) -> object:
    raise ValueError(f'JSON has no {constant}; write {{"$float": "{constant}"}}')


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is out of the range of a float")
    return value


_RESTORED: dict[str, Callable[[object], object]] = {
    _FLOAT: lambda content: NOT_FINITE[msgspec.convert(content, str)],
    _BYTES: _bytes_of,
    _DATETIME: lambda content: datetime.datetime.fromisoformat(msgspec.convert(content, str)),
    _DICT: _dict_of,
    _EXTENSION: _extension_of,
}


_LISTS = {"list", "set", "frozenset", "vartuple"}


def name_fields(value: object, schema: StateSchema | None) -> object:
    """Returns a value, as `decode_untyped` returns it, with the field names of the classes in it.

    The schema and the value may be of different versions, or damaged: parts that do not fit stay as they are.

    Args:
        value: the decoded value.
        schema: the recorded schema of its state; None if there is none.
    """
    if schema is None or schema.type.serializer:
        return value
    try:
        return _Namer(schema.type.classes).visit(value, schema.type.root)
    except RecursionError:
        # A class that contains itself, more often than calls can be nested.
        return value


def union_member(value: object, node: TypeNode, classes: Sequence[ClassSchema]) -> TypeNode | None:
    """Returns the member of a union that a decoded value has; None if the recorded type does not say.

    Args:
        value: the value, not None.
        node: the recorded union.
        classes: the classes of the recorded type.
    """
    others = [part for part in node.parts if part.kind != "none"]
    if len(others) == 1:
        return others[0]
    tags = {classes[part.class_index].tag: part for part in others if 0 <= part.class_index < len(classes)}
    for tag, part in tags.items():
        name, _, expected = tag.partition("=")
        if tag and isinstance(value, dict) and str(value.get(name)) == expected:
            return part
        if tag and isinstance(value, list) and value and str(value[0]) == expected:
            return part
    return None


class ValueVisitor:
    """Converts decoded values along their recorded type; a subclass converts lists, classes and scalars.

    Args:
        classes: the classes of the recorded type.
    """

    def __init__(self, classes: Sequence[ClassSchema]) -> None:
        self._classes = classes

    def visit(self, value: object, node: TypeNode) -> object:
        """Returns the converted value, whose recorded type is `node`."""
        kind = node.kind
        if isinstance(value, list):
            if kind in _LISTS and node.parts:
                return self.visit_items([self.visit(each, node.parts[0]) for each in value], node)
            if kind == "tuple" and len(value) == len(node.parts):
                return [self.visit(each, part) for each, part in zip(value, node.parts, strict=True)]
        if isinstance(value, dict) and kind == "dict" and len(node.parts) == 2:
            return {key: self.visit(each, node.parts[1]) for key, each in value.items()}
        if kind == "class" and isinstance(value, dict | list) and 0 <= node.class_index < len(self._classes):
            return self.visit_class(value, self._classes[node.class_index])
        if kind == "union" and value is not None:
            member = union_member(value, node, self._classes)
            # A job cannot declare a union within a union: only damaged documents have one.
            if member is not None and member.kind != "union":
                return self.visit(value, member)
        return self.visit_other(value, node)

    def visit_items(self, items: list[object], node: TypeNode) -> object:
        """Returns the converted list or set, whose items are converted already."""
        return items

    def visit_class(self, value: dict[str, object] | list[object], described: ClassSchema) -> object:
        """Returns the converted value of a class, which is stored by name or by position."""
        return value

    def visit_other(self, value: object, node: TypeNode) -> object:
        """Returns the converted scalar, or the value that does not have its recorded type."""
        return value


def fields_of(value: dict[str, object] | list[object], described: ClassSchema) -> dict[str, object]:
    """Returns the stored parts of a value of a class by name, with its tag, and without further parts."""
    if isinstance(value, dict):
        return value
    tag, _, _ = described.tag.partition("=")
    names = [tag] * bool(tag) + [field.name for field in described.fields]
    return dict(zip(names, value, strict=False))


class _Namer(ValueVisitor):
    """Adds the names of fields."""

    def visit_class(self, value: dict[str, object] | list[object], described: ClassSchema) -> object:
        found = fields_of(value, described)
        if len(found) < len(value):
            return value
        types = {field.name: field.type for field in described.fields}
        return {name: self.visit(each, types[name]) if name in types else each for name, each in found.items()}
