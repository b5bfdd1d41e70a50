"""Declared types of values: their descriptions, and the types of their members and fields."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import inspect

from stateflow.types.arrow_types import NUMPY, python_type

_REFUSED = (inspect.CustomType, inspect.ExtType, inspect.MemoryViewType, inspect.RawType)


def describe_type(value_type: object) -> str:
    """Returns a stable, readable description of a type: its name, and its fields with their types."""
    try:
        info = inspect.type_info(python_type(value_type))
    except TypeError:
        return repr(value_type)
    return _describe(info, ())


def _describe(info: object, enclosing: tuple[object, ...]) -> str:
    fields = getattr(info, "fields", None)
    if fields is not None:
        cls = getattr(info, "cls", type(info))
        if cls in enclosing:  # a recursive class
            return str(cls.__name__)
        inner = ", ".join(f"{f.name}: {_describe(f.type, (*enclosing, cls))}" for f in fields)
        return f"{cls.__name__}({inner})"
    if isinstance(info, inspect.Metadata):
        return _describe(info.type, enclosing)
    if isinstance(info, inspect.CustomType):
        return NUMPY.get(info.cls, "custom")
    name = type(info).__name__.removesuffix("Type").lower()
    parts = member_types(info)
    return f"{name}[{', '.join(_describe(p, enclosing) for p in parts)}]" if parts else name


def member_types(info: object) -> list[inspect.Type]:
    """Returns the member types of a container or union."""
    named = [getattr(info, a) for a in ("key_type", "value_type", "item_type") if hasattr(info, a)]
    return named + list(getattr(info, "item_types", None) or getattr(info, "types", None) or ())


def all_types(value_type: object) -> Iterator[inspect.Type]:
    """Yields a type and all types of its members and fields, each class once; raises TypeError as `type_info` does."""
    return types_within(inspect.type_info(value_type))


def types_within(whole: inspect.Type) -> Iterator[inspect.Type]:
    """Yields a type and all types of its members and fields, each class once."""
    found, classes = [whole], set()
    while found:
        info = found.pop()
        cls = getattr(info, "cls", None)
        if isinstance(info, inspect.Metadata):
            found.append(info.type)
        elif cls is None or cls not in classes:
            classes.add(cls)
            found += [*(field.type for field in getattr(info, "fields", ())), *member_types(info)]
            yield info


def refuse_custom(value_type: object) -> None:
    """Raises TypeError for a type with a class that msgspec accepts although its values cannot be stored."""
    for info in all_types(value_type):
        cls = getattr(info, "cls", None)
        if isinstance(info, _REFUSED) and cls not in NUMPY:
            raise TypeError(f"values of {cls or type(info).__name__} cannot be stored")
