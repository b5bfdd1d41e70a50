"""Arrow batches of a source as columns of a row class: widened, completed, or refused. Pure."""

from __future__ import annotations

import pyarrow as pa

from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.columns.column_policy import ColumnPolicy, FoundColumns, check_found_columns
from stateflow.errors import SchemaMismatch
from stateflow.types.columns.conversion import path_of_null

_MICROSECONDS = "us"
_COARSER = ("s", "ms", _MICROSECONDS)


def conformed(batch: pa.RecordBatch, schema: RowSchema, policy: ColumnPolicy, source: str) -> pa.RecordBatch:
    """Returns the declared columns of a batch, whose parts are all nullable for Arrow.

    Columns are found by name. Narrower types are widened, without loss.

    Args:
        source: description of the source, for errors.

    Raises:
        SchemaMismatch: the columns differ in a way that the policy does not allow, or a value is null that must not be.
    """
    found = batch.schema
    twice = sorted({name for name in found.names if found.names.count(name) > 1} & set(schema.names))
    if twice:
        raise SchemaMismatch(
            "a declared column occurs twice in an Arrow batch", hint="correct the source", columns=twice, path=source
        )
    check_found_columns(
        FoundColumns(
            names=found.names,
            types=list(map(str, found.types)),
            misfit=lambda column, at: "" if not _is_read_as(column.arrow_type, found.types[at]) else None,
        ),
        schema,
        policy,
        source,
    )
    arrays = [_column(batch, column, source) for column in schema.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=nullable_columns(schema))


def nullable_columns(schema: RowSchema) -> pa.Schema:
    """Returns the Arrow schema of columns, all of which are nullable."""
    return pa.schema([pa.field(column.name, column.arrow_type) for column in schema.columns])


def _column(batch: pa.RecordBatch, column: Column, source: str) -> pa.Array:
    at = batch.schema.get_field_index(column.name)
    if at < 0:
        return pa.nulls(len(batch), column.arrow_type)
    try:
        values = batch.column(at).cast(column.arrow_type)
    except pa.ArrowException as e:
        raise SchemaMismatch(
            "a value of a source does not fit its column",
            hint="correct the source, or the row class",
            column=column.name,
            declared=column.dtype,
            reason=str(e)[:200],
            path=source,
        ) from e
    null = "" if values.null_count and not column.nullable else path_of_null(column.shape, values)
    if null is not None:
        raise SchemaMismatch(
            "a value of a source is null, and its column must not be",
            hint="declare the field as … | None, or return rows instead of Arrow batches, which are rejected singly",
            column=column.name + null,
            declared=column.dtype,
            path=source,
        )
    return values


def _is_read_as(declared: pa.DataType, found: pa.DataType) -> bool:
    """Returns whether all values of a type are values of the declared type."""
    kinds = pa.types
    if kinds.is_dictionary(found):
        return _is_read_as(declared, found.value_type)
    if kinds.is_struct(declared) and kinds.is_struct(found):
        parts = {found.field(at).name: found.field(at).type for at in range(found.num_fields)}
        fields = [declared.field(at) for at in range(declared.num_fields)]
        return len(parts) == len(fields) and all(f.name in parts and _is_read_as(f.type, parts[f.name]) for f in fields)
    if kinds.is_list(declared) and (kinds.is_list(found) or kinds.is_large_list(found)):
        return _is_read_as(declared.value_type, found.value_type)
    if kinds.is_map(declared) and kinds.is_map(found):
        return _is_read_as(declared.key_type, found.key_type) and _is_read_as(declared.item_type, found.item_type)
    return _is_widened(declared, found)


def _is_widened(declared: pa.DataType, found: pa.DataType) -> bool:
    """Returns whether all values of a scalar type are values of the declared scalar type."""
    kinds = pa.types
    if declared.equals(found):
        return True
    if kinds.is_int64(declared):
        return kinds.is_integer(found) and not kinds.is_uint64(found)
    if kinds.is_float64(declared):
        return bool(kinds.is_floating(found) or (kinds.is_integer(found) and found.bit_width <= 32))
    if kinds.is_string(declared):
        return bool(kinds.is_large_string(found) or kinds.is_string_view(found))
    if kinds.is_binary(declared):
        return bool(kinds.is_large_binary(found) or kinds.is_binary_view(found) or kinds.is_fixed_size_binary(found))
    if kinds.is_timestamp(declared) and kinds.is_timestamp(found):
        return bool((declared.tz is None) == (found.tz is None) and found.unit in _COARSER)
    if kinds.is_duration(declared) and kinds.is_duration(found):
        return found.unit in _COARSER
    if kinds.is_decimal(declared) and kinds.is_decimal(found):
        whole = declared.precision - declared.scale
        return bool(found.scale <= declared.scale and found.precision - found.scale <= whole)
    return False
