"""A few flights, for runs on Spark: one source, a transform, two keyed streams, two Delta tables.

Parameters: ``job.folder``, which holds ``flights/`` and gets ``tables/``; for other tables ``job.brokers``, where the
legs are records of a topic, and ``job.postgres``, how to connect to the server of the routes.
"""

from collections.abc import Iterator

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stateflow import (
    Context,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)


class Flight(msgspec.Struct):
    number: int
    carrier: str
    origin: str
    aircraft: str | None
    delay: float | None


class Leg(msgspec.Struct):
    number: int
    aircraft: str
    flights: int
    total: float


class Route(msgspec.Struct):
    carrier: str
    origin: str
    batch: int
    flights: int
    aircraft: int


class Aircraft(KeyedProcessFunction[Flight, Leg]):
    def open(self, ctx: RuntimeContext) -> None:
        self.flights = ctx.get_state(ValueStateDescriptor("flights", int))
        self.total = ctx.get_state(ValueStateDescriptor("total", float))

    def process_element(self, row: Flight, ctx: Context) -> Iterator[Leg]:
        flights = (self.flights.value() or 0) + 1
        total = (self.total.value() or 0.0) + (row.delay or 0.0)
        self.flights.update(flights)
        self.total.update(total)
        yield Leg(row.number, ctx.get_current_key(), flights, total)


class Routes(KeyedProcessFunction[Flight, Route]):
    def open(self, ctx: RuntimeContext) -> None:
        self.batches = ctx.get_state(ValueStateDescriptor("batches", int))
        self.aircraft = ctx.get_map_state(MapStateDescriptor("aircraft", str, int))

    def process_element(self, row: Flight, ctx: Context) -> None:
        assert row.aircraft is not None
        self.aircraft.put(row.aircraft, (self.aircraft.get(row.aircraft) or 0) + 1)

    def on_batch_end(self, ctx: Context) -> Iterator[Route]:
        batch = (self.batches.value() or 0) + 1
        self.batches.update(batch)
        flights = list(self.aircraft.values())
        carrier, origin = ctx.get_current_key()
        yield Route(carrier, origin, batch, sum(flights), len(flights))


def name_unknown(flights: DataFrame) -> DataFrame:
    """Flights whose aircraft is not known share one key."""
    return flights.withColumn("aircraft", F.coalesce("aircraft", F.lit("UNKNOWN")))


def build(env: StreamExecutionEnvironment) -> None:
    env.configure(max_parallelism=128, source__max_files_per_batch=1)
    folder = env.parameter("folder")
    source = FileSource(env.parameter("flights", f"{folder}/flights"), schema=Flight)
    flights = env.from_source(source, uid="flights").transform(name_unknown)
    legs = flights.key_by("aircraft", order_by=("number",)).process(Aircraft(), output=Leg, uid="aircraft")
    routes = flights.key_by("carrier", "origin", order_by=("number",)).process(Routes(), output=Route, uid="by-route")
    if brokers := env.parameter("brokers", ""):
        from stateflow import KafkaSink, PostgresSink

        legs.sink_to(KafkaSink(brokers, topic="legs", key="aircraft"), uid="legs")
        routes.sink_to(PostgresSink(env.parameter("postgres"), "public.routes"), uid="routes")
    else:
        tables = env.parameter("tables", f"{folder}/tables")
        legs.sink_to(DeltaSink(f"{tables}/legs"), uid="legs")
        routes.sink_to(DeltaSink(f"{tables}/routes"), uid="routes")
