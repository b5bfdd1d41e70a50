"""Converts between Arrow columns and the row objects of user functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.schema import Column, RowSchema
from stateflow.checkpoint.barriers import message_with
from stateflow.errors import SchemaMismatch
from stateflow.runtime.executor import Numbers
from stateflow.runtime.user_code import describe_value
from stateflow.state.key_columns import are_distinct
from stateflow.types.columns.conversion import (
    NULL,
    PER_MILLISECOND,
    maker_of,
    misfit_of,
    to_column,
    to_objects,
    with_nullable_parts,
    with_type,
)
from stateflow.types.columns.shapes import Leaf, Record, Shape, is_constrained
from stateflow.types.declared_types import decimal_holds

_NO_TIME = -(1 << 63)


def to_rows(columns: Sequence[pa.Array], schema: RowSchema) -> list[object]:
    """Returns the row objects of columns of equal length.

    Raises:
        SchemaMismatch: a value does not have its declared type, such as a text that is not a member of an Enum, bytes
            that are not UTF-8, or a time after the year 9999.
    """
    values = [_values(schema, at, columns) for at in range(len(schema.columns))]
    return list(map(maker_of(schema.row_class, schema.names), *values))


def _values(schema: RowSchema, at: int, columns: Sequence[pa.Array]) -> Sequence[object]:
    column = schema.columns[at]
    try:
        return to_objects(column.shape, columns[at])
    except (ValueError, OverflowError) as e:
        row = next(n for n in range(len(columns[at])) if not _is_readable(column.shape, columns[at].slice(n, 1)))
        raise SchemaMismatch(
            "a value of a column does not have the declared type",
            hint="correct the input, filter such rows in a transform, or declare the column as str or int",
            row_class=schema.row_class.__name__,
            column=column.name,
            reason=str(e)[:200],
            row=repr({n: describe_cell(c[row]) for n, c in zip(schema.names, columns, strict=True)})[:500],
        ) from e


def _is_readable(shape: Shape, value: pa.Array) -> bool:
    try:
        to_objects(shape, value)
    except (ValueError, OverflowError):
        return False
    return True


def check_required(rows: pa.RecordBatch, columns: Sequence[str], **facts: str) -> None:
    """Raises SchemaMismatch for a null in one of some columns: the key by which a sink finds rows.

    Args:
        facts: facts of the error.
    """
    for name in columns:
        if rows.column(name).null_count:
            at = int(np.argmax(rows.column(name).is_null()))
            raise SchemaMismatch(
                "a column of the key of a sink contains a null",
                hint="filter such rows, or give null a value before key_by, in a map; in SQL, COALESCE(k, '') as the "
                "column and in GROUP BY",
                **facts,
                column=name,
                row=repr(rows.slice(at, 1).to_pylist()[0])[:500],
            )


_NULL_HINT = (
    "declare it as … | None, or filter such rows in a transform. A column that a file lacks is null, and an empty field"
    " of CSV without quotes. A time with Z or an offset needs the type Annotated[datetime, msgspec.Meta(tz=True)]"
)
_VALUE_HINT = "correct the input, filter such rows in a transform, or declare the column with the type of its values"


def check_declared(columns: Sequence[pa.Array], schema: RowSchema, **facts: str) -> None:
    """Checks that columns have values of the declared types: what files, Spark expressions and functions make may not.

    Args:
        facts: facts of the error.

    Raises:
        SchemaMismatch: a column that is not nullable has a null, or a value is not one of its declared type.
    """
    for at, column in enumerate(schema.columns):
        found = misfit_of(column.shape, columns[at])
        if found is not None:
            path, reason = found
            row = next(n for n in range(len(columns[at])) if misfit_of(column.shape, columns[at].slice(n, 1)))
            is_null = reason == NULL
            raise SchemaMismatch(
                "a column that is not nullable contains a null"
                if is_null
                else "a value does not have its declared type",
                hint=_NULL_HINT if is_null else _VALUE_HINT,
                **facts,
                column=column.name + path,
                declared=_declared_type(column.shape),
                row=repr({n: describe_cell(c[row]) for n, c in zip(schema.names, columns, strict=True)})[:500],
                **({} if is_null else {"reason": reason[:200]}),
            )


def check_partition(schema: RowSchema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a Spark partition after `check_declared`.

    Raises:
        RuntimeError: a value does not have its declared type. The message contains the encoded error: Spark forwards
            only messages.
    """
    for batch in batches:
        try:
            check_declared([batch.column(name) for name in schema.names], schema)
        except SchemaMismatch as e:
            raise RuntimeError(message_with(e)) from e
        yield batch


def _declared_type(shape: Shape) -> str:
    named = shape.kind.__name__ if isinstance(shape, Leaf) and shape.is_converted else shape.spark.replace("`", "")
    constraints = () if isinstance(shape, Record) else shape.constraints
    return ", ".join([named, *(f"{name}={value!r}" for name, value in constraints)])


def describe_cell(cell: pa.Scalar) -> object:
    """Returns a value for an error."""
    try:
        return cell.as_py()
    except Exception:  # the row is displayed because one of its cells cannot be read
        return f"<unreadable {cell.type}>"


def latest_time(column: pa.Array) -> int | None:
    """Returns the latest event time of a column in milliseconds since 1970; None if all values are null."""
    latest = pc.max(column)
    if not latest.is_valid:
        return None
    number: int = latest.cast(pa.int64()).as_py()
    return number // PER_MILLISECOND[column.type.unit] if pa.types.is_timestamp(column.type) else number


def event_times(column: pa.Array) -> Numbers:
    """Returns the event times of a column in milliseconds since 1970; null becomes the lowest 64-bit integer."""
    numbers: Numbers = column.cast(pa.int64()).fill_null(_NO_TIME).to_numpy()
    if not pa.types.is_timestamp(column.type):
        return numbers
    return np.where(numbers == _NO_TIME, _NO_TIME, numbers // PER_MILLISECOND[column.type.unit])


def to_batch(rows: Sequence[object], schema: RowSchema) -> pa.RecordBatch:
    """Returns the columns of row objects.

    Raises:
        SchemaMismatch: a value does not fit; the error names its column and the first row that does not fit.
    """
    arrays = []
    for column in schema.columns:
        try:
            values = list(map(attrgetter(column.name), rows))
            arrays.append(with_type(_checked(column, values), column.arrow_type))
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


def _checked(column: Column, values: Sequence[object]) -> pa.Array:
    made = to_column(column.shape, values, exact=True)
    found = misfit_of(column.shape, made) if is_constrained(column.shape) else None
    if found is not None:
        raise ValueError(": ".join(filter(None, found)))
    return made


def find_misfit(rows: Sequence[object], schema: RowSchema) -> int | None:
    """Returns the position of the first row that does not fit the columns; None if each row by itself fits."""
    misfits = (n for n, row in enumerate(rows) if not all(_fits(row, column) for column in schema.columns))
    return next(misfits, None)


def _row_fact(rows: Sequence[object], schema: RowSchema) -> dict[str, str]:
    position = find_misfit(rows, schema)
    return {} if position is None else {"row": describe_value(rows[position])}


def _fits(row: object, column: Column) -> bool:
    try:
        _checked(column, [getattr(row, column.name)])
    except (AttributeError, TypeError, ValueError, OverflowError):
        return False
    return True


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
        differs |= are_distinct(column.slice(1), column.slice(0, len(column) - 1))
    return [0, *(np.flatnonzero(differs) + 1).tolist()]


def conform_rows(
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
            f"{called} returned other columns than its output class has",
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
        return decimal_holds(wanted, given)
    if kinds.is_time(wanted) or kinds.is_duration(wanted):
        return type(given) in (type(wanted), pa.Time32Type) and not (kinds.is_duration(given) and given.unit == "ns")
    if kinds.is_nested(wanted):
        return bool(with_nullable_parts(given).equals(wanted))
    same = ((kinds.is_string, kinds.is_large_string), (kinds.is_binary, kinds.is_large_binary))
    return any(plain(wanted) and large(given) for plain, large in same)
