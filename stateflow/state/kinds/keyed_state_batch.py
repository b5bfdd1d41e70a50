"""State of many keys at once, as Arrow columns; what is stored is what one key at a time stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import SchemaMismatch, StateError
from stateflow.serializers import decode_key
from stateflow.state.cell import Cell
from stateflow.state.changes import ABSENT
from stateflow.state.current import VOID_NAMESPACE, CurrentKey
from stateflow.state.key_columns import encode_keys
from stateflow.state.map_state import MapState
from stateflow.state.ttl import Ttl

Array = np.ndarray[Any, Any]


class ManyKeys:
    """The void namespace of different keys.

    Args:
        entries: what the states work on.
        groups: of each key, its key group.
        keys: as `encode_key` encodes them.
    """

    def __init__(self, entries: CurrentKey, groups: Sequence[bytes], keys: Sequence[bytes]) -> None:
        self._entries = entries
        self._groups = groups
        self._keys = keys
        self._stored: dict[bytes, list[bytes]] = {}
        self._found: dict[bytes, bytes | None] = {}
        """What states with a time to live had, by stored key: a write must know the moment before."""

    def __len__(self) -> int:
        return len(self._keys)

    def read(self, state: Cell[Any]) -> pa.Array:
        """A column with the value of each key; null, or the state's default, where it has none.

        Of an aggregating state these are accumulators. Raises StateError for another kind of state.
        """
        _check_kind(state, Cell)
        found = self._fetch(self._prefixes(state), state.ttl)
        if state.default is not None:
            found = [state.default if data is None else data for data in found]
        return state.columns.decode(found)

    def write(self, state: Cell[Any], values: pa.Array, where: Array | None = None) -> None:
        """Sets the value of each key; null clears it.

        Args:
            where: for which keys; for all if None.

        Raises:
            SchemaMismatch: the column has another length, or is not of the state's type.
        """
        _check_kind(state, Cell)
        values = _one_array(values)
        _check_length("values", len(values), len(self))
        stored = self._prefixes(state)
        if where is not None:
            chosen = np.asarray(where)
            _check_length("where", len(chosen), len(self))
            places = np.flatnonzero(chosen)
            stored, values = [stored[at] for at in places.tolist()], values.take(pa.array(places))
        self._put(stored, state.columns.encode(values), state.ttl)

    def read_entries(self, state: MapState[Any, Any], of: Array, keys: pa.Array) -> pa.Array:
        """A column with values of maps.

        Args:
            of: for each wanted entry, the number of the key whose map it is in.
            keys: the user keys, without nulls.
        """
        return state.columns.decode(self._fetch(self._addresses(state, of, keys), state.ttl))

    def write_entries(self, state: MapState[Any, Any], of: Array, keys: pa.Array, values: pa.Array) -> None:
        """Sets entries of maps, removes those whose value is null; of several for one entry the last counts.
        Arguments as for `read_entries`, errors as in `write`."""
        stored, values = self._addresses(state, of, keys), _one_array(values)
        _check_length("values", len(values), len(stored))
        self._put(stored, state.columns.encode(values), state.ttl)

    def all_entries(self, state: MapState[Any, Any]) -> tuple[Array, pa.Array, pa.Array]:
        """Every entry of every key's map, as (number of the key, user key, value), in order of both."""
        _check_kind(state, MapState)
        of: list[int] = []
        keys: list[Any] = []
        stored: list[bytes] = []
        for number, prefix in enumerate(self._prefixes(state)):
            for address, data in self._entries.scan(prefix):
                if state.ttl is None or state.ttl.admit_scanned(address, data):
                    of.append(number)
                    keys.append(decode_key(address[len(prefix) :])[0])
                    stored.append(data)
        return np.array(of, np.int64), pa.array(keys, state.key_columns.type), state.columns.decode(stored)

    def _prefixes(self, state: Cell[Any] | MapState[Any, Any]) -> list[bytes]:
        found = self._stored.get(state.id)
        if found is None:
            between, behind = state.id, VOID_NAMESPACE
            found = [
                group + between + key + behind for group, key in zip(self._groups, self._keys, strict=True)
            ]
            self._stored[state.id] = found
        return found

    def _addresses(self, state: MapState[Any, Any], of: Array, keys: pa.Array) -> list[bytes]:
        _check_kind(state, MapState)
        keys, wanted = _one_array(keys), state.key_columns.type
        _check_length("keys of a map", len(keys), len(of))
        if keys.null_count or not keys.type.equals(wanted):
            raise SchemaMismatch("keys of a map are null or of another type", hint="cast the column, drop its nulls",
                                 state=state.schema.name, wanted=str(wanted), given=str(keys.type),
                                 nulls=keys.null_count)  # fmt: skip
        state.user_keys.check_column(keys)
        prefixes = self._prefixes(state)
        return [
            prefixes[at] + key for at, key in zip(np.asarray(of).tolist(), encode_keys([keys]), strict=True)
        ]

    def _fetch(self, stored: list[bytes], ttl: Ttl | None) -> list[bytes | None]:
        pending = self._entries.pending
        found = self._entries.backend.multi_get(stored)
        if pending:
            found = [pending.get(key, data) for key, data in zip(stored, found, strict=True)]
        if ttl is None:
            return found
        self._found |= zip(stored, found, strict=True)
        return [
            data if data is not None and ttl.admit(key, data) else None
            for key, data in zip(stored, found, strict=True)
        ]

    def _put(self, stored: list[bytes], encoded: list[bytes | None], ttl: Ttl | None) -> None:
        if ttl is None:
            self._entries.pending |= zip(stored, encoded, strict=True)
            return
        for key, data in zip(stored, encoded, strict=True):
            old = self._entries.pending.get(key, ABSENT)
            if old is ABSENT:
                old = self._found.get(key, ABSENT)
            if data is None:
                ttl.remove(key, old)
            else:
                ttl.write(key, data, old)


def _one_array(values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    return values if isinstance(values, pa.Array) else pa.array(values)


def _check_kind(state: object, kind: type[Any]) -> None:
    if not isinstance(state, kind):
        raise StateError("a state of this kind is not read like that for many keys", hint="read and write take value, "
                         "reducing and aggregating ones, the others maps", given=type(state).__name__)  # fmt: skip


def _check_length(name: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise SchemaMismatch("a column for many keys has another length", hint="one value for each, in their order",
                             column=name, found=found, wanted=wanted)  # fmt: skip
