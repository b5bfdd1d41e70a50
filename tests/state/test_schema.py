"""State whose type or serializer has changed: an oracle decides which pairs of types fit; names of stored fields."""

from __future__ import annotations

import decimal
import enum
import sys
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

from stateflow import Compatibility, ListStateDescriptor, MapStateDescriptor, Serializer, ValueStateDescriptor
from stateflow.checkpoint.log.manifest_files import seal, unseal
from stateflow.errors import CorruptFile, IncompatibleState, JobDefinitionError, StateError
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.handles import ClassSchema, FieldSchema, StateSchema, TypeNode, TypeSchema
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.schema import name_fields, state_schema
from stateflow.state.schema_compatibility import Declaration, Fit, FitResult, compare_schemas
from stateflow.types.descriptors import StateDescriptor
from stateflow.types.serializers import ValueSerializer, decode_untyped
from tests.support.errors import raises
from tests.support.stores import set_key


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
        (int, D, 3),
        (int, int | str, 3),
        (list[int], tuple[int, ...], [1]),
        (frozenset[int], set[int], {1}),
        (Tree, NewTree, Tree(1, [Tree(2)])),
        (Before, Renamed, Before(1, 2)),
        (Colour, MoreColours, Colour.RED),
        (Literal["a"], Literal["a", "b"], "a"),
        (Small, Large, 3),
        (Small, np.int8, 3),
        (np.uint8, np.int16, np.uint8(255)),
        (np.int32, int, np.int32(5)),
        (np.int16, np.float32, np.int16(5)),
        (np.float32, np.float64, np.float32(0.5)),
        (np.bool_, bool, np.bool_(True)),
        (pa.int8(), np.int8, 5),
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
        (bool, int, "", "bool", "int"),
        (int | str, int | float, "", "int | str", "int | float"),
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
        (int, np.int64, "", "int", "numpy.int64"),
        (np.int32, np.float32, "", "numpy.int32", "numpy.float32"),
        (Triple, Pair, "Pair.c", "int", ""),
        (tuple[int, int], tuple[int, int, int], "", "tuple[int, int]", "tuple[int, int, int]"),
        (D, float, "", "decimal", "float"),
        (list[int], set[int], "", "list[int]", "set[int]"),
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
    ("stored", "fit"),
    [
        ("windows of event time", Fit.AS_IS),
        ("windows of processing time", Fit.INCOMPATIBLE),
        ("", Fit.AS_IS),  # Of a savepoint that was written without a run.
    ],
)
def test_the_content_of_windows_of_another_kind_is_refused(stored: str, fit: Fit) -> None:
    wanted = msgspec.structs.replace(schema_of(int), windows="windows of event time")
    found = compare_schemas(msgspec.structs.replace(wanted, windows=stored), Declaration(wanted))
    assert found.fit is fit


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


def state_over(store: DictBackend, value_type: Any, known: list[StateSchema] | None = None, **more: Any) -> KeyedState:
    state = KeyedState(store, known or ())
    state.value_state(ValueStateDescriptor("s", value_type, **more))
    return state


V1 = defstruct("V1", [("a", int), ("b", str, "b")])
V2 = defstruct("V2", [("a", float)])
V3 = defstruct("V3", [("a", float), ("b", int, 0)])
V3Text = defstruct("V3Text", [("a", float), ("b", str, "new")])


def test_an_incompatible_state_has_field_both_types_and_a_hint() -> None:
    after = defstruct("After", [("count", str), ("total", int), ("more", int)])
    before = state_over(DictBackend(), defstruct("Before", [("count", int), ("total", int, 0)]))
    wanted = {"name": "s", "field": "After.count", "stored": "int", "declared": "str", "more": ["After.more"]}
    with raises(IncompatibleState, **wanted) as refused:
        state_over(DictBackend(), after, before.registry.schemas)
    assert refused.value.code == "incompatible-state"
    assert "msgspec.field(name=...)" in refused.value.hint


def test_values_of_every_earlier_version_must_fit_not_only_of_the_last() -> None:
    store = DictBackend()
    first = state_over(store, V1)
    second = state_over(store, V2, first.registry.schemas)
    with raises(IncompatibleState, field="V3.b"):
        state_over(store, V3, second.registry.schemas)
    third = state_over(store, V3Text, second.registry.schemas)
    (schema,) = third.registry.schemas
    assert [len(old.classes[0].fields) for old in schema.earlier] == [2, 1]
    again = state_over(store, V1, state_over(DictBackend(), V1).registry.schemas)
    assert again.registry.schemas[0].earlier == []


def test_values_elements_and_map_values_have_the_new_form_once_they_are_written() -> None:
    store = DictBackend()
    before = KeyedState(store)
    set_key(before, "k")
    before.value_state(ValueStateDescriptor("s", V1)).update(V1(1, "x"))
    before.list_state(ListStateDescriptor("l", V1)).add(V1(1))
    before.map_state(MapStateDescriptor("m", int, V1)).put(1, V1(2))
    before.end_key_batch()
    after = KeyedState(store, before.registry.schemas)
    set_key(after, "k")
    value = after.value_state(ValueStateDescriptor("s", V2))
    assert value.value() == V2(1.0)
    assert list(after.list_state(ListStateDescriptor("l", V2)).get()) == [V2(1.0)]
    assert after.map_state(MapStateDescriptor("m", int, V2)).get(1) == V2(2.0)
    after.end_key_batch()
    assert {"a": 1, "b": "x"} in [decode_untyped(data) for _, data in store.scan(b"")]
    set_key(after, "k")
    value.update(V2(2.0))
    after.end_key_batch()
    assert {"a": 2.0} in [decode_untyped(data) for _, data in store.scan(b"")]
    with raises(IncompatibleState, name="m"):
        KeyedState(store, before.registry.schemas).map_state(MapStateDescriptor("m", str, V2))


class Words(Serializer[list[str]]):
    name = "words"
    version = 1

    def encode(self, value: list[str]) -> bytes:
        return " ".join(value).encode()

    def decode(self, data: bytes, version: int) -> list[str]:
        return data.decode().split(" " if version == 1 else ",")


class WordsByComma(Words):
    version = 2

    def encode(self, value: list[str]) -> bytes:
        return ",".join(value).encode()

    def compatibility(self, stored_version: int) -> Compatibility:
        return Compatibility.AS_IS if stored_version == 2 else Compatibility.AFTER_MIGRATION


class Strict(Words):
    version = 3


class Other(Words):
    name = "others"


def test_each_value_is_decoded_with_the_serializer_version_that_encoded_the_value() -> None:
    store = DictBackend()
    state = state_over(store, list, serializer=Words())
    value: Any = state.value_state(ValueStateDescriptor("s", list, serializer=Words()))
    assert state.registry.schemas[0].type is not None and state.registry.schemas[0].type.serializer == "words"
    for key in ("a", "b"):
        set_key(state, key)
        value.update(["x", "y"])
    state.end_key_batch()
    after = KeyedState(store, state.registry.schemas)
    value = after.value_state(ValueStateDescriptor("s", list, serializer=WordsByComma()))
    set_key(after, "a")
    assert value.value() == ["x", "y"]
    value.update(["x y", "z"])
    for key, wanted in (("b", ["x", "y"]), ("a", ["x y", "z"])):
        set_key(after, key)
        assert value.value() == wanted
    after.end_key_batch()
    assert sorted(decode_untyped(data) for _, data in store.scan(b"")) == [[1, b"x y"], [2, b"x y,z"]]


@pytest.mark.parametrize("serializer", [Strict(), Other(), None], ids=["version", "name", "none"])
def test_a_serializer_that_does_not_read_what_is_stored_is_refused(serializer: Words | None) -> None:
    state = state_over(DictBackend(), list, serializer=Words())
    with raises(IncompatibleState, name="s") as refused:
        state_over(DictBackend(), list, state.registry.schemas, serializer=serializer)
    assert {"words", "1"} <= set(str(refused.value.facts["stored"]).split())


class Nameless(Serializer[int]):
    def encode(self, value: int) -> bytes:
        return b""

    def decode(self, data: bytes, version: int) -> int:
        return 0


class Broken(Words):
    def encode(self, value: list[str]) -> Any:
        return "text"


def test_an_error_of_a_serializer_names_the_serializer() -> None:
    with raises(JobDefinitionError) as refused:
        state_over(DictBackend(), int, serializer=Nameless())
    assert "Nameless" in str(refused.value.facts["given"])
    state = state_over(DictBackend(), list, serializer=Broken())
    set_key(state, "k")
    with raises(StateError, serializer="words"):
        state.value_state(ValueStateDescriptor("s", list, serializer=Broken())).update(["a"])
        state.end_key_batch()


def test_a_value_that_no_serializer_wrote_is_a_corrupt_file() -> None:
    store = DictBackend()
    state = state_over(store, list, serializer=Words())
    value: Any = state.value_state(ValueStateDescriptor("s", list, serializer=Words()))
    set_key(state, "k")
    value.update(["a"])
    state.end_key_batch()
    ((key, _),) = store.scan(b"")
    for data in (b"\x01\x07", b"\x01\x92\x01\xc4\x01\xff", b"\x07"):
        store.write({key: data})
        set_key(state, "other")
        set_key(state, "k")
        with pytest.raises(CorruptFile):
            value.value()


class Point(msgspec.Struct, array_like=True):
    x: int
    y: int = 0


class Bus(msgspec.Struct, array_like=True, tag=True):
    number: int
    at: Point


class Car(msgspec.Struct, array_like=True, tag=True):
    seats: int


class Tram(msgspec.Struct, tag=True):
    number: int
    stops: list[Point]


class Chain(msgspec.Struct, array_like=True):
    number: int
    rest: Chain | None = None


def _schema_of(kind: Any) -> StateSchema:
    return state_schema(ValueStateDescriptor("state", kind), "value", kind)


def _chain(length: int) -> Chain | None:
    return Chain(length, _chain(length - 1)) if length else None


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (int, 7, 7),
        (Point, Point(1, 2), {"x": 1, "y": 2}),
        (list[Point | None], [Point(1), None], [{"x": 1, "y": 0}, None]),
        (dict[str, tuple[Point, int]], {"a": (Point(1), 7)}, {"a": [{"x": 1, "y": 0}, 7]}),
        (Bus | Car, Bus(1, Point(2)), {"type": "Bus", "number": 1, "at": {"x": 2, "y": 0}}),
        (Bus | None, Bus(1, Point(2)), {"type": "Bus", "number": 1, "at": {"x": 2, "y": 0}}),
        (Tram | int, Tram(1, [Point(2)]), {"type": "Tram", "number": 1, "stops": [{"x": 2, "y": 0}]}),
        (Chain, _chain(2), {"number": 2, "rest": {"number": 1, "rest": None}}),
    ],
)
def test_a_value_has_the_names_of_its_classes(kind: Any, value: Any, wanted: object) -> None:
    serializer: ValueSerializer[Any] = ValueSerializer(kind)
    assert name_fields(decode_untyped(serializer.encode(value)), _schema_of(kind)) == wanted


@pytest.mark.parametrize("value", [7, None, [1, 2, 3], {"x": [1]}])
def test_a_value_that_does_not_fit_its_type_is_not_changed(value: object) -> None:
    assert name_fields(value, _schema_of(Point)) == value
    assert name_fields(value, None) == value


@pytest.mark.parametrize("index", [-1, 1, 1 << 60])
def test_a_type_that_refers_to_no_class_names_nothing(index: int) -> None:
    node = TypeNode(kind="class", class_index=index)
    union = TypeNode(kind="union", parts=[node, node])
    fields = [FieldSchema(name="a", type=node)]
    for root in (node, union, TypeNode(kind="union", parts=[union])):
        found = TypeSchema(root=root, classes=[ClassSchema(name="C", fields=fields)])
        assert name_fields([[1]], StateSchema(name="s", kind="value", value_type="", type=found)) == [[1]]


def test_a_deeply_nested_value_is_not_changed() -> None:
    value: list[Any] = [0]
    # Other tests of the process may have raised the limit.
    for number in range(sys.getrecursionlimit()):
        value = [number, value]
    assert name_fields(value, _schema_of(Chain)) is value
