"""Running delays of flights: per aircraft for every flight, and per carrier and origin for every batch.

Parameters: ``job.flights`` (folder of Parquet files), ``job.tables`` (folder of the Delta tables).
"""

from collections.abc import Iterator
from datetime import datetime

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stateflow import (
    Context,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)


class Flight(msgspec.Struct):
    """An input row; a cancelled flight has no delay."""

    time: datetime
    carrier: str
    flight: int
    origin: str
    dest: str
    tailnum: str | None
    arr_delay: float | None


class Delay(msgspec.Struct):
    """A flight, with the statistics of its aircraft up to and including it."""

    time: datetime
    carrier: str
    flight: int
    origin: str
    dest: str
    tailnum: str
    arr_delay: float | None
    flights: int
    measured: int
    mean_delay: float | None
    max_delay: float | None


class Route(msgspec.Struct):
    """Statistics of a carrier at an origin, up to the end of a batch."""

    carrier: str
    origin: str
    batch: int
    flights: int
    measured: int
    mean_delay: float | None
    max_delay: float | None


class Stats(msgspec.Struct, array_like=True):
    """Running statistics. Flights without a delay count as flights, but not in the mean and the maximum."""

    flights: int = 0
    measured: int = 0
    total: float = 0.0
    maximum: float | None = None
    batches: int = 0

    def add(self, delay: float | None) -> None:
        """Adds a flight."""
        self.flights += 1
        if delay is not None:
            self.measured += 1
            self.total += delay
            self.maximum = delay if self.maximum is None else max(self.maximum, delay)

    @property
    def mean(self) -> float | None:
        """Mean delay; None if no flight had a delay."""
        return self.total / self.measured if self.measured else None


class RunningDelay(KeyedProcessFunction[Flight, Delay]):
    """Emits one row per flight, with the statistics of its aircraft."""

    def open(self, ctx: RuntimeContext) -> None:
        self.stats = ctx.get_state(ValueStateDescriptor("stats", Stats))

    def process_element(self, row: Flight, ctx: Context) -> Iterator[Delay]:
        stats = self.stats.value() or Stats()
        stats.add(row.arr_delay)
        self.stats.update(stats)
        yield Delay(
            row.time,
            row.carrier,
            row.flight,
            row.origin,
            row.dest,
            row.tailnum or "",
            row.arr_delay,
            stats.flights,
            stats.measured,
            stats.mean,
            stats.maximum,
        )


class RouteDelay(KeyedProcessFunction[Flight, Route]):
    """Emits one row per carrier, origin and batch."""

    def open(self, ctx: RuntimeContext) -> None:
        self.stats = ctx.get_state(ValueStateDescriptor("stats", Stats))

    def process_element(self, row: Flight, ctx: Context) -> None:
        stats = self.stats.value() or Stats()
        stats.add(row.arr_delay)
        self.stats.update(stats)

    def on_batch_end(self, ctx: Context) -> Iterator[Route]:
        stats = self.stats.value() or Stats()
        stats.batches += 1
        self.stats.update(stats)
        carrier, origin = ctx.get_current_key()
        yield Route(carrier, origin, stats.batches, stats.flights, stats.measured, stats.mean, stats.maximum)


def name_unknown(flights: DataFrame) -> DataFrame:
    """Replaces an unknown aircraft by one common key."""
    return flights.withColumn("tailnum", F.coalesce("tailnum", F.lit("UNKNOWN")))


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    env.configure(max_parallelism=128, source__max_files_per_batch=1)
    tables = env.parameter("tables")
    order = ("time", "flight", "carrier", "origin", "dest")
    source = FileSource(env.parameter("flights"), schema=Flight)
    flights = env.from_source(source, uid="flights").transform(name_unknown)
    delays = flights.key_by("tailnum", order_by=order).process(RunningDelay(), output=Delay, uid="running-delay")
    delays.sink_to(DeltaSink(f"{tables}/delays"), uid="delays")
    routes = flights.key_by("carrier", "origin", order_by=order).process(RouteDelay(), output=Route, uid="route-delay")
    routes.sink_to(DeltaSink(f"{tables}/routes"), uid="routes")
