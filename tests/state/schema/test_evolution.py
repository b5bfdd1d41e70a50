"""Stored values after their type has changed: an oracle decides which pairs of types fit."""

from __future__ import annotations

import decimal
import enum
from dataclasses import dataclass, make_dataclass
from dataclasses import field as dataclass_field
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import defstruct

from stateflow import Serializer
from stateflow.checkpoint.log.manifest_files import seal, unseal
from stateflow.errors import CorruptFile
from stateflow.state.handles import StateSchema, TypeNode, TypeSchema
from stateflow.state.schema import state_schema
from stateflow.state.schema_compatibility import Declaration, Fit, FitResult, compare_schemas
from stateflow.types.descriptors import StateDescriptor
from stateflow.types.serializers import ValueSerializer
from tests.support.errors import raises


def schema_of(value_type: Any, serializer: Serializer[Any] | None = None) -> StateSchema:
    return state_schema(StateDescriptor("s", serializer=serializer), "value", value_type)


def verdict(old: Any, new: Any) -> FitResult:
    """As a start has it: the stored schema went through a manifest."""
    stored, _ = unseal(seal(schema_of(old))[0], StateSchema, "schema")
    return compare_schemas(stored, Declaration(schema_of(new)))


TYPES: dict[str, tuple[Any, list[Any], Any]] = {
    "int": (int, [0, -5, 1 << 40], 7),
    "float": (float, [0.5, -1e9], 2.5),
    "text": (str, ["", "é"], "d"),
    "optional int": (int | None, [None, 3], None),
    "optional float": (float | None, [None, 3.5], None),
    "optional text": (str | None, [None, "x"], None),
    "list of int": (list[int], [[], [1, 2]], [9]),
    "list of float": (list[float], [[1.5]], [9.5]),
    "number by name": (dict[str, int], [{}, {"a": 1}], {}),
}
"""Name, type, values, default."""
WIDER = {
    ("int", "float"),
    ("int", "optional int"),
    ("int", "optional float"),
    ("float", "optional float"),
    ("optional int", "optional float"),
    ("text", "optional text"),
    ("list of int", "list of float"),
}
"""By hand: what every value of the first is a value of the second of."""
NAMES = ["a", "b", "c", "d"]


@dataclass(frozen=True)
class Field:
    name: str
    type: str
    has_default: bool


@dataclass(frozen=True)
class Shape:
    """A class to come: a struct by name or by position, or a dataclass."""

    fields: tuple[Field, ...]
    form: str

    @property
    def positional(self) -> bool:
        return self.form == "array"

    def make(self) -> type[Any]:
        new_field: Any = dataclass_field if self.form == "dataclass" else msgspec.field
        fields: list[Any] = []
        for f in self.in_order:
            kind, _, default = TYPES[f.type]
            with_default = [new_field(default_factory=lambda d=default: d)] if f.has_default else []
            fields.append((f.name, kind, *with_default))
        if self.form == "dataclass":
            return make_dataclass("V", fields)
        return defstruct("V", fields, array_like=self.positional)

    @property
    def in_order(self) -> list[Field]:
        return sorted(self.fields, key=lambda f: f.has_default)


SHAPES = st.builds(
    Shape,
    st.lists(
        st.builds(Field, st.sampled_from(NAMES), st.sampled_from(sorted(TYPES)), st.booleans()),
        min_size=1,
        max_size=4,
        unique_by=lambda f: f.name,
    ).map(tuple),
    st.sampled_from(["struct", "array", "dataclass"]),
)


@st.composite
def versions(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """Two versions, of which the second is often the first with something done to it."""
    old = draw(SHAPES)
    if draw(st.booleans()):
        return old, draw(SHAPES)
    fields = list(old.fields)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, max(0, len(fields) - 1)))
        what = draw(st.sampled_from(["remove", "retype", "add", "swap", "default"]))
        if what == "remove" and len(fields) > 1:
            del fields[at]
        elif what == "retype":
            wider = [b for a, b in sorted(WIDER) if a == fields[at].type] or sorted(TYPES)
            fields[at] = Field(fields[at].name, draw(st.sampled_from(wider)), fields[at].has_default)
        elif what == "default":
            fields[at] = Field(fields[at].name, fields[at].type, not fields[at].has_default)
        elif what == "swap":
            fields.reverse()
        elif free := [n for n in NAMES if n not in {f.name for f in fields}]:
            fields.append(Field(draw(st.sampled_from(free)), draw(st.sampled_from(sorted(TYPES))), True))
    form = old.form if draw(st.booleans()) else draw(st.sampled_from(["struct", "dataclass", old.form]))
    return old, Shape(tuple(fields), form)


def oracle(old: Shape, new: Shape) -> bool:
    """Whether values of `old` can be read as `new`, by the rules of the guide alone."""
    if old.positional != new.positional:
        return False
    if old.positional:
        before, after = old.in_order, new.in_order
        pairs = list(zip(before, after, strict=False))
        if any(a.name != b.name for a, b in pairs):
            return False
        added = after[len(before) :]
    else:
        known = {f.name: f for f in old.fields}
        pairs = [(known[f.name], f) for f in new.fields if f.name in known]
        added = [f for f in new.fields if f.name not in known]
    fits = all(a.type == b.type or (a.type, b.type) in WIDER for a, b in pairs)
    return fits and all(f.has_default for f in added)


@given(versions(), st.data())
def test_two_versions_fit_as_the_oracle_decides_and_values_are_read_back(
    pair: tuple[Shape, Shape], data: st.DataObject
) -> None:
    old, new = pair
    old_type, new_type = old.make(), new.make()
    found = verdict(old_type, new_type)
    assert (found.fit is not Fit.INCOMPATIBLE) == oracle(old, new), found
    assert verdict(old_type, old_type) == FitResult()
    if found.fit is Fit.AS_IS:
        assert [(f.name, f.type) for f in old.in_order] == [(f.name, f.type) for f in new.in_order]
    if found.fit is Fit.INCOMPATIBLE:
        assert all(c.way_out and c.stored != c.declared for c in found.conflicts)
        return
    given_values = {f.name: data.draw(st.sampled_from(TYPES[f.type][1]), label=f.name) for f in old.fields}
    stored = ValueSerializer[Any](old_type).encode(old_type(**given_values))
    reader: ValueSerializer[Any] = ValueSerializer(new_type)
    value = reader.decode(stored)
    wanted = {f.name: given_values.get(f.name, TYPES[f.type][2]) for f in new.fields}
    assert {f.name: getattr(value, f.name) for f in new.fields} == wanted
    for f in new.fields:
        if "float" in f.type and isinstance(wanted[f.name], int):
            assert type(getattr(value, f.name)) is float
    assert reader.decode(reader.encode(value)) == value


Colour = enum.Enum("Colour", {"RED": "red"})
MoreColours = enum.Enum("MoreColours", {"RED": "red", "BLUE": "blue"})


class Before(msgspec.Struct):
    count: int
    total: int = 0


class Renamed(msgspec.Struct):
    number: int = msgspec.field(name="count")
    total: int = 0


Forgotten = defstruct("Forgotten", [("number", int), ("total", int, 0)])
Closed = defstruct("Closed", [("count", int)], forbid_unknown_fields=True)
Tagged = defstruct("Tagged", [("count", int)], tag="one")
TaggedTwo = defstruct("TaggedTwo", [("count", int), ("more", int, 0)], tag="two")
TaggedOtherwise = defstruct("TaggedOtherwise", [("count", int)], tag="uno")
Sparse = defstruct("Sparse", [("count", int, 0)], omit_defaults=True)
SparseOther = defstruct("SparseOther", [("count", int, 1)], omit_defaults=True)
SparseRequired = defstruct("SparseRequired", [("count", int)])


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


class NewTree(msgspec.Struct):
    value: float
    children: list[NewTree] = []
    note: str = ""


class BadTree(msgspec.Struct):
    value: int
    children: dict[str, BadTree] = {}


class Pair(NamedTuple):
    a: int
    b: int


class Triple(NamedTuple):
    a: int
    b: int
    c: int = 0


class Loose(TypedDict, total=False):
    count: int


Small = Annotated[int, msgspec.Meta(ge=0, le=10)]
Large = Annotated[int, msgspec.Meta(ge=0, le=20)]
D = decimal.Decimal


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        (int, float, 3),
        (int, D, 3),
        (int, int | str, 3),
        (int | None, float | None, None),
        (bool, bool | None, True),
        (list[int], tuple[int, ...], [1]),
        (frozenset[int], set[int], {1}),
        (list[int], list[float | None], [1]),
        (Tree, NewTree, Tree(1, [Tree(2)])),
        (Before, Renamed, Before(1, 2)),
        (Colour, MoreColours, Colour.RED),
        (Literal["a"], Literal["a", "b"], "a"),
        (Small, Large, 3),
        (Small, int, 3),
        (Small, np.int8, 3),
        (np.int8, np.int16, np.int8(-3)),
        (np.uint8, np.int16, np.uint8(255)),
        (np.int32, int, np.int32(5)),
        (np.int16, np.float32, np.int16(5)),
        (np.float32, np.float64, np.float32(0.5)),
        (np.float64, float, 1.5),
        (float, np.float64, 1.5),
        (np.bool_, bool, np.bool_(True)),
        (pa.int32(), pa.int64(), 5),
        (pa.int8(), np.int8, 5),
        (pa.string(), str, "x"),
        (pa.list_(pa.int8()), list[int], [1]),
        (Tagged, Tagged | TaggedTwo, Tagged(1)),
        (Pair, Triple, Pair(1, 2)),
        (int, Any, 1),
        (dict[str, Before], dict[str, Renamed], {"x": Before(1)}),
        (Closed, Before, Closed(1)),
    ],
)
def test_values_of_a_compatible_type_are_read(old: Any, new: Any, value: Any) -> None:
    found = verdict(old, new)
    assert not found.conflicts
    again = ValueSerializer[Any](new).decode(ValueSerializer[Any](old).encode(value))
    if isinstance(value, int | float | str | np.generic | None):
        assert again == value
    reader = ValueSerializer[Any](new)
    assert reader.decode(reader.encode(again)) == again


@pytest.mark.parametrize(
    ("old", "new", "field", "stored", "declared"),
    [
        (float, int, "", "float", "int"),
        (str, bytes, "", "str", "bytes"),
        (bool, int, "", "bool", "int"),
        (int | None, int, "", "int | None", "int"),
        (int | str, int | float, "", "int | str", "int | float"),
        (Before, int, "", "Before", "int"),
        (Before, dict[str, int], "", "Before", "dict[str, int]"),
        (Tree, BadTree, "BadTree.children", "list[Tree]", "dict[str, BadTree]"),
        (Before, Forgotten, "Forgotten.number", "", "int"),
        (Before, Closed, "Closed.total", "int", ""),
        (Tagged, TaggedOtherwise, "", "one", "uno"),
        (Before, Tagged, "", "Before", "one"),
        (Tagged | TaggedTwo, Tagged, "", "two", "one"),
        (MoreColours, Colour, "", "blue", "red"),
        (Sparse, SparseOther, "SparseOther.count", "0", "1"),
        (Sparse, SparseRequired, "SparseRequired.count", "0", ""),
        (Sparse, Loose, "Loose.count", "0", ""),
        (Loose, SparseRequired, "SparseRequired.count", "", ""),
        (Large, Small, "", "le=20", "le=10"),
        (int, Small, "", "int", "le=10"),
        (int, np.int64, "", "int", "numpy.int64"),
        (np.int64, np.int32, "", "numpy.int64", "numpy.int32"),
        (np.int32, np.float32, "", "numpy.int32", "numpy.float32"),
        (np.float64, np.float32, "", "numpy.float64", "numpy.float32"),
        (Triple, Pair, "Pair.c", "int", ""),
        (tuple[int, int], tuple[int, int, int], "", "tuple[int, int]", "tuple[int, int, int]"),
        (D, float, "", "decimal", "float"),
        (D, str, "", "decimal", "str"),
        (list[int], set[int], "", "list[int]", "set[int]"),
        (dict[str, int], dict[int, int], "", "dict[str, int]", "dict[int, int]"),
        (Before, Any, "", "Before", "any"),
        (pa.int64(), pa.int32(), "", "int", "le=2147483647"),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), "", "tz=False", "tz=True"),
    ],
)
def test_an_incompatible_type_is_reported_with_field_types_and_fix(
    old: Any, new: Any, field: str, stored: str, declared: str
) -> None:
    found = verdict(old, new)
    assert found.fit is Fit.INCOMPATIBLE
    conflict = found.conflicts[0]
    assert conflict.field == field
    assert stored in conflict.stored and declared in conflict.declared
    assert conflict.way_out and conflict.stored and conflict.declared
    assert new is not Closed or "forbid_unknown_fields" in conflict.way_out


@pytest.mark.parametrize(
    ("root", "declared"),
    [
        (TypeNode(kind="int", limits={"ge": "low"}), Small),
        (TypeNode(kind="class", class_index=9), int),
        (TypeNode(kind="class", class_index=-9), Before),
        (TypeNode(kind="vartuple"), int | list[int]),
    ],
)
def test_an_inconsistent_stored_schema_is_a_corrupt_file(root: TypeNode, declared: Any) -> None:
    stored = msgspec.structs.replace(schema_of(int), type=TypeSchema(root=root))
    with raises(CorruptFile):
        compare_schemas(stored, Declaration(schema_of(declared)))
