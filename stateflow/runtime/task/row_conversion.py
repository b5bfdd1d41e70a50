"""Converts between Arrow columns and the row objects of user functions."""

from __future__ import annotations

import datetime
import inspect
import numbers
from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.schema import Column, RowSchema
from stateflow.errors import SchemaMismatch
from stateflow.runtime.task_spec import Numbers
from stateflow.runtime.user_code import described

RowMaker = Callable[..., object]
"""Creates a row object from the values of its columns, in order."""

_ACCEPTED_TYPES: dict[str, type | tuple[type, ...]] = {
    "bigint": numbers.Integral,
    "double": numbers.Real,
    "string": str,
    "boolean": (bool, np.bool_),
    "binary": (bytes, bytearray, memoryview),
    "date": datetime.date,
    "timestamp": datetime.datetime,
    "timestamp_ntz": datetime.datetime,
}
"""The Python types that a column accepts, by Spark type."""
_NO_TIME = -(1 << 63)
_PER_MILLISECOND = {"us": 1000, "ns": 1_000_000}
_EXCLUDED_TYPES: dict[str, type] = {"bigint": bool, "double": bool, "date": datetime.datetime}
"""Subclasses of accepted types that a column does not accept."""


def row_maker(schema: RowSchema) -> RowMaker:
    """Returns the function that creates row objects of a schema."""
    row_class, names = schema.row_class, schema.names
    parameters = inspect.signature(row_class).parameters.values()
    if all(p.kind is not inspect.Parameter.KEYWORD_ONLY for p in parameters):
        return row_class
    return lambda *values: row_class(**dict(zip(names, values, strict=True)))


def to_rows(columns: Sequence[pa.Array], maker: RowMaker) -> list[object]:
    """Returns the row objects of columns of equal length."""
    return list(map(maker, *[to_list(column) for column in columns]))


def to_list(column: pa.Array) -> Sequence[object]:
    """Returns the values of a column as Python objects.

    Numbers and timestamps without nulls are converted by NumPy, which is faster.
    """
    kind = column.type
    if column.null_count == 0:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            numbers: list[object] = column.to_numpy(zero_copy_only=False).tolist()
            return numbers
        if pa.types.is_timestamp(kind):
            return _timestamps(column, zoned=kind.tz is not None)
    values: list[object] = column.to_pylist()
    return values


def _timestamps(column: pa.Array, zoned: bool) -> Sequence[object]:
    values: list[datetime.datetime] = column.to_numpy(zero_copy_only=False).astype("datetime64[us]").tolist()
    return [v.replace(tzinfo=datetime.UTC) for v in values] if zoned else values


def latest_time(column: pa.Array) -> int | None:
    """Returns the latest event time of a column in milliseconds since 1970; None if all values are null."""
    latest = pc.max(column)
    if not latest.is_valid:
        return None
    number: int = latest.cast(pa.int64()).as_py()
    return number // _PER_MILLISECOND[column.type.unit] if pa.types.is_timestamp(column.type) else number


def event_times(column: pa.Array) -> Numbers:
    """Returns the event times of a column in milliseconds since 1970; null becomes the lowest 64-bit integer."""
    numbers: Numbers = column.cast(pa.int64()).fill_null(_NO_TIME).to_numpy()
    if not pa.types.is_timestamp(column.type):
        return numbers
    return np.where(numbers == _NO_TIME, _NO_TIME, numbers // _PER_MILLISECOND[column.type.unit])


def to_batch(rows: Sequence[object], schema: RowSchema) -> pa.RecordBatch:
    """Returns the columns of row objects.

    Raises:
        SchemaMismatch: a value does not fit; the error names its column and the first row that does not fit.
    """
    arrays = []
    for column in schema.columns:
        try:
            values = list(map(attrgetter(column.name), rows))
            _check_types(values, column)
            arrays.append(pa.array(values, column.arrow_type))
        except (AttributeError, TypeError, ValueError, OverflowError) as e:
            raise SchemaMismatch(
                "an emitted row does not fit its row class",
                hint=f"emit rows of {schema.row_class.__name__}, the output class, or change that class",
                row_class=schema.row_class.__name__,
                column=column.name,
                declared=column.spark_type,
                reason=str(e)[:200],
                **_row_fact(rows, schema),
            ) from e
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def first_misfit(rows: Sequence[object], schema: RowSchema) -> int | None:
    """Returns the position of the first row that does not fit the columns; None if each row by itself fits."""
    misfits = (n for n, row in enumerate(rows) if not all(_fits(row, column) for column in schema.columns))
    return next(misfits, None)


def _row_fact(rows: Sequence[object], schema: RowSchema) -> dict[str, str]:
    position = first_misfit(rows, schema)
    return {} if position is None else {"row": described(rows[position])}


def _fits(row: object, column: Column) -> bool:
    try:
        values = [getattr(row, column.name)]
        _check_types(values, column)
        pa.array(values, column.arrow_type)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return False
    return True


def _check_types(values: Sequence[object], column: Column) -> None:
    """Raises TypeError for values that Arrow would silently convert, such as 1.5 to 1, or 7 to a date."""
    accepted, excluded = _ACCEPTED_TYPES[column.spark_type], _EXCLUDED_TYPES.get(column.spark_type, ())
    for kind in set(map(type, values)):
        if kind is type(None):
            if not column.nullable:
                raise TypeError("None in a column that is not nullable")
        elif not issubclass(kind, accepted) or issubclass(kind, excluded):
            raise TypeError(f"a value has the type {kind.__name__}")


def group_starts(order: Numbers, keys: Sequence[pa.Array]) -> list[int]:
    """Returns the positions at which a new key begins, by comparing adjacent rows.

    Args:
        order: the `ORDER` of each row, sorted.
        keys: the key columns.
    """
    if len(order) == 0:
        return []
    differs = order[1:] != order[:-1]
    for column in keys:
        next_, previous = column.slice(1), column.slice(0, len(column) - 1)
        differs |= np.asarray(pc.not_equal(next_, previous))
    return [0, *(np.flatnonzero(differs) + 1).tolist()]
