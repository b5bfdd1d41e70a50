"""Columns that a sink adds to its table, because its rows have more columns than the table."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.delta.column_types import DeltaType, delta_field, delta_type, type_text
from stateflow.connectors.delta.log.table_log import Field, open_deltalake
from stateflow.errors import SchemaMismatch

_logger = logging.getLogger(__name__)


def columns_to_add(table: str, fields: Iterable[Field], schema: RowSchema) -> tuple[Column, ...]:
    """Returns the columns that the table lacks, in the order of the row class.

    Args:
        table: its path, for errors.
        fields: the columns of the table.

    Raises:
        SchemaMismatch: a column seems to have been renamed: the row class has another column of the same type in the
            place of a column of the table, which would be null from then on.
    """
    existing = list(fields)
    names = {field.name.lower() for field in existing}
    added = tuple(column for column in schema.columns if column.name.lower() not in names)
    declared = {name.lower() for name in schema.names}
    for place, (field, column) in enumerate(zip(existing, schema.columns, strict=False)):
        if field.name.lower() not in declared and column in added and _same_type(field.type, column):
            raise SchemaMismatch(
                "a column of the sink's table seems to have been renamed in the row class",
                hint=f"keep the name {field.name}; or, to add {column.name} beside it, declare both: "
                f"{field.name} as … | None = None",
                table=table,
                column=field.name,
                renamed_to=column.name,
                position=place + 1,
            )
    return added


def _same_type(kind: DeltaType, column: Column) -> bool:
    return type_text(kind) == type_text(delta_type(column.shape))


def add_columns(root: Path, columns: Iterable[Column]) -> bool:
    """Adds nullable columns to a table in one commit. Returns False if another commit was first: read the table again.

    Raises:
        SchemaMismatch: the table does not allow it.
    """
    from deltalake import PostCommitHookProperties
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.schema import Field as DeltaField

    fields = [DeltaField.from_json(msgspec.json.encode(delta_field(c.name, c.shape)).decode()) for c in columns]
    opened = open_deltalake(root)
    # Delta's checkpoints and the clean-up of the log follow the rules of `maintain_log`.
    hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    try:
        opened.alter.add_columns(fields, post_commithook_properties=hooks)
    except CommitFailedError:
        return False
    except DeltaError as e:
        raise SchemaMismatch(
            "columns cannot be added to the sink's table",
            hint="add them with ALTER TABLE, or let the sink write to another table",
            table=str(root),
            columns=[field.name for field in fields],
            reason=str(e)[:300],
        ) from e
    _logger.info("added columns to the Delta table: table=%s columns=%s", root, [field.name for field in fields])
    return True
