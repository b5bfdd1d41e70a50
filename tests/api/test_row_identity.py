"""Which rows have the same identity."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.api.schema import Column, RowIdentity
from stateflow.types.columns.precision import precision
from stateflow.types.columns.shapes import shape_of

NEW_YEAR = date(2026, 1, 1)
(OTHER_NAN,) = struct.unpack("<d", (0xFFF8 << 48).to_bytes(8, "little"))


class Part(msgspec.Struct):
    size: float | None
    name: str = ""


class Reordered(msgspec.Struct):
    name: str
    size: float | None


class Positional(msgspec.Struct, array_like=True):
    size: int
    count: int


def _digest(kind: Any, value: Any, name: str = "value") -> bytes:
    row = msgspec.defstruct("Row", [(name, kind)])(value)
    return RowIdentity.of([Column(name, shape_of(kind))]).digest(row)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((float, math.nan), (float | None, OTHER_NAN)),
        ((list[float], [0.5, math.nan]), (list[float], [0.5, OTHER_NAN])),
        (
            (dict[date, int], {date(2026, 1, 1): 1, date(2026, 1, 2): 2}),
            (dict[date, int], {date(2026, 1, 2): 2, date(2026, 1, 1): 1}),
        ),
        ((Part, Part(math.nan, "x")), (Reordered, Reordered("x", OTHER_NAN))),
        ((list[Part], [Part(None, "x")]), (list[Reordered], [Reordered("x", None)])),
    ],
)
def test_equal_values_have_one_digest(first: tuple[Any, Any], second: tuple[Any, Any]) -> None:
    assert _digest(*first) == _digest(*second)


AMOUNT = Annotated[Decimal, precision(12, scale=2)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (str | None, [None, "", "None", "nan"]),
        (float | None, [None, 0.0, -0.0, 1.0, math.nan, math.inf]),
        (bool | None, [None, False, True]),
        (bytes, [b"", b"\xc0", b"\xc0\xc0"]),
        (datetime, [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]),
        (date, [NEW_YEAR, date(2026, 1, 2)]),
        (AMOUNT, [Decimal("0.10"), Decimal("1.00"), Decimal("10.00")]),
        (list[str | None] | None, [None, [], [None], [""], ["a", "b"], ["ab"], ["a", None, "b"]]),
        (dict[str, list[int]] | None, [None, {}, {"a": []}, {"a": [1], "b": []}, {"a": [], "b": [1]}]),
        (Part | None, [None, Part(None), Part(0.0), Part(None, "x")]),
        (Positional, [Positional(1, 2), Positional(2, 1)]),
    ],
)
def test_other_values_have_other_digests(kind: Any, values: list[Any]) -> None:
    assert len({_digest(kind, value) for value in values}) == len(values)


def test_the_text_has_names_and_types_in_one_order() -> None:
    shapes = {"b": list[Part], "a": dict[str, Reordered], "c": Positional}
    for names in ("abc", "cba"):
        identity = RowIdentity.of(Column(name, shape_of(shapes[name])) for name in names)
        part = "struct<name:string,size:double>"
        assert identity.text == f"a map<string,{part}>, b array<{part}>, c struct<size:bigint,count:bigint>"


Texts = st.lists(st.none() | st.text(max_size=3), min_size=2, max_size=2)


@given(Texts, Texts)
def test_values_of_several_columns_are_not_confused(first: list[str | None], second: list[str | None]) -> None:
    identity = RowIdentity.of(Column(name, shape_of(str | None)) for name in ("x", "y"))
    made = msgspec.defstruct("Row", [("x", str | None), ("y", str | None)])
    assert (identity.digest(made(*first)) == identity.digest(made(*second))) == (first == second)
