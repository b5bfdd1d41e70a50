"""Statistics of a data file in Delta's format, taken from the Parquet footer.

A missing bound is always correct, because readers then read the file. So a bound that JSON, or some reader of Delta,
cannot represent exactly enough is left out, not rounded inwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# Delta's own limits: dataSkippingNumIndexedCols and dataSkippingStringPrefixLength.
_INDEXED_COLUMNS = 32
_PREFIX = 32
_EXPANDED_PREFIX = 2 * _PREFIX

_LAST_ASCII, _LAST_CHARACTER = "\x7f", "\U0010ffff"
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_EXACT_DIGITS = 15
"""A decimal of this many digits is exact as a float, which is how some readers parse JSON numbers."""
_encoder = msgspec.json.Encoder(decimal_format="number")

Json = int | float | str | Decimal
Bounds = tuple[Json | None, Json | None]


class DoubleBounds:
    """Smallest and largest value of a column of doubles.

    They are computed here and left out of the Parquet footer, whose bounds ignore NaN. Spark orders NaN above every
    number, so a filter such as ``x > 5`` would miss a NaN in a file whose other values are small.
    """

    def __init__(self) -> None:
        self.nulls = 0
        self._values: list[float] = []
        self._nan = False

    def add(self, column: pa.ChunkedArray) -> None:
        """Adds the values of a column of doubles."""
        self.nulls += column.null_count
        self._nan = self._nan or bool(pc.any(pc.is_nan(column)).as_py())
        ends = pc.min_max(column).as_py()
        self._values += [v for v in ends.values() if v is not None and not math.isnan(v)]

    def bounds(self) -> Bounds:
        """Returns the bounds; None for one that is unknown, NaN or infinite.

        Some readers order -0.0 below 0.0, and others treat them as equal: a zero is bounded so that both are right.
        """
        if not self._values:
            return None, None
        low, high = min(self._values), max(self._values)
        low, high = (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
        has_high = math.isfinite(high) and not self._nan
        return (low if math.isfinite(low) else None), (high if has_high else None)


def statistics(metadata: pq.FileMetaData, schema: pa.Schema, doubles: Mapping[str, DoubleBounds]) -> str:
    """Returns the ``stats`` of an ``add`` action, as JSON.

    Args:
        metadata: footer of a file with the columns of `schema`.
        doubles: bounds of the columns that the footer has none for, by column.
    """
    low: dict[str, Json] = {}
    high: dict[str, Json] = {}
    nulls: dict[str, int] = {}
    scalars = [field for field in list(schema)[:_INDEXED_COLUMNS] if not pa.types.is_nested(field.type)]
    positions = _positions(metadata)
    for column in scalars:
        if column.name in doubles:
            nulls[column.name] = doubles[column.name].nulls
            smallest, largest = doubles[column.name].bounds()
        else:
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            chunks = [group.column(positions[column.name]).statistics for group in groups]
            nulls[column.name] = sum(c.null_count for c in chunks)
            smallest, largest = _bounds(column.type, chunks)
        if smallest is not None:
            low[column.name] = smallest
        if largest is not None:
            high[column.name] = largest
    found = {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return _encoder.encode(found).decode()


def _positions(metadata: pq.FileMetaData) -> dict[str, int]:
    """Returns the position of each column in the footer, by path; a nested column has one for each scalar in it."""
    if metadata.num_row_groups == 0:
        return {}
    group = metadata.row_group(0)
    return {group.column(at).path_in_schema: at for at in range(group.num_columns)}


def _bounds(kind: pa.DataType, chunks: list[pq.Statistics]) -> Bounds:
    """Returns the bounds over all row groups, from the statistics of each."""
    filled = [c for c in chunks if c.num_values > 0]
    # A row group without bounds has a string that is longer than the Parquet footer stores.
    if not filled or not all(c.has_min_max for c in filled):
        return None, None
    if pa.types.is_decimal(kind):
        return _decimal(min(c.min for c in filled)), _decimal(max(c.max for c in filled))
    translate = _TRANSLATE.get(kind)
    if translate is None:
        return None, None
    return translate(min(c.min_raw for c in filled), max(c.max_raw for c in filled))


def _integers(low: int, high: int) -> Bounds:
    return low, high


def _strings(low: bytes, high: bytes) -> Bounds:
    return low.decode()[:_PREFIX], shortened_up(high.decode())


def shortened_up(text: str) -> str | None:
    """Returns a short string that is not less than `text` in the order of UTF-8 bytes; None when there is none."""
    if len(text) <= _PREFIX:
        return text
    for end in range(_PREFIX, min(_EXPANDED_PREFIX, len(text))):
        if text[end] < _LAST_ASCII:
            return text[:end] + _LAST_ASCII
        if text[end] < _LAST_CHARACTER:
            return text[:end] + _LAST_CHARACTER
    return text if len(text) <= _EXPANDED_PREFIX else None


def _decimal(value: Decimal) -> Decimal | None:
    """Returns the number; None if it has too many digits to be exact in all readers."""
    return value if len(value.as_tuple().digits) <= _EXACT_DIGITS else None


def _dates(low: int, high: int) -> Bounds:
    return _date(low), _date(high)


def _date(days: int) -> str | None:
    return _or_none(lambda: date.fromordinal(_EPOCH_DAY + days).isoformat())


def _zoned(low: int, high: int) -> Bounds:
    """Returns bounds in milliseconds, as Delta's writers store them, rounded outwards: not all readers do that."""
    return _instant(low // 1000, "Z"), _instant(-(-high // 1000), "Z")


def _unzoned(low: int, high: int) -> Bounds:
    return _instant(low // 1000, ""), _instant(-(-high // 1000), "")


def _instant(milliseconds: int, zone: str) -> str | None:
    def text() -> str:
        timestamp = _EPOCH + timedelta(milliseconds=milliseconds)
        return timestamp.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone

    return _or_none(text)


T = TypeVar("T")


def _or_none(make: Callable[[], T]) -> T | None:
    """Returns None for a date outside of Python's calendar, years 1 to 9999."""
    try:
        return make()
    except (OverflowError, ValueError):
        return None


_TRANSLATE: dict[pa.DataType, Callable[..., Bounds]] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), _integers),
    pa.string(): _strings,
    pa.date32(): _dates,
    pa.timestamp("us", tz="UTC"): _zoned,
    pa.timestamp("us"): _unzoned,
}
