"""Columns that a sink adds to its table, because its rows have more columns than the table."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.columns.column_policy import columns_to_add
from stateflow.connectors.delta.column_types import (
    FEATURE_READER_VERSION,
    FEATURE_WRITER_VERSION,
    TIMESTAMPS_WITHOUT_ZONE,
    Field,
    delta_field,
    delta_type,
    has_timestamps_without_zone,
    type_text,
)
from stateflow.connectors.delta.log.table_log import Action, DeltaHead, Protocol
from stateflow.connectors.delta.versions import ENGINE
from stateflow.errors import SinkRefused
from stateflow.types.decoders import json_decoder

_IMPLIED = {
    1: (),
    2: ("appendOnly", "invariants"),
    3: ("appendOnly", "invariants", "checkConstraints"),
    4: ("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
}
"""The features that a writer version without a list of features has, which a list must contain."""


def missing_columns(table: str, fields: Sequence[Field], schema: RowSchema) -> tuple[Column, ...]:
    """Returns the columns that a table lacks; arguments and errors as of `columns_to_add`, with the table's fields."""
    types = [type_text(field.type) for field in fields]
    return columns_to_add(
        table,
        [field.name for field in fields],
        schema,
        lambda column, at: types[at] == type_text(delta_type(column.shape)),
    )


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
