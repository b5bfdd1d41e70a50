"""Sets have the same bytes in every process, whatever the seed of its hashes."""

from __future__ import annotations

import datetime
import decimal
import enum
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest

from stateflow.state.schema import type_schema
from stateflow.types.serializers import ValueSerializer, decode_untyped
from tests.support.processes import ROOT


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Point(msgspec.Struct, frozen=True):
    name: str
    x: float | None = None


class Tagged(msgspec.Struct, frozen=True, tag="t", rename="camel", omit_defaults=True):
    its_names: frozenset[str] = frozenset()
    other: int = 1


class Positional(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int
    names: frozenset[str]


@dataclass(frozen=True)
class Data:
    names: frozenset[str]
    of: dict[str, frozenset[str]] = field(default_factory=dict, hash=False)


class Pair(NamedTuple):
    first: str
    second: frozenset[str]


class Typed(TypedDict):
    names: set[str]


class WithDefaults(msgspec.Struct):
    names: frozenset[str] = frozenset(("ab", "cd", "ef", "gh", "ij"))
    nested: Tagged = Tagged(frozenset(("ab", "cd", "ef", "gh", "ij")))


T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    content: T


class Boxes(msgspec.Struct):
    """Of one class, one field has sets, and one has none."""

    plain: Box[int]
    filled: Box[frozenset[str]]


NAMES = frozenset(["", "a", "ab", "b", "c\0", "\0", "ä", "ß", "😀", "ef", "gh", "ij"])
DAY = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CASES: list[tuple[Any, Any]] = [
    (set[str], set(NAMES)),
    (frozenset[bytes], frozenset(name.encode() for name in NAMES)),
    (set[str | int | None], {*NAMES, 1, 1 << 40, None}),
    (set[float], {0.0, -1.5, float("inf"), 0.1}),
    (set[datetime.datetime], {DAY + datetime.timedelta(days=n) for n in range(9)}),
    (set[decimal.Decimal], {decimal.Decimal(n).scaleb(-2) for n in range(9)}),
    (set[uuid.UUID], {uuid.UUID(int=n << 90) for n in range(9)}),
    (set[Color], set(Color)),
    (set[Point], {Point(name, x) for name in NAMES for x in (None, 1.0)}),
    (set[Tagged], {Tagged(NAMES), Tagged(NAMES, 2)}),
    (set[Positional], {Positional(n, NAMES) for n in range(9)}),
    (set[Data], {Data(NAMES, {"a": NAMES}), Data(frozenset("ab"))}),
    (set[Pair], {Pair(name, NAMES) for name in NAMES}),
    (set[tuple[frozenset[str], ...]], {(NAMES, NAMES), (frozenset("ab"),)}),
    (dict[frozenset[str], list[set[str] | None]], {NAMES: [set(NAMES), None]}),
    (Any, {"a": set(NAMES), "b": [1, (2, NAMES)]}),
    (Typed, {"names": set(NAMES)}),
    (Boxes, Boxes(Box(1), Box(NAMES))),
]


def test_values_with_sets_have_the_same_bytes_in_every_process() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-m", "tests.types.test_canonical_sets"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == _lines()


def test_a_set_is_stored_in_the_order_of_its_elements_bytes_and_a_dict_in_its_own() -> None:
    # By msgpack: 0x61 "a" is shorter than "aa", and texts up to 31 bytes begin with their length.
    value = {"z": {"bb", "a", "aa", "c"}, "b": set()}
    stored = ValueSerializer[Any](dict[str, set[str]]).encode(value)
    assert list(decode_untyped(stored).items()) == [("z", ["a", "c", "aa", "bb"]), ("b", [])]
    assert ValueSerializer[Any](dict[str, set[str]]).decode(stored) == value


@pytest.mark.parametrize("size", [15, 16, 70_000])
def test_sets_of_any_size_have_the_header_that_msgpack_gives_them(size: int) -> None:
    value = frozenset(map(str, range(size)))
    stored = ValueSerializer[Any](frozenset[str]).encode(value)
    assert msgspec.msgpack.decode(stored[1:], type=frozenset[str]) == value
    assert stored[1:] == msgspec.msgpack.encode(sorted(value, key=msgspec.msgpack.encode))


def _lines() -> list[str]:
    lines = []
    for kind, value in CASES:
        codec = ValueSerializer[Any](kind)
        stored = codec.encode(value)
        assert repr(codec.encode(codec.decode(stored))) == repr(stored) or kind is Any, kind
        lines.append(stored.hex())
    return [*lines, msgspec.json.encode(type_schema(WithDefaults)).decode()]


if __name__ == "__main__":
    print("\n".join(_lines()))
