"""Daily statistics per aircraft and per carrier, emitted when event time passes the end of the day.

Parameters: ``job.flights`` (folder of Parquet files), ``job.tables`` (folder of the Delta tables).

The output does not depend on how flights are divided into batches, with one exception: the watermark advances between
batches, and determines which flights are too late for their day. A batch may contain several days of an aircraft, with
or without the timer of the first day firing between them, so the functions keep separate state for each day.
"""

from collections.abc import Iterator
from datetime import date, datetime, timedelta

import msgspec
from pyspark.sql import DataFrame

from stateflow import (
    Context,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    MapStateDescriptor,
    OnTimerContext,
    OutputTag,
    RuntimeContext,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)

# Maximum delay of a flight's record relative to the records of later flights.
LATENESS = timedelta(hours=6)
# The statistics of an aircraft start again after a longer absence.
AWAY = timedelta(days=30)
# State of an aircraft is removed after this time. The time to live only frees state that the rule above no longer uses,
# and does not affect results, as long as a batch spans less than the other thirty days.
FORGOTTEN = timedelta(days=60)
EPOCH = date(1970, 1, 1)


class Flight(msgspec.Struct):
    """An input row; a cancelled flight has no delay."""

    time: datetime
    carrier: str
    flight: int
    origin: str
    tailnum: str | None
    arr_delay: float | None


class AircraftDay(msgspec.Struct):
    """A day on which an aircraft was scheduled."""

    carrier: str
    tailnum: str
    day: date
    flights: int
    arrived: int
    delay: float
    """Total of all flights, in minutes."""
    since: date
    """The first such day since the aircraft appeared or reappeared."""
    days: int
    """Number of such days since then, including this one."""


class CarrierDay(msgspec.Struct):
    """A day of a carrier."""

    carrier: str
    day: date
    aircraft: int
    newcomers: int
    flights: int
    arrived: int
    mean_delay: float | None


class AircraftFigures(msgspec.Struct, array_like=True):
    """Statistics of an open day of an aircraft."""

    flights: int = 0
    arrived: int = 0
    delay: float = 0.0


class CarrierFigures(AircraftFigures, array_like=True):
    """Statistics of an open day of a carrier."""

    aircraft: int = 0
    newcomers: int = 0


class Service(msgspec.Struct, array_like=True):
    """The period in which an aircraft has been flying."""

    since: date
    last: date
    days: int = 0


LATE = OutputTag("late", Flight)


def end_of_day(day: date) -> int:
    """Returns the last timestamp of a day, in milliseconds since 1970."""
    return (day + timedelta(days=1) - EPOCH) // timedelta(milliseconds=1) - 1


def day_of(timestamp: int) -> date:
    """Returns the day of a timestamp in milliseconds since 1970."""
    return EPOCH + timedelta(milliseconds=timestamp)


class AircraftDays(KeyedProcessFunction[Flight, AircraftDay]):
    """Aggregates the flights of an aircraft by day. Several days may be open: flights arrive out of order."""

    def open(self, ctx: RuntimeContext) -> None:
        self.days = ctx.get_map_state(MapStateDescriptor("days", date, AircraftFigures))
        # By event time, so that a run over old files removes the same state as the first run.
        ttl = StateTtlConfig.new_builder(FORGOTTEN).use_event_time().build()
        self.service = ctx.get_state(ValueStateDescriptor("service", Service, ttl=ttl))

    def process_element(self, row: Flight, ctx: Context) -> None:
        day, timers = row.time.date(), ctx.timer_service()
        if end_of_day(day) <= timers.current_watermark():
            # The day was emitted. A second row for it would be counted twice downstream.
            ctx.output(LATE, row)
            return
        figures = self.days.get(day) or AircraftFigures()
        figures.flights += 1
        if row.arr_delay is not None:
            figures.arrived += 1
            figures.delay += row.arr_delay
        self.days.put(day, figures)
        # Registering the same timer again has no effect: each day has one timer.
        timers.register_event_time_timer(end_of_day(day))

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[AircraftDay]:
        day = day_of(timestamp)
        figures = self.days.get(day) or AircraftFigures()
        self.days.remove(day)
        service = self.service.value()
        if service is None or day - service.last > AWAY:
            service = Service(since=day, last=day)
        service.last = day
        service.days += 1
        self.service.update(service)
        carrier, tailnum = ctx.get_current_key()
        yield AircraftDay(
            carrier, tailnum, day, figures.flights, figures.arrived, figures.delay, service.since, service.days
        )


class CarrierDays(KeyedProcessFunction[AircraftDay, CarrierDay]):
    """Aggregates the days of a carrier's aircraft.

    The timer of a day has the same timestamp as the timers of the upstream operator and fires after them, so it sees
    all of their rows.
    """

    def open(self, ctx: RuntimeContext) -> None:
        self.days = ctx.get_map_state(MapStateDescriptor("days", date, CarrierFigures))

    def process_element(self, row: AircraftDay, ctx: Context) -> None:
        total = self.days.get(row.day) or CarrierFigures()
        total.aircraft += 1
        total.newcomers += row.days == 1
        total.flights += row.flights
        total.arrived += row.arrived
        total.delay += row.delay
        self.days.put(row.day, total)
        ctx.timer_service().register_event_time_timer(end_of_day(row.day))

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[CarrierDay]:
        day = day_of(timestamp)
        total = self.days.get(day) or CarrierFigures()
        self.days.remove(day)
        mean = total.delay / total.arrived if total.arrived else None
        yield CarrierDay(
            ctx.get_current_key(), day, total.aircraft, total.newcomers, total.flights, total.arrived, mean
        )


def known_aircraft(flights: DataFrame) -> DataFrame:
    """Returns the flights with a known aircraft."""
    return flights.where("tailnum IS NOT NULL")


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    env.configure(max_parallelism=128, source__max_files_per_batch=1)
    tables = env.parameter("tables")
    event_time = WatermarkStrategy.for_bounded_out_of_orderness(LATENESS).with_timestamp_column("time")
    flights = (
        env.from_source(FileSource(env.parameter("flights"), schema=Flight), uid="flights")
        .assign_timestamps_and_watermarks(event_time)
        .transform(known_aircraft)
    )
    aircraft = flights.key_by("carrier", "tailnum").process(AircraftDays(), output=AircraftDay, uid="aircraft-days")
    aircraft.sink_to(DeltaSink(f"{tables}/aircraft_days"), uid="aircraft-days-table")
    aircraft.get_side_output(LATE).sink_to(DeltaSink(f"{tables}/late_flights"), uid="late-flights-table")
    carriers = aircraft.key_by("carrier").process(CarrierDays(), output=CarrierDay, uid="carrier-days")
    carriers.sink_to(DeltaSink(f"{tables}/carrier_days"), uid="carrier-days-table")
