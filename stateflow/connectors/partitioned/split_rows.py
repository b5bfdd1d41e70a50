"""Converts the items of a split from the user's code into columns, and rejects rows that do not fit the row class.

Arrow batches are widened, completed, or refused as a whole.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from stateflow.api.dead_letters import OnError
from stateflow.api.schema import Column, RejectedRecord, RowSchema, rejection_error
from stateflow.connectors.column_policy import ColumnPolicy, FoundColumns, check_found_columns
from stateflow.connectors.partitioned.positions import Split
from stateflow.errors import SchemaMismatch, UserCodeError, cut
from stateflow.types.columns.conversion import path_of_null, to_column, with_type
from stateflow.types.declared_types import decimal_holds

_ROWS = 1000
"""Rows that are converted together."""
_SHOWN = 500
"""Characters of a value in an error."""
_MISFITS = (TypeError, ValueError, OverflowError, AttributeError)


@dataclass(frozen=True)
class BadRow:
    """A row that `read_split` could not decode.

    Attributes:
        value: what was read; bytes that are not UTF-8 are shown in Base64.
        reason: why it cannot be decoded.
        offset: its offset; None to count it as the row after those that the split has returned.
    """

    value: str | bytes | None
    reason: str
    offset: int | None = None


@dataclass(frozen=True)
class Chunk:
    """Some rows of a split.

    Attributes:
        columns: the columns of the row class.
        rejected: rows that do not fit it.
    """

    columns: pa.RecordBatch
    rejected: Sequence[RejectedRecord] = ()


class SplitRows:
    """Converts the items that the user's code returns for one split.

    Args:
        split: the split.
        schema: the row class.
        policy: which columns may be missing or added.
        on_error: what happens to rows that do not fit.
        source: description of the source, for errors.
    """

    def __init__(
        self, split: Split, *, schema: RowSchema, policy: ColumnPolicy, on_error: OnError, source: str
    ) -> None:
        self._split = split
        self._schema = schema
        self._policy = policy
        self._on_error = on_error
        self._source = source
        self._encoded = _encoded_names(schema)
        self._number = 0
        self._rows: list[tuple[int, object]] = []
        self._rejected: list[RejectedRecord] = []

    def convert(self, items: Iterable[object]) -> Iterator[Chunk]:
        """Yields the rows of the split.

        Args:
            items: objects and mappings, each of which is a row, `BadRow`, and Arrow batches and tables.

        Raises:
            CorruptInput: a row does not fit the row class, and the source has no dead letters.
            SchemaMismatch: an Arrow batch does not fit it.
            UserCodeError: an item is neither a row nor an Arrow batch.
        """
        for item in items:
            if isinstance(item, pa.RecordBatch | pa.Table):
                yield from self._take()
                for batch in [item] if isinstance(item, pa.RecordBatch) else item.to_batches():
                    self._number += len(batch)
                    yield Chunk(conformed(batch, self._schema, self._policy, self._source))
            else:
                self._add(item)
                if len(self._rows) + len(self._rejected) >= _ROWS:
                    yield from self._take()
        yield from self._take()

    def _add(self, item: object) -> None:
        offset = self._split.start + self._number
        self._number += 1
        if isinstance(item, BadRow):
            self._reject(offset if item.offset is None else item.offset, item.value, item.reason)
        elif isinstance(item, Mapping):
            self._add_mapping(offset, item)
        elif isinstance(item, self._schema.row_class):
            self._rows.append((offset, item))
        else:
            raise UserCodeError(
                "a split of a source has returned an item that is not a row",
                hint=f"yield {self._schema.row_class.__name__} objects, dicts, BadRow or Arrow batches",
                source=self._source,
                split=self._split.partition,
                found=type(item).__name__,
            )

    def _take(self) -> Iterator[Chunk]:
        """Yields the rows that were added since the last call, if any."""
        rows, self._rows = self._rows, []
        if not rows and not self._rejected:
            return
        try:
            columns = self._columns([row for _, row in rows])
        except _MISFITS:
            # Only now row by row, which is slow.
            columns = self._columns([row for offset, row in rows if self._fits(offset, row)])
        rejected, self._rejected = self._rejected, []
        yield Chunk(columns, rejected)

    def _columns(self, rows: Sequence[object]) -> pa.RecordBatch:
        target = nullable_columns(self._schema)
        return pa.RecordBatch.from_struct_array(
            with_type(to_column(self._schema.shape, rows, exact=True), pa.struct(list(target)))
        )

    def _fits(self, offset: int, row: object) -> bool:
        try:
            to_column(self._schema.shape, [row], exact=True)
        except _MISFITS as e:
            self._reject(offset, _text(row), str(e).lstrip("."))
            return False
        return True

    def _add_mapping(self, offset: int, item: Mapping[object, object]) -> None:
        schema, policy = self._schema, self._policy
        added = sorted(map(str, item.keys() - set(schema.names))) if policy.added == "refuse" else []
        absent = [c for c in schema.columns if c.name not in item]
        missing = [c.name for c in absent if not c.nullable or policy.missing == "refuse"]
        if added or missing:
            what = f"columns that are not declared: {added}" if added else f"no value of {missing}"
            self._reject(offset, _text(item), f"the row has {what}")
            return
        try:
            # A default of the class does not count: all sources read a missing column as null.
            values = {encoded: item.get(name) for name, encoded in self._encoded.items()}
            row = msgspec.convert(values, schema.row_class)
        except (msgspec.ValidationError, RecursionError) as e:
            self._reject(offset, _text(item), str(e))
            return
        self._rows.append((offset, row))

    def _reject(self, offset: int, value: str | bytes | None, reason: str) -> None:
        record = RejectedRecord(self._split.partition, 0, offset, None, _shown(value), cut(reason, _SHOWN))
        if self._on_error is None:
            raise rejection_error(record)
        self._rejected.append(record)


def _encoded_names(schema: RowSchema) -> dict[str, str]:
    """Returns the name of each field in encoded data."""
    if issubclass(schema.row_class, msgspec.Struct):
        return {field.name: field.encode_name for field in msgspec.structs.fields(schema.row_class)}
    return {name: name for name in schema.names}


def _text(row: object) -> str:
    try:
        return msgspec.json.encode(row, enc_hook=repr).decode()
    except (TypeError, ValueError, RecursionError):
        return repr(row)


def _shown(value: str | bytes | None) -> str | None:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"


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
        return decimal_holds(declared, found)
    return False
