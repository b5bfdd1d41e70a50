"""Columns that a sink adds to its table, because its rows have more columns than the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.delta.column_types import (
    FEATURE_READER_VERSION,
    FEATURE_WRITER_VERSION,
    TIMESTAMPS_WITHOUT_ZONE,
    DeltaType,
    delta_field,
    delta_type,
    has_timestamps_without_zone,
    type_text,
)
from stateflow.connectors.delta.log.table_log import Action, DeltaHead, Field, Protocol
from stateflow.connectors.delta.versions import ENGINE
from stateflow.errors import SchemaMismatch, SinkRefused
from stateflow.types.decoders import json_decoder

_IMPLIED = {
    1: (),
    2: ("appendOnly", "invariants"),
    3: ("appendOnly", "invariants", "checkConstraints"),
    4: ("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
}
"""The features that a writer version without a list of features has, which a list must contain."""


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
    for at, column in schema.possible_renames([field.name for field in existing]):
        field = existing[at]
        if _same_type(field.type, column):
            raise SchemaMismatch(
                "a column of the sink's table seems to have been renamed in the row class",
                hint=f"keep the name {field.name}; or, to add {column.name} as a further column, declare both: "
                f"{field.name} as … | None = None",
                table=table,
                column=field.name,
                renamed_to=column.name,
                position=at + 1,
            )
    names = {field.name.lower() for field in existing}
    return tuple(column for column in schema.columns if column.name.lower() not in names)


def _same_type(kind: DeltaType, column: Column) -> bool:
    return type_text(kind) == type_text(delta_type(column.shape))


def column_actions(table: str, head: DeltaHead, columns: Sequence[Column], now_ms: int) -> list[Action]:
    """Returns the actions of a commit that adds nullable columns to a table.

    Args:
        table: its path, for errors.
        head: the table's newest version.
        now_ms: time of the commit, in milliseconds since 1970.

    Raises:
        SinkRefused: the table's protocol would have to be replaced for a column.
    """
    added = [delta_field(column.name, column.shape) for column in columns]
    about = head.metadata
    metadata = {
        "id": about.id,
        "name": about.name,
        "description": about.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": _with_fields(about.schema_string, added),
        "partitionColumns": about.partition_columns,
        "configuration": about.configuration or {},
        "createdTime": about.created_time,
    }
    info = {
        "timestamp": now_ms,
        "operation": "ADD COLUMNS",
        "operationParameters": {"columns": msgspec.json.encode(added).decode()},
        "readVersion": head.version,
        "isBlindAppend": False,
        "engineInfo": ENGINE,
    }
    protocol = _protocol(table, head.protocol, columns)
    actions: list[Action] = [{"commitInfo": info}, *([{"protocol": protocol}] if protocol else [])]
    return [*actions, {"metaData": {name: value for name, value in metadata.items() if value is not None}}]


def _with_fields(schema_string: str, added: list[dict[str, object]]) -> str:
    schema = json_decoder(dict[str, object]).decode(schema_string)
    fields = schema["fields"]
    assert isinstance(fields, list)
    return msgspec.json.encode({**schema, "fields": [*fields, *added]}).decode()


def _protocol(table: str, before: Protocol, columns: Sequence[Column]) -> Action | None:
    """Returns the protocol that the columns need; None if the table has it."""
    readers, writers = before.reader_features or [], before.writer_features or []
    if TIMESTAMPS_WITHOUT_ZONE in writers or not has_timestamps_without_zone(columns):
        return None
    if before.min_writer_version < FEATURE_WRITER_VERSION:
        if before.min_writer_version not in _IMPLIED or before.min_reader_version > 1:
            raise SinkRefused(
                "a column cannot be added, because the table's protocol does not have timestamps without zone",
                hint=f"ALTER TABLE ... SET TBLPROPERTIES ('delta.feature.{TIMESTAMPS_WITHOUT_ZONE}' = 'supported')",
                table=table,
                minReaderVersion=before.min_reader_version,
                minWriterVersion=before.min_writer_version,
            )
        writers = list(_IMPLIED[before.min_writer_version])
    return {
        "minReaderVersion": FEATURE_READER_VERSION,
        "minWriterVersion": FEATURE_WRITER_VERSION,
        "readerFeatures": [*readers, TIMESTAMPS_WITHOUT_ZONE],
        "writerFeatures": [*writers, TIMESTAMPS_WITHOUT_ZONE],
    }
