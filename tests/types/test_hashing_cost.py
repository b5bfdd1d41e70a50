"""The bound of the time for inserting the keys of a value."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stateflow.errors import CorruptFile, EntryTooLarge
from stateflow.types.bounds.hashing_cost import PLAIN_KEYS, STEPS_LIMIT, TooMuchHashing, hashing_cost
from stateflow.types.serializers import VALUE_FORMAT, ValueSerializer, decode_untyped
from tests.support.colliding_keys import decimals, pairs, uuids, whole_numbers
from tests.support.errors import raises

NO_LIMIT = 1 << 80
AT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
encoded = msgspec.msgpack.encode


class Named(msgspec.Struct, frozen=True):
    tags: set[int] = msgspec.field(default_factory=set)
    samples: list[int] = msgspec.field(default_factory=list)
    counts: dict[int, int] = msgspec.field(default_factory=dict)
    inner: list[Named] = msgspec.field(default_factory=list)
    a_name_that_is_longer_than_a_short_text: list[int] = msgspec.field(default_factory=list)


class Two(NamedTuple):
    left: int
    right: str


@dataclass(frozen=True)
class Point:
    x: int
    y: int


# -- the number of steps ----------------------------------------------------------------------------------------------

numbers = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
texts = st.text(max_size=40) | st.binary(max_size=40)
instants = st.datetimes(timezones=st.just(datetime.UTC))
scalars = numbers | texts | instants
hashable = st.recursive(scalars, lambda inner: st.lists(inner, max_size=12).map(tuple), max_leaves=20)
values = st.recursive(
    scalars | st.lists(st.integers(0, 1 << 20), max_size=40),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(hashable, inner, max_size=20),
    max_leaves=60,
)


def _item_steps(item: Any) -> int:
    if isinstance(item, tuple):
        return 8 + sum(map(_item_steps, item))
    return 8 + (len(encoded(item)) // 16 if isinstance(item, str | bytes) else 0)


def _steps(value: Any) -> int:
    """The sum, over all dicts of a decoded value, of the number of their keys times the steps of these keys."""
    if isinstance(value, list):
        return sum(map(_steps, value))
    if not isinstance(value, dict):
        return 0
    keys = [key for key in value if not isinstance(key, str | bytes)]
    steps = sum(_item_steps(key) if isinstance(key, tuple) else 1 for key in keys)
    return len(keys) * steps + sum(map(_steps, value.values()))


@given(values)
@example({(1, ("a" * 300, b"b" * 70_000), 0.5): {1: 2}, AT: [{2: 3}] * 20})
@example([[300] * 70_000, {1: 2, 3: 4}])
@example({n: [n] for n in range(300)})
def test_the_bound_is_the_number_of_keys_times_the_steps_of_each(value: Any) -> None:
    assert PLAIN_KEYS.steps(encoded(value), NO_LIMIT) == _steps(value)


TYPED: list[tuple[Any, Any, int]] = [
    (dict[str, int], {"a": 1, "b": 2}, 0),
    (dict[bytes, int], {b"a": 1}, 0),
    (dict[datetime.date, int], {"2026-01-01": 1}, 0),
    (dict[Literal["a"], int], {"a": 1}, 0),
    (dict[int, int], {1: 1, 2: 1, 3: 1}, 9),
    (dict[datetime.datetime, int], {AT: 1, AT.replace(year=2025): 2}, 4),
    (dict[datetime.timedelta, int], {"P1D": 1, "P2D": 2}, 4),
    (dict[Decimal, int], {"1.5": 1, "2.5": 1}, 2 * 2 * 32),
    (dict[Decimal, int], {"1" * 40: 1, "2.5": 1}, 2 * (2 * 32 + 42 // 16)),
    (dict[UUID, dict[str, int]], {str(UUID(int=1)): {"a": 1}}, 32 + 38 // 16),
    (dict[tuple[int, int], int], {(1, 2): 1, (3, 4): 2}, 2 * 2 * 3 * 8),
    (dict[tuple[int, Decimal], int], {(1, "2"): 1}, 3 * 32),
    (dict[Two, int], {(1, "a"): 1}, 3 * 8),
    (dict[Point, int], {(1, 2): 1, (3, 4): 2}, 2 * 2 * 3 * 32),
    (dict[frozenset[int], int], {(1, 2): 1, (3, 4): 2}, 2 * 2 * (3 * 32 + 4) + 2 * 4),
    (set[int], [1, 2, 3], 9),
    (set[str], ["a", "b"], 0),
    (set[float], [0.5] * 20 + [1], 21 * 21),
    (set[UUID], [str(UUID(int=1))], 34),
    (list[set[int]], [[1, 2], [3]], 4 + 1),
    (tuple[list[int], set[Decimal]], [[1, 2, 3]] * 2, 9 + 9),
    (Named, {"tags": [1, 2], "samples": [1, 2, 3], "counts": {1: 2}}, 4 + 1),
    (Named, {"inner": [{"tags": [1]}, {"inner": [{"tags": [1, 2], "samples": [1] * 20}]}]}, 1 + 4),
    (Named, {"unknown": [1, 2], "a_name_that_is_longer_than_a_short_text": [1, 2]}, 4 + 4),
    (dict[str, Named] | None, {"samples": {"tags": [1, 2]}}, 4),
    (Any, {"tags": [1, 2], "counts": {1: 2}}, 1),
]


@pytest.mark.parametrize(("kind", "value", "steps"), TYPED, ids=str)
def test_the_declared_type_decides_which_items_are_hashed(kind: Any, value: Any, steps: int) -> None:
    assert hashing_cost(kind).steps(encoded(value), NO_LIMIT) == steps


@pytest.mark.parametrize(
    ("kind", "value"), [(kind, value) for kind, value, _ in TYPED if kind not in (Point, Named)], ids=str
)
def test_the_bound_of_a_declared_type_is_not_below_that_without_one(kind: Any, value: Any) -> None:
    assert PLAIN_KEYS.steps(encoded(value), NO_LIMIT) <= hashing_cost(kind).steps(encoded(value), NO_LIMIT)


@given(values, st.data())
def test_a_truncated_value_counts_as_far_as_its_bytes_go(value: Any, data: st.DataObject) -> None:
    whole = encoded(value)
    part = whole[: data.draw(st.integers(0, len(whole)))]
    assert PLAIN_KEYS.steps(part, NO_LIMIT) <= PLAIN_KEYS.steps(whole, NO_LIMIT)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_value_are_counted_once(data: bytes) -> None:
    assert PLAIN_KEYS.steps(data, NO_LIMIT) <= len(data) ** 3 * 8


def test_keys_in_a_truncated_dict_are_counted() -> None:
    assert PLAIN_KEYS.steps(b"\xdf\xff\xff\xff\xff" + b"\x01\xc0" * 1000, NO_LIMIT) == 1_000_000
    assert hashing_cost(set[int]).steps(b"\xdd\xff\xff\xff\xff" + b"\x01" * 1000, NO_LIMIT) == 1_000_000


def test_levels_that_no_decoder_follows_take_little_memory_and_end() -> None:
    assert PLAIN_KEYS.steps(b"\x82\x01\xc0\x02" * 1_000_000, NO_LIMIT) <= 4 * 100_000


# -- the limit --------------------------------------------------------------------------------------------------------

LARGEST: list[tuple[Any, int, Callable[[int], Any]]] = [
    (Any, 32_768, lambda n: dict.fromkeys(range(n))),
    (dict[int, float], 32_768, lambda n: dict.fromkeys(range(n), 0.5)),
    (list[dict[int, int]], 2_000, lambda n: [dict.fromkeys(range(n), 1)] * 268),
    (dict[str, dict[int, int]], 2_000, lambda n: {str(name): dict.fromkeys(range(n), 1) for name in range(268)}),
    (Any, 6_688, lambda n: {(m, m): None for m in range(n)}),
    (Any, 300, lambda n: [[{(m, m): None for m in range(n)}] * 10] * 49),
    (set[float], 32_768, lambda n: [m + 0.5 for m in range(n)]),
    (list[set[int]], 300, lambda n: [list(range(n))] * 11_930),
    (dict[UUID, None], 5_619, lambda n: {str(UUID(int=m)): None for m in range(n)}),
    (set[Decimal], 5_792, lambda n: list(map(str, range(n)))),
]


@pytest.mark.parametrize(("kind", "count", "make"), LARGEST, ids=[f"{kind}-{count}" for kind, count, _ in LARGEST])
def test_a_value_is_accepted_if_its_bound_is_below_the_limit(kind: Any, count: int, make: Callable[[int], Any]) -> None:
    hashing_cost(kind).check(encoded(make(count)))
    with pytest.raises(TooMuchHashing):
        hashing_cost(kind).check(encoded(make(count + count // 50)))


def _dict_of(keys: bytes, count: int) -> bytes:
    return b"\xdf" + count.to_bytes(4) + keys


def _array_of(item: bytes, count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4) + item * count


UNCHECKED: list[tuple[Any, Callable[[int], bytes]]] = [
    (dict[int, None], lambda size: _dict_of(b"\x01\xc0" * (size // 2), size // 2)),
    (Any, lambda size: _dict_of(b"\x90\xc0" * (size // 2), size // 2)),
    (Any, lambda size: _dict_of(_array_of(b"\x01", size // 2) + b"\xc0" + b"\x90\xc0" * (size // 4), size // 4)),
    (dict[UUID, None], lambda size: _dict_of(b"\xa0\xc0" * (size // 2), size // 2)),
    (set[int], lambda size: _array_of(b"\x01", size)),
    (set[UUID], lambda size: _array_of(b"\xa0", size)),
    (set[tuple[int, ...]], lambda size: _array_of(b"\x90", size)),
    (set[tuple[int, ...]], lambda size: _array_of(b"\x91" * 10 + b"\x90", size // 11)),
]


@pytest.mark.parametrize(("kind", "make"), UNCHECKED, ids=[str(kind) for kind, _ in UNCHECKED])
def test_a_value_that_is_not_checked_is_below_the_limit_whatever_its_bytes(
    kind: Any, make: Callable[[int], bytes]
) -> None:
    cost = hashing_cost(kind)
    assert 5_000 < cost.unchecked < 50_000
    assert STEPS_LIMIT // 200 < cost.steps(make(cost.unchecked - 10), NO_LIMIT) <= STEPS_LIMIT


def test_types_with_secret_hashes_alone_are_not_checked() -> None:
    for kind in (int, list[float], dict[str, list[UUID]], set[str], list[tuple[int, ...]], Two, dict[bytes, Point]):
        assert hashing_cost(kind).unchecked == sys.maxsize


@settings(max_examples=30)
@given(values, st.sampled_from([1, 200, 4000]))
@example({(n, n): {m: m for m in range(20)} for n in range(100)}, 300)
@example({"a": [{(n, n): None for n in range(1000)}]}, 40)
def test_a_check_that_accepts_agrees_with_the_bound(value: Any, times: int) -> None:
    data = b"\xdd" + times.to_bytes(4) + encoded(value) * times
    try:
        PLAIN_KEYS.check(data)
    except TooMuchHashing:
        assert PLAIN_KEYS.steps(data, NO_LIMIT) > STEPS_LIMIT
    else:
        assert PLAIN_KEYS.steps(data, NO_LIMIT) <= STEPS_LIMIT


def test_values_with_one_name_are_all_counted() -> None:
    large = encoded(dict.fromkeys(range(33_000)))
    data = b"\x82" + encoded("a") + large + encoded("a") + encoded(1)
    with pytest.raises(TooMuchHashing):
        PLAIN_KEYS.check(data)


# -- writers and readers ----------------------------------------------------------------------------------------------

REFUSED: list[tuple[Any, Any]] = [
    (dict[int, None], dict.fromkeys(range(40_000))),
    (set[int], set(range(40_000))),
    (dict[Any, Any], {(n, n): None for n in range(10_000)}),
    (dict[UUID, None], dict.fromkeys(map(UUID, [f"{n:032x}" for n in range(10_000)]))),
]


@pytest.mark.parametrize(("kind", "value"), REFUSED, ids=[str(kind) for kind, _ in REFUSED])
def test_a_dict_or_set_with_too_many_predictable_keys_is_neither_written_nor_read(kind: Any, value: Any) -> None:
    serializer = ValueSerializer[Any](kind, "totals")
    with raises(EntryTooLarge, state="totals", steps_limit=STEPS_LIMIT, size=len(encoded(value))):
        serializer.encode(value)
    with raises(CorruptFile, state="totals"):
        serializer.decode(VALUE_FORMAT + encoded(value))


ACCEPTED: list[tuple[Any, Any]] = [
    (dict[str, int], {str(n): n for n in range(100_000)}),
    (dict[int, float], dict.fromkeys(range(30_000), 0.5)),
    (set[int], set(range(30_000))),
    (set[str], set(map(str, range(100_000)))),
    (list[float], [0.5] * 1_000_000),
    (Any, {"samples": [[n, 0.5] for n in range(100_000)]}),
    (list[Named], [Named({n}, [n] * 5, {n: n}) for n in range(5_000)]),
    (Named, Named({1, 2}, list(range(200_000)))),
    (dict[tuple[str, int], int], {("name", n): n for n in range(6_000)}),
]


@pytest.mark.parametrize(("kind", "value"), ACCEPTED, ids=[str(kind) for kind, _ in ACCEPTED])
def test_a_large_value_is_written_and_read_with_and_without_its_type(kind: Any, value: Any) -> None:
    serializer = ValueSerializer[Any](kind)
    data = serializer.encode(value)
    assert serializer.decode(data) == value
    assert decode_untyped(data) is not None


# -- the attacks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [pairs, decimals, uuids])
def test_chosen_keys_are_different_and_have_one_hash(make: Callable[[int], list[Any]]) -> None:
    keys = make(1000)
    assert len(set(keys[:100])) == 100 and len({hash(key) for key in keys}) == 1


def test_chosen_numbers_pass_most_of_the_keys_before_them() -> None:
    keys = whole_numbers(3000)
    table: list[int | None] = [None] * 4096
    passed = 0
    for key in keys:
        slot, perturb = key % len(table), key
        while table[slot] not in (None, key):
            perturb >>= 5
            slot = (5 * slot + perturb + 1) % len(table)
            passed += 1
        table[slot] = key
    assert len(keys) == 3000 and 3000**2 // 8 < passed < 3000**2 // 2
