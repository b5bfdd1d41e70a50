"""Statistics of a data file as Delta keeps them, taken from what Parquet's footer says.

A bound that is left out is never wrong: readers then look into the file. So every value that JSON, or some reader of
Delta, cannot represent exactly enough is left out rather than approximated downwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stateflow.api.schema import Column, RowSchema

# Delta's own limits: dataSkippingNumIndexedCols and dataSkippingStringPrefixLength.
_INDEXED_COLUMNS = 32
_PREFIX = 32
_EXPANDED_PREFIX = 2 * _PREFIX

_LAST_ASCII, _LAST_CHARACTER = "\x7f", "\U0010ffff"
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Json = int | float | str
Bounds = tuple[Json | None, Json | None]


class DoubleBounds:
    """Smallest and largest value of a column of doubles.

    They are counted here and kept out of Parquet's footer: the footer's bounds ignore NaN, Spark orders NaN above
    every number, and so a filter like ``x > 5`` would not find a NaN in a file whose other values are small.
    """

    def __init__(self) -> None:
        self.nulls = 0
        self._values: list[float] = []
        self._nan = False

    def add(self, column: pa.ChunkedArray) -> None:
        self.nulls += column.null_count
        self._nan = self._nan or bool(pc.any(pc.is_nan(column)).as_py())
        ends = pc.min_max(column).as_py()
        self._values += [v for v in ends.values() if v is not None and not math.isnan(v)]

    def bounds(self) -> Bounds:
        """Of two zeros -0.0 is the smaller for some readers, and neither for others: these bounds hold for both."""
        if not self._values:
            return None, None
        low, high = min(self._values), max(self._values)
        low, high = (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
        has_high = math.isfinite(high) and not self._nan
        return (low if math.isfinite(low) else None), (high if has_high else None)


def statistics(metadata: pq.FileMetaData, schema: RowSchema, doubles: Mapping[str, DoubleBounds]) -> str:
    """The ``stats`` of an ``add`` action, as JSON.

    Args:
        metadata: footer of a file whose columns are those of `schema`.
        doubles: what the footer does not tell, by column.
    """
    low: dict[str, Json] = {}
    high: dict[str, Json] = {}
    nulls: dict[str, int] = {}
    for i, column in enumerate(schema.columns[:_INDEXED_COLUMNS]):
        if column.name in doubles:
            nulls[column.name] = doubles[column.name].nulls
            smallest, largest = doubles[column.name].bounds()
        else:
            chunks = [metadata.row_group(g).column(i).statistics for g in range(metadata.num_row_groups)]
            nulls[column.name] = sum(c.null_count for c in chunks)
            smallest, largest = _bounds(column, chunks)
        if smallest is not None:
            low[column.name] = smallest
        if largest is not None:
            high[column.name] = largest
    found = {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return msgspec.json.encode(found).decode()


def _bounds(column: Column, chunks: list[pq.Statistics]) -> Bounds:
    translate = _TRANSLATE.get(column.spark_type)
    filled = [c for c in chunks if c.num_values > 0]
    # A chunk without bounds holds a string that is longer than Parquet's footer keeps.
    if translate is None or not filled or not all(c.has_min_max for c in filled):
        return None, None
    return translate(min(c.min_raw for c in filled), max(c.max_raw for c in filled))


def _integers(low: int, high: int) -> Bounds:
    return low, high


def _strings(low: bytes, high: bytes) -> Bounds:
    return low.decode()[:_PREFIX], _shortened_up(high.decode())


def _shortened_up(text: str) -> str | None:
    """A short string that is not less than `text` in the order of UTF-8 bytes; None when there is none."""
    if len(text) <= _PREFIX:
        return text
    for end in range(_PREFIX, min(_EXPANDED_PREFIX, len(text))):
        if text[end] < _LAST_ASCII:
            return text[:end] + _LAST_ASCII
        if text[end] < _LAST_CHARACTER:
            return text[:end] + _LAST_CHARACTER
    return text if len(text) <= _EXPANDED_PREFIX else None


def _dates(low: int, high: int) -> Bounds:
    return _date(low), _date(high)


def _date(days: int) -> str | None:
    return _or_none(lambda: date.fromordinal(_EPOCH_DAY + days).isoformat())


def _zoned(low: int, high: int) -> Bounds:
    """Milliseconds, as Delta's writers keep them; rounded outwards, because not all readers allow for the rest."""
    return _instant(low // 1000, "Z"), _instant(-(-high // 1000), "Z")


def _unzoned(low: int, high: int) -> Bounds:
    return _instant(low // 1000, ""), _instant(-(-high // 1000), "")


def _instant(milliseconds: int, zone: str) -> str | None:
    def text() -> str:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
        return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone

    return _or_none(text)


T = TypeVar("T")


def _or_none(make: Callable[[], T]) -> T | None:
    """None for what Python's calendar, years 1 to 9999, does not have."""
    try:
        return make()
    except (OverflowError, ValueError):
        return None


_TRANSLATE: dict[str, Callable[..., Bounds]] = {
    "bigint": _integers,
    "string": _strings,
    "date": _dates,
    "timestamp": _zoned,
    "timestamp_ntz": _unzoned,
}
