"""Checks the Arrow columns that a user function returns against its output class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.schema import Column, RowSchema
from stateflow.errors import SchemaMismatch
from stateflow.runtime.task.row_conversion import check_declared
from stateflow.types.columns.conversion import with_nullable_parts


def conform(
    emitted: pa.RecordBatch | pa.Table, schema: RowSchema, called: str, **facts: str
) -> Iterator[pa.RecordBatch]:
    """Yields the rows that a function returned, with the declared columns in their order.

    Args:
        called: the function, for errors.
        facts: facts of errors.

    Raises:
        SchemaMismatch: names or types of the columns differ from the declared ones, or a value is not of its type.
    """
    if sorted(emitted.schema.names) != sorted(schema.names):
        raise SchemaMismatch(
            f"{called} returned other columns than those of its output class",
            hint="return each column of the output class once",
            **facts,
            declared=list(schema.names),
            given=emitted.schema.names,
        )
    batches = [emitted] if isinstance(emitted, pa.RecordBatch) else emitted.to_batches()
    for batch in batches:
        if len(batch):
            columns = [_column(batch.column(c.name), c, called, facts) for c in schema.columns]
            check_declared(columns, schema, **facts)
            yield pa.RecordBatch.from_arrays(columns, schema=schema.arrow)


def _column(values: pa.Array, column: Column, called: str, facts: Mapping[str, str]) -> pa.Array:
    wanted = column.arrow_type
    if values.type.equals(wanted):
        return values
    # A cast from float to int, or from a number to a text, would hide a mistake.
    if not _widens(values.type, wanted):
        raise SchemaMismatch(
            "a column has another type than declared",
            hint=f"cast the column before {called} returns it",
            **facts,
            column=column.name,
            declared=str(wanted),
            given=str(values.type),
        )
    return pc.cast(values, wanted)


def _widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns whether every value of one type is also a value of the other."""
    kinds = pa.types
    if kinds.is_null(given):
        return True
    if kinds.is_int64(wanted):
        return bool(kinds.is_integer(given) and not kinds.is_uint64(given))
    if kinds.is_float64(wanted):
        return bool(kinds.is_float32(given) or kinds.is_float16(given))
    if kinds.is_decimal(wanted) and kinds.is_decimal(given):
        whole = given.precision - given.scale
        return bool(given.scale <= wanted.scale and whole <= wanted.precision - wanted.scale)
    if kinds.is_time(wanted) or kinds.is_duration(wanted):
        return type(given) in (type(wanted), pa.Time32Type) and not (kinds.is_duration(given) and given.unit == "ns")
    if kinds.is_nested(wanted):
        return bool(with_nullable_parts(given).equals(wanted))
    same = ((kinds.is_string, kinds.is_large_string), (kinds.is_binary, kinds.is_large_binary))
    return any(plain(wanted) and large(given) for plain, large in same)
