"""Keys on the command line have the values that the recorded types of their columns have."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.cli.state.keys import parse_key
from stateflow.errors import ConfigError
from tests.support.errors import raises

_TEXT: dict[str, tuple[pa.DataType, st.SearchStrategy[object], Callable[[object], str]]] = {
    "string": (pa.string(), st.text(), str),
    "bigint": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1), str),
    "tinyint": (pa.int8(), st.integers(-128, 127), str),
    "double": (pa.float64(), st.floats(allow_nan=False), repr),
    "boolean": (pa.bool_(), st.booleans(), lambda value: str(value).lower()),
    "date": (pa.date32(), st.dates(), str),
    "timestamp_ntz": (pa.timestamp("us"), st.datetimes(), lambda value: str(value).replace(" ", "T")),
    "binary": (pa.binary(), st.binary(), lambda value: base64.b64encode(bytes(value)).decode()),  # type: ignore[call-overload]
    "decimal": (pa.decimal128(9, 2), st.decimals(-999, 999, places=2), str),
}


@pytest.mark.parametrize("kind", _TEXT)
@given(data=st.data())
def test_the_text_of_a_value_is_read_as_the_value(kind: str, data: st.DataObject) -> None:
    arrow, values, text = _TEXT[kind]
    value = data.draw(values)
    fields = [pa.field("one", arrow), pa.field("two", pa.int32())]
    assert parse_key(text(value), fields[:1]) == (value,)
    assert parse_key(json.dumps([text(value), 7]), fields) == (value, 7)
    assert parse_key(json.dumps({"two": "7", "one": text(value)}), fields) == (value, 7)


def test_times_with_a_zone_are_the_same_time_in_utc() -> None:
    wanted = datetime.datetime(2026, 1, 31, 2, tzinfo=datetime.UTC)
    for text in ("2026-01-31T02:00:00Z", "2026-01-31T03:00:00+01:00"):
        assert parse_key(text, [pa.field("at", pa.timestamp("us", "UTC"))]) == (wanted,)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x", pa.int64()),
        ("1.5", pa.int64()),
        ("128", pa.int8()),
        ("", pa.int32()),
        ("2", pa.bool_()),
        ("31.1.2026", pa.date32()),
        ("2026-01-31T03:00:00", pa.timestamp("us", "UTC")),
        ("§", pa.binary()),
        ("1.234", pa.decimal128(9, 2)),
        ("1", pa.duration("us")),
    ],
)
def test_a_text_without_a_value_of_the_type_is_an_error_that_names_column_type_and_value(
    text: str, kind: pa.DataType
) -> None:
    with raises(ConfigError) as caught:
        parse_key(text, [pa.field("of", kind)])
    facts = caught.value.facts
    assert (facts["column"], facts["type"], facts["value"]) == ("of", str(kind), text) and caught.value.hint


def test_a_decimal_of_json_keeps_its_digits() -> None:
    assert parse_key('["1.10", 2]', [pa.field("a", pa.decimal128(9, 2)), pa.field("b", pa.int8())]) == (
        Decimal("1.10"),
        2,
    )
