"""File statistics: never wrong, and tight where they can be."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.api.sink import SinkContext, Writing
from stateflow.connectors.delta.data_files import FileName, Limits, ParquetWriter
from stateflow.connectors.delta.statistics import shortened_up
from tests.support.delta_tables import Every, batch, context

_ABOUT = context(Every)
_naive = datetime.fromisoformat
_EACH = Limits(row_group_bytes=1)


def _writer(folder: Path, about: SinkContext = _ABOUT, limits: Limits | None = None) -> ParquetWriter:
    return ParquetWriter(folder, FileName.first(about, Writing(1, 1, 0, "a")), about.schema, limits)


def _read(writer: ParquetWriter) -> dict[str, Any]:
    [file] = writer.close()
    found: dict[str, Any] = json.loads(file.stats)
    assert found["numRecords"] == file.rows
    return found


def _bounds(folder: Path, column: str, values: list[Any], limits: Limits | None = None) -> tuple[Any, Any, Any]:
    writer = _writer(folder, limits=limits)
    for value in values:
        writer.write(batch(_ABOUT, [Every(id=0, **{column: value})]))
    stats = _read(writer)
    return stats["minValues"].get(column), stats["maxValues"].get(column), stats["nullCount"].get(column)


@pytest.mark.parametrize("limits", [None, _EACH], ids=["one row group", "a row group per row"])
@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("amount", [1.5, None, -2.25], (-2.25, 1.5, 1)),
        ("amount", [None, None], (None, None, 2)),
        ("amount", [math.nan], (None, None, 0)),
        ("amount", [1.0, math.nan, 2.0], (1.0, None, 0)),
        ("amount", [math.inf, 1.0], (1.0, None, 0)),
        ("amount", [-math.inf, 1.0], (None, 1.0, 0)),
        ("amount", [1e300, 5e-324], (5e-324, 1e300, 0)),
        ("text", ["b", "a", None, ""], ("", "b", 1)),
        ("text", ["é", "z", "\U0001f600"], ("z", "\U0001f600", 0)),
        ("text", ["a\0b", '"\\'], ('"\\', "a\0b", 0)),
        ("text", ["x" * 33], ("x" * 32, "x" * 32 + "\x7f", 0)),
        ("text", ["é" * 33], ("é" * 32, "é" * 32 + "\U0010ffff", 0)),
        ("text", ["x" * 5000, "a"], (None, None, 0)),
        ("flag", [True, None], (None, None, 1)),
        ("raw", [b"\xff", b""], (None, None, 0)),
        ("day", [date(2024, 2, 29), date(1, 1, 1)], ("0001-01-01", "2024-02-29", 0)),
        ("local", [_naive("2013-01-01T05:00:00.000001")], ("2013-01-01T05:00:00.000", "2013-01-01T05:00:00.001", 0)),
        ("local", [_naive("1969-12-31T23:59:59.999999")], ("1969-12-31T23:59:59.999", "1970-01-01T00:00:00.000", 0)),
        (
            "instant",
            [datetime(2013, 1, 1, 5, 0, 0, 7000, tzinfo=UTC)],
            ("2013-01-01T05:00:00.007Z", "2013-01-01T05:00:00.007Z", 0),
        ),
        ("instant", [datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)], ("9999-12-31T23:59:59.999Z", None, 0)),
    ],
)
def test_the_bounds_and_nulls_of_a_column(
    tmp_path: Path, column: str, values: list[Any], expected: tuple[Any, ...], limits: Limits | None
) -> None:
    assert _bounds(tmp_path, column, values, limits) == expected


def test_parquet_files_have_no_bounds_of_doubles(tmp_path: Path) -> None:
    """Spark would skip row groups by them, although they ignore NaN."""
    writer = _writer(tmp_path)
    writer.write(batch(_ABOUT, [Every(id=1, amount=1.0)]))
    [file] = writer.close()
    row_group = pq.read_metadata(tmp_path / file.path).row_group(0)
    assert [row_group.column(i).statistics is None for i in (0, 1, 2)] == [False, True, False]


def test_a_zero_is_bounded_in_either_order_of_the_two_zeros(tmp_path: Path) -> None:
    low, high, _ = _bounds(tmp_path, "amount", [0.0, -0.0])
    assert (math.copysign(1, low), math.copysign(1, high)) == (-1, 1)


def test_values_outside_the_calendar_have_no_bounds(tmp_path: Path) -> None:
    arrays = [pa.nulls(2, t) for t in _ABOUT.schema.arrow.types]
    far = [-(2**40), 2**62]
    arrays[0] = pa.array([1, 2])
    arrays[5] = pa.array([-(2**30), 2**30], pa.int32()).cast(pa.date32())
    arrays[6], arrays[7] = pa.array(far, pa.timestamp("us")), pa.array(far, pa.timestamp("us", "UTC"))
    writer = _writer(tmp_path)
    writer.write(pa.RecordBatch.from_arrays(arrays, schema=_ABOUT.schema.arrow))
    stats = _read(writer)
    assert stats["minValues"] == {"id": 1, "local": "1969-12-19T06:34:48.372", "instant": "1969-12-19T06:34:48.372Z"}
    assert stats["maxValues"] == {"id": 2}


def test_the_columns_that_delta_reads_statistics_of_have_them(tmp_path: Path) -> None:
    wide = msgspec.defstruct("Wide", [(f"c{i}", int) for i in range(40)])
    about = SinkContext("job", "out", context(wide).schema)
    writer = _writer(tmp_path, about)
    writer.write(batch(about, [wide(*range(40))]))
    assert list(_read(writer)["maxValues"]) == [f"c{i}" for i in range(32)]


@given(
    st.text(max_size=80)
    | st.builds(lambda n, last: "x" * 31 + last * n, st.integers(0, 40), st.sampled_from("a\x7f\U0010ffff"))
)
def test_a_shortened_upper_bound_is_not_less_than_the_string(text: str) -> None:
    bound = shortened_up(text)
    if bound is None:
        assert len(text) > 64 and set(text[32:64]) == {"\U0010ffff"}
    else:
        assert bound.encode() >= text.encode()
        assert len(bound) <= 65
