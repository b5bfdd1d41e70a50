# ruff: noqa: DTZ001 - timestamps without a zone are a type of their own
"""Key groups: ranges and the hash of keys; tests/spark compares the hash with Spark's."""

from __future__ import annotations

import datetime
import decimal
import math
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

AT = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def test_ranges_partition_all_groups_evenly() -> None:
    assert [range_of(i, 2, 128) for i in (0, 1)] == [KeyGroupRange(0, 63), KeyGroupRange(64, 127)]
    for groups in range(1, 65):
        for parallelism in range(1, groups + 1):
            ranges = [range_of(subtask, parallelism, groups) for subtask in range(parallelism)]
            owners = [subtask for subtask, owned in enumerate(ranges) for _ in range(owned.first, owned.last + 1)]
            assert owners == [subtask_of(group, parallelism, groups) for group in range(groups)]
            assert {len(owned) - groups // parallelism for owned in ranges} <= {0, 1}


@given(st.integers(1, MAX_PARALLELISM_LIMIT), st.data())
def test_a_group_is_in_the_range_of_its_subtask(max_parallelism: int, data: st.DataObject) -> None:
    parallelism, group = data.draw(st.integers(1, max_parallelism)), data.draw(st.integers(0, max_parallelism - 1))
    owned = range_of(subtask_of(group, parallelism, max_parallelism), parallelism, max_parallelism)
    assert group in owned and owned.first - 1 not in owned and owned.last + 1 not in owned
    assert len(owned) - max_parallelism // parallelism in (0, 1)


@pytest.mark.parametrize("value", [0, -1, MAX_PARALLELISM_LIMIT + 1])
def test_max_parallelism_has_bounds(value: int) -> None:
    with raises(ConfigError, value=value):
        check_max_parallelism(value)
    assert check_max_parallelism(MAX_PARALLELISM_LIMIT) == MAX_PARALLELISM_LIMIT


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
    """State is stored by them: with another value, no stored key would be found again."""
    assert key_hash(key, types) == digest
    assert key_group(key, types, 128) == digest % 128


def test_the_type_and_the_order_of_columns_are_part_of_the_hash() -> None:
    assert len({key_hash((1,), [name]) for name in ("int", "bigint", "float", "double", "decimal(5,2)")}) == 5
    assert key_hash(("a", "b"), ["string"] * 2) != key_hash(("b", "a"), ["string"] * 2)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        *(((0.0, -0.0, 0), name) for name in ("float", "double")),
        *(((math.nan, -math.nan), name) for name in ("float", "double")),
        ((AT, AT.astimezone(datetime.timezone(datetime.timedelta(hours=-7)))), "timestamp"),
    ],
)
def test_values_that_are_one_key_have_one_hash(values: tuple[Any, ...], name: str) -> None:
    assert len({key_hash((value,), [name]) for value in values}) == 1


def test_a_local_time_is_hashed_as_if_in_utc() -> None:
    assert key_hash((AT,), ["timestamp"]) == key_hash((AT.replace(tzinfo=None),), ["timestamp_ntz"])


@pytest.mark.parametrize("scale", [0, 4])
def test_a_decimal_is_hashed_to_its_last_digit(scale: int) -> None:
    with decimal.localcontext(prec=40):
        number = decimal.Decimal("9" * 38).scaleb(-scale)
        less = number - decimal.Decimal(1).scaleb(-scale)
    name = f"decimal(38,{scale})"
    assert key_hash((number,), [name]) != key_hash((less,), [name])


@pytest.mark.parametrize("name", ["string", "bigint", "double", "decimal(10,2)", "timestamp"])
def test_a_null_does_not_change_the_hash(name: str) -> None:
    assert key_hash((None,), [name]) == key_hash((None, None), [name, name]) == 42
    assert key_hash((None, "a", None), [name, "string", name]) == key_hash(("a",), ["string"])


OTHER_VALUES: dict[str, list[Any]] = {
    "bigint": ["x", 1.5, 1 << 63],
    "int": [1 << 31],
    "string": [b"x", "\ud800"],
    "binary": ["x", 5, [1]],
    "double": ["x", ""],
    "float": [1e300, ""],
    "boolean": ["x"],
    "date": ["2026-01-01", datetime.datetime(2026, 1, 1), 20000],
    "timestamp": [datetime.date(2026, 1, 1)],
    "timestamp_ntz": ["x"],
    "decimal(10,2)": ["x", decimal.Decimal("NaN"), decimal.Decimal("1e30")],
    "decimal(x)": [1],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in OTHER_VALUES.items() for value in values]
)
def test_a_value_of_another_type_is_refused_with_the_type(name: str, value: Any) -> None:
    with raises(StateError, value=value, type=name):
        key_hash((value,), [name])


NUMBERS = "tinyint smallint int bigint float double decimal(10,2) decimal(38,18)"
OTHERS = "string binary boolean date timestamp timestamp_ntz"
COLLATED = ["string collate UTF8_LCASE", "string collate UNICODE_CI"]


@pytest.mark.parametrize("name", [*NUMBERS.split(), *OTHERS.split()])
def test_a_type_that_hashes_alike_everywhere_is_accepted(name: str) -> None:
    assert check_key_type(name, "column") == name


@pytest.mark.parametrize(
    "name", [*COLLATED, *"array<int> map<string,int> struct<a:int> variant".split(), "interval day", ""]
)
def test_another_type_is_refused_with_column_and_type(name: str) -> None:
    with raises(ConfigError, column="carrier", type=name) as refused:
        check_key_type(name, "carrier")
    assert refused.value.hint
