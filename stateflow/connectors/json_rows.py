"""Rows as values of JSON that Spark's reader, and with it a `FileSource` or a `KafkaSource`, reads back."""

from __future__ import annotations

import math
from datetime import timedelta

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import DataError
from stateflow.types.columns.conversion import arrow_types_within
from stateflow.types.declared_types import python_type_of, special_float

JsonObject = dict[str, object]

encode = msgspec.json.Encoder(decimal_format="number").encode
"""Encodes a value of `json_objects`. Decimals are numbers with all their digits, bytes are Base64."""


def json_objects(rows: pa.RecordBatch | pa.Table) -> list[JsonObject]:
    """Returns an object for each row.

    Durations are texts such as ``1 02:03:04.500000``, and floats that JSON does not have are ``NaN``, ``Infinity`` and
    ``-Infinity``. Booleans that are keys of maps are ``true`` and ``false``.

    Raises:
        DataError: two keys of a map have the same text, such as two NaNs: an object would lose one of the entries.
    """
    objects: list[JsonObject] = rows.to_pylist(maps_as_pydicts="strict")
    for name, values in zip(rows.schema.names, rows.columns, strict=True):
        if _needs_texts(values):
            for row in objects:
                row[name] = _readable(row[name], name)
    return objects


def duration_text(duration: timedelta) -> str:
    """Returns a duration in the form of Spark's day-time intervals: days, hours, minutes and seconds."""
    sign, size = ("-", -duration) if duration < timedelta() else ("", duration)
    minutes, seconds = divmod(size.seconds, 60)
    return f"{sign}{size.days} {minutes // 60:02}:{minutes % 60:02}:{seconds:02}.{size.microseconds:06}"


def _needs_texts(values: pa.Array | pa.ChunkedArray) -> bool:
    """Returns whether values of a column need another form than their encoder's."""
    if pa.types.is_floating(values.type):
        # Nearly always all of them are finite, which need not be checked one by one in Python.
        return pc.all(pc.is_finite(values)).as_py() is False
    return _has_texts(values.type)


def _has_texts(kind: pa.DataType) -> bool:
    """Returns whether values of a type may need another form than their encoder's."""
    return any(
        python_type_of(part) in (float, timedelta) or (pa.types.is_map(part) and pa.types.is_boolean(part.key_type))
        for part in arrow_types_within(kind)
    )


def _readable(value: object, column: str) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else special_float(value)
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, dict):
        return _readable_map(value, column)
    return [_readable(item, column) for item in value] if isinstance(value, list) else value


def _readable_map(value: dict[object, object], column: str) -> dict[object, object]:
    found: dict[object, object] = {}
    for key, item in value.items():
        text = str(key).lower() if isinstance(key, bool) else _readable(key, column)
        if text in found:
            raise DataError(
                "two keys of a map have the same text in JSON",
                hint="write Parquet, or read the rows in Python: stateflow.read_state",
                column=column,
                map_key=text,
            )
        found[text] = _readable(item, column)
    return found
