"""The stored entries for the rows of a frame, of one keyed state or of timers: the bytes that a run would write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import time, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stateflow.bootstrap.encoded_values import ValueEncoder, encode_map_keys, name_state_in_errors
from stateflow.bootstrap.frames import (
    DOMAIN,
    NAMESPACE,
    TIME,
    StateColumns,
    cast_column,
    column_names,
    is_spark,
    plain_type,
)
from stateflow.config.settings import EntryLimits
from stateflow.errors import ConfigError, DataError, JobDefinitionError, SchemaMismatch, StateflowError
from stateflow.state.backends.base import key_too_large, map_key_too_large
from stateflow.state.backends.entry_stream import EntryColumns
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.binary_columns import (
    empty_values,
    from_list,
    from_rows,
    join_columns,
    largest_of,
    without_first_byte,
)
from stateflow.state.column_serializer import ColumnSerializer
from stateflow.state.key_columns import as_plain_column, encode_key_columns, parts_of_column, time_rows
from stateflow.state.kinds.key_context import BatchTime
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.keyed_state_batch import AnyMapState, AnySingleValueState
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.single_value import SingleValueState
from stateflow.state.stored_key import TIMER_IDS, VOID_NAMESPACE, TimeDomain, encode_epoch
from stateflow.types.columns.conversion import PER_MILLISECOND
from stateflow.types.declared_types import SCALAR_TYPES, parse_arrow_type, python_type_of
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
from stateflow.types.key_groups import check_key_type
from stateflow.types.serializers import TIMESTAMP_FORMATS, VALUE_FORMAT

if TYPE_CHECKING:
    from stateflow.bootstrap.frames import Frame


T = TypeVar("T")


_UNFIT = (OverflowError, ValueError, KeyError, pa.ArrowInvalid)
"""Errors of Arrow for values that Python's types cannot have."""
_NAMES = {each.arrow: each.spark for each in SCALAR_TYPES}
_ANY_SIZE = {each.python: each.spark for each in SCALAR_TYPES if each.python in (str, bytes, time, timedelta)}
"""Names of types whose Arrow types differ in the sizes of offsets, or in units, which keys do not have."""


@dataclass(frozen=True)
class GivenKey:
    """The key columns of an operator.

    Attributes:
        names: names of the columns, in the order of the job's `key_by`.
        types: Spark's names of their types.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]

    @classmethod
    def of(cls, key: str | Sequence[str] | Mapping[str, str], frame: Frame | None) -> GivenKey:
        """Returns the key columns of an operator.

        Args:
            key: their names; or their types, as Spark names them, by name.
            frame: a frame that has them; None without one.

        Raises:
            ConfigError: a column is missing, its type is not known, or a key cannot have it.
        """
        names = tuple([key] if isinstance(key, str) else key)
        if not names or len(set(names)) < len(names):
            raise ConfigError(
                "an operator's key needs distinct columns", hint="name them as in key_by", key=list(names)
            )
        if isinstance(key, Mapping):
            types = [key[name] for name in names]
        elif frame is None:
            raise ConfigError(
                "the types of an operator's key columns are not known",
                hint='pass them: key={"carrier": "string", "flight": "bigint"}, or a frame of a keyed state',
                key=list(names),
            )
        else:
            types = [_type_of(frame, name) for name in names]
        for name, kind in zip(names, types, strict=True):
            check_key_type(kind, name)
            _arrow_type(kind)
        return cls(names, tuple(types))

    def encode(self, batch: pa.RecordBatch, limits: EntryLimits) -> pa.LargeBinaryArray:
        """Returns the encoded key of each row.

        Raises:
            SchemaMismatch: a column has another type.
            EntryTooLarge: a key is larger than the limit.
        """
        encoded = encode_key_columns(
            [self._column(batch, name, kind) for name, kind in zip(self.names, self.types, strict=True)]
        )
        if (size := largest_of(encoded)) > limits.key_bytes:
            raise key_too_large(size, limits)
        return encoded

    def facts_of(self, batch: pa.RecordBatch, row: int) -> dict[str, object]:
        """Returns the key of a row for an error."""
        return {"key": ", ".join(f"{name}={describe_scalar(batch.column(name)[row])}"[:200] for name in self.names)}

    def _column(self, batch: pa.RecordBatch, name: str, kind: str) -> pa.Array:
        return cast_column(batch.column(name), _arrow_type(kind), name)


def naming_row(
    batch: pa.RecordBatch,
    encode: Callable[[pa.RecordBatch], T],
    facts_of: Callable[[pa.RecordBatch, int], dict[str, object]],
) -> T:
    """Returns the result of `encode`; adds facts of the first row that it refuses, such as its key, to its error.

    Raises:
        StateflowError: as `encode` does.
    """
    try:
        return _encoded(batch, encode)
    except StateflowError:
        first, last = 0, batch.num_rows
        # The first `first` rows are accepted; the first `last` rows are not.
        while last - first > 1:
            middle = (first + last) // 2
            try:
                _encoded(batch.slice(0, middle), encode)
                first = middle
            except StateflowError:
                last = middle
        try:
            _encoded(batch.slice(last - 1, 1), encode)
        except StateflowError as e:
            e.add_facts(**facts_of(batch, last - 1))
            raise
        raise


def describe_scalar(value: pa.Scalar) -> str:
    """Returns a value for an error; bytes for a text that is not UTF-8, and a number for a time out of range."""
    try:
        return repr(value.as_py())
    except UnicodeDecodeError:
        return repr(value.as_buffer().to_pybytes())
    except _UNFIT:
        kind = value.type
        number = value.cast(pa.int32() if kind.bit_width == 32 else pa.int64()) if pa.types.is_temporal(kind) else ""
        return f"{kind} {number}"


def _encoded(batch: pa.RecordBatch, encode: Callable[[pa.RecordBatch], T]) -> T:
    try:
        return encode(batch)
    except UnicodeDecodeError as e:
        # Arrow does not check the texts of a file.
        raise DataError("a text is not UTF-8", hint="convert the column", text=repr(e.object[:100])) from e
    except StateflowError:
        raise
    except _UNFIT as e:
        raise SchemaMismatch(
            "a row has a value that cannot be converted",
            hint="correct it, such as a time out of the range of years from 1 to 9999, or a map with a key twice",
            reason=f"{type(e).__name__}: {e}"[:200],
        ) from e


def _type_of(frame: Frame, name: str) -> str:
    """Returns Spark's name of the type of a frame's column; raises ConfigError if the frame does not have it."""
    if name not in column_names(frame):
        raise ConfigError("a frame lacks a key column", hint="rename it", column=name, columns=column_names(frame))
    if is_spark(frame):
        return str(frame.schema[name].dataType.simpleString())
    schema: pa.Schema = frame.schema
    return spark_name(schema.field(name).type)


def spark_name(kind: pa.DataType) -> str:
    """Returns Spark's name of a type of Arrow; that of Arrow for one that a key cannot have."""
    kind = plain_type(kind)
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    python = python_type_of(kind)
    return _ANY_SIZE[python] if python in _ANY_SIZE else _NAMES.get(kind, str(kind))


def _arrow_type(kind: str) -> pa.DataType:
    """Returns the Arrow type of a key column. Raises ConfigError for a malformed decimal."""
    try:
        return parse_arrow_type(kind)
    except ValueError as e:
        raise ConfigError("a key column has an unknown type", hint="write decimal(12,2)", type=kind) from e


EPOCH = 1
"""The epoch of a savepoint that is written from frames: as if the first batch of a job had written all of its state."""
ANY_GROUP = b"\0\0"
"""In place of the key group, which is computed for many entries at once."""
LIMITS = EntryLimits()
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

    key: GivenKey
    columns: StateColumns
    descriptor: StateDescriptor
    at: int
    epoch: int = EPOCH
    added: int = 0

    @cached_property
    def _state(self) -> AnyState:
        return declare(new_keyed_state(self.at), self.descriptor)

    @cached_property
    def _values(self) -> ValueEncoder:
        return ValueEncoder(self._state.codec, self.columns, LIMITS, self.descriptor.name)

    @cached_property
    def _map_key_columns(self) -> ColumnSerializer | None:
        assert isinstance(self._state, MapState)
        try:
            return self._state.key_columns
        except JobDefinitionError:
            return None

    def encode(self, batch: pa.RecordBatch) -> EntryColumns:
        """See `EntryEncoder.encode`."""
        with name_state_in_errors(self.descriptor.name):
            entries = naming_row(batch, self._encode, self.key.facts_of)
        self.added += batch.num_rows
        return entries

    def _encode(self, batch: pa.RecordBatch) -> EntryColumns:
        keys, values = self._key_parts(batch), self._values.encode(batch)
        stored = join_columns(ANY_GROUP + self._state.id, *keys)
        ttl, times = self._state.ttl, self._times(batch)
        if ttl is None or times is None:
            return EntryColumns(stored, values)
        timestamps = from_rows(time_rows(times))
        assert len(VALUE_FORMAT) == 1
        payloads = without_first_byte(values)
        expiry = join_columns(ANY_GROUP + ttl.id, timestamps, *keys)
        timed = join_columns(TIMESTAMP_FORMATS[ttl.characteristic], timestamps, payloads)
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
        indices = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
        return join_columns(encode_epoch(self.epoch), from_rows(indices))


@dataclass
class TimerEncoder:
    """Makes entries of timers.

    Attributes:
        key: the key columns.
        names: names of all columns of the frame.
        earliest: the earliest time of the encoded timers, by domain.
    """

    key: GivenKey
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        self.earliest: dict[TimeDomain, int] = {}

    def encode(self, batch: pa.RecordBatch) -> EntryColumns:
        """See `EntryEncoder.encode`."""
        with name_state_in_errors("_timers"):
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
        starts = np.concatenate((np.where(are_event[:, None], event, processing), time_rows(times)), axis=1)
        stored = join_columns(from_rows(starts), keys, namespaces)
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
        return _numbers(cast_column(column, pa.int64(), name))
    if not pa.types.is_timestamp(kind):
        raise SchemaMismatch(
            "a column of times has another type",
            hint="pass timestamps, or milliseconds since 1970 as integers",
            column=name,
            given=str(kind),
        )
    if kind.unit == "s":
        column = cast_column(column, pa.timestamp("ms", kind.tz), name)
    times, rest = np.divmod(_numbers(column.cast(pa.int64())), PER_MILLISECOND.get(kind.unit, 1))
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
