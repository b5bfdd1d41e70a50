"""Rows as an existing table stores them: narrower numbers, other digits, lengths of texts, and columns without nulls.

As Spark's store assignment with ANSI: a value that the column cannot have is an error, and a float is rounded to 32
bits. Unlike there, no digit of a decimal and no time of day is lost. Tasks assign rows before they are stored, so that
an error ends the batch before its checkpoint, and nothing of it is published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import SchemaMismatch
from stateflow.types.columns.conversion import with_nullable_parts

LENGTH, PADDED = b"stateflow.length", b"stateflow.padded"
"""Metadata of a field of texts: the most characters, and whether shorter texts are filled up with spaces."""
_SHOWN = 200


class _Misfit(ValueError):
    """A column has a value that the table cannot store; `path` names the part, such as ``.items[].price``."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path


def can_assign(own: pa.DataType, table: pa.DataType) -> bool:
    """Returns whether a column of a table may take values of another type, as far as it has each of them."""
    kinds = pa.types
    if kinds.is_struct(own) and kinds.is_struct(table):
        fields = {field.name: field.type for field in table}
        return fields.keys() == {f.name for f in own} and all(can_assign(f.type, fields[f.name]) for f in own)
    if kinds.is_list(own) and kinds.is_list(table):
        return can_assign(own.value_type, table.value_type)
    if kinds.is_map(own) and kinds.is_map(table):
        return can_assign(own.key_type, table.key_type) and can_assign(own.item_type, table.item_type)
    if own.equals(table):
        return True
    return (
        (kinds.is_int64(own) and kinds.is_signed_integer(table))
        or (kinds.is_float64(own) and kinds.is_float32(table))
        or (kinds.is_decimal(own) and kinds.is_decimal(table))
        or (kinds.is_time(own) and kinds.is_time(table))
        or (kinds.is_duration(own) and kinds.is_int64(table))
        or (kinds.is_date32(own) and kinds.is_timestamp(table) and table.tz is None)
        or (kinds.is_timestamp(own) and own.tz is None and kinds.is_date32(table))
    )


def has_length(field: pa.Field) -> bool:
    """Returns whether a field has texts of a limited length."""
    return LENGTH in (field.metadata or {})


def assign_rows(rows: pa.RecordBatch, target: pa.Schema, facts: Mapping[str, object]) -> pa.RecordBatch:
    """Returns rows with the types of a table's columns, all of whose parts are nullable.

    Args:
        rows: rows, with the columns of `target` in its order.
        target: the columns of the table: types, which parts are never null, and lengths of texts.
        facts: of errors.

    Raises:
        SchemaMismatch: a value cannot be stored; names column, value and row.
    """
    columns = [_column(rows, at, field, facts) for at, field in enumerate(target)]
    return pa.RecordBatch.from_arrays(columns, schema=nullable_schema(target))


def nullable_schema(target: pa.Schema) -> pa.Schema:
    """Returns the columns of assigned rows."""
    return pa.schema([pa.field(field.name, with_nullable_parts(field.type)) for field in target])


def _column(rows: pa.RecordBatch, at: int, field: pa.Field, facts: Mapping[str, object]) -> pa.Array:
    column = rows.column(at)
    try:
        return _assigned(column, field, field.name)
    except _Misfit as e:
        row = _first(column, lambda part: _assigned(part, field, field.name))
        raise SchemaMismatch(
            f"a value cannot be stored in the column of the sink's table: {e}",
            hint="correct or filter such rows before the sink, or change the column of the table",
            **facts,
            column=e.path,
            type=f"{field.type}{'' if field.nullable else ' not null'}",
            value=repr(column[row].as_py())[:_SHOWN],
            row=repr(rows.slice(row, 1).to_pylist()[0])[:_SHOWN],
        ) from e


def _first(column: pa.Array, assigned: Callable[[pa.Array], object]) -> int:
    """Returns the number of the first value that cannot be assigned."""
    good, bad = 0, len(column)  # The first values can, and up to `bad` they cannot.
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            assigned(column.slice(good, middle - good))
            good = middle
        except _Misfit:
            bad = middle
    return good


def _assigned(values: pa.Array, field: pa.Field, path: str) -> pa.Array:
    kind = field.type
    if values.null_count and not field.nullable:
        raise _Misfit(path, "it is null, and the column is NOT NULL")
    if not pa.types.is_nested(kind):
        return _scalars(values, field, path)
    if values.type.equals(kind) and with_nullable_parts(kind).equals(kind):
        return values
    if values.null_count:
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        present = _nested(values.drop_null(), kind, path)
        return present.take(pa.array(np.cumsum(~is_null) - 1, mask=is_null))
    return _nested(values, kind, path)


def _nested(values: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Returns a nested column without nulls."""
    made = with_nullable_parts(kind)
    if pa.types.is_struct(kind):
        parts = [_assigned(values.field(values.type.get_field_index(f.name)), f, f"{path}.{f.name}") for f in kind]
        return pa.StructArray.from_arrays(parts, fields=list(made))
    offsets = values.offsets
    first, last = offsets[0].as_py(), offsets[len(values)].as_py()
    ends = pc.subtract(offsets, pa.scalar(first, pa.int32()))
    if pa.types.is_map(kind):
        keys = _assigned(values.keys.slice(first, last - first), kind.key_field, f"{path} (key)")
        items = _assigned(values.items.slice(first, last - first), kind.item_field, f"{path}[]")
        return pa.MapArray.from_arrays(ends, keys, items, type=made)
    items = _assigned(values.values.slice(first, last - first), kind.value_field, f"{path}[]")
    return pa.ListArray.from_arrays(ends, items, type=made)


def _scalars(values: pa.Array, field: pa.Field, path: str) -> pa.Array:
    kind = field.type
    if not values.type.equals(kind):
        try:
            # A time of day has nanoseconds only because Spark exchanges it so.
            made = values.cast(kind, safe=not pa.types.is_time(values.type))
        except pa.ArrowInvalid as e:
            raise _Misfit(path, str(e)) from e
        is_lost = _LOST.get(kind, _nothing)(values, made)
        if is_lost is not None and pc.any(is_lost).as_py():
            raise _Misfit(path, f"it is out of the range of {kind}, or has a time of day")
        values = made
    return _with_length(values, field, path) if has_length(field) else values


def _nothing(values: pa.Array, made: pa.Array) -> pa.Array | None:
    return None


def _is_too_large(values: pa.Array, made: pa.Array) -> pa.Array | None:
    """Returns which finite numbers have become infinite."""
    return pc.and_(pc.is_finite(values), pc.is_inf(made))


def _has_time(values: pa.Array, made: pa.Array) -> pa.Array | None:
    """Returns which timestamps are not midnights."""
    return pc.not_equal(values, made.cast(values.type)) if pa.types.is_timestamp(values.type) else None


_LOST: Mapping[pa.DataType, Callable[[pa.Array, pa.Array], pa.Array | None]] = {
    pa.float32(): _is_too_large,
    pa.date32(): _has_time,
}
"""Checks of conversions that Arrow does without an error though they lose a part, by the type of the table."""


def _with_length(values: pa.Array, field: pa.Field, path: str) -> pa.Array:
    """Returns texts of at most the length of a column; as in SQL, spaces beyond it are cut."""
    length = int(field.metadata[LENGTH])
    cut = pc.utf8_slice_codeunits(values, 0, length)
    trimmed = partial(pc.utf8_rtrim, characters=" ")
    if pc.any(pc.not_equal(trimmed(values), trimmed(cut))).as_py():
        raise _Misfit(path, f"it has more than {length} characters")
    return pc.utf8_rpad(cut, length) if PADDED in field.metadata else cut
