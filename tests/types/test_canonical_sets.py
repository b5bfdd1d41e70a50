"""Sets have the same bytes in every process: random types and values, encoded in processes with other hash seeds."""

from __future__ import annotations

import datetime
import decimal
import enum
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Optional, TypedDict, TypeVar

import msgspec
import pytest

from stateflow.state.schema import type_schema
from stateflow.types.serializers import ValueSerializer, decode_untyped
from tests.support.memory import count_calls
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


Make = Callable[[random.Random], Any]


def _text(rng: random.Random) -> str:
    return "".join(rng.choices("abcäß\0😀", k=rng.randrange(5)))


def _names(rng: random.Random) -> frozenset[str]:
    return frozenset(_text(rng) for _ in range(rng.randrange(20)))


_HASHABLE: list[tuple[Any, Make]] = [
    (str, _text),
    (bytes, lambda rng: _text(rng).encode()),
    (int, lambda rng: rng.randrange(-(1 << 40), 1 << 40)),
    (float, lambda rng: rng.choice([0.0, -1.5, float("nan"), float("inf"), rng.random()])),
    (bool, lambda rng: rng.random() < 0.5),
    (str | int | None, lambda rng: rng.choice([None, _text(rng), rng.randrange(9)])),
    (datetime.date, lambda rng: datetime.date.fromordinal(rng.randrange(1, 3_000_000))),
    (datetime.datetime, lambda rng: datetime.datetime.fromtimestamp(rng.randrange(1 << 31), datetime.UTC)),
    (datetime.timedelta, lambda rng: datetime.timedelta(seconds=rng.randrange(1 << 30))),
    (decimal.Decimal, lambda rng: decimal.Decimal(rng.randrange(1000)).scaleb(-2)),
    (uuid.UUID, lambda rng: uuid.UUID(int=rng.getrandbits(128))),
    (Color, lambda rng: rng.choice(list(Color))),
    (Point, lambda rng: Point(_text(rng), rng.choice([None, 1.0]))),
    (Tagged, lambda rng: Tagged(_names(rng), rng.choice([1, 2]))),
    (Positional, lambda rng: Positional(rng.randrange(9), _names(rng))),
    (Data, lambda rng: Data(_names(rng), {_text(rng): _names(rng)})),
    (Pair, lambda rng: Pair(_text(rng), _names(rng))),
    (frozenset[str], _names),
    (tuple[str, frozenset[str]], lambda rng: (_text(rng), _names(rng))),
    (tuple[frozenset[str], ...], lambda rng: (_names(rng), _names(rng))),
]


def _of(generic: Any, *types: Any) -> Any:
    return generic[types if len(types) > 1 else types[0]]


def _drawn(rng: random.Random, depth: int = 2) -> tuple[Any, Make]:
    kind, make = rng.choice(_HASHABLE)
    wrap = rng.randrange(8) if depth else 0
    inner, make_inner = _drawn(rng, depth - 1) if depth else (kind, make)
    size = rng.randrange(6)
    found: dict[int, tuple[Any, Make]] = {
        0: (_of(set, kind), lambda r: {make(r) for _ in range(20)}),
        1: (_of(frozenset, kind), lambda r: frozenset(make(r) for _ in range(20))),
        2: (_of(list, inner), lambda r: [make_inner(r) for _ in range(size)]),
        3: (_of(dict, kind, inner), lambda r: {make(r): make_inner(r) for _ in range(size)}),
        4: (_of(tuple, inner, ...), lambda r: tuple(make_inner(r) for _ in range(size))),
        5: (Any, lambda r: {"a": {_text(r) for _ in range(9)}, "b": [1, (2, frozenset(("x", "y", "z")))]}),
        6: (Typed, lambda r: {"names": set(_names(r))}),
        7: (_of(Optional, inner), make_inner),
        8: (Boxes, lambda r: Boxes(Box(1), Box(_names(r)))),
    }
    return found[wrap]


def _cases() -> list[tuple[Any, Any]]:
    rng = random.Random(7)
    return [(kind, make(rng)) for kind, make in (_drawn(rng) for _ in range(400))]


def _codec(kind: Any) -> ValueSerializer[Any]:
    return ValueSerializer(kind)


def _printed(seed: int) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, "-m", "tests.types.test_canonical_sets"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_values_with_sets_have_the_same_bytes_in_every_process() -> None:
    first, second = _printed(1), _printed(2)
    different = [(kind, a, b) for (kind, _), a, b in zip(_cases(), first, second, strict=False) if a != b]
    assert different == [] and len(first) == len(second) == 401


def test_a_set_is_stored_in_the_order_of_its_elements_bytes_and_a_dict_in_its_own() -> None:
    # By msgpack: 0x61 "a" is shorter than "aa", and texts up to 31 bytes begin with their length.
    value = {"z": {"bb", "a", "aa", "c"}, "b": set()}
    stored = _codec(dict[str, set[str]]).encode(value)
    assert list(decode_untyped(stored).items()) == [("z", ["a", "c", "aa", "bb"]), ("b", [])]
    assert _codec(dict[str, set[str]]).decode(stored) == value


@pytest.mark.parametrize("size", [15, 16, 70_000])
def test_sets_of_any_size_have_the_header_that_msgpack_gives_them(size: int) -> None:
    value = frozenset(map(str, range(size)))
    stored = _codec(frozenset[str]).encode(value)
    assert msgspec.msgpack.decode(stored[1:], type=frozenset[str]) == value
    assert stored[1:] == msgspec.msgpack.encode(sorted(value, key=msgspec.msgpack.encode))


@dataclass
class Seen:
    names: set[str]
    points: list[Point]
    rows: list[list[int]]


def test_only_fields_that_may_have_sets_are_searched() -> None:
    codec = _codec(Seen)
    few, many = (Seen({"b", "a"}, [Point("x")] * count, [[1]] * count) for count in (1, 100))
    assert len(codec.encode(many)) < codec.unchecked_bytes
    assert count_calls(lambda: codec.encode(few)) == count_calls(lambda: codec.encode(many))


def _main() -> None:
    for kind, value in _cases():
        codec = _codec(kind)
        stored = codec.encode(value)
        assert repr(codec.encode(codec.decode(stored))) == repr(stored) or kind is Any, kind
        print(stored.hex())
    print(msgspec.json.encode(type_schema(WithDefaults)).decode())


if __name__ == "__main__":
    _main()
