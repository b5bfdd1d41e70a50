"""Values of partition columns, as texts of Delta's log and as names of folders.

A value is null or a text. The folders of a partition, such as ``day=2026-01-05/place=A%20B``, determine its values:
each character that a folder, a URL or Hive treats differently is percent-encoded, and a text that equals the name for
null as well. In the log's paths, which are URLs, ``%`` is encoded once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa

from stateflow.errors import DataError

NULL = "__HIVE_DEFAULT_PARTITION__"
"""In place of a null value in the name of a folder."""
Values = Mapping[str, str | None]
"""The values of a partition by column."""

_LONGEST_NAME = 255
"""Bytes of the name of a folder on Linux."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOOLEANS = {"true": True, "false": False}


def folder_of(values: Values) -> str:
    """Returns the folders of a partition, relative to the table; empty without partition columns.

    Raises DataError for a value whose folder would have too long a name.
    """
    return "/".join(_folder(column, value) for column, value in values.items())


def _folder(column: str, value: str | None) -> str:
    name = f"{_encoded(column)}={NULL if value is None else _encoded_value(value)}"
    if len(name) > _LONGEST_NAME:
        raise DataError(
            "a value is too long for a partition of the Delta table: it is the name of a folder",
            hint="partition by another column, or by a shorter text such as a prefix or a hash",
            column=column,
            value=str(value)[:40],
            bytes=len(name),
            limit=_LONGEST_NAME,
        )
    return name


def _encoded(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


def _encoded_value(value: str) -> str:
    return value.replace("_", "%5F", 1) if value == NULL else _encoded(value)


def values_of(folder: str) -> dict[str, str | None]:
    """Returns the values of a partition by its folders."""
    pairs = [part.split("=", 1) for part in folder.split("/") if part]
    return {unquote(column): None if value == NULL else unquote(value) for column, value in pairs}


def logged_path(path: str) -> str:
    """Returns a path of stateflow's data files as in the log."""
    return path.replace("%", "%25")


def split(rows: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields the rows of each partition with the partition's folders, without the partition columns.

    Args:
        rows: rows with the types of data files.
        columns: the partition columns.

    Raises:
        DataError: a value cannot be that of a partition.
    """
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    texts: list[list[str | None]] = []
    found: list[np.ndarray] = []
    for name in columns:
        encoded = rows.column(name).dictionary_encode("encode")
        texts.append([_text(name, value) for value in encoded.dictionary])
        found.append(encoded.indices.to_numpy(zero_copy_only=False))
        _, codes = np.unique(codes * len(texts[-1]) + found[-1], return_inverse=True)
    order = np.argsort(codes, kind="stable")
    kept = rows.drop_columns(list(columns))
    for group in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        values = {name: text[int(at[group[0]])] for name, text, at in zip(columns, texts, found, strict=True)}
        # Each partition gets its own memory: a slice would keep the rows of all partitions.
        yield folder_of(values), kept.take(pa.array(group))


def check_values(rows: pa.RecordBatch, columns: Sequence[str]) -> None:
    """Raises DataError if a partition cannot have a value; arguments as of `split`."""
    for name in columns:
        for value in rows.column(name).unique():
            _folder(name, _text(name, value))


def _text(column: str, value: pa.Scalar) -> str | None:
    """Returns a value as in the log: null for an empty text, as Delta's protocol demands."""
    if not value.is_valid:
        return None
    try:
        return _writer_of(value.type)(value) or None
    except (OverflowError, ValueError) as e:
        raise DataError(
            "a value cannot be that of a partition of the Delta table: its year is not within 1 to 9999",
            hint="correct the value, or partition by another column",
            column=column,
            type=str(value.type),
        ) from e


def _writer_of(kind: pa.DataType) -> Callable[[pa.Scalar], str]:
    if pa.types.is_timestamp(kind):
        return _instant if kind.tz else _unzoned
    if pa.types.is_boolean(kind):
        return lambda value: "true" if value.as_py() else "false"
    if pa.types.is_decimal(kind):
        return lambda value: format(value.as_py(), "f")
    return lambda value: str(value.as_py())


def _instant(value: pa.Scalar) -> str:
    return _unzoned(value).replace(" ", "T") + "Z"


def _unzoned(value: pa.Scalar) -> str:
    moment = _EPOCH + timedelta(microseconds=value.cast(pa.int64()).as_py())
    return moment.replace(tzinfo=None).isoformat(" ", "microseconds")


def scalar(text: str | None, kind: pa.DataType, empty: object = None) -> pa.Scalar:
    """Returns a value of the log with the type of its column.

    Args:
        empty: the value of null and of an empty text, which are the same in the log.

    Raises:
        ValueError: the text is not of that type, or a timestamp without time zone, which some writers store in the
            time zone of their session.
    """
    try:
        return pa.scalar(_read(text, kind) if text else empty, kind)
    except (KeyError, InvalidOperation, OverflowError, pa.ArrowException) as e:
        raise ValueError(f"the value of a partition is not of type {kind}") from e


def _read(text: str, kind: pa.DataType) -> object:
    if pa.types.is_boolean(kind):
        return _BOOLEANS[text.lower()]
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_date(kind):
        return date.fromisoformat(text)
    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_timestamp(kind):
        moment = datetime.fromisoformat(text)
        if (moment.tzinfo is None) != (kind.tz is None):
            raise ValueError("the timestamp of a partition has no time zone, or one too many")
        return moment
    return text
