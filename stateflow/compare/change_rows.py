"""The keys that differ between two snapshots, as rows of Arrow record batches.

Rows are written to a temporary file without a name, so that memory is bounded and a killed process leaves nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

import msgspec
import pyarrow as pa

from stateflow.compare.merge import Difference, unpack_list
from stateflow.compare.states import DecodedKey, StatePair
from stateflow.compare.summary import change_of
from stateflow.state.handles import StateSchema
from stateflow.state.schema.named_values import named_value
from stateflow.types.serializers import decode_untyped

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
_BATCH_BYTES = 4 << 20
_RAW_KINDS = {"raw", "raw-keyed"}

KeyDecoder = Callable[[bytes], DecodedKey]


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


def change_row(uid: str, pair: StatePair, found: Difference, decode: KeyDecoder) -> Change:
    """Returns a difference as a row.

    Args:
        uid: uid of the operator.
        pair: its state.
        found: the difference.
        decode: decodes its key.

    Raises:
        CorruptFile: key or value does not decode.
    """
    key = decode(found.key)
    return Change(
        uid,
        pair.name,
        change_of(found),
        to_json(list(key.key)),
        None if key.namespace is None else to_json(key.namespace),
        None if key.map_key is None else to_json(key.map_key),
        None if found.old is None else to_json(_value(pair, pair.old, found.old, key)),
        None if found.new is None else to_json(_value(pair, pair.new, found.new, key)),
    )


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


class ChangeFile:
    """Rows on disk, until they are read."""

    def __init__(self) -> None:
        # Not closed at the end of a block: the reader that `finish` returns keeps it.
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="stateflow-diff-")
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "wb"), SCHEMA)
        self._rows: list[Change] = []
        self._size = 0

    def add(self, row: Change) -> None:
        """Adds a row."""
        self._rows.append(row)
        self._size += len(row.key) + len(row.old or "") + len(row.new or "")
        if self._size >= _BATCH_BYTES:
            self._write()

    def finish(self) -> pa.RecordBatchReader:
        """Returns a reader of all rows, which also holds the file; call it once, after the last row."""
        self._write()
        self._writer.close()
        self._file.seek(0)
        return pa.RecordBatchReader.from_batches(SCHEMA, _StoredBatches(self._file))

    def _write(self) -> None:
        columns = [pa.array([getattr(row, field.name) for row in self._rows], field.type) for field in SCHEMA]
        if self._rows:
            self._writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
        self._rows, self._size = [], 0

    def close(self) -> None:
        """Removes the rows, if `finish` was not called."""
        self._file.close()


class _StoredBatches:
    """Iterator over the batches in a file, which it closes when it ends or is no longer used."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._batches = iter(pa.ipc.open_stream(pa.PythonFile(file, "rb")))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._batches)
        except StopIteration:
            self._file.close()
            raise

    def __del__(self) -> None:
        self._file.close()
