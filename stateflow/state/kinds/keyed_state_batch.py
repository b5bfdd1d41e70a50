"""Keyed state of many keys at once, as Arrow columns; the stored bytes are those of one key at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from itertools import repeat
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stateflow.clock import Section
from stateflow.config.settings import EntryLimits
from stateflow.errors import SchemaMismatch, StateError
from stateflow.state.backends.base import largest_size, map_key_too_large, value_too_large
from stateflow.state.key_columns import Numbers, encode_keys, encode_windows
from stateflow.state.kinds.key_context import ABSENT, KeyContext, RowTimes
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.single_value import SingleValueState
from stateflow.state.kinds.timers import NO_WATERMARK
from stateflow.state.kinds.ttl import Ttl
from stateflow.state.stored_key import VOID_NAMESPACE
from stateflow.types.key_encoding import decode_key

Array = NDArray[np.int64] | NDArray[np.bool_]
AnySingleValueState = SingleValueState[Any]
AnyMapState = MapState[Any, Any]
_SHOWN = 100
"""Characters of a key in a log."""
AnyListState = ListState[object]
P = ParamSpec("P")
R = TypeVar("R")


def _as_state(method: Callable[Concatenate[KeyedStateBatch, P], R]) -> Callable[Concatenate[KeyedStateBatch, P], R]:
    """Makes the time of a method count as time in the state, without that in the store."""

    @wraps(method)
    def call(self: KeyedStateBatch, /, *args: P.args, **kwargs: P.kwargs) -> R:
        watch = self._context.backend.watch
        before = watch.switch(Section.STATE)
        try:
            return method(self, *args, **kwargs)
        finally:
            watch.switch(before)

    return call


class KeyedStateBatch:
    """The states of n distinct keys in the void namespace, or of n windows of keys.

    Args:
        context: pending changes and store of the subtask.
        groups: the key group of each key, 2 bytes.
        keys: the keys as encoded by `encode_key`.
        windows: the windows as encoded by `encode_windows`; None for the void namespace.
        row_times: for each key, the latest event time of its rows, which a TTL counts from.
    """

    def __init__(
        self,
        context: KeyContext,
        groups: Sequence[bytes],
        keys: Sequence[bytes],
        windows: Sequence[bytes] | None = None,
        row_times: RowTimes = None,
    ) -> None:
        self._context = context
        self._groups = groups
        self._keys = keys
        self._windows = windows
        self._row_times = row_times
        self._stored: dict[bytes, list[bytes]] = {}
        self._read: dict[bytes, bytes | None] = {}
        """Values that were read of states with a TTL, by stored key: a write needs the previous timestamp."""

    def __len__(self) -> int:
        return len(self._keys)

    def key_text(self, number: int) -> str:
        """Returns a key as text, for a log."""
        parts = decode_key(self._keys[number])
        return repr(parts[0] if len(parts) == 1 else parts)[:_SHOWN]

    def windows(self, of: Numbers, starts: Numbers, ends: Numbers) -> KeyedStateBatch:
        """Returns the states of windows of these keys.

        Args:
            of: for each window, the index of its key. Windows of one key differ.
            starts, ends: milliseconds since 1970.
        """
        return self.at(of, encode_windows(starts, ends))

    def at(self, of: Numbers, names: Sequence[bytes] | None = None) -> KeyedStateBatch:
        """Returns the states of some of these keys, in windows with encoded `names` or in the void namespace."""
        groups, keys, at = self._groups, self._keys, of.tolist()
        times = None if self._row_times is None else [self._row_times[n] for n in at]
        return KeyedStateBatch(self._context, [groups[n] for n in at], [keys[n] for n in at], names, times)

    def stored_keys(self, state_id: bytes, parts: Iterable[bytes] | None = None) -> list[bytes]:
        """Returns the stored keys of entries of each key or window.

        Args:
            state_id: the id of the state.
            parts: what precedes each key; nothing if None.
        """
        windows: Iterable[bytes] = repeat(VOID_NAMESPACE) if self._windows is None else self._windows
        if parts is None:
            return [g + state_id + key + name for g, key, name in zip(self._groups, self._keys, windows, strict=False)]
        rows = zip(self._groups, parts, self._keys, windows, strict=False)
        return [group + state_id + part + key + name for group, part, key, name in rows]

    @property
    def groups(self) -> Sequence[bytes]:
        """The key group of each key."""
        return self._groups

    @_as_state
    def read(self, state: AnySingleValueState) -> pa.Array:
        """Returns a column of n values; null, or the state's default, for a key without a value.

        The values of an aggregating state are its accumulators.

        Raises:
            StateError: the state is of another kind.
        """
        _check_kind(state, SingleValueState)
        found = self._fetch(self._prefixes(state), state.ttl, self._row_times)
        if state.default is not None:
            found = [state.default if data is None else data for data in found]
        return state.columns.decode(found)

    @_as_state
    def write(self, state: AnySingleValueState, values: pa.Array, where: Array | None = None) -> None:
        """Sets the value of each key.

        Args:
            values: a column of n values; null removes the value of a key.
            where: a boolean mask of length n that selects the keys to write; all keys if None.

        Raises:
            SchemaMismatch: the column has another length, or is not of the state's type.
            EntryTooLarge: an encoded value is larger than ``state.max_value_bytes``.
        """
        _check_kind(state, SingleValueState)
        values = _one_array(values)
        _check_length("values", len(values), len(self))
        stored, times = self._prefixes(state), self._row_times
        if where is not None:
            selected = np.asarray(where)
            _check_length("where", len(selected), len(self))
            indices = np.flatnonzero(selected)
            stored, values = [stored[at] for at in indices.tolist()], values.take(pa.array(indices))
            times = self._times_of(indices)
        self._put(stored, _encoded(self._context.limits, state, values), state.ttl, times)

    @_as_state
    def read_entries(self, state: AnyMapState, of: Array, keys: pa.Array) -> pa.Array:
        """Returns a column of m map values; null for an entry that does not exist.

        Args:
            of: index of the key whose map contains the entry, for each of the m entries.
            keys: a column of m user keys without nulls.
        """
        stored = self._entry_keys(state, of, keys)
        return state.columns.decode(self._fetch(stored, state.ttl, self._times_of(of)))

    @_as_state
    def write_entries(self, state: AnyMapState, of: Array, keys: pa.Array, values: pa.Array) -> None:
        """Sets m map entries; the last one of several for the same entry wins.

        Args:
            of, keys: as for `read_entries`.
            values: a column of m values; null removes the entry.

        Raises:
            SchemaMismatch: a column has another length or type.
            EntryTooLarge: an encoded key or value is larger than its limit.
        """
        stored, values = self._entry_keys(state, of, keys, is_write=True), _one_array(values)
        _check_length("values", len(values), len(stored))
        self._put(stored, _encoded(self._context.limits, state, values), state.ttl, self._times_of(of))

    @_as_state
    def all_entries(self, state: AnyMapState) -> tuple[Array, pa.Array, pa.Array]:
        """Returns all map entries as columns (index of the key, user key, value), ordered by index and user key."""
        _check_kind(state, MapState)
        of: list[int] = []
        keys: list[object] = []
        stored: list[bytes] = []
        for number, (prefix, row) in enumerate(zip(self._prefixes(state), _each(self._row_times), strict=False)):
            for stored_key, data in self._context.scan(prefix):
                if state.ttl is None or state.ttl.on_scan(stored_key, data, row):
                    of.append(number)
                    keys.append(decode_key(stored_key[len(prefix) :])[0])
                    stored.append(data)
        return np.array(of, np.int64), pa.array(keys, state.key_columns.type), state.columns.decode(stored)

    def lists(
        self, state: AnyListState, of: Array, times: RowTimes = None, limit: int = 64 << 20
    ) -> Iterator[tuple[Array, pa.Array]]:
        """Yields the elements of lists as columns (index of the key, element), by key in the order of addition.

        Args:
            of: indexes of the keys whose lists are read, in order.
            times: for each of them, the event time of the latest row that reads the list; those of the keys if None.
            limit: the bytes of encoded elements that are returned at once, but one element at least.
        """
        _check_kind(state, ListState)
        prefixes, ttl = self._prefixes(state), state.ttl
        numbers: list[int] = []
        stored: list[bytes] = []
        size = 0
        for number, row in zip(of.tolist(), _each(times or self._times_of(of)), strict=False):
            for key, data in self._context.scan(prefixes[number]):
                if ttl is None or ttl.on_scan(key, data, row):
                    if stored and size + len(data) > limit:
                        yield np.array(numbers, np.int64), state.columns.decode(stored)
                        numbers, stored, size = [], [], 0
                    numbers.append(number)
                    stored.append(data)
                    size += len(data)
        if stored:
            yield np.array(numbers, np.int64), state.columns.decode(stored)

    @_as_state
    def append(self, state: AnyListState, of: Array, elements: pa.Array, times: RowTimes = None) -> None:
        """Appends elements to lists.

        Args:
            of: for each element, the index of the key whose list it is added to.
            elements: a column without nulls.
            times: for each element, the event time of its row; those of the keys if None.

        Raises:
            SchemaMismatch: the column is not of the state's type.
            EntryTooLarge: an encoded element is larger than ``state.max_value_bytes``.
        """
        _check_kind(state, ListState)
        encoded = [data for data in _encoded(self._context.limits, state, _one_array(elements)) if data is not None]
        prefixes = self._prefixes(state)
        state.append_stored([prefixes[at] for at in of.tolist()], encoded, times or self._times_of(of))

    @_as_state
    def remove_lists(self, state: AnyListState, of: Array) -> None:
        """Removes the elements of lists."""
        prefixes = self._prefixes(state)
        for number in of.tolist():
            for key, data in self._context.scan(prefixes[number]):
                if state.ttl is None:
                    self._context.pending[key] = None
                else:
                    state.ttl.remove(key, data)

    def _times_of(self, of: Array) -> RowTimes:
        """Returns the latest event times of the rows of some keys."""
        times = self._row_times
        return None if times is None else [times[at] for at in np.asarray(of).tolist()]

    def _prefixes(self, state: AnySingleValueState | AnyMapState | AnyListState) -> list[bytes]:
        found = self._stored.get(state.id)
        if found is None:
            found = self._stored[state.id] = self.stored_keys(state.id)
        return found

    def _entry_keys(self, state: AnyMapState, of: Array, keys: pa.Array, is_write: bool = False) -> list[bytes]:
        _check_kind(state, MapState)
        keys, wanted = _one_array(keys), state.key_columns.type
        _check_length("keys of a map", len(keys), len(of))
        if keys.null_count or not keys.type.equals(wanted):
            raise SchemaMismatch(
                "keys of a map are null or of another type",
                hint="cast the column, drop its nulls",
                state=state.schema.name,
                wanted=str(wanted),
                given=str(keys.type),
                nulls=keys.null_count,
            )
        state.user_keys.check_column(keys)
        prefixes, encoded, limits = self._prefixes(state), encode_keys([keys]), self._context.limits
        if is_write and (size := largest_size(encoded)) > limits.map_key_bytes:
            raise map_key_too_large(state.schema.name, size, limits)
        return [prefixes[at] + key for at, key in zip(np.asarray(of).tolist(), encoded, strict=True)]

    def _fetch(self, stored: list[bytes], ttl: Ttl | None, times: RowTimes) -> list[bytes | None]:
        found = self._context.read_many(stored)
        if ttl is None:
            return found
        self._read |= zip(stored, found, strict=True)
        return [
            data if data is not None and ttl.on_read(key, data, row) else None
            for (key, data), row in zip(zip(stored, found, strict=True), _each(times), strict=False)
        ]

    def _put(self, stored: list[bytes], encoded: list[bytes | None], ttl: Ttl | None, times: RowTimes) -> None:
        if ttl is None:
            self._context.pending |= zip(stored, encoded, strict=True)
            return
        unread = [key for key in stored if key not in self._read] if ttl.clock is not None else []
        self._read |= zip(unread, self._context.read_many(unread), strict=True)
        for (key, data), row in zip(zip(stored, encoded, strict=True), _each(times), strict=False):
            old = self._context.pending.get(key, ABSENT)
            if old is ABSENT:
                old = self._read.get(key, ABSENT)
            if data is None:
                ttl.remove(key, old)
            else:
                ttl.write(key, data, old, row)


def optional_times(times: Numbers) -> list[int | None]:
    """Returns event times, with None for the lowest integer: a row without one."""
    return [None if time == NO_WATERMARK else time for time in times.tolist()]


def _encoded(
    limits: EntryLimits, state: AnySingleValueState | AnyMapState | AnyListState, values: pa.Array
) -> list[bytes | None]:
    encoded = state.columns.encode(values)
    # An encoded number or time has at most 40 bytes; no limit is meant for them.
    if not pa.types.is_primitive(values.type) and (size := largest_size(encoded)) > limits.value_bytes:
        raise value_too_large(state.schema.name, size, limits)
    return encoded


def _each(times: RowTimes) -> Iterable[int | None]:
    return repeat(None) if times is None else times


def _one_array(values: pa.Array | pa.ChunkedArray | Iterable[object]) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    return values if isinstance(values, pa.Array) else pa.array(values)


def _check_kind(state: object, kind: type[object]) -> None:
    if not isinstance(state, kind):
        raise StateError(
            "a state of this kind cannot be accessed by this method for many keys",
            hint="use read and write for value, reducing and aggregating states, the other methods for map states",
            given=type(state).__name__,
        )


def _check_length(name: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise SchemaMismatch(
            "a column for many keys has another length",
            hint="pass one value per key, in the order of the keys",
            column=name,
            found=found,
            wanted=wanted,
        )
