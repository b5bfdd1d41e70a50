"""Names of fields in decoded values, for display: a class may be stored as an array. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stateflow.state.handles import ClassSchema, StateSchema, TypeNode

_LISTS = {"list", "set", "frozenset", "vartuple"}


def named_value(value: object, schema: StateSchema | None) -> object:
    """Returns a value, as `decode_untyped` returns it, with the field names of the classes in it.

    The schema and the value may be of different versions, or damaged: parts that do not fit stay as they are.

    Args:
        value: the decoded value.
        schema: the recorded schema of its state; None if there is none.
    """
    if schema is None or schema.type is None or schema.type.serializer:
        return value
    try:
        return _Namer(schema.type.classes).named(value, schema.type.root)
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
    tags = {classes[part.class_index].tag: part for part in others if part.kind == "class"}
    for tag, part in tags.items():
        name, _, expected = tag.partition("=")
        if tag and isinstance(value, dict) and str(value.get(name)) == expected:
            return part
        if tag and isinstance(value, list) and value and str(value[0]) == expected:
            return part
    return None


class _Namer:
    """Adds the names.

    Args:
        classes: the classes of the recorded type.
    """

    def __init__(self, classes: Sequence[ClassSchema]) -> None:
        self._classes = classes

    def named(self, value: object, node: TypeNode) -> object:
        """Returns a part of a value with the names of a part of the type."""
        if node.kind == "class":
            return self._class(value, node)
        if isinstance(value, list) and node.kind in _LISTS and node.parts:
            return [self.named(each, node.parts[0]) for each in value]
        if isinstance(value, list) and node.kind == "tuple" and len(value) == len(node.parts):
            return [self.named(each, part) for each, part in zip(value, node.parts, strict=True)]
        if isinstance(value, dict) and node.kind == "dict" and len(node.parts) == 2:
            return {key: self.named(each, node.parts[1]) for key, each in value.items()}
        if node.kind == "union" and value is not None:
            return self._member(value, node)
        return value

    def _member(self, value: object, node: TypeNode) -> object:
        try:
            member = union_member(value, node, self._classes)
        except IndexError:
            return value
        # A union within a union is none that a job declares.
        return value if member is None or member.kind == "union" else self.named(value, member)

    def _class(self, value: object, node: TypeNode) -> object:
        if not 0 <= node.class_index < len(self._classes):
            return value
        described = self._classes[node.class_index]
        if isinstance(value, dict):
            types = {field.name: field.type for field in described.fields}
            return {key: self.named(each, types[key]) if key in types else each for key, each in value.items()}
        if not isinstance(value, list):
            return value
        tag, _, _ = described.tag.partition("=")
        names = [tag] * bool(tag) + [field.name for field in described.fields]
        types_of = [TypeNode(kind="str")] * bool(tag) + [field.type for field in described.fields]
        if len(value) > len(names):
            return value
        # An older value has fewer fields.
        parts = zip(names, types_of, value, strict=False)
        return {name: self.named(each, kind) for name, kind, each in parts}
