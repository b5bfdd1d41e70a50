"""The stored entries of one keyed state, or of timers, for the rows of a frame: the bytes that a run would write."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stateflow.bootstrap.encoding.column_types import cast as checked_cast
from stateflow.bootstrap.encoding.frames import DOMAIN, NAMESPACE, TIME, StateColumns
from stateflow.bootstrap.encoding.keys import KeyColumns, naming_row
from stateflow.bootstrap.encoding.values import Values, encode_map_keys, state_named
from stateflow.config.state_settings import EntryLimits
from stateflow.errors import DataError, JobDefinitionError, SchemaMismatch
from stateflow.state.backends.entry_columns import EntryColumns
from stateflow.state.backends.memory import DictBackend
from stateflow.state.columnar.binary_columns import (
    empty_values,
    from_list,
    from_rows,
    joined,
    largest_of,
    without_first_byte,
)
from stateflow.state.columnar.column_serializer import ColumnSerializer
from stateflow.state.columnar.key_encoding import encode_key_columns
from stateflow.state.columnar.key_parts import as_plain_column, parts_of_column
from stateflow.state.entry_limits import map_key_too_large
from stateflow.state.kinds.key_context import VOID_NAMESPACE, BatchTime
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
from stateflow.types.serializers import TIMESTAMP_FORMATS, VALUE_FORMAT

EPOCH = 1
"""The epoch of a savepoint that is written from frames: as if the first batch of a job had written all of its state."""
_PER_MILLISECOND = {"us": 1000, "ns": 1_000_000}
ANY_GROUP = b"\0\0"
"""In place of the key group, which is computed for many entries at once."""
LIMITS = EntryLimits()
_ZERO = np.uint64(1 << 63)
_LARGEST_INDEX = (1 << 32) - 1
_EVENT, _PROCESSING = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME
_DOMAINS = frozenset(domain.value for domain in TimeDomain)

AnyState = AnySingleValueState | ListState[Any] | AnyMapState


class EntryEncoder(Protocol):
    """Makes stored entries of rows."""

    def encode(self, batch: pa.RecordBatch) -> EntryColumns:
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

    def encode(self, batch: pa.RecordBatch) -> EntryColumns:
        """See `EntryEncoder.encode`."""
        with state_named(self.descriptor.name):
            entries = naming_row(batch, self._encode, self.key.facts_of)
        self.added += batch.num_rows
        return entries

    def _encode(self, batch: pa.RecordBatch) -> EntryColumns:
        keys, values = self._key_parts(batch), self._values.encode(batch)
        stored = joined(ANY_GROUP + self._state.id, *keys)
        ttl, times = self._state.ttl, self._times(batch)
        if ttl is None or times is None:
            return EntryColumns(stored, values)
        timestamps = from_rows(_time_rows(times))
        assert len(VALUE_FORMAT) == 1
        payloads = without_first_byte(values)
        expiry = joined(ANY_GROUP + ttl.id, timestamps, *keys)
        timed = joined(TIMESTAMP_FORMATS[ttl.characteristic], timestamps, payloads)
        nothing = empty_values(len(expiry))
        return EntryColumns(pa.concat_arrays([stored, expiry]), pa.concat_arrays([timed, nothing]))

    def _times(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        """Returns the times from which on a time to live counts; None without one, or before the first watermark."""
        if self._state.ttl is None:
            return None
        if self.columns.written_at:
            return milliseconds(batch.column(self.columns.written_at), self.columns.written_at)
        return np.full(batch.num_rows, self.at, np.int64) if self._state.ttl.clock is None else None

    def _key_parts(self, batch: pa.RecordBatch) -> list[pa.LargeBinaryArray | bytes]:
        """Returns what stored keys have after the id of their state."""
        parts = [self.key.encode(batch, LIMITS), _namespaces(batch, self.columns.namespace)]
        if isinstance(self._state, SingleValueState):
            return parts
        if isinstance(self._state, MapState):
            return [*parts, self._map_keys(self._state, batch)]
        return [*parts, self._positions(batch)]

    def _map_keys(self, state: AnyMapState, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
        column, name = batch.column(self.columns.map_key), self.columns.map_key
        encoded = encode_map_keys(state.user_keys, self._map_key_columns, column, name)
        if (size := largest_of(encoded)) > LIMITS.map_key_bytes:
            raise map_key_too_large(self.descriptor.name, size, LIMITS)
        return encoded

    def _positions(self, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
        for name in self.columns.order_by:
            # NaN is what pandas makes of null.
            if pc.any(pc.is_null(batch.column(name), nan_is_null=True)).as_py():
                raise DataError("a position in a list is null or NaN", hint="fill the column", column=name)
        if self.columns.index:
            numbers = batch.column(self.columns.index).to_numpy(zero_copy_only=False).astype(np.int64)
        else:
            numbers = np.arange(self.added, self.added + batch.num_rows)
        if len(numbers) and int(numbers.max()) > _LARGEST_INDEX:
            raise DataError("a list state has more elements than positions", largest=_LARGEST_INDEX)
        return joined(struct.pack(">Q", self.epoch), from_rows(_fixed(numbers.astype(">u4"))))


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

    def encode(self, batch: pa.RecordBatch) -> EntryColumns:
        """See `EntryEncoder.encode`."""
        with state_named("_timers"):
            return naming_row(batch, self._encode, self.key.facts_of)

    def _encode(self, batch: pa.RecordBatch) -> EntryColumns:
        keys = self.key.encode(batch, LIMITS)
        namespaces = _namespaces(batch, NAMESPACE if NAMESPACE in self.names else "")
        times = milliseconds(batch.column(TIME), TIME)
        are_event = self._are_of_event_time(batch)
        for domain, selected in ((_EVENT, times[are_event]), (_PROCESSING, times[~are_event])):
            if len(selected):
                found = int(selected.min())
                self.earliest[domain] = min(found, self.earliest.get(domain, found))
        event, processing = (np.frombuffer(ANY_GROUP + TIMER_IDS[domain], np.uint8) for domain in (_EVENT, _PROCESSING))
        starts = np.concatenate((np.where(are_event[:, None], event, processing), _time_rows(times)), axis=1)
        stored = joined(from_rows(starts), keys, namespaces)
        return EntryColumns(stored, empty_values(len(stored)))

    def _are_of_event_time(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        if DOMAIN not in self.names:
            return np.ones(batch.num_rows, np.bool_)
        given = batch.column(DOMAIN).to_pylist()
        unknown = next((each for each in given if each not in _DOMAINS), None)
        if unknown is not None or None in given:
            raise DataError("a timer has an unknown time domain", hint="write event or processing", domain=unknown)
        return np.array([each == _EVENT.value for each in given], np.bool_)


def milliseconds(column: pa.Array, name: str) -> NDArray[np.int64]:
    """Returns times in milliseconds since 1970.

    Args:
        column: timestamps, or integers that are milliseconds already.
        name: name of the column, for errors.

    Raises:
        DataError: a time is null, or has a fraction of a millisecond.
        SchemaMismatch: the column has another type, or a time is out of range.
    """
    if column.null_count:
        raise DataError("a time is null", hint="fill the column, or filter these rows", column=name)
    kind = column.type
    if pa.types.is_integer(kind):
        return _numbers(checked_cast(column, pa.int64(), name))
    if not pa.types.is_timestamp(kind):
        raise SchemaMismatch(
            "a column of times has another type",
            hint="pass timestamps, or milliseconds since 1970 as integers",
            column=name,
            given=str(kind),
        )
    if kind.unit == "s":
        column = checked_cast(column, pa.timestamp("ms", kind.tz), name)
    times, rest = np.divmod(_numbers(column.cast(pa.int64())), _PER_MILLISECOND.get(kind.unit, 1))
    if rest.any():
        raise DataError(
            "a time has a fraction of a millisecond",
            hint="round the column to milliseconds: such a time cannot be stored",
            column=name,
        )
    return cast(NDArray[np.int64], times)


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    return cast(NDArray[np.int64], column.to_numpy(zero_copy_only=False))


def _namespaces(batch: pa.RecordBatch, name: str) -> pa.LargeBinaryArray | bytes:
    """Returns the encoded namespaces; one for all rows without a column of them."""
    if not name:
        return VOID_NAMESPACE
    column = as_plain_column(batch.column(name))
    if not column.null_count and not pa.types.is_struct(column.type):
        return encode_key_columns([column])
    # The void namespace is an encoded None.
    return from_list([encode_key((part,)) for part in parts_of_column(column, name)])


def _time_rows(times: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Returns times as they are stored: 8 bytes that sort as the times do."""
    return _fixed((times.view(np.uint64) ^ _ZERO).astype(">u8"))


def _fixed(numbers: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Returns the bytes of each number."""
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, numbers.itemsize)
