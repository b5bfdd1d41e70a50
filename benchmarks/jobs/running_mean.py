"""Keyed running mean: the job that the benchmarks run, in the ways that they compare.

Parameters: ``job.events`` (folder of Parquet files), ``job.files`` (of a batch), ``job.kind`` (a name of `KINDS`),
``job.table`` (Delta table of the output; without it rows are counted and discarded).
"""

from collections.abc import Callable

import msgspec
import numpy as np
import pyarrow as pa

from stateflow import (
    Context,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorState,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream


class Event(msgspec.Struct):
    """One measurement of a key."""

    key: int
    value: float


class Mean(msgspec.Struct):
    """A key's count and mean so far."""

    key: int
    count: int
    mean: float


class Sum(msgspec.Struct, array_like=True):
    """What is kept for a key."""

    count: int = 0
    total: float = 0.0


class RunningMean(KeyedProcessFunction[Event, Mean]):
    """One row out for each row in."""

    def open(self, ctx: RuntimeContext) -> None:
        self.sum = ctx.get_state(ValueStateDescriptor("sum", Sum))

    def process_element(self, row: Event, ctx: Context) -> tuple[Mean]:
        state = self.sum.value() or Sum()
        state.count += 1
        state.total += row.value
        self.sum.update(state)
        return (Mean(row.key, state.count, state.total / state.count),)


class MeanOfKey(KeyedProcessFunction[Event, Mean]):
    """One row out for each key that a batch has, as SQL's aggregation in update mode gives it."""

    def open(self, ctx: RuntimeContext) -> None:
        self.sum = ctx.get_state(ValueStateDescriptor("sum", Sum))

    def process_element(self, row: Event, ctx: Context) -> None:
        state = self.sum.value() or Sum()
        state.count += 1
        state.total += row.value
        self.sum.update(state)

    def on_batch_end(self, ctx: Context) -> tuple[Mean]:
        state = self.sum.value()
        assert state is not None
        return (Mean(ctx.get_current_key(), state.count, state.total / state.count),)


class KeyMean(VectorizedKeyedFunction):
    """The same by columns."""

    def open(self, ctx: RuntimeContext) -> None:
        self.sum = ctx.get_state(ValueStateDescriptor("sum", Sum))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        before = state.read(self.sum)
        count, total = (before.field(n).fill_null(0).to_numpy() for n in ("count", "total"))
        count = count + state.counts
        total = total + np.add.reduceat(batch.column("value").to_numpy(), state.starts)
        state.write(self.sum, pa.StructArray.from_arrays([count, total], names=["count", "total"]))
        keys = batch.column("key").take(pa.array(state.starts))
        return pa.RecordBatch.from_arrays(
            [keys, pa.array(count), pa.array(total / count)], names=["key", "count", "mean"]
        )


class EveryMean(VectorizedKeyedFunction):
    """One row out for each row in, by columns."""

    def open(self, ctx: RuntimeContext) -> None:
        self.sum = ctx.get_state(ValueStateDescriptor("sum", Sum))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        before = state.read(self.sum)
        count, total = (before.field(n).fill_null(0).to_numpy() for n in ("count", "total"))
        values = batch.column("value").to_numpy()
        running = np.cumsum(values)
        # What ran up before a key's first row is not its own.
        own = running - (running[state.starts] - values[state.starts] - total)[state.key_of_row]
        counts = np.arange(1, len(batch) + 1) - (state.starts - count)[state.key_of_row]
        ends = state.starts + state.counts - 1
        state.write(self.sum, pa.StructArray.from_arrays([counts[ends], own[ends]], names=["count", "total"]))
        return pa.RecordBatch.from_arrays([batch.column("key"), counts, own / counts], names=["key", "count", "mean"])


def _row(events: KeyedStream[DataStream]) -> DataStream:
    return events.process(RunningMean(), output=Mean, uid="running-mean")


def _row_keys(events: KeyedStream[DataStream]) -> DataStream:
    return events.process(MeanOfKey(), output=Mean, uid="running-mean")


def _vectorized(events: KeyedStream[DataStream]) -> DataStream:
    return events.process(KeyMean(), output=Mean, uid="running-mean")


def _vectorized_rows(events: KeyedStream[DataStream]) -> DataStream:
    return events.process(EveryMean(), output=Mean, uid="running-mean")


def _columns(events: KeyedStream[DataStream]) -> DataStream:
    return events.aggregate_columns(
        {"count": ("count", "value"), "mean": ("mean", "value")}, output=Mean, uid="running-mean", divide_floats=True
    )


KINDS: dict[str, Callable[[KeyedStream[DataStream]], DataStream]] = {
    "row": _row,
    "row_keys": _row_keys,
    "vectorized": _vectorized,
    "vectorized_rows": _vectorized_rows,
    "columns": _columns,
}


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    env.configure(source__max_files_per_batch=int(env.parameter("files", "1")))
    events = env.from_source(FileSource(env.parameter("events"), schema=Event), uid="events")
    means = KINDS[env.parameter("kind", "row")](events.key_by("key"))
    table = env.parameter("table", "")
    if table:
        means.sink_to(DeltaSink(table), uid="means")
    else:
        means.print(uid="discarded", limit=0)
