"""Keys as functions receive them: members of Enums and UUIDs, of which each has one stored form."""

from __future__ import annotations

import enum
import uuid
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stateflow.api.graph import Keying
from stateflow.errors import StateError
from stateflow.runtime.executor import ChainSpec
from stateflow.runtime.task.input_reader import KeyTypes
from tests.support.errors import raises
from tests.support.graphs import Pass
from tests.support.operators import chain_of


class Colour(enum.Enum):
    RED = "red"

    @classmethod
    def _missing_(cls, value: object) -> Colour:
        """Accepts every text."""
        return cls.RED


class Level(enum.IntEnum):
    LOW = 1


class Row(msgspec.Struct):
    key: str
    id: uuid.UUID
    colour: Colour
    level: Level


ID = "00000000-0000-0000-0000-00000000000a"


def _types(*columns: str) -> KeyTypes:
    chain: ChainSpec = chain_of(Pass(), Row, Row)
    keying = Keying(columns, (), ("string",) * len(columns))
    return KeyTypes(replace(chain, inputs=(replace(chain.inputs[0], keying=keying),)))


def test_a_key_has_the_declared_types() -> None:
    keys = _types("key", "id", "colour", "level")
    declared = ("a", uuid.UUID(ID), Colour.RED, Level.LOW)
    assert keys.to_declared(("a", ID, "red", 1)) == declared
    assert keys.all_declared([(b"g", b"k", ("a", ID, "red", 1))]) == [(b"g", b"k", declared)]


def test_keys_without_such_types_are_not_copied() -> None:
    encoded: list[Any] = [(b"g", b"k", ("a",))]
    assert _types("key").all_declared(encoded) is encoded


OTHERS = [("id", "x"), ("level", 2), ("id", ID.upper()), ("id", ID.replace("-", "")), ("colour", "Red")]


@pytest.mark.parametrize(("column", "stored"), OTHERS)
def test_a_value_without_a_declared_one_or_in_another_form_is_refused(column: str, stored: Any) -> None:
    """Two forms of one UUID would be two keys that the function cannot distinguish."""
    with raises(StateError, key=repr((stored,)), operator="op"):
        _types(column).to_declared((stored,))
