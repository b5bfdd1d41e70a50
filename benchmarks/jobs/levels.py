"""A chain of keyed operators, each after its own shuffle: what a further level costs.

Parameters: ``job.levels`` (how many operators), ``job.events`` (folder of Parquet files), ``job.table`` (Delta table of
the last one's output).
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


class Count(KeyedProcessFunction[Event, Event]):
    """Counts a key's rows, and passes each on."""

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, row: Event, ctx: Context) -> tuple[Event]:
        self.count.update((self.count.value() or 0) + 1)
        return (row,)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    env.configure(source__max_files_per_batch=1)
    stream = env.from_source(FileSource(env.parameter("events"), schema=Event), uid="events")
    for level in range(1, int(env.parameter("levels")) + 1):
        stream = stream.key_by("key").process(Count(), output=Event, uid=f"count-{level}")
    stream.sink_to(DeltaSink(env.parameter("table")), uid="counted")
