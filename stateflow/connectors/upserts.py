"""Upserts of any sink: how rows are matched, and which row of a key wins within a checkpoint.

Of a changelog without an upsert key, rows of one key of the sink come from several keys of an operator, and so from
several tasks, in no defined order. A row that is retracted then cancels an equal row of the checkpoint, and deletes a
row of the table only if that is equal, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stateflow.api.changelog import Changelog
from stateflow.api.ranking import rank_values
from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError
from stateflow.types.columns.row_kind import RETRACTIONS
from stateflow.types.columns.shapes import Leaf

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
POSITION = "_sf_position"
_RETRACTED = "_sf_retracted"
"""Columns with the numbers of rows; no column of a row class has such a name."""


@dataclass(frozen=True)
class UpsertSettings:
    """How rows are matched with rows of the table.

    Attributes:
        keys: the columns that identify a row.
        order_by: columns by which the last row of a key wins; without them, the row that was emitted last. Null is the
            lowest value and NaN the highest.
        deletes: column that is true in rows that delete their key; empty for none. The table does not have it.
        row_kind: column of type `RowKind` of a changelog, whose retractions delete their key; empty for none. The table
            does not have it.
        by_content: whether a retraction deletes only a row of equal content.
    """

    keys: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    deletes: str = ""
    row_kind: str = ""
    by_content: bool = False

    def check(self, schema: RowSchema) -> None:
        """Raises JobDefinitionError if the rows do not have such columns."""
        if not self.keys:
            raise JobDefinitionError("an upsert needs a key", hint='pass keys=["order_id"]')
        for name in self.keys:
            column = schema.column(name)
            if not isinstance(column.shape, Leaf) or column.spark_type == "double":
                raise JobDefinitionError(
                    "a column cannot be the key of an upsert",
                    hint="use columns that are neither float nor a class, list or dict",
                    column=name,
                    type=column.spark_type,
                )
        for name in self.order_by:
            schema.column(name).check_sortable()
        if self.row_kind in self.keys:
            raise JobDefinitionError(
                "the row kind cannot be part of a key", hint="name the other columns", column=self.row_kind
            )
        if self.deletes and (schema.column(self.deletes).spark_type != "boolean" or self.deletes in self.keys):
            raise JobDefinitionError(
                "a column cannot mark deletes", hint="use a bool that is not part of the key", column=self.deletes
            )

    @property
    def ordering_key(self) -> tuple[str, ...]:
        """As of `Sink`: the keys, unless a column orders the rows of a key."""
        return () if self.order_by else self.keys

    def table_schema(self, schema: RowSchema) -> RowSchema:
        """Returns the columns of the table."""
        own = (self.deletes, self.row_kind)
        return replace(schema, columns=tuple(c for c in schema.columns if c.name not in own))

    def for_changelog(self, changelog: Changelog) -> UpsertSettings:
        """Returns the settings for rows of a changelog.

        Raises:
            JobDefinitionError: the keys do not identify its rows, or something else marks deletes or orders rows.
        """
        changelog.check_sink_keys(self.keys)
        # A later checkpoint replaces rows in any case: an order would hold within a checkpoint only.
        if self.order_by or (changelog.row_kind and self.deletes):
            raise JobDefinitionError(
                "a sink of a changelog has order_by, or deletes in addition to row kinds",
                hint="leave them out: rows are applied in the order of the changelog, and their kind marks deletes",
                order_by=list(self.order_by),
                deletes=self.deletes,
                row_kind=changelog.row_kind,
            )
        return replace(self, row_kind=changelog.row_kind, by_content=changelog.compares_content(self.keys))


def names_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the names of columns that an argument gives: a name, or several."""
    return (given,) if isinstance(given, str) and given else tuple(given)


def winning_rows(rows: pa.Table, settings: UpsertSettings) -> pa.Table:
    """Returns the rows of a checkpoint that change the table.

    One row of each key; or, by content, the last row of a key that is not retracted, and otherwise each of its rows
    that is retracted and was not emitted in the checkpoint.

    Args:
        rows: the rows of the checkpoint, in the order of emission.
        settings: how rows are matched.
    """
    if not settings.by_content:
        return _last_rows(rows, settings)
    retracted = is_retraction(rows, settings)
    keys = group_numbers(rows.select(list(settings.keys)))
    has_retraction = np.bincount(keys, weights=retracted) > 0
    if not has_retraction.any():
        return _last_rows(rows, settings)
    # The content of other rows is not compared, which takes most of the time.
    compared = np.flatnonzero(has_retraction[keys])
    net = np.ones(len(rows), np.int64)
    content = group_numbers(rows.take(pa.array(compared)).drop_columns([settings.row_kind]))
    net[compared] = np.bincount(content, weights=np.where(retracted[compared], -1, 1))[content]
    kept = np.flatnonzero((net > 0) & ~retracted)
    last = np.full(len(has_retraction), -1)
    last[keys[kept]] = kept
    numbers = np.full(len(rows), -1)
    numbers[compared] = content
    deletes = np.flatnonzero((net < 0) & retracted & (last[keys] < 0))
    _, first = np.unique(numbers[deletes], return_index=True)
    return rows.take(pa.array(np.sort(np.concatenate([last[last >= 0], deletes[first]]))))


def _last_rows(rows: pa.Table, settings: UpsertSettings) -> pa.Table:
    """Returns the last row of each key: in the declared order, or else in the order of the rows."""
    names = rows.schema.names
    if settings.order_by:
        # Stable: rows that compare equal stay in the order of emission. Arrow's own order has NaN first.
        order = [rank_values(rows.column(name)) for name in reversed(settings.order_by)]
        rows = rows.take(pa.array(np.lexsort(order)))
    rows = number_rows(rows)
    last = rows.group_by(list(settings.keys)).aggregate([(POSITION, "max")]).column(f"{POSITION}_max")
    return rows.take(last.sort()).select(names)


def without_deletes(rows: pa.Table, settings: UpsertSettings) -> pa.Table:
    """Returns the rows that do not delete their key."""
    if settings.row_kind:
        return rows.filter(pa.array(~is_retraction(rows, settings)))
    if settings.deletes:
        return rows.filter(pc.invert(pc.fill_null(rows.column(settings.deletes), False)))
    return rows


def is_retraction(rows: pa.Table, settings: UpsertSettings) -> Flags:
    """Returns for each row of a changelog whether it is retracted."""
    kinds = pa.array([kind.value for kind in RETRACTIONS])
    found: Flags = pc.is_in(rows.column(settings.row_kind), value_set=kinds).to_numpy()
    return found


def find_retracted(stored: pa.Table, retracted: pa.Table, settings: UpsertSettings, schema: RowSchema) -> Flags:
    """Returns which rows of a table are equal to one that is retracted.

    A null in a column that is never null in emitted rows is equal to all values: the row was written before the table
    had the column.

    Args:
        stored: rows of the table, with its columns.
        retracted: rows of the changelog.
        settings: how rows are matched.
        schema: columns of the table.
    """
    keys = list(settings.keys)
    left = stored.select(keys).append_column(POSITION, pa.array(np.arange(len(stored))))
    right = retracted.select(keys).append_column(_RETRACTED, pa.array(np.arange(len(retracted))))
    pairs = left.join(right, keys, join_type="inner")
    at, of = pairs.column(POSITION).to_numpy(), pairs.column(_RETRACTED).to_numpy()
    equal = np.ones(len(pairs), bool)
    for column in schema.columns:
        own = stored.column(column.name).take(pa.array(at))
        other = retracted.column(column.name).take(pa.array(of)).cast(own.type)
        numbers = _value_numbers(pa.chunked_array([*own.chunks, *other.chunks], own.type))
        same = numbers[: len(at)] == numbers[len(at) :]
        equal &= same if column.nullable else same | own.is_null().to_numpy()
    found: Flags = np.zeros(len(stored), bool)
    found[at[equal]] = True
    return found


def group_numbers(rows: pa.Table) -> Numbers:
    """Returns a number for each row, from 0; equal rows have the same, null equals null, and NaN NaN."""
    numbers: Numbers = np.zeros(len(rows), np.int64)
    for column in rows.columns:
        own = _value_numbers(column)
        _, numbers = np.unique(numbers * (int(own.max(initial=0)) + 1) + own, return_inverse=True)
    return numbers


def _value_numbers(column: pa.ChunkedArray) -> Numbers:
    """Returns a number for each value, from 0; equal values have the same."""
    values = column.combine_chunks()
    kind = values.type
    if pa.types.is_nested(kind):
        plain = [_plain(kind, value) for value in values.to_pylist()]
        encoded = [None if value is None else msgspec.msgpack.encode(value) for value in plain]
        values = pa.array(encoded, pa.binary())
    elif pa.types.is_floating(kind):
        # One binary form for both zeros, and one for each NaN.
        floats = values.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        floats[np.isnan(floats)] = np.nan
        values = pa.array(floats.view(np.int64), mask=values.is_null().to_numpy(zero_copy_only=False))
    elif pa.types.is_duration(kind):
        values = values.cast(pa.int64())
    encoded_values = values.dictionary_encode()
    found: Numbers = encoded_values.indices.fill_null(len(encoded_values.dictionary)).to_numpy().astype(np.int64)
    return found


def _plain(kind: pa.DataType, value: object) -> object:
    """Returns a value whose msgpack depends neither on the order of a map nor on the bits of zero and NaN."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        entries = cast("list[tuple[object, object]]", value)
        plain = ((_plain(kind.key_type, key), _plain(kind.item_type, each)) for key, each in entries)
        # No two keys have the same bytes, so that values are not compared.
        return sorted((msgspec.msgpack.encode(key), each) for key, each in plain)
    if pa.types.is_struct(kind):
        fields = cast("dict[str, object]", value)
        return [_plain(field.type, fields[field.name]) for field in kind]
    if pa.types.is_nested(kind):
        return [_plain(kind.value_type, item) for item in cast("list[object]", value)]
    if isinstance(value, float):
        return value + 0.0 if value == value else math.nan
    return value


def number_rows(rows: pa.Table) -> pa.Table:
    """Returns the rows with a column of their numbers."""
    return rows.append_column(POSITION, pa.array(np.arange(len(rows))))
