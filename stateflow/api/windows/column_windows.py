"""The base of windows of column aggregates: slices, accumulators, bounds, and the operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Never

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.aggregates.aggregate import Accumulators, Aggregate, aggregate_origins, partials_of, values_of
from stateflow.api.aggregates.partial import ROWS, Partial, PartialAggregation, TimeSlices
from stateflow.api.column_origins import Derivation, Origin, Origins
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.vectorized import Array, VectorState
from stateflow.api.functions.window_vectors import WindowVectorFunction, WindowVectorState
from stateflow.api.schema import Column, RowSchema
from stateflow.api.side_outputs import OutputTag
from stateflow.api.windows.window_operator import CONTENTS_STATE_NAME
from stateflow.errors import JobDefinitionError, SchemaMismatch, StateError
from stateflow.state.kinds.keyed_state_batch import KeyedStateBatch
from stateflow.state.kinds.single_value import ValueState
from stateflow.state.stored_key import TimeDomain
from stateflow.types.columns.conversion import PER_MILLISECOND, first_time_out_of_range
from stateflow.types.descriptors import ValueStateDescriptor


@dataclass(frozen=True)
class Slicing:
    """Windows of one length that begin at regular intervals; each consists of slices. Times are milliseconds.

    Attributes:
        size: length of a window.
        slide: time between the starts of two windows.
        offset: start of a window, since 1970.
    """

    size: int
    slide: int
    offset: int

    @property
    def is_tumbling(self) -> bool:
        """Whether each row belongs to one window."""
        return self.size == self.slide

    @property
    def has_gaps(self) -> bool:
        """Whether times exist that belong to no window."""
        return self.slide > self.size

    @property
    def length(self) -> int:
        """Length of a slice."""
        return math.gcd(self.size, self.slide)

    def counts(self, times: Array) -> Array:
        """Returns the number of windows of each time."""
        return self._count(times, self.latest(times))

    def slices(self, times: Array) -> Array:
        """Returns the start of the slice of each time. All times of a slice belong to the same windows."""
        found: Array = times - (times - self.offset) % self.length
        return found

    def latest(self, times: Array) -> Array:
        """Returns the start of the last window that begins at each time or before."""
        found: Array = times - (times - self.offset) % self.slide
        return found

    def earliest_end(self, times: Array) -> Array:
        """Returns the end of the first window that contains each time; arbitrary without one."""
        latest = self.latest(times)
        found: Array = latest - (self._count(times, latest) - 1) * self.slide + self.size
        return found

    def windows(self, times: Array) -> tuple[Array, Array]:
        """Returns for each window of each time the number of the time, and the start of the window."""
        latest = self.latest(times)
        if self.is_tumbling:
            return np.arange(len(times)), latest
        counts = self._count(times, latest)
        of = np.repeat(np.arange(len(times)), counts)
        step = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        return of, latest[of] - step * self.slide

    def count_new_windows(self, times: Array, is_first: Array) -> Array:
        """Returns for each time the number of its windows that do not contain the time before.

        Args:
            times: times of several keys, in order within each key.
            is_first: which times are the first of a key.
        """
        latest = self.latest(times)
        counts = self._count(times, latest)
        more = np.append(0, np.diff(latest)) // self.slide
        return np.where(is_first, counts, np.clip(more, 0, counts))

    def _count(self, times: Array, latest: Array) -> Array:
        counts: Array = np.maximum((self.size - 1 - (times - latest)) // self.slide + 1, 0)
        return counts


def starts_of_groups(*columns: Array) -> Array:
    """Returns the positions at which the value of any column changes."""
    changes = np.zeros(max(len(columns[0]) - 1, 0), bool)
    for column in columns:
        changes |= column[1:] != column[:-1]
    return np.flatnonzero(np.append(len(columns[0]) > 0, changes)[: len(columns[0])])


def ends_of_groups(column: Array) -> Array:
    """Returns the last position of each group of equal values."""
    return np.flatnonzero(np.append(column[1:] != column[:-1], len(column) > 0)[: len(column)])


def is_sorted(major: Array, minor: Array) -> bool:
    """Returns whether rows are ordered by two columns, the first of which is in order."""
    return bool(((minor[1:] >= minor[:-1]) | (major[1:] != major[:-1])).all())


BOUNDS = ("window_start", "window_end", "window_time")
"""The bounds that an output column may have: start, end, and the last instant of the window, as in Flink SQL."""


@dataclass(frozen=True)
class BoundColumns:
    """The output columns with bounds of the window.

    Attributes:
        bounds: the bound by output column.
        declared: the declared output columns.
    """

    bounds: Mapping[str, str]
    declared: Mapping[str, Column]

    @classmethod
    def of(cls, wanted: Mapping[str, Sequence[str]], output: RowSchema) -> BoundColumns:
        """Returns the columns that a job declares as ``(bound,)``.

        Raises:
            JobDefinitionError: a column is neither an int nor a datetime.
        """
        bounds = {name: spec[0] for name, spec in wanted.items() if is_bound(spec)}
        declared = {column.name: column for column in output.columns if column.name in bounds}
        for column in declared.values():
            if column.spark_type != "bigint" and not pa.types.is_timestamp(column.arrow_type):
                raise JobDefinitionError(
                    "a column for a bound of a window must be an int or a datetime",
                    hint="declare it as int, for milliseconds since 1970, or as datetime",
                    column=column.name,
                    declared=column.spark_type,
                )
        return cls(bounds, declared)

    def list_types(self) -> dict[str, tuple[str, bool]]:
        """Returns the Spark type of each column, none of which is null."""
        return {
            name: (self.declared[name].spark_type if name in self.declared else "bigint", False) for name in self.bounds
        }

    def columns(self, starts: Array, ends: Array) -> dict[str, pa.Array]:
        """Returns the columns of windows."""
        values = dict(zip(BOUNDS, (starts, ends, ends - 1), strict=True))
        return {name: _column(values[bound], self.declared[name]) for name, bound in self.bounds.items()}


def is_bound(spec: Sequence[str]) -> bool:
    """Returns whether a declared aggregate is a bound of the window."""
    return not isinstance(spec, str) and len(spec) == 1 and spec[0] in BOUNDS


def _column(milliseconds: Array, column: Column) -> pa.Array:
    kind = column.arrow_type
    if not pa.types.is_timestamp(kind):
        return pa.array(milliseconds, pa.int64())
    found = pa.array(milliseconds * 1000, pa.int64()).view(pa.timestamp("us", kind.tz)).cast(kind)
    at = first_time_out_of_range(found)
    if at is not None:
        raise SchemaMismatch(
            "a window ends after the year 9999, or begins before the year 1, which a datetime cannot be",
            hint="declare the column as int, for milliseconds since 1970; or filter such rows",
            column=column.name,
            epoch_ms=int(milliseconds[at]),
        )
    return found


class AccumulatorColumns:
    """The accumulators of several aggregates.

    They are columns ``<name>__<field>`` with one row per accumulator, and are stored as one struct.

    Args:
        aggregates: the aggregates by output column.
        required: the output columns that are not nullable.
    """

    def __init__(self, aggregates: Mapping[str, Aggregate], required: Collection[str] = ()) -> None:
        self._aggregates = aggregates
        self._required = frozenset(required)
        self._partials: dict[str, tuple[Partial, ...]] = {}

    def column_origins(self, keys: Sequence[str]) -> Origins:
        """Returns the origins of rows with keys and results."""
        return aggregate_origins(keys, self._aggregates)

    def split(self, keys: Sequence[Column], slices: TimeSlices | None) -> PartialAggregation | None:
        """Makes `of_rows` take partial results. Returns their aggregation, which runs before the shuffle.

        Returns None, and changes nothing, if a result would depend on partitioning.

        Args:
            keys: the key columns.
            slices: slices whose rows belong to the same windows; None if all rows of a batch do.
        """
        partials = partials_of(self._aggregates)
        aggregation = PartialAggregation.of(keys, partials, slices)
        if aggregation is not None:
            self._partials = partials
        return aggregation

    def stored_class(self) -> type[object]:
        """Returns the class of the stored value.

        A field is required if its aggregate cannot be null, and is null for rows that were added before the aggregate:
        then it cannot be added while windows are open.
        """
        fields: list[tuple[str, type[object]] | tuple[str, type[object], None]] = []
        for name, aggregate in self._aggregates.items():
            is_required = name in self._required and bool(aggregate.result(aggregate.nothing(1)).null_count)
            for field, kind in aggregate.fields.items():
                stored = f"{name}__{field}", kind | None
                fields.append(stored if is_required and field not in aggregate.optional else (*stored, None))
        return msgspec.defstruct("Aggregates", fields, kw_only=True)

    def nothing(self, count: int) -> Accumulators:
        """Returns accumulators to which nothing was added."""
        found: dict[str, pa.Array] = {}
        for name, aggregate in self._aggregates.items():
            found |= _named(name, aggregate.nothing(count))
        return found

    def of_rows(self, batch: pa.RecordBatch, groups: VectorState) -> Accumulators:
        """Returns the accumulators of groups of adjacent rows, which are partial results after `split`."""
        found: dict[str, pa.Array] = {}
        with np.errstate(all="ignore"):
            for name, aggregate in self._aggregates.items():
                nothing = aggregate.nothing(len(groups))
                if self._partials:
                    made = aggregate.merge(nothing, values_of(self._partials[name], name, batch, groups))
                else:
                    made = aggregate.add(nothing, aggregate.values(batch, groups))
                found |= _named(name, made)
        return found

    def merge_accumulators(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        """Returns the accumulators of groups of adjacent accumulators."""
        found: dict[str, pa.Array] = {}
        # Without numpy's warnings: differences of infinities are NaN, which is intended.
        with np.errstate(all="ignore"):
            for name, aggregate in self._aggregates.items():
                found |= _named(name, aggregate.merge_accumulators(_own(name, aggregate, accumulators), groups))
        return found

    def results(self, accumulators: Accumulators) -> dict[str, pa.Array]:
        """Returns the results by output column."""
        with np.errstate(all="ignore"):
            return {name: each.result(_own(name, each, accumulators)) for name, each in self._aggregates.items()}

    def of_stored(self, stored: pa.StructArray) -> Accumulators:
        """Returns the columns of stored values."""
        return {field.name: pc.struct_field(stored, field.name) for field in stored.type}


def to_stored(accumulators: Accumulators) -> pa.StructArray:
    """Returns the values to store."""
    return pa.StructArray.from_arrays(list(accumulators.values()), names=list(accumulators))


def take_accumulators(accumulators: Accumulators, at: Array) -> Accumulators:
    """Returns the accumulators at some positions."""
    indices = pa.array(at)
    return {name: column.take(indices) for name, column in accumulators.items()}


def concat_accumulators(parts: Sequence[Accumulators]) -> Accumulators:
    """Returns the accumulators of several parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return {name: pa.concat_arrays([part[name].cast(column.type) for part in parts]) for name, column in first.items()}


def _own(name: str, aggregate: Aggregate, accumulators: Accumulators) -> Accumulators:
    return {field: accumulators[f"{name}__{field}"] for field in aggregate.fields}


def _named(name: str, accumulators: Accumulators) -> dict[str, pa.Array]:
    return {f"{name}__{field}": column for field, column in accumulators.items()}


Merge = Callable[[Accumulators, Array, Array], Accumulators]
"""Merges groups of adjacent accumulators. Arguments: these, the start of each group, and the number of its key."""


@dataclass(frozen=True)
class Segments:
    """The contents of windows after some of their parts.

    Attributes:
        last: for each segment, the number of its last part.
        window: the number of its window.
        accumulators: what the window contains after the last part.
    """

    last: Array
    window: Array
    accumulators: Accumulators

    @property
    def finals(self) -> Array:
        """For each window, the number of its last segment."""
        return ends_of_groups(self.window)


def accumulate_parts(parts: Accumulators, window: Array, cuts: Array, merge: Merge) -> Segments:
    """Returns the contents of windows at the end, and after each part that is followed by a cut.

    Args:
        parts: accumulators, ordered by window.
        window: the number of the window of each part.
        cuts: for each part, whether its window fires after it.
    """
    is_last = cuts.copy()
    is_last[ends_of_groups(window)] = True
    last = np.flatnonzero(is_last)
    starts = np.append(0, last[:-1] + 1)[: len(last)]
    of = window[last]
    place = np.arange(len(of)) - np.searchsorted(of, of)
    try:
        found = parts if len(starts) == len(window) else merge(parts, starts, of)
        found = _by_doubling(found, of, place, merge)
    except StateError:
        # Doubling also adds parts that no result has without those before: their sum may be too large, a result not.
        found = _one_by_one(parts, (starts, last), of, place, merge)
    return Segments(last, of, found)


def _by_doubling(found: Accumulators, of: Array, place: Array, merge: Merge) -> Accumulators:
    """Returns prefix sums of segments: one has the contents of the `step` segments up to it, then of twice as many.

    Args:
        found: the contents of each segment by itself.
        of: the number of the window of each.
        place: its place within the window.
    """
    step, last_place = 1, int(place.max(initial=0))
    while step <= last_place:
        now = np.flatnonzero(place >= step)
        pairs = np.stack([now - step, now], axis=1).ravel()
        more = merge(take_accumulators(found, pairs), np.arange(0, 2 * len(now), 2), of[now])
        at = np.arange(len(of))
        at[now] = len(of) + np.arange(len(now))
        found = take_accumulators(concat_accumulators([found, more]), at)
        step *= 2
    return found


def _one_by_one(
    parts: Accumulators, bounds: tuple[Array, Array], of: Array, place: Array, merge: Merge
) -> Accumulators:
    """Returns prefix sums of segments from the first to the last segment of each window.

    Args:
        parts: the accumulators of the parts.
        bounds: the first and the last part of each segment.
        of: the number of the window of each segment.
        place: its place within the window.
    """
    starts, last = bounds
    by_place = np.argsort(place, kind="stable")
    first, *others = np.split(by_place, starts_of_groups(place[by_place])[1:])
    some, at = _parts_of(parts, starts[first], last[first])
    made, before = [merge(some, at, of[first])], first
    for now in others:
        # The contents of each window after the segment before, then the parts of this one.
        contents = take_accumulators(made[-1], np.searchsorted(before, now - 1))
        some, at = _parts_of(parts, starts[now], last[now])
        count = len(now)
        order = np.insert(count + np.arange(len(next(iter(some.values())))), at, np.arange(count))
        made.append(
            merge(take_accumulators(concat_accumulators([contents, some]), order), at + np.arange(count), of[now])
        )
        before = now
    return take_accumulators(concat_accumulators(made), np.argsort(by_place))


def _parts_of(parts: Accumulators, starts: Array, last: Array) -> tuple[Accumulators, Array]:
    """Returns the parts of segments, and where those of each segment begin."""
    counts = last - starts + 1
    at = np.cumsum(counts) - counts
    return take_accumulators(parts, np.arange(counts.sum()) + np.repeat(starts - at, counts)), at


_NEVER = -(1 << 63)
_LATEST = (1 << 63) // 1000
"""Times beyond it do not fit into a timestamp of microseconds."""


@dataclass(frozen=True)
class ColumnWindowSettings:
    """The windows of an operator.

    Attributes:
        time_column: the event time of the rows; empty for windows of processing time.
        kind: the kind of the windows; part of the stored format.
        text: the windows and their trigger, for plans.
        longest: milliseconds from a row to the end of its windows, at most.
        lateness: milliseconds after the end of a window for which late rows are added to it.
        late_rows: side output of the rows that are too late; None to drop them.
    """

    time_column: str
    kind: str
    text: str
    longest: int
    lateness: int = 0
    late_rows: OutputTag[Never] | None = None

    @property
    def domain(self) -> TimeDomain:
        """The time that windows end by."""
        return TimeDomain.EVENT_TIME if self.time_column else TimeDomain.PROCESSING_TIME


@dataclass(frozen=True)
class Aggregation:
    """The keys, aggregates and bounds that an operator emits for a window.

    Attributes:
        keys: names of the key columns.
        accumulators: the accumulators of the aggregates.
        bounds: the columns with bounds of the window.
        names: the output columns.
    """

    keys: tuple[str, ...]
    accumulators: AccumulatorColumns
    bounds: BoundColumns
    names: tuple[str, ...]

    def build_output(self, state: VectorState, windows: Windows, accumulators: Accumulators) -> pa.RecordBatch:
        """Returns the output rows of windows."""
        of = pa.array(windows.of)
        found = {key: state.keys.column(key).take(of) for key in self.keys}
        found |= self.accumulators.results(accumulators) | self.bounds.columns(windows.starts, windows.ends)
        return pa.RecordBatch.from_arrays([found[name] for name in self.names], names=list(self.names))


@dataclass(frozen=True)
class Windows:
    """Windows of keys.

    Attributes:
        of: the number of the key of each window.
        starts, ends: milliseconds since 1970.
    """

    of: Array
    starts: Array
    ends: Array

    def __len__(self) -> int:
        return len(self.of)

    def at(self, positions: Array) -> Windows:
        """Returns some of the windows; the same object for all of them in order."""
        if len(positions) == len(self) and (positions == np.arange(len(positions))).all():
            return self
        return Windows(self.of[positions], self.starts[positions], self.ends[positions])

    def states(self, state: WindowVectorState) -> KeyedStateBatch:
        """Returns the states of the windows."""
        return state.windows(self.of, self.starts, self.ends)


class WindowAggregates(WindowVectorFunction):
    """Aggregates the rows of each window by columns."""

    _contents: ValueState[object]

    def __init__(self, settings: ColumnWindowSettings, aggregation: Aggregation) -> None:
        self.windows_text = settings.text
        self._settings = settings
        self._aggregation = aggregation
        self._columns = aggregation.accumulators

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`; bounds of windows come from the event time."""
        of, time = self._aggregation, self._settings.time_column
        bounds = (Origin(time, Derivation.TRANSFORMATION),) if time else ()
        found = of.accumulators.column_origins(of.keys)
        return Origins({**dict.fromkeys(of.bounds.declared, bounds), **found.columns})

    def split(self, given: RowSchema) -> PartialAggregation | None:
        """Makes the function take partial results. Returns their aggregation, which runs before the shuffle.

        Returns None, and changes nothing, if a result would depend on partitioning, or needs each row.

        Args:
            given: columns of the rows.
        """
        return None

    def open(self, ctx: RuntimeContext) -> None:
        self._contents = ctx.get_state(ValueStateDescriptor(CONTENTS_STATE_NAME, self._columns.stored_class()))
        ctx.keyed_state.registry.set_windows(self._contents, self._settings.kind)

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch | None:
        assert isinstance(state, WindowVectorState)
        return self._process(batch, state, self._row_times(batch, state))

    def _process(self, batch: pa.RecordBatch, state: WindowVectorState, times: Array) -> pa.RecordBatch | None:
        raise NotImplementedError(f"{type(self).__name__} has no _process")

    # -- time ---------------------------------------------------------------------------------------------------------

    def _row_times(self, batch: pa.RecordBatch, state: WindowVectorState) -> Array:
        """Returns the time of each row, in milliseconds since 1970."""
        if not self._settings.time_column:
            return np.full(len(batch), state.times.processing)
        times = _milliseconds(batch.column(self._settings.time_column))
        # Whatever the lateness: the time of a timer does not have to fit into a timestamp.
        limit = _LATEST - self._settings.longest
        if len(times) and not -limit < times.min() <= times.max() < limit:
            raise StateError(
                "an event time is out of range",
                hint="filter such rows in a transform, or convert the column: event time is in milliseconds since 1970",
                earliest=int(times.min()),
                latest=int(times.max()),
            )
        return times

    def _watermark(self, state: WindowVectorState) -> int:
        """Returns the watermark by which rows are late."""
        return state.times.watermark if self._settings.time_column else _NEVER

    def _reached_watermarks(self, state: WindowVectorState, of: Array) -> Array:
        """Returns the watermark that the key of each window reaches in the batch."""
        return state.times.reached[of] if self._settings.time_column else np.full(len(of), _NEVER)

    def _removal(self, ends: Array) -> Array:
        """Returns the time at which windows are removed."""
        return ends - 1 + self._settings.lateness

    # -- output and state ---------------------------------------------------------------------------------------------

    def _output_late(self, batch: pa.RecordBatch, state: WindowVectorState, is_late: Array) -> None:
        """Emits rows to the side output of late rows, or drops them."""
        if self._settings.late_rows is None:
            late = batch.filter(pa.array(is_late))
            is_partial = ROWS in batch.schema.names
            self.late_rows_dropped += (pc.sum(late.column(ROWS)).as_py() or 0) if is_partial else len(late)
        elif is_late.any():
            state.output(self._settings.late_rows, batch.filter(pa.array(is_late)))

    def _groups(self, state: WindowVectorState, starts: Array, of: Array, count: int) -> VectorState:
        """Returns groups of adjacent rows or accumulators, of which `of` has the number of the key."""
        at = pa.array(of)
        keys = [column.take(at) for column in state.keys.columns]
        return VectorState(pa.RecordBatch.from_arrays(keys, names=state.keys.schema.names), starts, count, state.states)

    def _read(self, windows: KeyedStateBatch) -> tuple[Accumulators, Array]:
        """Returns the stored contents of windows, and which of them exist."""
        stored = windows.read(self._contents)
        return self._columns.of_stored(stored), stored.is_valid().to_numpy(zero_copy_only=False)

    def _write(self, windows: KeyedStateBatch, accumulators: Accumulators, changes: Array, keeps: Array) -> None:
        """Stores the contents of windows.

        Args:
            changes: for each window, whether it changes.
            keeps: whether its content is stored; else it is removed.
        """
        values = to_stored(accumulators)
        if not keeps.all():
            values = pc.if_else(pa.array(keeps), values, pa.scalar(None, values.type))
        windows.write(self._contents, values, None if changes.all() else changes)

    def _register(self, state: WindowVectorState, windows: Windows, reached: Array) -> None:
        """Registers the timers of new windows that have not ended yet: those that fire, and those that remove them."""
        if self._settings.lateness:
            self._register_later(state, windows, windows.ends - 1, reached)
        self._register_later(state, windows, self._removal(windows.ends), reached)

    def _register_removal(self, state: WindowVectorState, windows: Windows, reached: Array) -> None:
        """Registers the timers that remove stored windows: they were stored without one if no lateness was allowed."""
        if self._settings.lateness and len(windows):
            self._register_later(state, windows, self._removal(windows.ends), reached)

    def _register_later(self, state: WindowVectorState, windows: Windows, times: Array, reached: Array) -> None:
        later = np.flatnonzero(times > reached)
        if len(later):
            state.register(self._settings.domain, windows.at(later).states(state), times[later])


def _milliseconds(column: pa.Array) -> Array:
    if column.null_count:
        raise StateError(
            "a row of an event-time window has no event time",
            hint="filter rows whose timestamp column is null before key_by",
        )
    numbers: Array = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers // PER_MILLISECOND[column.type.unit] if pa.types.is_timestamp(column.type) else numbers
