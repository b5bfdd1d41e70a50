"""Upserts of any sink: how rows are matched, and which row of a key wins within a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.changelog import Changelog
from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError
from stateflow.types.columns.row_kind import RETRACTIONS
from stateflow.types.columns.shapes import Leaf

POSITION = "_sf_position"
"""A column with the numbers of rows; no column of a row class has such a name."""


@dataclass(frozen=True)
class UpsertSettings:
    """How rows are matched with those of the table.

    Attributes:
        keys: the columns that identify a row.
        order_by: columns by which the last row of a key wins; without them, the row that was emitted last.
        deletes: column that is true in rows that delete their key; empty for none. The table does not have it.
        row_kind: column of type `RowKind` of a changelog, whose retractions delete their key; empty for none. The table
            does not have it.
    """

    keys: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    deletes: str = ""
    row_kind: str = ""

    def check(self, schema: RowSchema) -> None:
        """Raises JobDefinitionError if the rows do not have such columns."""
        if not self.keys:
            raise JobDefinitionError("an upsert needs a key", hint='pass keys=["order_id"]')
        for name in self.keys:
            column = schema.column(name)
            if column.nullable or not isinstance(column.shape, Leaf) or column.spark_type == "double":
                raise JobDefinitionError(
                    "a column cannot be the key of an upsert",
                    hint="use columns that are never null, and neither float nor a class, list or dict",
                    column=name,
                    type=column.spark_type,
                    nullable=column.nullable,
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
            JobDefinitionError: the keys are not its upsert key, or something else marks deletes or orders rows.
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
        return replace(self, row_kind=changelog.row_kind)


def names_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the names of columns that an argument gives: a name, or several."""
    return (given,) if isinstance(given, str) and given else tuple(given)


def last_rows(rows: pa.Table, settings: UpsertSettings) -> pa.Table:
    """Returns the last row of each key: in the declared order, or else in the order of the rows."""
    names = rows.schema.names
    rows = numbered(rows)
    if settings.order_by:
        order = [(name, "ascending", "at_start") for name in (*settings.order_by, POSITION)]
        rows = numbered(rows.take(pc.sort_indices(rows, order)).select(names))
    last = rows.group_by(list(settings.keys)).aggregate([(POSITION, "max")]).column(f"{POSITION}_max")
    return rows.take(last.sort()).select(names)


def without_deletes(rows: pa.Table, settings: UpsertSettings) -> pa.Table:
    """Returns the rows that do not delete their key."""
    if settings.row_kind:
        kinds = pa.array([kind.value for kind in RETRACTIONS])
        return rows.filter(pc.invert(pc.is_in(rows.column(settings.row_kind), value_set=kinds)))
    if settings.deletes:
        return rows.filter(pc.invert(pc.fill_null(rows.column(settings.deletes), False)))
    return rows


def numbered(rows: pa.Table) -> pa.Table:
    """Returns the rows with a column of their numbers."""
    return rows.append_column(POSITION, pa.array(np.arange(len(rows))))
