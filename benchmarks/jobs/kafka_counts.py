"""Counts of keys, from a Kafka topic to a Delta table with one row for each key.

Parameters: ``job.brokers``, ``job.topic``, ``job.table``, ``job.kind`` (a name of `KINDS`).
"""

from collections.abc import Callable

import msgspec

from stateflow import (
    Context,
    DeltaSink,
    KafkaSource,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream


class Event(msgspec.Struct):
    """What is used of a record."""

    key: int
    value: float


class Count(msgspec.Struct):
    """The number of a key's records so far."""

    key: int
    count: int


class CountOfKey(KeyedProcessFunction[Event, Count]):
    """One row out for each key that a batch has, as SQL's aggregation in update mode gives it."""

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, row: Event, ctx: Context) -> None:
        self.count.update((self.count.value() or 0) + 1)

    def on_batch_end(self, ctx: Context) -> tuple[Count]:
        return (Count(ctx.get_current_key(), self.count.value() or 0),)


def _row_keys(events: KeyedStream[DataStream]) -> DataStream:
    return events.process(CountOfKey(), output=Count, uid="count")


def _columns(events: KeyedStream[DataStream]) -> DataStream:
    return events.aggregate_columns({"count": ("count", "value")}, output=Count, uid="count")


KINDS: dict[str, Callable[[KeyedStream[DataStream]], DataStream]] = {"row_keys": _row_keys, "columns": _columns}


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    source = KafkaSource(env.parameter("brokers"), schema=Event, topics=env.parameter("topic"))
    counts = KINDS[env.parameter("kind")](env.from_source(source, uid="events").key_by("key"))
    counts.sink_to(DeltaSink(env.parameter("table"), mode="upsert", keys="key"), uid="counts")
