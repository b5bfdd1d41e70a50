# ruff: noqa: DTZ001 - moments without a zone are a type of their own
"""Key groups: ranges, and the hash of keys; that it is Spark's is shown in tests/spark."""

from __future__ import annotations

import datetime
import decimal
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import ConfigError, StateError
from stateflow.types.key_groups import (
    MAX_PARALLELISM_LIMIT,
    KeyGroupRange,
    check_key_type,
    check_max_parallelism,
    key_group,
    key_hash,
    range_of,
    subtask_of,
)
from tests.support.errors import raises

UTC = datetime.UTC


# -- ranges -------------------------------------------------------------------------------------------------------


def test_two_subtasks_of_128_groups() -> None:
    assert [range_of(i, 2, 128) for i in (0, 1)] == [KeyGroupRange(0, 63), KeyGroupRange(64, 127)]


def _check_partition(parallelism: int, max_parallelism: int) -> None:
    ranges = [range_of(i, parallelism, max_parallelism) for i in range(parallelism)]
    assert ranges[0].first == 0 and ranges[-1].last == max_parallelism - 1
    for before, after in pairwise(ranges):
        assert after.first == before.last + 1
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1 and min(map(len, ranges)) >= 1
    for subtask, owned in enumerate(ranges):
        assert subtask_of(owned.first, parallelism, max_parallelism) == subtask
        assert subtask_of(owned.last, parallelism, max_parallelism) == subtask


def test_ranges_share_out_all_groups_evenly_for_every_small_parallelism() -> None:
    for max_parallelism in range(1, 65):
        for parallelism in range(1, max_parallelism + 1):
            _check_partition(parallelism, max_parallelism)


@given(st.data())
def test_ranges_share_out_all_groups_evenly(data: st.DataObject) -> None:
    max_parallelism = data.draw(st.integers(1, MAX_PARALLELISM_LIMIT))
    parallelism = data.draw(st.integers(1, min(max_parallelism, 500)))
    _check_partition(parallelism, max_parallelism)


@given(st.data())
def test_a_group_s_subtask_owns_it(data: st.DataObject) -> None:
    max_parallelism = data.draw(st.integers(1, MAX_PARALLELISM_LIMIT))
    parallelism = data.draw(st.integers(1, max_parallelism))
    group = data.draw(st.integers(0, max_parallelism - 1))
    owner = subtask_of(group, parallelism, max_parallelism)
    assert group in range_of(owner, parallelism, max_parallelism)


def test_a_range_holds_both_its_ends() -> None:
    owned = KeyGroupRange(3, 5)
    assert [g for g in range(8) if g in owned] == [3, 4, 5] and len(owned) == 3


@pytest.mark.parametrize("value", [0, -1, MAX_PARALLELISM_LIMIT + 1])
def test_max_parallelism_has_bounds(value: int) -> None:
    with raises(ConfigError, value=value):
        check_max_parallelism(value)
    assert check_max_parallelism(MAX_PARALLELISM_LIMIT) == MAX_PARALLELISM_LIMIT


# -- hashes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "types", "digest"),
    [
        (("",), ["string"], -7444071767201028348),
        ((1,), ["int"], -6698625589789238999),
        ((1,), ["bigint"], -7001672635703045582),
        (("a", 1), ["string", "bigint"], -1010403264180844141),
    ],
)
def test_known_hashes_never_change(key: tuple[Any, ...], types: list[str], digest: int) -> None:
    """State is stored by them: another value would mean that no stored key is found again."""
    assert key_hash(key, types) == digest
    assert key_group(key, types, 128) == digest % 128


def test_the_type_is_part_of_the_hash() -> None:
    assert len({key_hash((1,), [name]) for name in ("int", "bigint", "float", "double", "decimal(5,2)")}) == 5


def test_the_order_of_columns_is_part_of_the_hash() -> None:
    assert key_hash(("a", "b"), ["string"] * 2) != key_hash(("b", "a"), ["string"] * 2)


@pytest.mark.parametrize("name", ["float", "double"])
def test_numbers_that_are_one_key_have_one_hash(name: str) -> None:
    assert key_hash((0.0,), [name]) == key_hash((-0.0,), [name]) == key_hash((0,), [name])
    assert key_hash((math.nan,), [name]) == key_hash((-math.nan,), [name])


def test_a_moment_with_zone_is_an_instant() -> None:
    at = datetime.datetime(2026, 1, 1, 12, tzinfo=UTC)
    elsewhere = at.astimezone(datetime.timezone(datetime.timedelta(hours=-7)))
    assert key_hash((at,), ["timestamp"]) == key_hash((elsewhere,), ["timestamp"])
    assert key_hash((at,), ["timestamp"]) == key_hash((at.replace(tzinfo=None),), ["timestamp_ntz"])


@pytest.mark.parametrize("scale", [0, 4])
def test_a_decimal_is_hashed_to_its_last_digit(scale: int) -> None:
    number = decimal.Decimal("9" * 38).scaleb(-scale, decimal.Context(prec=40))
    with decimal.localcontext(prec=40):
        less = number - decimal.Decimal(1).scaleb(-scale)
    name = f"decimal(38,{scale})"
    assert key_hash((number,), [name]) != key_hash((less,), [name])


@pytest.mark.parametrize("types", [["string"], ["bigint"], ["double"], ["decimal(10,2)"], ["timestamp"]])
def test_a_null_key_is_refused(types: list[str]) -> None:
    with raises(StateError) as refused:
        key_hash((None,), types)
    assert "type" not in refused.value.facts, "it is not refused as a value of another type"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("x", "bigint"),
        (1.5, "bigint"),
        (1 << 63, "bigint"),
        (1 << 31, "int"),
        (b"x", "string"),
        ("\ud800", "string"),
        ("x", "binary"),
        (5, "binary"),
        ([1], "binary"),
        ("x", "double"),
        ("", "double"),
        (1e300, "float"),
        ("", "float"),
        ("x", "boolean"),
        ("2026-01-01", "date"),
        (datetime.datetime(2026, 1, 1), "date"),
        (20000, "date"),
        (datetime.date(2026, 1, 1), "timestamp"),
        ("x", "timestamp_ntz"),
        ("x", "decimal(10,2)"),
        (decimal.Decimal("NaN"), "decimal(10,2)"),
        (decimal.Decimal("1e30"), "decimal(10,2)"),
        (1, "decimal(x)"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_type(value: Any, name: str) -> None:
    with raises(StateError, value=value, type=name):
        key_hash((value,), [name])


# -- types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "string",
        "binary",
        "boolean",
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "date",
        "timestamp",
        "timestamp_ntz",
        "decimal(10,2)",
        "decimal(38,18)",
    ],
)
def test_a_type_that_hashes_alike_everywhere_is_taken(name: str) -> None:
    assert check_key_type(name, "column") == name


@pytest.mark.parametrize(
    "name",
    [
        "string collate UTF8_LCASE",
        "string collate UNICODE_CI",
        "array<int>",
        "map<string,int>",
        "struct<a:int>",
        "variant",
        "interval day",
        "",
    ],
)
def test_another_type_is_refused_with_column_and_type(name: str) -> None:
    with raises(ConfigError, column="carrier", type=name) as refused:
        check_key_type(name, "carrier")
    assert refused.value.hint
