"""Operators that call a vectorized function, or a join, with all rows of a key, or of a window, at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from stateflow.api.functions.process import RuntimeContext, TaskInfo
from stateflow.api.functions.returned import InvalidReturnValue
from stateflow.api.functions.vectorized import Array, VectorizedKeyedFunction, VectorState
from stateflow.api.functions.window_vectors import BatchTimes, WindowVectorFunction, WindowVectorState
from stateflow.api.joins.pairs import Side, joinable
from stateflow.api.joins.regular_join import ColumnJoin
from stateflow.api.joins.times import TimedColumnJoin
from stateflow.api.schema import RowSchema
from stateflow.clock import Section, epoch_milliseconds
from stateflow.config.settings import EntryLimits
from stateflow.errors import SchemaMismatch, StateError, StateflowError, UserCodeError
from stateflow.runtime.executor import GROUP_MASK, GROUP_SHIFT, PHASE_SHIFT, TIMER_PHASE, ChainSpec, Numbers, SourceTime
from stateflow.runtime.task.input_reader import KeyedInputs
from stateflow.runtime.task.operator_runtime import batch_time
from stateflow.runtime.task.row_conversion import check_declared, conform_rows, event_times, group_starts
from stateflow.runtime.user_code import describe_value, find_user_line
from stateflow.state.backends.base import KeyedStateBackend, key_too_large, largest_size
from stateflow.state.handles import StateSchema
from stateflow.state.key_columns import KeyLayout, encode_keys, to_comparable
from stateflow.state.kinds.key_context import RowTimes
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.keyed_state_batch import KeyedStateBatch, optional_times
from stateflow.state.kinds.timers import MOST_BY_COLUMNS, NO_WATERMARK, SliceSize, TimerIndex
from stateflow.state.kinds.ttl import TtlCleanup
from stateflow.state.kinds.window_timers import DueKeys
from stateflow.state.stored_key import GROUP_BYTES, VOID_NAMESPACE, TimeDomain
from stateflow.types.columns.conversion import row_bytes
from stateflow.types.key_groups import range_of
from stateflow.types.ttl_config import StateTtlConfig

T = TypeVar("T")
_LARGEST_COLUMN = (1 << 31) - 1
"""Bytes of texts in one Arrow array, of which offsets have 32 bits."""


@dataclass(frozen=True)
class SortedRows:
    """Sorted rows of one phase.

    Attributes:
        origins: the number of each row's source; None if it is not known.
    """

    order: Numbers
    columns: tuple[pa.Array, ...]
    origins: Numbers | None = None

    def __len__(self) -> int:
        return len(self.order)

    @property
    def phase(self) -> int:
        """The phase of the rows."""
        return int(self.order[0]) >> PHASE_SHIFT

    @property
    def nbytes(self) -> int:
        """The size of the columns."""
        return sum(column.nbytes for column in self.columns)

    def slice(self, start: int, end: int) -> SortedRows:
        """Returns some of the rows."""
        origins = None if self.origins is None else self.origins[start:end]
        return SortedRows(self.order[start:end], tuple(c.slice(start, end - start) for c in self.columns), origins)


def _concatenate(parts: Sequence[SortedRows]) -> SortedRows:
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part.columns for part in parts), strict=True)
    origins = [part.origins for part in parts if part.origins is not None]
    return SortedRows(
        np.concatenate([p.order for p in parts]),
        tuple(_one_column(c) for c in columns),
        np.concatenate(origins) if origins else None,
    )


def _one_column(parts: Sequence[pa.Array]) -> pa.Array:
    """Returns parts of a column as one array.

    Raises:
        StateError: texts, bytes or lists are larger than one array may be. Only the rows of one key are, since the
            parts that are held back for a call of many keys are limited.
    """
    size = sum(part.nbytes for part in parts)
    if size > _LARGEST_COLUMN and not pa.types.is_primitive(parts[0].type):
        raise StateError(
            "the rows of a key in one batch are too large to be processed at once",
            hint="limit the rows or files of a batch at the source, or use a function that gets one row at a time",
            size_bytes=size,
            limit_bytes=_LARGEST_COLUMN,
        )
    return pa.concat_arrays(parts)


class VectorOperator:
    """Calls a function with batches of whole keys; methods yield the phase and the rows that it emits.

    The last key of an Arrow batch may have more rows in the next one. It is held back until another key comes or the
    phase ends, so all rows of a key are in memory at once. Arrow batches are held back until there are `rows_at_once`
    rows or `bytes_at_once` bytes, or the phase ends.

    Args:
        spec: the operator chain; `emits` is set.
        info: the subtask.
        backend: the backend with the base restored.
        limits: the largest keys and entries; by default as in the settings.

    Attributes:
        emits: the columns of the main output.
    """

    rows_at_once = 0
    bytes_at_once = 64 << 20
    """Arrow columns of text have at most 2 GiB."""

    def __init__(
        self, spec: ChainSpec, info: TaskInfo, backend: KeyedStateBackend, limits: EntryLimits = EntryLimits()
    ) -> None:
        assert isinstance(spec.function, VectorizedKeyedFunction)
        assert spec.keying is not None and spec.emits is not None
        self._spec = spec
        self._function = spec.function
        self.emits: RowSchema = spec.emits
        self._schema = spec.inputs[0].schema
        self._names = spec.keying.columns
        self._input = KeyedInputs(spec)[0]
        self._groups = range_of(info.subtask, info.parallelism, info.max_parallelism)
        self._limits = limits
        self._state = KeyedState(backend, spec.known_states, batch_time(info), limits=self._limits)
        self._held: list[SortedRows] = []
        self._watch = backend.watch
        self._call("open", lambda: self._function.open(RuntimeContext(self._state, info)))
        self._expires_by_rows = any(
            config.ttl_time_characteristic is StateTtlConfig.TtlTimeCharacteristic.EventTime
            for config in self._state.registry.ttl_configs.values()
        )

    @property
    def late_rows_dropped(self) -> int:
        """The number of rows that the function has dropped because they were too late."""
        return self._function.late_rows_dropped

    @property
    def hot_keys(self) -> dict[str, int]:
        """The pairs of rows that a join has compared for keys with many, by key."""
        return dict(self._function.hot_keys)

    @property
    def schemas(self) -> list[StateSchema]:
        """The states that the function declared."""
        return self._state.registry.schemas

    def process(
        self, order: Numbers, columns: Sequence[pa.Array], origins: Numbers | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Processes sorted rows of one phase; yields what the function emits for the keys that are complete.

        Args:
            order: the `ORDER` of each row.
            columns: the columns of the rows.
            origins: the number of each row's source; None if it is not known.
        """
        rows = SortedRows(order, tuple(columns), origins)
        check_declared(rows.columns, self._schema, operator=self._spec.uid)
        if self._held and self._held[0].phase != rows.phase:
            yield from self.flush()
        if self._is_few(rows):
            self._held.append(rows)
            return
        last = group_starts(rows.order, self._key_columns(rows))[-1]
        if last == 0 and self._continues_held_key(rows):
            self._held.append(rows)
            return
        whole = self._joined([*self._held, rows.slice(0, last)])
        self._held = [rows.slice(last, len(rows))]
        yield from self._feed(whole)

    def flush(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Processes the key whose rows are held back, after the last row of its phase."""
        if self._held:
            whole = self._joined(self._held)
            self._held = []
            yield from self._feed(whole)

    def fire(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Advances time, between the rows of the two phases."""
        yield from self.flush()

    def take_side_outputs(self) -> Iterator[tuple[str, RowSchema, list[tuple[int, pa.RecordBatch]]]]:
        """Yields the rows emitted to side outputs since the last call: tag, columns, and rows with their phase."""
        yield from ()

    def finish(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Ends the batch: processes the last key and closes the function."""
        yield from self.flush()
        self._call("close", self._function.close)

    def ttl_cleanup(self) -> TtlCleanup:
        """Returns the cleanup of expired entries; to be run after `finish`."""
        return self._state.ttl_cleanup(self._groups)

    def abort(self) -> None:
        """Closes the function after a failure."""
        self._call("close", self._function.close)

    def _joined(self, parts: Sequence[SortedRows]) -> SortedRows:
        try:
            return _concatenate(parts)
        except StateError as e:
            held = self._input.key_columns(self._held[-1].columns)
            key = {name: column[-1].as_py() for name, column in zip(self._names, held, strict=True)}
            e.add_facts(operator=self._spec.uid, key=describe_value(key))
            raise

    def _is_few(self, rows: SortedRows) -> bool:
        """Returns whether rows and those that are held back are less than a call should have."""
        every = [*self._held, rows]
        return sum(map(len, every)) < self.rows_at_once and sum(each.nbytes for each in every) < self.bytes_at_once

    def _continues_held_key(self, rows: SortedRows) -> bool:
        """Returns whether the first row may belong to the key that is held back."""
        if not self._held:
            return True
        before = self._held[-1]
        border = _concatenate([before.slice(len(before) - 1, len(before)), rows.slice(0, 1)])
        return len(group_starts(border.order, self._key_columns(border))) == 1

    def _key_columns(self, rows: SortedRows) -> list[pa.Array]:
        return [to_comparable(column) for column in self._input.key_columns(rows.columns)]

    def _feed(self, rows: SortedRows) -> Iterator[tuple[int, pa.RecordBatch]]:
        starts = np.array(group_starts(rows.order, self._key_columns(rows)))
        at = pa.array(starts)
        columns = [column.take(at) for column in self._input.key_columns(rows.columns)]
        keys = pa.RecordBatch.from_arrays(columns, names=self._names)
        groups = (rows.order[starts] >> GROUP_SHIFT & GROUP_MASK).astype(">u2").view("V2").tolist()
        before = self._watch.switch(Section.STATE)
        state = self._new_state(rows, keys, starts, (groups, self._encode(keys)))
        self._watch.switch(before)
        batch = pa.RecordBatch.from_arrays(list(rows.columns), schema=self._schema.arrow)
        emitted = self._call("process_batch", lambda: self._function.process_batch(batch, state))
        yield from self._end_call(emitted, rows.phase)

    def _new_state(
        self, rows: SortedRows, keys: pa.RecordBatch, starts: Array, encoded: tuple[list[bytes], list[bytes]]
    ) -> VectorState:
        """Returns the argument for a call of the function; `encoded` are the key groups and encoded keys."""
        return VectorState(keys, starts, len(rows), self._states(rows, starts, encoded))

    def _states(self, rows: SortedRows, starts: Array, encoded: tuple[list[bytes], list[bytes]]) -> KeyedStateBatch:
        """Returns the states of the keys of a call; a TTL in event time counts from the latest row of each key."""
        times: RowTimes = None
        if self._expires_by_rows and self._input.time is not None:
            times = optional_times(np.maximum.reduceat(event_times(rows.columns[self._input.time]), starts))
        return self._state.batch_of(*encoded, times)

    def _end_call(self, emitted: object, phase: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Writes the changes of a call, and yields what it emitted."""
        self._end_key_batch()
        if emitted is not None:
            self._check_rows(emitted)
            for made in conform_rows(emitted, self.emits, "process_batch", operator=self._spec.uid):
                yield phase, made

    def _end_key_batch(self) -> None:
        before = self._watch.switch(Section.STATE)
        self._state.end_key_batch()
        self._watch.switch(before)

    def _check_rows(self, emitted: object) -> None:
        if not isinstance(emitted, pa.RecordBatch | pa.Table):
            wrong = InvalidReturnValue(
                self._function.process_batch,
                emitted,
                "return rows as Arrow columns, or None",
                "return one pyarrow.RecordBatch or pyarrow.Table, and do not yield",
            )
            raise SchemaMismatch(
                str(wrong), hint=wrong.hint, operator=self._spec.uid, given=type(emitted).__name__, where=wrong.where
            )

    def _encode(self, keys: pa.RecordBatch) -> list[bytes]:
        try:
            encoded = encode_keys(keys.columns)
        except (StateflowError, ValueError, OverflowError, pa.ArrowException) as e:
            raise StateError(
                "a key cannot be read",
                hint="filter such rows in a transform, or cast the column",
                operator=self._spec.uid,
                columns=list(self._names),
                reason=str(e)[:300],
            ) from e
        if (size := largest_size(encoded)) > self._limits.key_bytes:
            error = key_too_large(size, self._limits)
            (row,) = keys.slice([len(key) for key in encoded].index(size), 1).to_pylist()
            error.add_facts(operator=self._spec.uid, key=describe_value(row))
            raise error
        return encoded

    def _call(self, name: str, call: Callable[[], T]) -> T:
        before = self._watch.switch(Section.FUNCTION)
        try:
            return call()
        except StateflowError as e:
            e.add_facts(operator=self._spec.uid)
            raise
        except Exception as e:
            raise UserCodeError(
                f"{name} of an operator raised {type(e).__name__}: {e}",
                hint="fix the function; nothing of this batch was committed",
                operator=self._spec.uid,
                where=find_user_line(e),
            ) from e
        finally:
            self._watch.switch(before)


_ACCUMULATOR_BYTES = 128
"""Memory that one accumulator may take; those of a row with long texts count several times."""


def calls_of(starts: Array, added: Numbers, limit: int) -> Iterator[tuple[int, int]]:
    """Yields the first row and the end of adjacent groups of rows: as many groups as fit a limit, one at least.

    Args:
        starts: the first row of each group.
        added: the number of accumulators for the rows up to each one.
        limit: how many accumulators are in memory at once.
    """
    edges = np.append(starts, len(added))
    until = np.append(0, added)[edges]
    at = 0
    while at < len(starts):
        end = max(int(np.searchsorted(until, until[at] + limit, side="right")) - 1, at + 1)
        yield int(edges[at]), int(edges[end])
        at = end


def _accumulator_sizes(rows: SortedRows) -> Array:
    """Returns how many accumulators of usual size each row counts as: it may be stored in each of its windows."""
    found = np.zeros(len(rows), np.int64)
    for column in rows.columns:
        found += row_bytes(column)
    return np.maximum(found // _ACCUMULATOR_BYTES, 1)


def _with_sizes(additions: Array, sizes: Array) -> Array:
    """Returns how many accumulators of usual size the additions of each row count as.

    A row without additions shares the accumulators of the row before. They may have the largest texts of these rows.
    """
    starts = np.flatnonzero(additions)
    found = additions.copy()
    if len(starts):
        found[starts] *= np.maximum.reduceat(sizes, starts)
    return found


class WindowVectorOperator(VectorOperator):
    """Calls a `WindowVectorFunction`; arguments as for `VectorOperator`, and the index of the timers in the backend."""

    rows_at_once = 1 << 17
    """A call costs some milliseconds, whatever the number of rows."""

    additions_at_once = 1 << 20
    """Accumulators of the windows of a call, which are in memory together."""

    def __init__(
        self, spec: ChainSpec, info: TaskInfo, backend: KeyedStateBackend, limits: EntryLimits, index: TimerIndex
    ) -> None:
        assert isinstance(spec.function, WindowVectorFunction)
        super().__init__(spec, info, backend, limits)
        self._windows: WindowVectorFunction = spec.function
        self._timers = self._state.window_timers(self._groups, index)
        self._due_size = SliceSize.of_columns()
        self._now = epoch_milliseconds(info.processing_time)
        self._watermark = spec.watermark_before
        self._times_of_part: BatchTimes | None = None
        self._calls: list[tuple[int, WindowVectorState]] = []
        self._layout = KeyLayout(self._input.key_types, GROUP_BYTES)

    def advance(self) -> None:
        """Advances event time to that of the batch, after the rows of phase 0."""
        self._watermark = self._spec.watermark

    def fire(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield from self.flush()
        self.advance()
        for domain, until in ((TimeDomain.EVENT_TIME, self._watermark), (TimeDomain.PROCESSING_TIME, self._now)):
            if until is not None:
                for due in self._timers.fire(domain, until, self._due_size):
                    call = partial(self._windows.on_timers, domain, due.timers, self._state_of_timers(due))
                    emitted = self._call("on_timers", call)
                    emitted_bytes = 0 if emitted is None else emitted.nbytes
                    self._due_size.adapt(len(due.timers.of), self._state.bytes_read + emitted_bytes)
                    yield from self._end_call(emitted, TIMER_PHASE)

    def take_side_outputs(self) -> Iterator[tuple[str, RowSchema, list[tuple[int, pa.RecordBatch]]]]:
        calls, self._calls = self._calls, []
        for phase, state in calls:
            for tag, batches in state.side.items():
                yield tag, self._spec.inputs[0].schema, [(phase, rows) for rows in batches]

    def _feed(self, rows: SortedRows) -> Iterator[tuple[int, pa.RecordBatch]]:
        sizes = _accumulator_sizes(rows)
        if int(sizes.sum()) * self._windows.windows_of_row <= self.additions_at_once:
            yield from super()._feed(rows)
            return
        starts = np.array(group_starts(rows.order, self._key_columns(rows)))
        column = None if self._input.time is None else rows.columns[self._input.time]
        times = np.zeros(len(rows), np.int64) if column is None else event_times(column)
        is_first = np.zeros(len(rows), bool)
        is_first[starts] = True
        additions = self._windows.additions(times, is_first, self._watermark_before)
        added = np.cumsum(_with_sizes(additions, sizes))
        is_in_order = bool(((times[1:] >= times[:-1]) | is_first[1:]).all())
        for first, last in calls_of(starts, added, self.additions_at_once):
            some, at = rows.slice(first, last), starts[(starts >= first) & (starts < last)]
            if not is_in_order or len(at) != 1 or added[last - 1] - added[first] < self.additions_at_once:
                yield from super()._feed(some)
            else:
                yield from self._feed_key(some, added[first:last] - (added[first - 1] if first else 0))

    def _feed_key(self, rows: SortedRows, added: Numbers) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Passes the rows of one key in several calls, by time: as many smaller batches would have them."""
        whole = self._times(rows, np.zeros(1, np.int64))
        watermark = whole.watermark
        for first, last in calls_of(np.arange(len(rows)), added, self.additions_at_once):
            before = whole.before_rows[first:last]
            self._times_of_part = BatchTimes(self._now, watermark, before[-1:], before)
            yield from super()._feed(rows.slice(first, last))
            watermark = int(before[-1])
        self._times_of_part = None

    @property
    def _watermark_before(self) -> int:
        return NO_WATERMARK if self._watermark is None else self._watermark

    def _new_state(
        self, rows: SortedRows, keys: pa.RecordBatch, starts: Array, encoded: tuple[list[bytes], list[bytes]]
    ) -> VectorState:
        times = self._times_of_part or self._times(rows, starts)
        # Reads the store, so before there are pending changes.
        due = self._timers.fire_of_keys(*encoded, times.reached)
        state = WindowVectorState(keys, starts, self._states(rows, starts, encoded), times, self._timers)
        state.due = due
        self._calls.append((rows.phase, state))
        return state

    def _times(self, rows: SortedRows, starts: Array) -> BatchTimes:
        watermark = self._watermark_before
        before_rows = np.full(len(rows), watermark)
        if self._spec.source_times and rows.origins is not None and self._input.time is not None:
            times = event_times(rows.columns[self._input.time])
            first_rows = np.repeat(starts, np.diff(starts, append=len(rows)))
            sources = self._spec.source_times
            before_rows = watermarks_before_rows(sources, watermark, times, rows.origins, first_rows)
        last_rows = np.append(starts[1:], len(rows)) - 1
        return BatchTimes(self._now, watermark, before_rows[last_rows], before_rows)

    def _state_of_timers(self, due: DueKeys) -> WindowVectorState:
        stored = [group + key + VOID_NAMESPACE for group, key in zip(due.groups, due.keys, strict=True)]
        columns = self._layout.read(stored).keys
        keys = pa.RecordBatch.from_arrays(columns, names=list(self._names))
        watermark = self._watermark_before
        none = np.zeros(0, np.int64)
        times = BatchTimes(self._now, watermark, np.full(len(stored), watermark), none)
        return WindowVectorState(keys, none, self._state.batch_of(due.groups, due.keys), times, self._timers)


def watermarks_before_rows(
    sources: tuple[SourceTime, ...], watermark: int, times: Numbers, origins: Numbers, first_rows: Array
) -> Numbers:
    """Returns the watermark before each row.

    Args:
        sources: the sources that determine the watermark of the operator.
        watermark: the watermark before the first row of each key.
        times: event time of each row, in order within a key; `NO_WATERMARK` for a row without one.
        origins: number of each row's source.
        first_rows: for each row, the number of the first row of its key.
    """
    reached: Numbers | None = None
    for source in sources:
        is_known = times > NO_WATERMARK + source.out_of_orderness
        by_rows = np.where(is_known, times - source.out_of_orderness - 1, NO_WATERMARK)
        of_source = np.maximum(_latest_of(by_rows, origins == source.number, first_rows), source.watermark)
        reached = of_source if reached is None else np.minimum(reached, of_source)
    assert reached is not None
    found: Numbers = np.maximum(reached, watermark)
    return found


def _latest_of(by_rows: Numbers, is_of_source: Array, first_rows: Array) -> Numbers:
    """Returns for each row the value of the last row of its key, up to this one, that is of a source."""
    if is_of_source.all():
        return by_rows
    last = np.maximum.accumulate(np.where(is_of_source, np.arange(len(by_rows)), -1))
    return np.where(last >= first_rows, by_rows[last], NO_WATERMARK)


Emitted = Iterator[tuple[int, pa.RecordBatch]]


class JoinOperator(VectorOperator):
    """Calls a `ColumnJoin` with the rows of each Arrow batch; a key may have rows in several of them."""

    def __init__(
        self, spec: ChainSpec, info: TaskInfo, backend: KeyedStateBackend, limits: EntryLimits = EntryLimits()
    ) -> None:
        super().__init__(spec, info, backend, limits)
        assert isinstance(spec.function, ColumnJoin)
        assert spec.emits is not None
        self._join = spec.function
        self._output = spec.emits
        # Of each row: a batch has rows of many keys, and the time of one must not keep the rows of another.
        self._inputs = _JoinedInputs(spec, has_times=self._expires_by_rows)

    def process_inputs(self, order: Numbers, columns: Sequence[pa.Array], inputs: Numbers) -> Emitted:
        """Processes sorted rows of one phase; yields the phase and the rows of the pairs.

        Args:
            order: the `ORDER` of each row.
            columns: the columns of both inputs.
            inputs: the number of each row's input.
        """
        rows = self._inputs.read(order, columns, inputs)
        many = self._state.batch_of(rows.groups, self._encode(rows.keys))
        has_partners = joinable(rows.keys)
        left, right = (side.of_keys(has_partners) for side in rows.sides)
        phase = int(order[0]) >> PHASE_SHIFT
        emitted = self._call("join", lambda: self._join.join(left, right, many))
        while (made := self._call("join", lambda: next(emitted, None))) is not None:
            for each in conform_rows(made, self._output, "process_batch", operator=self._spec.uid):
                yield phase, each
        self._end_key_batch()


class WindowJoinOperator(WindowVectorOperator):
    """Calls a `TimedColumnJoin` with the rows of each Arrow batch; a key may have rows in several of them.

    Rows of a key come in the order of event time where timers may fire between them, so that no row in a later Arrow
    batch belongs to what a timer has ended.
    """

    def __init__(
        self, spec: ChainSpec, info: TaskInfo, backend: KeyedStateBackend, limits: EntryLimits, index: TimerIndex
    ) -> None:
        super().__init__(spec, info, backend, limits, index)
        assert isinstance(spec.function, TimedColumnJoin)
        self._join = spec.function
        self._inputs = _JoinedInputs(spec, has_times=True)
        if not self._join.has_windows:
            self._timers = self._state.window_timers(self._groups, index, len(VOID_NAMESPACE))

    def process_inputs(
        self, order: Numbers, columns: Sequence[pa.Array], inputs: Numbers, origins: Numbers | None
    ) -> Emitted:
        """Processes sorted rows of one phase; yields the phase and the rows of the pairs.

        Args:
            order: the `ORDER` of each row.
            columns: the columns of both inputs.
            inputs: the number of each row's input.
            origins: the number of each row's source; None if it is not known.
        """
        rows = self._inputs.read(order, columns, inputs)
        encoded = rows.groups, self._encode(rows.keys)
        times = self._times_of(rows, self._inputs.event_times(columns, inputs), origins)
        # Reads the store, so before there are pending changes.
        due = self._timers.fire_of_keys(*encoded, times.reached)
        state = WindowVectorState(rows.keys, rows.starts, self._state.batch_of(*encoded), times, self._timers)
        state.due = due
        self._calls.append((int(order[0]) >> PHASE_SHIFT, state))
        yield from self._emit(int(order[0]) >> PHASE_SHIFT, "join", lambda: self._join.join(*rows.sides, state))

    def fire(self) -> Emitted:
        self.advance()
        if self._watermark is not None:
            # Not by the size of their state: the rows of these windows are read in parts.
            size = SliceSize(MOST_BY_COLUMNS, MOST_BY_COLUMNS)
            for due in self._timers.fire(TimeDomain.EVENT_TIME, self._watermark, size):
                call = partial(self._join.end_windows, due.timers, self._state_of_timers(due))
                yield from self._emit(TIMER_PHASE, "on_timers", call)

    def take_side_outputs(self) -> Iterator[tuple[str, RowSchema, list[tuple[int, pa.RecordBatch]]]]:
        calls, self._calls = self._calls, []
        for tag, given in zip(self._join.late_tags, self._spec.inputs, strict=True):
            if tag is not None:
                late = [(phase, rows) for phase, call in calls for rows in call.side.pop(tag.name, [])]
                yield tag.name, given.schema, late

    def _times_of(self, rows: _JoinedRows, times: Numbers, origins: Numbers | None) -> BatchTimes:
        watermark = NO_WATERMARK if self._watermark is None else self._watermark
        reached = np.full(len(rows.starts), watermark)
        if self._spec.source_times and origins is not None:
            counts = np.diff(rows.starts, append=len(times))
            first_rows = np.repeat(rows.starts, counts)
            before = watermarks_before_rows(self._spec.source_times, watermark, times, origins, first_rows)
            reached = before[rows.starts + counts - 1]
        return BatchTimes(self._now, watermark, reached, np.full(len(times), watermark))

    def _emit(self, phase: int, name: str, call: Callable[[], Iterator[pa.RecordBatch]]) -> Emitted:
        """Yields what a call emits, and writes its changes."""
        emitted = self._call(name, call)
        while (made := self._call(name, lambda: next(emitted, None))) is not None:
            for each in conform_rows(made, self.emits, "process_batch", operator=self._spec.uid):
                yield phase, each
        self._end_key_batch()


@dataclass(frozen=True)
class _JoinedRows:
    """Sorted rows of two inputs.

    Attributes:
        keys: the distinct keys, in the order of their rows.
        groups: the key group of each key, 2 bytes.
        starts: the position of the first row of each key.
        sides: the rows of the left and of the right input.
    """

    keys: pa.RecordBatch
    groups: list[bytes]
    starts: Array
    sides: tuple[Side, Side]


class _JoinedInputs:
    """Reads the rows of two inputs.

    Args:
        has_times: whether the event times of rows are read.
    """

    def __init__(self, spec: ChainSpec, *, has_times: bool) -> None:
        assert spec.keying is not None
        self._names = spec.keying.columns
        self._inputs = KeyedInputs(spec)
        self._types = [pa.struct(list(each.schema.arrow)) for each in spec.inputs]
        self._has_times = has_times

    def read(self, order: Numbers, columns: Sequence[pa.Array], inputs: Numbers) -> _JoinedRows:
        """Returns rows of one phase; arguments as for `KeyedInputs.read`, errors as for its nulls."""
        parts, keys = self._inputs.split(columns, inputs)
        starts = np.array(group_starts(order, [to_comparable(key) for key in keys]))
        at = pa.array(starts)
        firsts = pa.RecordBatch.from_arrays([key.take(at) for key in keys], names=self._names)
        groups = (order[starts] >> GROUP_SHIFT & GROUP_MASK).astype(">u2").view("V2").tolist()
        of = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
        left, right = (self._side(number, parts.get(number), of) for number in (0, 1))
        return _JoinedRows(firsts, groups, starts, (left, right))

    def event_times(self, columns: Sequence[pa.Array], inputs: Numbers) -> Numbers:
        """Returns the event time of each row, for inputs that both have one."""
        return self._inputs.event_times(columns, inputs)

    def _side(self, number: int, part: tuple[Numbers, Sequence[pa.Array]] | None, of: Array) -> Side:
        kind, given = self._types[number], self._inputs[number]
        has_times = self._has_times and given.time is not None
        if part is None:
            none = np.empty(0, np.int64)
            return Side(none, pa.array([], kind), none if has_times else None)
        positions, columns = part
        times = None
        if has_times and given.time is not None:
            times = event_times(columns[given.time - given.columns.start])
        return Side(of[positions], pa.StructArray.from_arrays(columns, fields=list(kind)), times)
