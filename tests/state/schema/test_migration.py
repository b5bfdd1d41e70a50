"""State that is declared with another type or serializer than it was stored with."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import defstruct

from stateflow import Compatibility, ListStateDescriptor, MapStateDescriptor, Serializer, ValueStateDescriptor
from stateflow.errors import CorruptFile, IncompatibleState, JobDefinitionError, StateError
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.types.serializers import decode_untyped
from tests.support.errors import raises
from tests.support.stores import set_key


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
