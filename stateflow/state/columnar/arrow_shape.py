"""What a state's declared type looks like in Arrow, and whether its bytes can be read and written by columns."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import inspect

from stateflow.errors import JobDefinitionError
from stateflow.serializers import describe_type

_PLAIN: dict[type, tuple[type, pa.DataType]] = {
    inspect.IntType: (int, pa.int64()),
    inspect.FloatType: (float, pa.float64()),
    inspect.BoolType: (bool, pa.bool_()),
    inspect.StrType: (str, pa.string()),
    inspect.BytesType: (bytes, pa.binary()),
    inspect.DateType: (datetime.date, pa.date32()),
}
_BY_COLUMNS = (int, float, bool)
_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of")


@dataclass(frozen=True)
class Leaf:
    """A single value.

    Attributes:
        kind: the Python type.
        by_columns: whether its bytes can be read and written without making an object of each.
    """

    kind: type
    arrow: pa.DataType
    nullable: bool = False
    by_columns: bool = False


@dataclass(frozen=True)
class Items:
    """A list."""

    item: Shape
    nullable: bool = False
    by_columns: bool = False

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type."""
        return pa.list_(pa.field("item", self.item.arrow, nullable=self.item.nullable))


@dataclass(frozen=True)
class Record:
    """A msgspec.Struct or dataclass.

    Attributes:
        keys: what the fields are called in bytes; empty where fields are told by their place.
    """

    row_class: type[Any]
    names: tuple[str, ...]
    fields: tuple[Shape, ...]
    keys: tuple[str, ...]
    nullable: bool = False
    by_columns: bool = False

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type."""
        return pa.struct(
            [pa.field(n, f.arrow, nullable=f.nullable) for n, f in zip(self.names, self.fields, strict=True)]
        )


Shape = Leaf | Items | Record


def shape_of(value_type: Any) -> Shape:
    """The shape of a declared type. Raises JobDefinitionError for one that has no columns."""
    return _shape(inspect.type_info(value_type), value_type)


def _shape(info: Any, whole: Any) -> Shape:
    if isinstance(info, inspect.UnionType):
        types = [t for t in info.types if not isinstance(t, inspect.NoneType)]
        if len(types) == 1 and len(info.types) == 2:
            shape = _shape(types[0], whole)
            # A record that may be missing inside of another: its fields would stand at other places.
            return replace(shape, nullable=True, by_columns=shape.by_columns and isinstance(shape, Leaf))
    if isinstance(info, inspect.StructType | inspect.DataclassType):
        return _record(info, whole)
    if isinstance(info, inspect.ListType):
        return Items(_shape(info.item_type, whole))
    if isinstance(info, inspect.DateTimeType):
        return Leaf(datetime.datetime, pa.timestamp("us", tz="UTC" if info.tz else None))
    if isinstance(info, inspect.Metadata):
        return _shape(info.type, whole)
    found = _PLAIN.get(type(info))
    if found is None:
        raise JobDefinitionError("a state's type has no columns", hint="for a vectorized function, declare numbers, "
                                 "texts, bytes, dates, datetimes, lists of them, or a class with such fields",
                                 type=describe_type(whole), part=type(info).__name__)  # fmt: skip
    constrained = any(getattr(info, name, None) is not None for name in _CONSTRAINTS)
    return Leaf(*found, by_columns=found[0] in _BY_COLUMNS and not constrained)


def _record(info: inspect.StructType | inspect.DataclassType, whole: Any) -> Record:
    if info.cls is getattr(whole, "__origin__", whole) and whole is not info.cls:
        raise JobDefinitionError("a generic class has no columns", type=describe_type(whole))
    array_like = isinstance(info, inspect.StructType) and info.array_like
    return Record(
        info.cls,
        tuple(f.name for f in info.fields),
        fields := tuple(_shape(f.type, whole) for f in info.fields),
        () if array_like else tuple(f.encode_name for f in info.fields),
        by_columns=bool(fields) and all(f.by_columns for f in fields) and _is_plain(info),
    )


def _is_plain(info: inspect.StructType | inspect.DataclassType) -> bool:
    """Whether an object's bytes are its fields, all of them, in order, and nothing is run when it is made."""
    if hasattr(info.cls, "__post_init__"):
        return False
    if isinstance(info, inspect.DataclassType):
        return not any(f.name.startswith("_") for f in info.fields)
    return info.tag is None and not _config(info.cls).omit_defaults


def _config(cls: Any) -> msgspec.structs.StructConfig:
    config: msgspec.structs.StructConfig = cls.__struct_config__
    return config
