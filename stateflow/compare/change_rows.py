"""The keys that differ between two snapshots, as rows of Arrow record batches with JSON: those of all states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from stateflow.compare.change_file import ChangeFile, ComparedState
from stateflow.compare.merge import Difference, unpack_list
from stateflow.compare.states import DecodedKey, StatePair
from stateflow.compare.summary import change_of
from stateflow.state.handles import StateSchema
from stateflow.state.schema.named_values import named_value
from stateflow.types.serializers import decode_untyped
from stateflow.types.time_window import TimeWindow

SCHEMA = pa.schema(
    [
        pa.field("operator", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("change", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("namespace", pa.string()),
        pa.field("map_key", pa.string()),
        pa.field("old", pa.string()),
        pa.field("new", pa.string()),
    ]
)
"""Columns of the rows. ``key`` is a JSON array of the key columns; ``namespace``, ``map_key`` and the values are JSON,
and null where the entry has none."""
_RAW_KINDS = {"raw", "raw-keyed"}


@dataclass(frozen=True)
class Change:
    """A key that differs, decoded.

    Attributes:
        operator, state: where it is.
        change: ``added``, ``removed`` or ``changed``.
        key: JSON array of the key columns.
        namespace, map_key: JSON; None without one.
        old, new: JSON of the values; None for the snapshot that does not have the key.
    """

    operator: str
    state: str
    change: str
    key: str
    namespace: str | None
    map_key: str | None
    old: str | None
    new: str | None


def change_row(state: ComparedState, found: Difference) -> Change:
    """Returns a difference of a state as a row; raises CorruptFile if its key or a value does not decode."""
    key, pair = state.decode(found.key), state.pair
    return Change(
        state.uid,
        pair.name,
        change_of(found),
        to_json(list(key.key)),
        None if key.namespace is None else to_json(_namespace(key.namespace)),
        None if key.map_key is None else to_json(key.map_key),
        None if found.old is None else to_json(_value(pair, pair.old, found.old, key)),
        None if found.new is None else to_json(_value(pair, pair.new, found.new, key)),
    )


def _namespace(namespace: object) -> object:
    return str(namespace) if isinstance(namespace, TimeWindow) else namespace


def _value(pair: StatePair, schema: StateSchema | None, data: bytes, key: DecodedKey) -> object:
    if pair.kind == "timer":
        return {"time": key.time, "domain": key.domain}
    if pair.kind in _RAW_KINDS:
        return data
    if pair.kind == "list":
        return [named_value(decode_untyped(each), schema) for each in unpack_list(data)]
    return named_value(decode_untyped(data), schema)


def to_json(value: object) -> str:
    """Returns a decoded value as JSON; bytes as base64, and keys of dicts that JSON does not have as their text."""
    try:
        return _encoder.encode(value).decode()
    except (TypeError, ValueError, UnicodeEncodeError):
        return _encoder.encode(_in_json(value)).decode()


def _in_json(value: object) -> object:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else repr(key): _in_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(each) for each in value]
    return value if isinstance(value, int | float | str | bytes | bool) or value is None else repr(value)


def _extension(value: object) -> object:
    if isinstance(value, msgspec.msgpack.Ext):
        return [value.code, bytes(value.data)]
    raise TypeError(f"{type(value).__name__} is not a stored value")


_encoder = msgspec.json.Encoder(enc_hook=_extension)


def changes_as_text(file: ChangeFile) -> pa.RecordBatchReader:
    """Returns a reader of all differences in a file; raises as `change_row` does, from the reader."""

    def batches() -> Iterator[pa.RecordBatch]:
        for stored in file.batches():
            rows = [
                change_row(file.states[number], Difference(key, old, new))
                for number, key, old, new in zip(*(column.to_pylist() for column in stored.columns), strict=True)
            ]
            columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in SCHEMA]
            yield pa.record_batch(columns, schema=SCHEMA)

    return pa.RecordBatchReader.from_batches(SCHEMA, batches())
