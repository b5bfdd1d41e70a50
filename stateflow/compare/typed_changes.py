"""The keys of one state that differ between two snapshots, as columns of the types that `stateflow.read_state` has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.compare.change_file import ChangeFile, ComparedState
from stateflow.compare.merge import Difference, unpack_list
from stateflow.compare.states import StatePair
from stateflow.compare.summary import change_of
from stateflow.query.columns.keyed_table import KeyedTable, timer_columns
from stateflow.query.columns.operator_table import OperatorTable
from stateflow.query.columns.state_table import key_fields
from stateflow.query.columns.value_reader import ValueReader
from stateflow.state.columnar.key_reader import KEY_GROUP
from stateflow.state.handles import StateSchema
from stateflow.types.key_encoding import decode_key

_CHANGE = pa.field("change", pa.string(), nullable=False)
_OWN_VALUES = {"position", "value", "written_at"}
"""Columns of a state's table that are not part of a key."""

Columns = dict[str, pa.Array]
KeyColumnReader = Callable[[Sequence[bytes]], Columns]


def typed_changes(file: ChangeFile, number: int) -> pa.RecordBatchReader:
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
    found = new or old or StateSchema(name=pair.name, kind=pair.kind, value_type="")
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
