"""What a Delta table must be, and must not be, for files to be committed to it directly.

Delta leaves it to each writer to honour a table's properties. A commit of finished files runs no query, so it cannot
fill in, check or translate a value; Delta would accept it, and the table would silently be wrong. Hence allow-lists:
what is not known to be harmless is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.delta_log import DeltaHead, Metadata, Protocol
from stateflow.errors import JobDefinitionError, SchemaMismatch, SinkRefused

_DELTA_TYPES = {"bigint": "long"}

# Each of these was committed to and read back through Spark in tests/connectors. The last three ask nothing of a
# writer unless a column or a property makes use of them, which is looked at apart.
_FEATURES = frozenset({
    "appendOnly", "changeDataFeed", "deletionVectors", "timestampNtz", "v2Checkpoint",
    "invariants", "checkConstraints", "generatedColumns",
})  # fmt: skip
_READER_VERSION, _WRITER_VERSION = 3, 7

_CONSTRAINT = "delta.constraints."
_FORGETS = "delta.setTransactionRetentionDuration"
_MAPPING = "delta.columnMapping.mode"

# What a column's metadata asks of a writer. Other people's notes on a column, such as comments, are harmless.
_COLUMN_PROPERTIES = {
    "delta.generationExpression": "a generated column would be null",
    "delta.identity.": "an identity column would be null",
    "delta.invariants": "the column's invariant would not be checked",
    "delta.columnMapping.": "mapped columns would be null",
    "CURRENT_DEFAULT": "the column's default would not be filled in",
    "__CHAR_VARCHAR_TYPE_STRING": "the length of CHAR and VARCHAR values would not be checked",
    "delta.": "this version does not know what the column's property asks for",
    "__": "this version does not know what the column's property asks for",
}

_OTHER_TABLE = "or let the sink write to another table"


@dataclass(frozen=True)
class _Refusal:
    """Why a table cannot be honoured: what it has, what would go wrong, and what a person can do."""

    property: str
    reason: str
    hint: str


def check_table(table: str, head: DeltaHead, schema: RowSchema) -> None:
    """Passes a table that rows of `schema` can be committed to directly.

    Raises:
        SinkRefused: a property of the table would be violated.
        SchemaMismatch: columns are missing, or have other types or names.
    """
    refusals = list(_refusals(head))
    if refusals:
        first, *others = refusals
        also = {"also": [r.property for r in others]} if others else {}
        raise SinkRefused(f"the Delta table cannot be honoured: {first.reason}", hint=first.hint, table=table,
                          property=first.property, **also)  # fmt: skip
    differences = list(_differences(_fields(head.metadata), schema))
    if differences:
        raise SchemaMismatch("the sink's rows do not fit the Delta table", hint="change the row class, or the table "
                             "with ALTER TABLE", table=table, differences=differences)  # fmt: skip


def new_table(table_id: str, schema: RowSchema, created_ms: int) -> list[dict[str, Any]]:
    """The actions that make an empty table for rows of `schema`; every column of it is nullable.

    Raises JobDefinitionError when there can be no such table.
    """
    lower = [name.lower() for name in schema.names]
    if not lower or len(set(lower)) < len(lower):
        raise JobDefinitionError("a Delta table needs columns, whose names differ by more than case",
                                 row_class=schema.row_class.__name__, columns=list(schema.names))  # fmt: skip
    fields = [
        {"name": c.name, "type": _delta_type(c), "nullable": True, "metadata": {}} for c in schema.columns
    ]
    metadata = {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": msgspec.json.encode({"type": "struct", "fields": fields}).decode(),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": created_ms,
    }
    return [{"protocol": _lowest_protocol(schema)}, {"metaData": metadata}]


def _lowest_protocol(schema: RowSchema) -> dict[str, Any]:
    if all(c.spark_type != "timestamp_ntz" for c in schema.columns):
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    # As Spark makes it: naming features at all means to name also those that version 2 of a writer has.
    return {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": ["timestampNtz"], "writerFeatures": ["timestampNtz", "appendOnly", "invariants"],
    }  # fmt: skip


def _refusals(head: DeltaHead) -> Iterator[_Refusal]:
    yield from _of_protocol(head.protocol)
    yield from _of_configuration(head.metadata.configuration or {})
    for column in head.metadata.partition_columns:
        reason = "the values of partition columns would be null"
        yield _Refusal(
            f"partition column {column}", reason, f"write the table anew without it, {_OTHER_TABLE}"
        )
    for field in _fields(head.metadata):
        yield from _of_column(field)


def _of_protocol(protocol: Protocol) -> Iterator[_Refusal]:
    if protocol.min_reader_version > _READER_VERSION or protocol.min_writer_version > _WRITER_VERSION:
        found = f"protocol ({protocol.min_reader_version}, {protocol.min_writer_version})"
        reason = f"this version knows up to ({_READER_VERSION}, {_WRITER_VERSION})"
        yield _Refusal(found, reason, f"use a newer stateflow, {_OTHER_TABLE}")
    named = {*(protocol.reader_features or []), *(protocol.writer_features or [])}
    for feature in sorted(named - _FEATURES):
        reason = "a direct commit would not do what the feature asks of a writer"
        hint = f"ALTER TABLE ... DROP FEATURE {feature}, {_OTHER_TABLE}"
        yield _Refusal(f"table feature {feature}", reason, hint)


def _of_configuration(configuration: Mapping[str, str | None]) -> Iterator[_Refusal]:
    for name in sorted(configuration):
        if name.startswith(_CONSTRAINT):
            hint = f"ALTER TABLE ... DROP CONSTRAINT {name.removeprefix(_CONSTRAINT)}, {_OTHER_TABLE}"
            yield _Refusal(name, "the CHECK constraint would not be checked", hint)
    if (configuration.get(_MAPPING) or "none").lower() != "none":
        hint = f"ALTER TABLE ... SET TBLPROPERTIES ('{_MAPPING}' = 'none'), {_OTHER_TABLE}"
        yield _Refusal(_MAPPING, "mapped columns would be null", hint)
    if configuration.get(_FORGETS):
        hint = f"ALTER TABLE ... UNSET TBLPROPERTIES ('{_FORGETS}')"
        yield _Refusal(_FORGETS, "the table would forget what was published, and take it twice", hint)


def _of_column(field: dict[str, Any]) -> Iterator[_Refusal]:
    name = field["name"]
    if not field.get("nullable", True):
        hint = f"ALTER TABLE ... ALTER COLUMN {name} DROP NOT NULL, {_OTHER_TABLE}"
        yield _Refusal(f"NOT NULL column {name}", "nothing would keep nulls out of it", hint)
    for key in sorted(field.get("metadata") or {}):
        for prefix, reason in _COLUMN_PROPERTIES.items():
            if key.startswith(prefix):
                yield _Refusal(f"{key} of column {name}", reason, f"take it off the column, {_OTHER_TABLE}")
                break


def _differences(fields: list[dict[str, Any]], schema: RowSchema) -> Iterator[str]:
    """Columns of the table that rows do not have are null; they may be there, and columns may be in any order."""
    types = {f["name"]: f["type"] for f in fields}
    names_in_lower_case = {name.lower(): name for name in types}
    for column in schema.columns:
        found = types.get(column.name)
        other_case = names_in_lower_case.get(column.name.lower())
        if found is None and other_case is not None:
            yield f"{column.name}: the table calls it {other_case}"
        elif found is None:
            yield f"{column.name}: the table has no such column"
        elif found != _delta_type(column):
            shown = found if isinstance(found, str) else found.get("type", "another type")
            yield f"{column.name}: declared {_delta_type(column)}, the table has {shown}"


def _fields(metadata: Metadata) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = msgspec.json.decode(metadata.schema_string)["fields"]
    return fields


def _delta_type(column: Column) -> str:
    return _DELTA_TYPES.get(column.spark_type, column.spark_type)
