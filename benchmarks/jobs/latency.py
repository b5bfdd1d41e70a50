"""Counts the records of each key, from one Kafka topic to another: one record out for each record in.

Parameters: ``job.brokers``, ``job.input`` and ``job.output`` (topics).
"""

import msgspec

from stateflow import (
    Context,
    KafkaSink,
    KafkaSource,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)


class Sent(msgspec.Struct):
    """A record; `sent` is a time in nanoseconds of a clock that only the benchmark reads."""

    number: int
    key: int
    sent: int


class Counted(msgspec.Struct):
    """The record with the number of its key's records so far."""

    number: int
    key: int
    sent: int
    count: int


class Counter(KeyedProcessFunction[Sent, Counted]):
    """Counts the records of each key."""

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, row: Sent, ctx: Context) -> tuple[Counted]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        return (Counted(row.number, row.key, row.sent, count),)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    brokers = env.parameter("brokers")
    sent = env.from_source(KafkaSource(brokers, schema=Sent, topics=env.parameter("input")), uid="sent")
    counted = sent.key_by("key").process(Counter(), output=Counted, uid="count")
    counted.sink_to(KafkaSink(brokers, topic=env.parameter("output")), uid="counted")
