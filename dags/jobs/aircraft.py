"""The newest flight of each aircraft, read from Kafka as JSON and kept in one Delta table by upsert.

Parameters: ``job.brokers`` (host:port), ``job.topic``, ``job.tables`` (folder of the Delta table).
"""

from collections.abc import Iterator
from datetime import datetime

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stateflow import (
    Context,
    DeltaSink,
    KafkaSource,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)


class Flight(msgspec.Struct):
    """The value of a record."""

    tailnum: str | None
    time: datetime
    flight: int
    carrier: str
    origin: str
    dest: str


class Aircraft(msgspec.Struct):
    """A row of the table: the newest flight of an aircraft, and the number of its flights so far."""

    tailnum: str
    time: datetime
    flight: int
    carrier: str
    origin: str
    dest: str
    flights: int


class NewestFlight(KeyedProcessFunction[Flight, Aircraft]):
    """Emits one row per aircraft and batch. An older flight that arrives late is counted and changes nothing else."""

    def open(self, ctx: RuntimeContext) -> None:
        self.newest = ctx.get_state(ValueStateDescriptor("newest", Aircraft))

    def process_element(self, row: Flight, ctx: Context) -> None:
        before = self.newest.value()
        flights = before.flights + 1 if before else 1
        if before and _order(row) < _order(before):
            self.newest.update(msgspec.structs.replace(before, flights=flights))
            return
        flown = Aircraft(row.tailnum or "", row.time, row.flight, row.carrier, row.origin, row.dest, flights)
        self.newest.update(flown)

    def on_batch_end(self, ctx: Context) -> Iterator[Aircraft]:
        newest = self.newest.value()
        if newest:
            yield newest


def _order(row: Flight | Aircraft) -> tuple[datetime, int, str, str, str]:
    return row.time, row.flight, row.carrier, row.origin, row.dest


def name_unknown(flights: DataFrame) -> DataFrame:
    """Replaces an unknown aircraft by one common key."""
    return flights.withColumn("tailnum", F.coalesce("tailnum", F.lit("UNKNOWN")))


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    env.configure(max_parallelism=128)
    source = KafkaSource(env.parameter("brokers"), schema=Flight, topics=env.parameter("topic", "flights"))
    flights = env.from_source(source, uid="flights").transform(name_unknown)
    newest = flights.key_by("tailnum").process(NewestFlight(), output=Aircraft, uid="newest-flight")
    table = DeltaSink(f"{env.parameter('tables')}/aircraft", mode="upsert", keys="tailnum", order_by="flights")
    newest.sink_to(table, uid="aircraft")
