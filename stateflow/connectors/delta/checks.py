"""Checks whether finished files may be committed to a Delta table directly.

Delta relies on each writer to enforce a table's properties. A commit of finished files runs no query, so it cannot fill
in, check or translate a value; Delta would accept it, and the table would silently be wrong. So the checks are
allow-lists: a feature or property that is not known to be harmless is rejected by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.columns.store_assignment import fits
from stateflow.connectors.delta.column_types import (
    CHAR_VARCHAR,
    COLUMN_MAPPING,
    FEATURE_READER_VERSION,
    FEATURE_WRITER_VERSION,
    TIMESTAMPS_WITHOUT_ZONE,
    Field,
    arrow_field,
    delta_field,
    delta_type,
    has_timestamps_without_zone,
    metadata_of_parts,
    stored_type,
    type_text,
)
from stateflow.connectors.delta.log.table_log import Action, DeltaHead, Protocol
from stateflow.connectors.delta.partitions.columns import mismatches
from stateflow.errors import JobDefinitionError, SchemaMismatch, SinkRefused

# tests/connectors commits to a table with each of these and reads it through Spark. The last three require nothing of
# a writer unless a column or a property uses them, which is checked separately.
_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        TIMESTAMPS_WITHOUT_ZONE,
        "v2Checkpoint",
        "invariants",
        "checkConstraints",
        "generatedColumns",
    }
)

_CONSTRAINT = "delta.constraints."
_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"

# What a column's metadata requires of a writer. Other metadata, such as comments, is harmless.
_COLUMN_PROPERTIES = {
    "delta.generationExpression": "a generated column would be null",
    "delta.identity.": "an identity column would be null",
    "delta.invariants": "the column's invariant would not be checked",
    "delta.columnMapping.": "mapped columns would be null",
    "CURRENT_DEFAULT": "the column's default would not be filled in",
    "delta.": "this version does not know what the column's property requires",
    "__": "this version does not know what the column's property requires",
}

_OTHER_TABLE = "or let the sink write to another table"
_REFUSED_FOR_UPSERTS = {
    "delta.appendOnly": "its rows may not be replaced",
    "delta.enableChangeDataFeed": "its feed would list rows that were only written again",
}
"""Properties that are refused when they are true, each with the reason."""


@dataclass(frozen=True)
class _Refusal:
    """Why a table is rejected: what it has, what would go wrong, and how to change it.

    Attributes:
        facts: the property with its value or column, the feature, or the protocol versions.
    """

    facts: Mapping[str, object]
    reason: str
    hint: str


def check_table(
    table: str, head: DeltaHead, schema: RowSchema, settings: tuple[Iterable[Column], Sequence[str]] = ((), ())
) -> None:
    """Checks that files with rows of `schema` can be committed to a table directly.

    Args:
        table: its path, for errors.
        settings: columns of `schema` that the table may lack, and the columns that the sink partitions by.

    Raises:
        SinkRefused: such a commit would violate a property of the table.
        SchemaMismatch: columns are missing, or have other types or names.
    """
    added, partition_by = settings
    refusals = list(_refusals(head, schema, partition_by))
    if refusals:
        first, *others = refusals
        also = {"also": [" ".join(map(str, r.facts.values())) for r in others]} if others else {}
        raise SinkRefused(
            f"the Delta table cannot be written to directly: {first.reason}",
            hint=first.hint,
            table=table,
            **first.facts,
            **also,
        )
    names = {column.name for column in added}
    expected = replace(schema, columns=tuple(c for c in schema.columns if c.name not in names))
    declared, found = _differences(head.metadata.fields(), expected)
    if declared:
        raise SchemaMismatch(
            "the sink's rows do not match the columns of the Delta table",
            hint="change the row class, or the table with ALTER TABLE; "
            'DeltaSink(…, schema_evolution="add-columns") adds columns that the table lacks',
            table=table,
            declared=declared,
            found=found,
        )


def check_protocol(table: str, head: DeltaHead) -> None:
    """Raises SinkRefused if a table has features with unknown requirements, also of a VACUUM."""
    for refusal in _protocol_refusals(head.protocol):
        raise SinkRefused(
            "the Delta table has a feature that is not supported", hint=refusal.hint, table=table, **refusal.facts
        )


def check_upserts(table: str, head: DeltaHead, schema: RowSchema) -> None:
    """Checks that data files of a table can be written again without some of their rows.

    Args:
        table: its path, for errors.
        schema: all columns that the table may have.

    Raises:
        SinkRefused: that would violate a property of the table.
        SchemaMismatch: the table has further columns, whose values would be lost.
    """
    configuration = head.metadata.configuration or {}
    for name, reason in _REFUSED_FOR_UPSERTS.items():
        if (configuration.get(name) or "").lower() == "true":
            raise SinkRefused(
                f"the Delta table does not permit upserts: {reason}",
                hint=f"ALTER TABLE ... UNSET TBLPROPERTIES ('{name}'), {_OTHER_TABLE}",
                table=table,
                property=name,
            )
    known = {name.lower() for name in schema.names}
    others = [field.name for field in head.metadata.fields() if field.name.lower() not in known]
    if others:
        raise SchemaMismatch(
            "the Delta table has columns that the rows of an upsert do not have",
            hint="declare them in the row class: an upsert replaces whole rows",
            table=table,
            columns=others,
        )


def new_table(table_id: str, schema: RowSchema, created_ms: int, partition_by: Sequence[str] = ()) -> list[Action]:
    """Returns the actions that create an empty table for rows of `schema`, with nullable columns.

    Args:
        created_ms: time of creation, in milliseconds since 1970.
        partition_by: the partition columns.

    Raises:
        JobDefinitionError: the row class has no columns, or two whose names differ only by case.
    """
    lower = [name.lower() for name in schema.names]
    if not lower or len(set(lower)) < len(lower):
        raise JobDefinitionError(
            "a Delta table needs at least one column, and column names that differ by more than case",
            row_class=schema.row_class.__name__,
            columns=list(schema.names),
        )
    fields = [delta_field(column.name, column.shape) for column in schema.columns]
    metadata = {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": msgspec.json.encode({"type": "struct", "fields": fields}).decode(),
        "partitionColumns": list(partition_by),
        "configuration": {},
        "createdTime": created_ms,
    }
    return [{"protocol": _lowest_protocol(schema)}, {"metaData": metadata}]


def _lowest_protocol(schema: RowSchema) -> Action:
    if not has_timestamps_without_zone(schema.columns):
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    # As Spark creates it: a table that lists features must also list those that writer version 2 implies.
    return {
        "minReaderVersion": FEATURE_READER_VERSION,
        "minWriterVersion": FEATURE_WRITER_VERSION,
        "readerFeatures": [TIMESTAMPS_WITHOUT_ZONE],
        "writerFeatures": [TIMESTAMPS_WITHOUT_ZONE, "appendOnly", "invariants"],
    }


def _refusals(head: DeltaHead, schema: RowSchema, partition_by: Sequence[str]) -> Iterator[_Refusal]:
    yield from _protocol_refusals(head.protocol)
    yield from _configuration_refusals(head.metadata.configuration or {})
    existing = head.metadata.partition_columns
    for column, reason in mismatches(partition_by, existing):
        hint = f"DeltaSink(…, partition_by={existing!r}), {_OTHER_TABLE}"
        yield _Refusal({"property": "PARTITIONED BY", "column": column}, reason, hint)
    declared = {name.lower() for name in schema.names}
    for field in head.metadata.fields():
        yield from _column_refusals(field, is_declared=field.name.lower() in declared)


def _protocol_refusals(protocol: Protocol) -> Iterator[_Refusal]:
    if protocol.min_reader_version > FEATURE_READER_VERSION or protocol.min_writer_version > FEATURE_WRITER_VERSION:
        facts = {"minReaderVersion": protocol.min_reader_version, "minWriterVersion": protocol.min_writer_version}
        reason = f"this version supports protocols up to ({FEATURE_READER_VERSION}, {FEATURE_WRITER_VERSION})"
        yield _Refusal(facts, reason, f"use a newer stateflow, {_OTHER_TABLE}")
    named = {*(protocol.reader_features or []), *(protocol.writer_features or [])}
    for feature in sorted(named - _FEATURES):
        reason = "a direct commit would not do what the feature requires of a writer"
        hint = f"ALTER TABLE ... DROP FEATURE {feature}, {_OTHER_TABLE}"
        yield _Refusal({"feature": feature}, reason, hint)


def _configuration_refusals(configuration: Mapping[str, str | None]) -> Iterator[_Refusal]:
    for name in sorted(configuration):
        if name.startswith(_CONSTRAINT):
            hint = f"ALTER TABLE ... DROP CONSTRAINT {name.removeprefix(_CONSTRAINT)}, {_OTHER_TABLE}"
            yield _Refusal({"property": name}, "the CHECK constraint would not be checked", hint)
    if (configuration.get(COLUMN_MAPPING) or "none").lower() != "none":
        hint = f"ALTER TABLE ... SET TBLPROPERTIES ('{COLUMN_MAPPING}' = 'none'), {_OTHER_TABLE}"
        yield _Refusal({"property": COLUMN_MAPPING}, "mapped columns would be null", hint)
    if configuration.get(_TRANSACTION_RETENTION):
        hint = f"ALTER TABLE ... UNSET TBLPROPERTIES ('{_TRANSACTION_RETENTION}')"
        reason = "the table would drop the sink's transaction, and its output would be committed twice"
        yield _Refusal({"property": _TRANSACTION_RETENTION}, reason, hint)


def _column_refusals(field: Field, *, is_declared: bool) -> Iterator[_Refusal]:
    name = field.name
    if not field.nullable and not is_declared:
        hint = f"declare the column, or ALTER TABLE ... ALTER COLUMN {name} DROP NOT NULL, {_OTHER_TABLE}"
        yield _Refusal({"property": "NOT NULL", "column": name}, "a required column is not in the rows", hint)
    for path, metadata in ((name, field.metadata or {}), *metadata_of_parts(name, field.type)):
        for key in sorted(metadata.keys() - {CHAR_VARCHAR}):
            for prefix, reason in _COLUMN_PROPERTIES.items():
                if key.startswith(prefix):
                    facts = {"property": key, "column": path}
                    yield _Refusal(facts, reason, f"remove the property from the column, {_OTHER_TABLE}")
                    break


def _differences(fields: list[Field], schema: RowSchema) -> tuple[dict[str, str], dict[str, str | None]]:
    """Returns the columns of rows that the table lacks, and what it has instead: types by name, None for no column.

    The table may have further columns, which are null, and its columns may be in any order. A narrower type, or one
    with a length, is accepted: values are checked when they are written.
    """
    fields_by_name = {f.name: f for f in fields}
    types = {f.name: f.type for f in fields}
    names_in_lower_case = {name.lower(): name for name in types}
    declared: dict[str, str] = {}
    found: dict[str, str | None] = {}
    for column in schema.columns:
        name = column.name
        if name not in types:
            name = names_in_lower_case.get(name.lower(), name)
        kind = types.get(name)
        if name != column.name or kind is None or not _may_store(fields_by_name[name], column):
            declared[column.name], found[name] = (
                type_text(delta_type(column.shape)),
                None if kind is None else type_text(kind),
            )
    return declared, found


def _may_store(field: Field, column: Column) -> bool:
    try:
        found = arrow_field(field.name, field.type, metadata=field.metadata)
    except (ValueError, LookupError, TypeError, AttributeError):  # the last three: of a malformed nested type
        return False
    return fits(stored_type(column.arrow_type), found.type)
