"""The bound of the memory for decoding a value."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import enum
import subprocess
import sys
import tracemalloc
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.types.declared_types import from_builtin
from stateflow.types.decoders import COPIES, MEMORY_LIMIT, PLAIN, type_memory

NO_LIMIT = 1 << 60
_UNITS = 8_000


class Defaults(msgspec.Struct):
    first: list[int] = msgspec.field(default_factory=list)
    second: dict[str, int] = msgspec.field(default_factory=dict)
    third: set[int] = msgspec.field(default_factory=set)
    fourth: set[int] = msgspec.field(default_factory=set)


class Array(msgspec.Struct, array_like=True):
    first: int = 0
    second: set[int] = msgspec.field(default_factory=set)
    third: dict[str, int] = msgspec.field(default_factory=dict)


class Pair(NamedTuple):
    left: int = 300
    right: float = 0.5
    more: str = ""
    fourth: int = 0
    fifth: int = 0


class Named(TypedDict, total=False):
    number: int


@dataclass
class Point:
    x: int = 1
    y: int = 2
    more: list[int] = field(default_factory=list)


class Inner(msgspec.Struct):
    first: set[int] = msgspec.field(default_factory=set)
    second: set[int] = msgspec.field(default_factory=set)


class Outer(msgspec.Struct):
    first: Inner = msgspec.field(default_factory=Inner)
    second: Inner = msgspec.field(default_factory=Inner)
    point: Point = msgspec.field(default_factory=Point)


class Color(enum.Enum):
    RED = 1


class Size(enum.Enum):
    SMALL = "small"


NUMBERS = list(range(300, 10_000))
UNITS: list[tuple[Any, Any]] = [
    (float, 1), (np.float32, 1.5), (decimal.Decimal, "1.5"), (uuid.UUID, (1 << 100).to_bytes(16)),
    (datetime.datetime, "2026-01-01T00:00:00"), (datetime.time, datetime.time(1)), (datetime.timedelta, "P0D"),
    (Color, 1), (str, "éé€"), (str, "a\U0001f600"), (Any, []), (Any, [300] * 17),
    (frozenset[decimal.Decimal], NUMBERS[:77]), (Outer, {}), (tuple[int, ...], [300] * 4), (Any, {}),
    *((Any, dict.fromkeys(NUMBERS[:size])) for size in (3, 5, 6, 10, 11, 21, 22, 43)),
    *((dict[str, int], dict.fromkeys(map(str, NUMBERS[:size]), 1)) for size in (5, 6, 22)),
    *((set[int], NUMBERS[:size]) for size in (0, 1, 4, 5, 19, 20, 77)),
    *((frozenset[int], NUMBERS[:size]) for size in (0, 5, 19)), (set[tuple[int, ...]], [[n] for n in NUMBERS[:5]]),
    (Defaults, {}), (Array, []), (Pair, []), (Point, {}), (Named, {"number": 300}),
]  # fmt: skip


_encoded = msgspec.msgpack.encode


def _measured(kind: Any, data: bytes) -> int:
    decoder = msgspec.msgpack.Decoder(kind, dec_hook=from_builtin)
    tracemalloc.start()
    try:
        with contextlib.suppress(msgspec.ValidationError):
            kept = decoder.decode(data)
            del kept
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _counted(kind: Any, data: bytes) -> int:
    """The bound without the copies of the data, which are not measured here."""
    return type_memory(kind).size(data, NO_LIMIT) - COPIES * len(data)


@pytest.mark.parametrize(("kind", "unit"), UNITS, ids=str)
def test_the_bound_is_above_the_memory_of_many_items(kind: Any, unit: Any) -> None:
    number = _UNITS // (len(unit) + 1 if isinstance(unit, list | dict) else 1)
    data = _encoded([unit] * number)
    assert _measured(list[kind], data) <= _counted(list[kind], data)


# Tables of sets and dicts grow at these sizes; copies of the old and the new one are in memory meanwhile.
@pytest.mark.parametrize("size", [5000, 5462, 20_000, 52_429])
@pytest.mark.parametrize("kind", [set[int], frozenset[int], dict[int, None], dict[str, None]], ids=str)
def test_the_bound_is_above_the_memory_of_one_table(kind: Any, size: int) -> None:
    items: Any = range(300, 300 + size)
    if kind == dict[str, None]:
        items = map(str, items)
    data = _encoded(list(items) if kind in (set[int], frozenset[int]) else dict.fromkeys(items))
    assert _measured(kind, data) <= _counted(kind, data)


@pytest.mark.parametrize("kind", [str, Size, Literal["small"], list[Size | None]], ids=str)
@pytest.mark.parametrize(
    "text", ["a" * 3_000_000, "\x01" * 2_000_000, "€" * 1_000_000], ids=["ascii", "escaped", "wide"]
)
@pytest.mark.parametrize("end", ["", "é", "\U0001f600"])
def test_the_bound_is_above_the_memory_of_a_long_text_and_of_an_error_with_the_text(
    kind: Any, text: str, end: str
) -> None:
    data = _encoded([text + end] if kind == list[Size | None] else text + end)
    assert _measured(kind, data) <= _counted(kind, data)


whole = st.integers(-(1 << 63), (1 << 64) - 1)
scalars = (
    st.none()
    | st.booleans()
    | whole
    | st.floats()
    | st.text()
    | st.binary()
    | st.datetimes(timezones=st.just(datetime.UTC))
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=40) | st.dictionaries(whole | st.text(), inner, max_size=40)
)


@pytest.mark.long(reason="measures the memory of many values")
@given(values)
def test_the_bound_is_above_the_memory_of_any_value(value: Any) -> None:
    data = _encoded([value] * 200)
    assert _measured(Any, data) <= _counted(Any, data)


@pytest.mark.long(reason="draws many values")
@given(values, st.integers(1, 40), st.sampled_from([Any, set[int], list[Defaults]]))
def test_the_rough_bound_is_above_the_bound(value: Any, times: int, kind: Any) -> None:
    memory = type_memory(kind)
    data = _encoded([value] * times)
    assert PLAIN.size(data, NO_LIMIT) <= memory.size(data, NO_LIMIT) <= memory.rough_size(data)
    assert PLAIN.unchecked >= memory.unchecked and memory.rough_size(b"\x80" * memory.unchecked) <= MEMORY_LIMIT


# -- several threads --------------------------------------------------------------------------------------------------

_TWO_THREADS = """
import threading
import msgspec
from stateflow.types.decoders import json_decoder, msgpack_decoder, value_decoder

def slowly():
    # msgspec evaluates annotations while it has found half of the fields.
    begun.set()
    second.wait(0.3)
    return int

JSON = b'{"inner": {"x": 1}, "after": "y"}'
MSGPACK = msgspec.msgpack.encode(msgspec.json.decode(JSON))
for decode in (
    lambda: json_decoder(Outer).decode(JSON),
    lambda: msgpack_decoder(Outer).decode(MSGPACK),
    lambda: value_decoder(Outer, lambda kind, value: value).decode(MSGPACK),
):
    begun, second = threading.Event(), threading.Event()

    class Inner(msgspec.Struct):
        x: "slowly()"

    class Outer(msgspec.Struct):
        inner: Inner
        after: str

    first = threading.Thread(target=decode)
    first.start()
    begun.wait()
    # The second waits for the first, so the first waits for the second in vain.
    found = decode()
    second.set()
    first.join()
    assert found == Outer(Inner(1), "y"), found
"""


def test_a_thread_waits_while_another_one_inspects_the_type() -> None:
    done = subprocess.run([sys.executable, "-c", _TWO_THREADS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
