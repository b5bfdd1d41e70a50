"""Columns that a source's frame has in addition to its rows: the split of each row, and undecodable records."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import unquote

import msgspec

from stateflow.api.schema import Column, RowSchema
from stateflow.errors import CorruptInput, cut
from stateflow.types.columns.shapes import shape_of
from stateflow.types.decoders import json_decoder

SPLIT = "_sf_split"
"""The name of the part of the source that the row comes from, such as a partition of Kafka."""
REJECTED = "_sf_rejected"
"""The record that cannot be decoded, as a struct; null for all other rows."""
ARRIVED = "_sf_arrived"
"""Where a row that Spark reads comes from; see `arrival`. Only in frames that are not in the order of arrival."""
ARRIVED_TYPE = "struct<version: bigint, late: boolean, file: string, block: bigint>"
_MARK = "stateflow-rejected"
_MARKED = re.compile(rf"\[{_MARK}:([A-F0-9]+)\]")
_SHOWN = 500
"""Characters of a record's key and value that an error shows."""


class RejectedRecord(msgspec.Struct, frozen=True):
    """A record of a source that cannot be decoded.

    Attributes:
        topic: its topic; the name of its partition, in a source without topics.
        partition: number of its partition; 0 in a source without topics.
        offset: its offset in the partition.
        key: its key, in the form of `value`; None without one.
        value: its value as text, or ``base64:`` and the encoded bytes if it is not UTF-8; None without one.
        reason: why it cannot be decoded.
    """

    topic: str
    partition: int
    offset: int
    key: str | None
    value: str | None
    reason: str


class UndecodableRecord(ValueError):
    """A record cannot be decoded; the text is the reason."""


def with_hidden_columns(schema: RowSchema, *, rejects: bool) -> RowSchema:
    """Returns the columns of a source's frame: those of its rows, `SPLIT`, and `REJECTED` if it rejects records."""
    hidden = [Column(SPLIT, shape_of(str))]
    if rejects:
        hidden.append(Column(REJECTED, shape_of(RejectedRecord | None)))
    return replace(schema, columns=(*schema.columns, *hidden))


def without_hidden_columns(schema: RowSchema) -> RowSchema:
    """Returns the columns of a source's rows, without the columns that `with_hidden_columns` adds."""
    return replace(schema, columns=tuple(c for c in schema.columns if c.name not in (SPLIT, REJECTED)))


def arrival(version: str = "CAST(NULL AS BIGINT)", late: str = "false") -> str:
    """Returns the SQL expression of `ARRIVED` for a frame that reads files.

    Args:
        version: expression of the version of a table that a change belongs to.
        late: expression of whether the row comes after all rows of the version for which it is false.
    """
    places = "'file', input_file_name(), 'block', input_file_block_start()"
    return f"named_struct('version', {version}, 'late', {late}, {places}) AS {ARRIVED}"


def arrival_place(uri: str, version: int | None = None, late: bool = False) -> str:
    """Returns the name of a file in an order of arrival, whatever Spark and the log of a table percent-encode.

    Args:
        uri: percent-encoded URI of the file.
        version: as in `arrival`; None if rows have none.
        late: as in `arrival`.
    """
    file = re.sub("^file:/+", "file:/", unquote(uri))
    return file if version is None else f"{file} {version} {str(late).lower()}"


PLACE = (
    f"concat_ws(' ', url_decode(replace(regexp_replace({ARRIVED}.file, '^file:/+', 'file:/'), '+', '%2B')), "
    f"{ARRIVED}.version, if({ARRIVED}.version IS NULL, NULL, {ARRIVED}.late))"
)
"""SQL expression of the `arrival_place` of a row."""


def failing_filter(guard: str) -> str:
    """Returns the SQL condition of a filter that fails for a rejected record, and keeps all other rows.

    Args:
        guard: a condition that is always true, on a column that is not deterministic for Spark. Without it, Spark
            would move the filter below the decoding, and decode each record twice.
    """
    fields = (f"'{name}', {_field(name)}" for name in RejectedRecord.__struct_fields__)
    json = f"to_json(named_struct({', '.join(fields)}), map('ignoreNullFields', 'false'))"
    text = f"concat('[{_MARK}:', hex(encode({json}, 'UTF-8')), ']')"
    return f"CASE WHEN {REJECTED} IS NOT NULL AND {guard} THEN raise_error({text}) ELSE TRUE END"


def _field(name: str) -> str:
    # An error with a record of many megabytes would pass through every log.
    return f"left({REJECTED}.{name}, {_SHOWN})" if name in ("key", "value") else f"{REJECTED}.{name}"


def rejected_in(text: str) -> CorruptInput | None:
    """Returns the error about the record that `failing_filter` found; None without one.

    Args:
        text: Spark's error.
    """
    found = _MARKED.search(text)
    if found is None:
        return None
    try:
        record = json_decoder(RejectedRecord).decode(bytes.fromhex(found[1]))
    except (msgspec.DecodeError, ValueError):
        return None
    return rejection_error(record)


def rejection_error(record: RejectedRecord) -> CorruptInput:
    """Returns the error that ends a run for a rejected record."""
    return CorruptInput(
        "a record of a source cannot be decoded",
        hint="correct the declared columns or the format; to continue without such records, declare "
        "on_error=DeadLetters(budget=…) on the source",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        reason=record.reason,
        value=record.value if record.value is None else cut(record.value, _SHOWN),
    )
