"""Shapes of declared types: their representation in Arrow and in Spark."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa
from msgspec import inspect

from stateflow.types.columns.precision import precision_of
from stateflow.types.declared_types import BY_NAME, DECLARED, ScalarType, kind_of


@dataclass(frozen=True)
class Leaf:
    """The shape of a scalar.

    Attributes:
        kind: the Python type.
        arrow: the Arrow type.
        spark: Spark's name of the type.
        nullable: whether None is allowed.
        by_columns: whether stored bytes are converted without creating a Python object per value.
        constraints: arguments of `msgspec.Meta`, by name; ``enum`` has the values of an Enum whose class is left out.
    """

    kind: type
    arrow: pa.DataType
    spark: str
    nullable: bool = False
    by_columns: bool = False
    constraints: tuple[tuple[str, object], ...] = ()

    @property
    def is_converted(self) -> bool:
        """Whether columns contain other values than objects do: the value of an Enum's member, the text of a UUID."""
        return issubclass(self.kind, enum.Enum | uuid.UUID)


@dataclass(frozen=True)
class Items:
    """The shape of a list; attributes as for `Leaf`."""

    item: Shape
    nullable: bool = False
    by_columns: bool = False
    constraints: tuple[tuple[str, object], ...] = ()

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type."""
        return pa.list_(pa.field("item", self.item.arrow, nullable=self.item.nullable))

    @property
    def spark(self) -> str:
        """Spark's name of the type."""
        return f"array<{self.item.spark}>"


@dataclass(frozen=True)
class Entries:
    """The shape of a dict; attributes as for `Leaf`."""

    key: Shape
    value: Shape
    nullable: bool = False
    by_columns: bool = False
    constraints: tuple[tuple[str, object], ...] = ()

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type."""
        return pa.map_(self.key.arrow, pa.field("value", self.value.arrow, nullable=self.value.nullable))

    @property
    def spark(self) -> str:
        """Spark's name of the type."""
        return f"map<{self.key.spark},{self.value.spark}>"


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

    @property
    def spark(self) -> str:
        """Spark's name of the type, with quoted names of the fields."""
        fields = (f"`{name}`:{field.spark}" for name, field in zip(self.names, self.fields, strict=True))
        return f"struct<{','.join(fields)}>"


Shape = Leaf | Items | Entries | Record


class UnsupportedType(TypeError):
    """A declared type without a column.

    Attributes:
        part: the part of the type that cannot be represented.
        hint: what to declare instead; empty if that depends on where the type is declared.
    """

    def __init__(self, message: str, part: str, hint: str = "") -> None:
        super().__init__(message)
        self.part = part
        self.hint = hint


_OTHERS = {
    # Spark exchanges times with Python in nanoseconds, and rounds them to microseconds.
    "time": replace(DECLARED["time"], arrow=pa.time64("ns")),
    "uuid": replace(DECLARED["str"], python=uuid.UUID),
}
"""Types of columns that differ from those of `DECLARED`, and further ones."""
_BY_COLUMNS = (int, float, bool, str, bytes, datetime.datetime)
_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


def shape_of(value_type: object) -> Shape:
    """Returns the shape of a declared type.

    Args:
        value_type: a type that msgspec supports. `precision` sets the digits of a Decimal.

    Raises:
        UnsupportedType: a part of the type has no column.
    """
    info = inspect.type_info(value_type)
    if isinstance(info, inspect.StructType | inspect.DataclassType) and info.cls is not value_type:
        raise UnsupportedType("a generic class has no column", info.cls.__name__, "declare a class without parameters")
    return _shape(info, ())


def leaves_of(shape: Shape) -> Iterator[Leaf]:
    """Yields the scalars of a shape."""
    if isinstance(shape, Leaf):
        yield shape
    for part in parts_of(shape):
        yield from leaves_of(part)


def without_classes(shape: Shape) -> Shape:
    """Returns a shape with the same columns, without classes of the user: who unpickles it need not import them."""
    if isinstance(shape, Leaf):
        if not issubclass(shape.kind, enum.Enum):
            return shape
        members = tuple(member.value for member in shape.kind)
        kind = str if pa.types.is_string(shape.arrow) else int
        return replace(shape, kind=kind, constraints=(("enum", members),))
    if isinstance(shape, Items):
        return replace(shape, item=without_classes(shape.item))
    if isinstance(shape, Entries):
        return replace(shape, key=without_classes(shape.key), value=without_classes(shape.value))
    return replace(shape, row_class=object, fields=tuple(map(without_classes, shape.fields)))


def parts_of(shape: Shape) -> tuple[Shape, ...]:
    """Returns the shapes that a nested shape consists of; empty for a scalar."""
    if isinstance(shape, Items):
        return (shape.item,)
    if isinstance(shape, Entries):
        return (shape.key, shape.value)
    return shape.fields if isinstance(shape, Record) else ()


def is_constrained(shape: Shape) -> bool:
    """Returns whether a part of a shape has constraints."""
    own = () if isinstance(shape, Record) else shape.constraints
    return bool(own) or any(map(is_constrained, parts_of(shape)))


def _shape(info: inspect.Type, enclosing: tuple[type, ...]) -> Shape:
    if isinstance(info, inspect.UnionType):
        types = [t for t in info.types if not isinstance(t, inspect.NoneType)]
        if len(types) == 1 and len(info.types) == 2:
            shape = _shape(types[0], enclosing)
            # Not a nullable record inside another one: None instead of it would shift the positions of later fields.
            return replace(shape, nullable=True, by_columns=shape.by_columns and isinstance(shape, Leaf))
    if isinstance(info, inspect.Metadata):
        if isinstance(info.type, inspect.DecimalType):
            return _decimal(info.extra)
        return _shape(info.type, enclosing)
    if isinstance(info, inspect.StructType | inspect.DataclassType):
        return _record(info, enclosing)
    if isinstance(info, inspect.ListType):
        return Items(_shape(info.item_type, enclosing), constraints=_constraints(info))
    if isinstance(info, inspect.DictType):
        return _entries(info, enclosing)
    return _scalar(info)


def _scalar(info: inspect.Type) -> Leaf:
    if isinstance(info, inspect.DateTimeType) and info.tz:
        return _leaf(BY_NAME["timestamp"])
    if isinstance(info, inspect.DecimalType):
        return _decimal(None)
    if isinstance(info, inspect.EnumType):
        return _enum(info.cls)
    kind = kind_of(info)
    found = _OTHERS.get(kind) or DECLARED.get(kind)
    if found is None:
        raise UnsupportedType("the type has no column", type(info).__name__.removesuffix("Type"))
    constraints = _constraints(info)
    return replace(_leaf(found), by_columns=found.python in _BY_COLUMNS and not constraints, constraints=constraints)


def _leaf(found: ScalarType, kind: type | None = None) -> Leaf:
    return Leaf(kind or found.python, found.arrow, found.spark)


def _constraints(info: inspect.Type) -> tuple[tuple[str, object], ...]:
    declared = ((name, getattr(info, name, None)) for name in _CONSTRAINTS)
    return tuple((name, value) for name, value in declared if value is not None)


def _decimal(extra: dict[str, object] | None) -> Leaf:
    digits = precision_of(extra)
    if digits is None:
        hint = "declare Annotated[Decimal, precision(12, scale=2)] with the digits of your column"
        raise UnsupportedType("a Decimal without precision and scale has no column", "Decimal", hint)
    return Leaf(decimal.Decimal, pa.decimal128(*digits), f"decimal({digits[0]},{digits[1]})")


def _enum(cls: type[enum.Enum]) -> Leaf:
    kinds = {type(member.value) for member in cls}
    if kinds == {str}:
        return _leaf(DECLARED["str"], cls)
    if kinds == {int} and all(-(1 << 63) <= member.value < 1 << 63 for member in cls):
        return _leaf(DECLARED["int"], cls)
    hint = "give all members of the Enum values of one type, str or int"
    raise UnsupportedType("the values of an Enum have no common column", cls.__name__, hint)


def _entries(info: inspect.DictType, enclosing: tuple[type, ...]) -> Entries:
    key = _shape(info.key_type, enclosing)
    if not isinstance(key, Leaf) or key.nullable:
        hint = "declare a dict whose keys are numbers, strings, dates or other scalars, and not None"
        raise UnsupportedType("the keys of a dict have no column", type(info.key_type).__name__, hint)
    return Entries(key, _shape(info.value_type, enclosing), constraints=_constraints(info))


def _record(info: inspect.StructType | inspect.DataclassType, enclosing: tuple[type, ...]) -> Record:
    if info.cls in enclosing:
        hint = "declare a class that does not contain itself"
        raise UnsupportedType("a recursive class has no column", info.cls.__name__, hint)
    array_like = isinstance(info, inspect.StructType) and info.array_like
    return Record(
        info.cls,
        tuple(f.name for f in info.fields),
        fields := tuple(_shape(f.type, (*enclosing, info.cls)) for f in info.fields),
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
