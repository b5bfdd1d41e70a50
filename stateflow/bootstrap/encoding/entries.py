"""The stored entries of one keyed state, or of timers, for the rows of a frame: the bytes that a run would write."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stateflow.bootstrap.encoding.frames import DOMAIN, NAMESPACE, TIME, StateColumns
from stateflow.bootstrap.encoding.keys import KeyColumns, naming_row
from stateflow.bootstrap.encoding.values import Values, encode_map_keys, state_named
from stateflow.config.state_settings import EntryLimits
from stateflow.errors import DataError, JobDefinitionError, SchemaMismatch
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.backends.memory import DictBackend
from stateflow.state.columnar.column_serializer import ColumnSerializer
from stateflow.state.columnar.key_encoding import encode_keys
from stateflow.state.entry_limits import largest, map_key_too_large
from stateflow.state.kinds.key_context import KEY_OFFSET, VOID_NAMESPACE, BatchTime
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.keyed_state_batch import AnyMapState, AnySingleValueState
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.single_value import SingleValueState
from stateflow.state.kinds.timer_index import TimeDomain
from stateflow.state.kinds.timers import TIMER_IDS
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.key_encoding import encode_key
from stateflow.types.serializers import with_timestamp

EPOCH = 1
"""The epoch of a savepoint that is written from frames: as if the first batch of a job had written all of its state."""
ANY_GROUP = b"\0\0"
"""In place of the key group, which is computed for many entries at once."""
LIMITS = EntryLimits()
_ZERO = np.uint64(1 << 63)
_LARGEST_INDEX = (1 << 32) - 1
_DOMAINS = {domain.value: domain for domain in TimeDomain}

AnyState = AnySingleValueState | ListState[Any] | AnyMapState


class EntryEncoder(Protocol):
    """Makes stored entries of rows."""

    def encode(self, batch: pa.RecordBatch) -> EntryBlock:
        """Returns the entries of a batch, in any order, with `ANY_GROUP` as their key group.

        Raises:
            StateflowError: a row cannot be stored; the error has its key.
        """


def declare(keyed: KeyedState, descriptor: StateDescriptor) -> AnyState:
    """Declares a state as a function's `open` does; raises as its methods do."""
    match descriptor:
        case ValueStateDescriptor():
            return keyed.value_state(descriptor)
        case ListStateDescriptor():
            return keyed.list_state(descriptor)
        case MapStateDescriptor():
            return keyed.map_state(descriptor)
        case ReducingStateDescriptor():
            return keyed.reducing_state(descriptor)
        case AggregatingStateDescriptor():
            return keyed.aggregating_state(descriptor)
        case FoldingStateDescriptor():
            return keyed.folding_state(descriptor)
    raise SchemaMismatch(
        "a state is not declared by a descriptor",
        hint="pass a ValueStateDescriptor, ListStateDescriptor, MapStateDescriptor, …",
        given=repr(descriptor)[:200],
    )


def new_keyed_state(at: int) -> KeyedState:
    """Returns keyed state without entries, to declare states in; `at` is the processing time in milliseconds."""
    return KeyedState(DictBackend(), (), BatchTime(EPOCH, at))


@dataclass
class StateEncoder:
    """Makes entries of the rows of one keyed state; for one reader of a frame.

    Attributes:
        key: the key columns.
        columns: the columns of the frame.
        descriptor: the state.
        at: the time of the writer, in milliseconds since 1970.
        epoch: the epoch of the savepoint.
        added: number of elements of a list that were encoded.
    """

    key: KeyColumns
    columns: StateColumns
    descriptor: StateDescriptor
    at: int
    epoch: int = EPOCH
    added: int = 0

    @cached_property
    def _state(self) -> AnyState:
        return declare(new_keyed_state(self.at), self.descriptor)

    @cached_property
    def _values(self) -> Values:
        return Values(self._state.codec, self.columns, LIMITS, self.descriptor.name)

    @cached_property
    def _map_key_columns(self) -> ColumnSerializer | None:
        assert isinstance(self._state, MapState)
        try:
            return self._state.key_columns
        except JobDefinitionError:
            return None

    def encode(self, batch: pa.RecordBatch) -> EntryBlock:
        """See `EntryEncoder.encode`."""
        with state_named(self.descriptor.name):
            entries = naming_row(self.key, batch, self._encode)
        self.added += batch.num_rows
        return entries

    def _encode(self, batch: pa.RecordBatch) -> EntryBlock:
        keys, values = self._stored_keys(batch), self._values.encode(batch)
        if self._state.ttl is None:
            return EntryBlock(keys, values)
        domain, times = self._state.ttl.characteristic, self._times(batch)
        if times is None:
            return EntryBlock(keys, values)
        stamps = _time_bytes(times)
        values = [with_timestamp(data, time, domain) for data, time in zip(values, times.tolist(), strict=True)]
        start = ANY_GROUP + self._state.ttl.id
        expiry = [start + stamp + key[KEY_OFFSET:] for stamp, key in zip(stamps, keys, strict=True)]
        return EntryBlock(keys + expiry, values + [b""] * len(expiry))

    def _times(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        """Returns the times from which on the time to live counts; None before the first watermark."""
        if self.columns.written_at:
            return milliseconds(batch.column(self.columns.written_at), self.columns.written_at)
        assert self._state.ttl is not None
        return np.full(batch.num_rows, self.at, np.int64) if self._state.ttl.clock is None else None

    def _stored_keys(self, batch: pa.RecordBatch) -> list[bytes]:
        start, keys = ANY_GROUP + self._state.id, self.key.encode(batch, LIMITS)
        namespaces = _namespaces(batch, self.columns.namespace)
        if isinstance(self._state, SingleValueState):
            return _joined(start, keys, namespaces, None)
        if isinstance(self._state, MapState):
            return _joined(start, keys, namespaces, self._map_keys(self._state, batch))
        return _joined(start, keys, namespaces, self._positions(batch))

    def _map_keys(self, state: AnyMapState, batch: pa.RecordBatch) -> list[bytes]:
        column, name = batch.column(self.columns.map_key), self.columns.map_key
        encoded = encode_map_keys(state.user_keys, self._map_key_columns, column, name)
        if (size := largest(encoded)) > LIMITS.map_key_bytes:
            raise map_key_too_large(self.descriptor.name, size, LIMITS)
        return encoded

    def _positions(self, batch: pa.RecordBatch) -> list[bytes]:
        for name in self.columns.order_by:
            if batch.column(name).null_count:
                raise DataError("a position in a list is null", hint="fill the column", column=name)
        if self.columns.index:
            numbers = batch.column(self.columns.index).to_numpy(zero_copy_only=False).astype(np.int64)
        else:
            numbers = np.arange(self.added, self.added + batch.num_rows)
        if len(numbers) and int(numbers.max()) > _LARGEST_INDEX:
            raise DataError("a list state has more elements than positions", largest=_LARGEST_INDEX)
        epoch = struct.pack(">Q", self.epoch)
        return [epoch + index for index in _fixed(numbers.astype(">u4"))]


@dataclass
class TimerEncoder:
    """Makes entries of timers.

    Attributes:
        key: the key columns.
        names: names of all columns of the frame.
        earliest: the earliest time of the encoded timers, by domain.
    """

    key: KeyColumns
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        self.earliest: dict[TimeDomain, int] = {}

    def encode(self, batch: pa.RecordBatch) -> EntryBlock:
        """See `EntryEncoder.encode`."""
        with state_named("_timers"):
            return naming_row(self.key, batch, self._encode)

    def _encode(self, batch: pa.RecordBatch) -> EntryBlock:
        keys = self.key.encode(batch, LIMITS)
        namespaces = _namespaces(batch, NAMESPACE if NAMESPACE in self.names else "")
        times = milliseconds(batch.column(TIME), TIME)
        domains = self._domains(batch)
        starts = {domain: ANY_GROUP + TIMER_IDS[domain] for domain in TimeDomain}
        for domain in TimeDomain:
            selected = times[np.array([each is domain for each in domains], bool)]
            if len(selected):
                found = int(selected.min())
                self.earliest[domain] = min(found, self.earliest.get(domain, found))
        stored = [
            starts[domain] + stamp + key + namespace
            for domain, stamp, key, namespace in zip(domains, _time_bytes(times), keys, namespaces, strict=True)
        ]
        return EntryBlock(stored, [b""] * len(stored))

    def _domains(self, batch: pa.RecordBatch) -> list[TimeDomain]:
        if DOMAIN not in self.names:
            return [TimeDomain.EVENT_TIME] * batch.num_rows
        given = batch.column(DOMAIN).to_pylist()
        unknown = next((each for each in given if each not in _DOMAINS), None)
        if unknown is not None or None in given:
            raise DataError("a timer has an unknown time domain", hint="write event or processing", domain=unknown)
        return [_DOMAINS[each] for each in given]


def milliseconds(column: pa.Array, name: str) -> NDArray[np.int64]:
    """Returns times in milliseconds since 1970.

    Args:
        column: timestamps, or integers that are milliseconds already.
        name: name of the column, for errors.

    Raises:
        DataError: a time is null.
        SchemaMismatch: the column has another type.
    """
    if column.null_count:
        raise DataError("a time is null", hint="fill the column, or filter these rows", column=name)
    kind = column.type
    if pa.types.is_integer(kind):
        return cast(NDArray[np.int64], column.cast(pa.int64()).to_numpy(zero_copy_only=False))
    if not pa.types.is_timestamp(kind):
        raise SchemaMismatch(
            "a column of times has another type",
            hint="pass timestamps, or milliseconds since 1970 as integers",
            column=name,
            given=str(kind),
        )
    micros = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return cast(NDArray[np.int64], micros // 1000)


def _namespaces(batch: pa.RecordBatch, name: str) -> Sequence[bytes]:
    if not name:
        return [VOID_NAMESPACE] * batch.num_rows
    column = batch.column(name)
    if not column.null_count:
        return encode_keys([column])
    # The void namespace is an encoded None.
    return [encode_key((value,)) for value in column.to_pylist()]


def _joined(
    start: bytes, keys: Iterable[bytes], namespaces: Iterable[bytes], last: Iterable[bytes] | None
) -> list[bytes]:
    if last is None:
        return [start + key + namespace for key, namespace in zip(keys, namespaces, strict=True)]
    return [start + key + namespace + end for key, namespace, end in zip(keys, namespaces, last, strict=True)]


def _time_bytes(times: NDArray[np.int64]) -> list[bytes]:
    """Returns times as they are stored: 8 bytes that sort as the times do."""
    return _fixed((times.view(np.uint64) ^ _ZERO).astype(">u8"))


def _fixed(numbers: NDArray[np.generic]) -> list[bytes]:
    return cast(list[bytes], np.ascontiguousarray(numbers).view(f"V{numbers.itemsize}").tolist())
