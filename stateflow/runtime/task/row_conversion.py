"""Between Arrow columns and the row objects of user functions."""

from __future__ import annotations

import datetime
import inspect
import numbers
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.schema import Column, RowSchema
from stateflow.errors import SchemaMismatch

Maker = Callable[..., Any]

_TYPES: dict[str, type | tuple[type, ...]] = {
    "bigint": numbers.Integral,
    "double": numbers.Real,
    "string": str,
    "boolean": (bool, np.bool_),
    "binary": (bytes, bytearray, memoryview),
    "date": datetime.date,
    "timestamp": datetime.datetime,
    "timestamp_ntz": datetime.datetime,
}
"""Which values a column takes."""
_ROW_CHARACTERS = 500
_NO_TIME = -(1 << 63)
_UNITS = {"us": 1000, "ns": 1_000_000}
_NO_TYPES: dict[str, type] = {"bigint": bool, "double": bool, "date": datetime.datetime}
"""Which it does not take, although they are subclasses."""


def row_maker(schema: RowSchema) -> Maker:
    """A function from column values, in order, to a row object."""
    row_class, names = schema.row_class, schema.names
    parameters = inspect.signature(row_class).parameters.values()
    if all(p.kind is not inspect.Parameter.KEYWORD_ONLY for p in parameters):
        return row_class
    return lambda *values: row_class(**dict(zip(names, values, strict=True)))


def to_rows(columns: Sequence[pa.Array], maker: Maker) -> list[Any]:
    """Row objects of columns of equal length."""
    return list(map(maker, *[to_list(column) for column in columns]))


def to_list(column: pa.Array) -> list[Any]:
    """A column's values as Python objects; numbers without nulls by the fast way through numpy."""
    kind = column.type
    if column.null_count == 0:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
        if pa.types.is_timestamp(kind):
            return _moments(column, zoned=kind.tz is not None)
    return column.to_pylist()  # type: ignore[no-any-return]


def _moments(column: pa.Array, zoned: bool) -> list[Any]:
    values: list[Any] = column.to_numpy(zero_copy_only=False).astype("datetime64[us]").tolist()
    return [v.replace(tzinfo=datetime.UTC) for v in values] if zoned else values


def latest_time(column: pa.Array) -> int | None:
    """The latest event time in a column, in milliseconds since 1970; None when it has none."""
    latest = pc.max(column)
    if not latest.is_valid:
        return None
    number: int = latest.cast(pa.int64()).as_py()
    return number // _UNITS[column.type.unit] if pa.types.is_timestamp(column.type) else number


def event_times(column: pa.Array) -> np.ndarray[Any, Any]:
    """The event times in a column, in milliseconds since 1970; the lowest number of 64 bits where there is none."""
    numbers: np.ndarray[Any, Any] = column.cast(pa.int64()).fill_null(_NO_TIME).to_numpy()
    if not pa.types.is_timestamp(column.type):
        return numbers
    return np.where(numbers == _NO_TIME, _NO_TIME, numbers // _UNITS[column.type.unit])


def to_batch(rows: Sequence[Any], schema: RowSchema) -> pa.RecordBatch:
    """Columns of row objects. Raises SchemaMismatch that names a column whose values do not fit, and the row."""
    arrays = []
    for column in schema.columns:
        try:
            values = list(map(attrgetter(column.name), rows))
            _check_types(values, column)
            arrays.append(pa.array(values, column.arrow_type))
        except (AttributeError, TypeError, ValueError, OverflowError) as e:
            raise SchemaMismatch(
                "a row that was emitted is not of its class",
                hint=f"compare what the function yields with {schema.row_class.__name__}, the class given as output",
                row_class=schema.row_class.__name__,
                column=column.name,
                declared=column.spark_type,
                reason=str(e)[:200],
                **_named_row(rows, schema),
            ) from e
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def first_misfit(rows: Sequence[Any], schema: RowSchema) -> int | None:
    """The position of the first row whose values do not fit into the columns; None when each row fits by itself."""
    misfits = (n for n, row in enumerate(rows) if not all(_fits(row, column) for column in schema.columns))
    return next(misfits, None)


def _named_row(rows: Sequence[Any], schema: RowSchema) -> dict[str, str]:
    position = first_misfit(rows, schema)
    return {} if position is None else {"row": repr(rows[position])[:_ROW_CHARACTERS]}


def _fits(row: Any, column: Column) -> bool:
    try:
        values = [getattr(row, column.name)]
        _check_types(values, column)
        pa.array(values, column.arrow_type)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return False
    return True


def _check_types(values: Sequence[Any], column: Column) -> None:
    """Raises TypeError for values that Arrow would bend until they fit: 1.5 becomes 1 there, and 7 a date."""
    for kind in set(map(type, values)):
        if kind is type(None):
            if not column.nullable:
                raise TypeError("None in a column that is declared without it")
        elif not issubclass(kind, _TYPES[column.spark_type]) or issubclass(
            kind, _NO_TYPES.get(column.spark_type, ())
        ):
            raise TypeError(f"a value is of type {kind.__name__}")


def group_starts(order: np.ndarray[Any, Any], keys: Sequence[pa.Array]) -> list[int]:
    """Where a new key begins in rows sorted by `order`, by comparing neighbours."""
    if len(order) == 0:
        return []
    differs = order[1:] != order[:-1]
    for column in keys:
        ahead, behind = column.slice(1), column.slice(0, len(column) - 1)
        differs |= np.asarray(pc.not_equal(ahead, behind))
    return [0, *(np.flatnonzero(differs) + 1).tolist()]
