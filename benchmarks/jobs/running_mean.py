"""Keyed running mean: the job that the benchmarks run.

Parameters: ``job.events`` (folder of Parquet files), ``job.table`` (Delta table of the output).
"""

import msgspec

from stateflow import (
    Context,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)


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


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    env.configure(source__max_files_per_batch=1)
    events = env.from_source(FileSource(env.parameter("events"), schema=Event), uid="events")
    means = events.key_by("key").process(RunningMean(), output=Mean, uid="running-mean")
    means.sink_to(DeltaSink(env.parameter("table")), uid="means")
