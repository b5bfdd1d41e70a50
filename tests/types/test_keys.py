# ruff: noqa: DTZ001 - timestamps without a zone are a type of their own
"""Keys: ranges of key groups, hashes, and keys that users give as JSON or as text; tests/spark compares with Spark."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import ConfigError, WrongKeyType
from stateflow.types.key_encoding import encode_key
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
from stateflow.types.key_values import convert_key, convert_map_key, encode_typed_key, group_of, parse_key, plain_key
from stateflow.types.time_window import TimeWindow
from tests.support.errors import raises

AT = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def test_two_subtasks_have_halves() -> None:
    assert [range_of(i, 2, 128) for i in (0, 1)] == [KeyGroupRange(0, 63), KeyGroupRange(64, 127)]


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


REFUSED = ["string collate UTF8_LCASE", "array<int>", "map<string,int>", "struct<a:int>", "variant", "interval day", ""]


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_does_not_hash_alike_everywhere_is_refused(name: str) -> None:
    with raises(ConfigError, column="carrier", type=name):
        check_key_type(name, "carrier")
    for (
        accepted
    ) in "tinyint int bigint float decimal(38,18) string binary boolean date timestamp timestamp_ntz".split():
        assert check_key_type(accepted, "carrier") == accepted


_LONGEST = datetime.timedelta(microseconds=(1 << 63) - 1)
_UTC = st.just(datetime.UTC)
_WHOLE = st.integers(-(10**7), 10**7).map(lambda n: decimal.Decimal(n).scaleb(-2))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(exclude_categories=["Cs"])), "binary": st.binary(), "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127), "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1), "bigint": st.integers(-(2**63), 2**63 - 1), "float": st.floats(width=32),
    "double": st.floats(), "date": st.dates(), "timestamp": st.datetimes(timezones=_UTC),
    "timestamp_ntz": st.datetimes(), "time(6)": st.times(),
    "interval day to second": st.timedeltas(-_LONGEST, _LONGEST), "decimal(9,2)": _WHOLE,
}  # fmt: skip


KEYS = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3).flatmap(
    lambda types: st.tuples(st.just(types), st.tuples(*(st.none() | VALUES[name] for name in types)))
)


@given(KEYS)
def test_a_key_survives_json_and_has_the_group_and_the_bytes_that_the_job_stores(case: Any) -> None:
    types, key = case
    stored = encode_key(key)
    for given_key in (key, json.loads(msgspec.json.encode(plain_key(key)))):
        typed = convert_key(given_key, types)
        assert encode_typed_key(typed) == stored
        assert group_of(typed, types, 128) == key_group(key, types, 128)


@given(KEYS)
def test_the_texts_of_a_key_on_a_command_line_are_the_key(case: Any) -> None:
    types, key = case
    columns = {f"column {number}": name for number, name in enumerate(types)}
    stored = encode_key(key)
    if None not in key or len(key) == 1:
        assert encode_typed_key(parse_key([_text(value) for value in key], columns)) == stored
    if len(types) > 1:
        plain = plain_key(key)
        assert encode_typed_key(parse_key([json.dumps(plain)], columns)) == stored
        assert (
            encode_typed_key(parse_key([json.dumps(dict(reversed([*zip(columns, plain, strict=True)])))], columns))
            == stored
        )


def _text(value: object) -> str:
    if isinstance(value, str) or value is None:
        return "[null]" if value is None else value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    (plain,) = plain_key([value])
    return plain if isinstance(plain, str) else json.dumps(plain)


MAP_KEYS = {"str": "string", "int": "bigint", "float": "double", "bool": "boolean", "bytes": "binary", "date": "date"}


@given(st.sampled_from([*MAP_KEYS.items(), ("datetime", "timestamp"), ("datetime", "timestamp_ntz")]), st.data())
def test_a_key_of_a_map_survives_json(case: tuple[str, str], data: st.DataObject) -> None:
    declared, name = case
    key = data.draw(VALUES[name])
    (again,) = json.loads(msgspec.json.encode(plain_key([key])))
    assert encode_typed_key((convert_map_key(again, declared),)) == encode_key((key,))


_NAIVE = datetime.datetime(2026, 1, 1)
WRONG: dict[str, list[object]] = {
    "string": [1, b"x", ["x"], "\ud800"], "binary": [1, "not base64!", "é"], "boolean": [1, 0, "true"],
    "tinyint": [128, -129, 1.0, True, "1"], "bigint": [1 << 63, True, "1", 1.5], "float": [1e39, "1", True],
    "double": ["1", "nan", True, 10**400], "date": ["2026-13-01", 5, _NAIVE, "2026-01-01T00:00:00"],
    "timestamp": ["2026-01-01T00:00:00", _NAIVE, 0],
    "timestamp_ntz": ["2026-01-01T00:00:00Z", datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)],
    "time(6)": ["25:00:00", 1], "interval day to second": ["1 day", 5],
    "decimal(9,2)": [
        "1_0", "٣", " 1", f"1.{'0' * 100}1", "1.001", "10000000.00", "NaN", "Infinity", "1e400", 1.5, True, "x",
    ],
    "struct<a:int>": [1, "x"],
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_value_of_another_type_is_refused(name: str) -> None:
    for value in WRONG[name]:
        with raises(WrongKeyType):
            group_of(convert_key([value], [name]), [name], 128)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *(("x", "bigint"), ("1.5", "bigint"), ("1_0", "bigint"), ("٣", "bigint"), ("", "int"), ("128", "tinyint")),
        *(("2", "boolean"), ("31.1.2026", "date"), ("2026-01-31T03:00:00", "timestamp"), ("§", "binary")),
        *(("1.234", "decimal(9,2)"), ("1.5", "interval day to second"), ("inf", "double"), ("1", "array<int>")),
    ],
)
def test_a_text_without_a_value_of_the_type_is_an_error_that_names_column_type_and_value(text: str, kind: str) -> None:
    with raises(WrongKeyType, column="of", type=kind) as caught:
        parse_key([text], {"of": kind})
    assert text in str(caught.value.facts["value"]) and caught.value.hint


@pytest.mark.parametrize(
    "texts", [["a"], ["[1"], ['["a"]'], ['{"a": "x"}'], ['"a"'], ["\ud800"], ["[" * 9999], ["a"] * 3]
)
def test_texts_that_are_not_one_value_for_each_column_are_an_error_that_names_the_columns(texts: list[str]) -> None:
    with raises(WrongKeyType, columns=["a", "b"], types=["string", "int"]):
        parse_key(texts, {"a": "string", "b": "int"})


# -- time windows as values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [((0, 10), (10, 20), True), ((0, 10), (11, 20), False), ((0, 10), (3, 4), True), ((5, 6), (0, 4), False)],
)
def test_windows_that_overlap_or_touch_intersect(one: tuple[int, int], other: tuple[int, int], expected: bool) -> None:
    assert TimeWindow(*one).intersects(TimeWindow(*other)) is expected
    assert TimeWindow(*other).intersects(TimeWindow(*one)) is expected


def test_a_window_ends_before_its_end_and_covers_another_one() -> None:
    assert TimeWindow(0, 10).max_timestamp == 9
    assert TimeWindow(0, 10).cover(TimeWindow(-5, 3)) == TimeWindow(-5, 10)


@pytest.mark.parametrize("window", [TimeWindow(0, 86_400_000), TimeWindow(-1, 1), TimeWindow(-(1 << 62), 1 << 62)])
def test_a_window_is_read_from_its_text(window: TimeWindow) -> None:
    assert TimeWindow.parse(str(window)) == window
