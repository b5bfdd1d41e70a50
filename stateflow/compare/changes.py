"""The entries that differ between two snapshots: in a temporary file, as rows with JSON, and as typed columns.

The file has no name, so that memory is bounded and a killed process leaves nothing.
"""

from __future__ import annotations

import dataclasses
import mmap
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import IO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.compare.merge import Difference, unpack_list
from stateflow.compare.states import StatePair
from stateflow.compare.summary import change_of
from stateflow.query.state_table import KeyedTable, OperatorTable, key_fields, timer_columns
from stateflow.query.value_types import ValueReader
from stateflow.state.handles import StateSchema, TypeNode, TypeSchema
from stateflow.state.key_columns import KEY_GROUP
from stateflow.state.schema import name_fields
from stateflow.state.stored_key import StoredKey
from stateflow.types.key_encoding import decode_key
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
class ChangedKey:
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


def change_row(state: ComparedState, found: Difference) -> ChangedKey:
    """Returns a difference of a state as a row; raises CorruptFile if its key or a value does not decode."""
    key, pair = state.decode(found.key), state.pair
    return ChangedKey(
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


def _value(pair: StatePair, schema: StateSchema | None, data: bytes, key: StoredKey) -> object:
    if pair.kind == "timer":
        return {"time": key.time, "domain": key.domain}
    if pair.kind in _RAW_KINDS:
        return data
    if pair.kind == "list":
        return [name_fields(decode_untyped(each), schema) for each in unpack_list(data)]
    return name_fields(decode_untyped(data), schema)


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


_NONE = TypeSchema(root=TypeNode(kind="none"))
_CHANGE = pa.field("change", pa.string(), nullable=False)
_OWN_VALUES = {"position", "value", "written_at"}
"""Columns of a state's table that are not part of a key."""


Columns = dict[str, pa.Array]
KeyColumnReader = Callable[[Sequence[bytes]], Columns]


def read_typed_changes(file: ChangeFile, number: int) -> pa.RecordBatchReader:
    """Returns a reader of the differences of the state with this number in a file.

    Raises:
        CorruptFile: from the reader: a key or value does not decode.
        StateError: from the reader: a value has no representation in its column.
    """
    state = file.states[number]
    key_schema, read_keys = _keys_of(state)
    values = [] if state.pair.kind == "timer" else [_ValueColumn(state, side) for side in ("old", "new")]
    schema = pa.schema([_CHANGE, *key_schema, *(each.field for each in values)])

    def batches() -> Iterator[pa.RecordBatch]:
        for stored in file.batches():
            rows = stored.filter(pc.equal(stored["place"], number))
            if rows.num_rows:
                keys, old, new = (rows[name].to_pylist() for name in ("key", "old", "new"))
                kinds = [change_of(Difference(*each)) for each in zip(keys, old, new, strict=True)]
                found = {"change": pa.array(kinds, pa.string()), **read_keys(keys)}
                found |= {each.side: each.read(side) for each, side in zip(values, (old, new), strict=False)}
                yield pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _keys_of(state: ComparedState) -> tuple[Sequence[pa.Field], KeyColumnReader]:
    """Returns the columns of a state's keys, and what reads them."""
    pair, kind = state.pair, state.pair.kind
    if kind in ("split-list", "union-list", "raw"):
        return [], lambda keys: {}
    if kind == "raw-keyed":
        return [KEY_GROUP], lambda keys: {
            KEY_GROUP.name: pa.array([decode_key(key)[0] for key in keys], KEY_GROUP.type)
        }
    # The keys of the first snapshot have the key types of the second one, or the operator is not compared.
    operator = state.new or state.old
    assert operator is not None
    if kind == "broadcast":
        broadcast = OperatorTable(operator, _schema_of(pair))
        return [broadcast.schema.field("map_key")], lambda keys: {"map_key": broadcast.map_keys(keys)}
    table = KeyedTable(operator, None if kind == "timer" else _schema_of(pair))
    return [field for field in table.schema if field.name not in _OWN_VALUES], partial(_read_keyed, table)


def _read_keyed(table: KeyedTable, keys: Sequence[bytes]) -> Columns:
    # A list has one key, without the position of an element.
    columns = dataclasses.replace(table.layout, tail=0).read(keys)
    found = {"key_group": columns.key_group, "namespace": columns.namespace}
    if columns.map_key is not None:
        found["map_key"] = columns.map_key
    if table.state is None:
        found |= timer_columns(keys)
    return found | dict(zip((field.name for field in key_fields(table.operator)), columns.keys, strict=True))


def _schema_of(pair: StatePair) -> StateSchema:
    """Returns a schema for the keys of a state; a map whose keys have two types has those of `KEY_PART`."""
    old, new = pair.old, pair.new
    found = new or old or StateSchema(name=pair.name, kind=pair.kind, value_type="", type=_NONE)
    if old is not None and new is not None and old.key_type != new.key_type:
        return msgspec.structs.replace(found, key_type="")
    return found


class _ValueColumn:
    """The values of one snapshot: with its own type, or that of the other one if it does not have the state.

    Args:
        state: the state.
        side: ``old`` or ``new``.
    """

    def __init__(self, state: ComparedState, side: str) -> None:
        pair = state.pair
        own, other = (pair.old, pair.new) if side == "old" else (pair.new, pair.old)
        self.side = side
        self._facts: dict[str, object] = {"operator": state.uid, "state": pair.name, "snapshot": side}
        self._is_list = pair.kind == "list"
        self._reader = None
        item: pa.DataType = pa.binary()
        if pair.kind not in ("raw", "raw-keyed"):
            self._reader = ValueReader(own or other or _schema_of(pair))
            item = self._reader.field.type
        self.field = pa.field(side, pa.list_(pa.field("item", item)) if self._is_list else item)

    def read(self, stored: Sequence[bytes | None]) -> pa.Array:
        """Returns the column; null where the snapshot does not have the key."""
        present = [data for data in stored if data is not None]
        if not present:
            return pa.nulls(len(stored), self.field.type)
        positions = accumulate((data is not None for data in stored), initial=-1)
        next(positions)
        indices = [position if data is not None else None for data, position in zip(stored, positions, strict=True)]
        return self._read_present(present).take(pa.array(indices, pa.int64()))

    def _read_present(self, stored: list[bytes]) -> pa.Array:
        if not self._is_list:
            return self._read_values(stored)
        lists = [unpack_list(data) for data in stored]
        offsets = pa.array(accumulate(map(len, lists), initial=0), pa.int32())
        return pa.ListArray.from_arrays(offsets, self._read_values(list(chain(*lists))), type=self.field.type)

    def _read_values(self, stored: list[bytes]) -> pa.Array:
        if self._reader is None:
            return pa.array(stored, pa.binary())
        return self._reader.read(stored, lambda row: self._facts)


_SCHEMA = pa.schema(
    [
        pa.field("place", pa.int32(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("old", pa.binary()),
        pa.field("new", pa.binary()),
    ]
)
_BATCH_BYTES = 4 << 20


KeyDecoder = Callable[[bytes], StoredKey]


@dataclass(frozen=True)
class ComparedState:
    """A state of an operator that was compared.

    Attributes:
        uid: uid of the operator.
        pair: the state.
        decode: decodes its keys.
        old, new: the operator in each snapshot; None in one that does not have it.
    """

    uid: str
    pair: StatePair
    decode: KeyDecoder
    old: OperatorState | None
    new: OperatorState | None


class ChangeFile:
    """Differences on disk, in the order in which they were added.

    Attributes:
        states: the compared states.
    """

    def __init__(self) -> None:
        self.states: list[ComparedState] = []
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="stateflow-diff-")
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "wb"), _SCHEMA)
        self._content: mmap.mmap | None = None
        self._rows: list[tuple[int, bytes, bytes | None, bytes | None]] = []
        self._size = 0

    def number_of(self, state: ComparedState) -> int:
        """Returns the number of a state, which is added unless it is known."""
        key = state.uid, state.pair.name, state.pair.kind
        if key not in self._numbers:
            self._numbers[key] = len(self.states)
            self.states.append(state)
        return self._numbers[key]

    def add(self, number: int, found: Difference) -> None:
        """Adds a difference of the state with this number."""
        self._rows.append((number, found.key, found.old, found.new))
        self._size += len(found.key) + len(found.old or b"") + len(found.new or b"")
        if self._size >= _BATCH_BYTES:
            self._write()

    def _write(self) -> None:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
            self._writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
        self._rows, self._size = [], 0

    def finish(self) -> None:
        """Ends the file, which can be read from now on."""
        self._write()
        self._writer.close()
        self._file.flush()
        # Keeps the content, also for several readers at a time, until the last of them is gone.
        self._content = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()

    def close(self) -> None:
        """Removes the differences, if `finish` was not called."""
        self._file.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields all differences: ``place``, which is the number of the state, ``key``, ``old`` and ``new``."""
        assert self._content is not None
        yield from pa.ipc.open_stream(pa.py_buffer(self._content))
