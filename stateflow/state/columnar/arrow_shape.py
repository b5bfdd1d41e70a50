"""Arrow types for the declared types of states, and whether their bytes can be converted by columns."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa
from msgspec import inspect

from stateflow.errors import JobDefinitionError
from stateflow.types.declared_types import describe_type

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
    """The shape of a scalar.

    Attributes:
        kind: the Python type.
        arrow: the Arrow type.
        nullable: whether None is allowed.
        by_columns: whether bytes are converted without creating a Python object per value.
    """

    kind: type
    arrow: pa.DataType
    nullable: bool = False
    by_columns: bool = False


@dataclass(frozen=True)
class Items:
    """The shape of a list; attributes as for `Leaf`."""

    item: Shape
    nullable: bool = False
    by_columns: bool = False

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type."""
        return pa.list_(pa.field("item", self.item.arrow, nullable=self.item.nullable))


@dataclass(frozen=True)
class Record:
    """The shape of a msgspec.Struct or dataclass.

    Attributes:
        row_class: the class.
        names: names of the fields.
        fields: shapes of the fields.
        keys: names of the fields in stored bytes; empty if fields are stored by position.
    """

    row_class: type[object]
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


def shape_of(value_type: object) -> Shape:
    """Returns the shape of a declared type; raises JobDefinitionError if it has no Arrow type."""
    return _shape(inspect.type_info(value_type), value_type)


def _shape(info: inspect.Type, whole: object) -> Shape:
    if isinstance(info, inspect.UnionType):
        types = [t for t in info.types if not isinstance(t, inspect.NoneType)]
        if len(types) == 1 and len(info.types) == 2:
            shape = _shape(types[0], whole)
            # Not a nullable record inside another one: None instead of it would shift the positions of later fields.
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
        raise JobDefinitionError(
            "a state's type cannot be converted to an Arrow column",
            hint="for a vectorized function, declare numbers, "
            "strings, bytes, dates, datetimes, lists of them, or a class with such fields",
            type=describe_type(whole),
            part=type(info).__name__,
        )
    constrained = any(getattr(info, name, None) is not None for name in _CONSTRAINTS)
    return Leaf(*found, by_columns=found[0] in _BY_COLUMNS and not constrained)


def _record(info: inspect.StructType | inspect.DataclassType, whole: object) -> Record:
    if info.cls is getattr(whole, "__origin__", whole) and whole is not info.cls:
        raise JobDefinitionError(
            "a generic class cannot be converted to an Arrow column",
            hint="declare a class without type parameters",
            type=describe_type(whole),
        )
    array_like = isinstance(info, inspect.StructType) and info.array_like
    return Record(
        info.cls,
        tuple(f.name for f in info.fields),
        fields := tuple(_shape(f.type, whole) for f in info.fields),
        () if array_like else tuple(f.encode_name for f in info.fields),
        by_columns=bool(fields) and all(f.by_columns for f in fields) and _is_plain(info),
    )


def _is_plain(info: inspect.StructType | inspect.DataclassType) -> bool:
    """Returns whether an object's bytes are all its fields in order, and creating it runs no code."""
    if hasattr(info.cls, "__post_init__"):
        return False
    if isinstance(info, inspect.DataclassType):
        return not any(f.name.startswith("_") for f in info.fields)
    return info.tag is None and not _config(info.cls).omit_defaults


def _config(cls: type[msgspec.Struct]) -> msgspec.structs.StructConfig:
    config: msgspec.structs.StructConfig = cls.__struct_config__
    return config
