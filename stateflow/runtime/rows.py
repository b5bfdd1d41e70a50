"""Between Arrow columns and the row objects of user functions."""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.schema import RowSchema
from stateflow.errors import SchemaMismatch

Maker = Callable[..., Any]


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


def to_batch(rows: Sequence[Any], schema: RowSchema) -> pa.RecordBatch:
    """Columns of row objects. Raises SchemaMismatch that names the column whose values do not fit."""
    arrays = []
    for column in schema.columns:
        try:
            arrays.append(pa.array(list(map(attrgetter(column.name), rows)), column.arrow_type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, AttributeError, OverflowError) as e:
            raise SchemaMismatch(
                "a function emitted a row that is not of its output class",
                hint="compare what it yields with the class given as output",
                column=column.name,
                declared=column.spark_type,
                reason=str(e)[:200],
            ) from e
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def group_starts(order: np.ndarray[Any, Any], keys: Sequence[pa.Array]) -> list[int]:
    """Where a new key begins in rows sorted by `order`, by comparing neighbours."""
    if len(order) == 0:
        return []
    differs = order[1:] != order[:-1]
    for column in keys:
        ahead, behind = column.slice(1), column.slice(0, len(column) - 1)
        differs |= np.asarray(pc.not_equal(ahead, behind))
    return [0, *(np.flatnonzero(differs) + 1).tolist()]
