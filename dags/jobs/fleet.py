"""Which aircraft a carrier flies, day by day: per aircraft and per carrier, as soon as event time says a day is over.

Parameters: ``job.flights`` (folder of Parquet files), ``job.tables`` (folder of the Delta tables).

What comes out does not depend on how the flights come in batches, but for one thing: the operators' event time moves
from batch to batch, and with it which flights are too late for their day. Several days of an aircraft may be in one
batch, with or without the timer of the first one between them: so the functions keep each day by itself.
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

# Flights are filed up to so much later than flights that were to leave after them.
LATENESS = timedelta(hours=6)
# An aircraft that comes back after more than that begins anew.
AWAY = timedelta(days=30)
# What is known of an aircraft is removed after that. A time to live counts from batch to batch, too: so it decides
# nothing here, and only frees what no rule asks for any more, as long as a batch has less than the other thirty days.
FORGOTTEN = timedelta(days=60)
EPOCH = date(1970, 1, 1)


class Flight(msgspec.Struct):
    """One flight as it comes in; a flight that was cancelled has no delay."""

    time: datetime
    carrier: str
    flight: int
    origin: str
    tailnum: str | None
    arr_delay: float | None


class AircraftDay(msgspec.Struct):
    """A day on which an aircraft was to fly."""

    carrier: str
    tailnum: str
    day: date
    flights: int
    arrived: int
    delay: float
    """Minutes, all flights together."""
    since: date
    """The first such day, since the aircraft came or came back."""
    days: int
    """Such days since then, with this one."""


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
    """Of a day while it is open."""

    flights: int = 0
    arrived: int = 0
    delay: float = 0.0


class CarrierFigures(AircraftFigures, array_like=True):
    """The same for all aircraft of a carrier."""

    aircraft: int = 0
    newcomers: int = 0


class Service(msgspec.Struct, array_like=True):
    """How long an aircraft has been flying."""

    since: date
    last: date
    days: int = 0


LATE = OutputTag("late", Flight)


def last_moment(day: date) -> int:
    """Of a day, in milliseconds since 1970: once event time is there, no more of its flights are to come."""
    return (day + timedelta(days=1) - EPOCH) // timedelta(milliseconds=1) - 1


def day_of(moment: int) -> date:
    """The day in which a moment lies."""
    return EPOCH + timedelta(milliseconds=moment)


class AircraftDays(KeyedProcessFunction[Flight, AircraftDay]):
    """Counts the flights of an aircraft by day. Several days are open at once, since flights come out of order."""

    def open(self, ctx: RuntimeContext) -> None:
        self.days = ctx.get_map_state(MapStateDescriptor("days", date, AircraftFigures))
        # By event time, so that a run over old files removes what the first one removed.
        ttl = StateTtlConfig.new_builder(FORGOTTEN).use_event_time().build()
        self.service = ctx.get_state(ValueStateDescriptor("service", Service, ttl=ttl))

    def process_element(self, row: Flight, ctx: Context) -> None:
        day, timers = row.time.date(), ctx.timer_service()
        if last_moment(day) <= timers.current_watermark():
            # The day was reported. A second report of it would be counted twice downstream.
            ctx.output(LATE, row)
            return
        figures = self.days.get(day) or AircraftFigures()
        figures.flights += 1
        if row.arr_delay is not None:
            figures.arrived += 1
            figures.delay += row.arr_delay
        self.days.put(day, figures)
        # Setting the same timer again changes nothing: a day has one.
        timers.register_event_time_timer(last_moment(day))

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
        )  # fmt: skip


class CarrierDays(KeyedProcessFunction[AircraftDay, CarrierDay]):
    """Adds up a carrier's aircraft. A day's timer here has the time of those that send the rows, and fires behind them:
    all of them are there by then."""

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
        ctx.timer_service().register_event_time_timer(last_moment(row.day))

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[CarrierDay]:
        day = day_of(timestamp)
        total = self.days.get(day) or CarrierFigures()
        self.days.remove(day)
        mean = total.delay / total.arrived if total.arrived else None
        yield CarrierDay(
            ctx.get_current_key(), day, total.aircraft, total.newcomers, total.flights, total.arrived, mean
        )


def known_aircraft(flights: DataFrame) -> DataFrame:
    """Flights that were given an aircraft."""
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
    aircraft = flights.key_by("carrier", "tailnum").process(
        AircraftDays(), output=AircraftDay, uid="aircraft-days"
    )
    aircraft.sink_to(DeltaSink(f"{tables}/aircraft_days"), uid="aircraft-days-table")
    aircraft.get_side_output(LATE).sink_to(DeltaSink(f"{tables}/late_flights"), uid="late-flights-table")
    carriers = aircraft.key_by("carrier").process(CarrierDays(), output=CarrierDay, uid="carrier-days")
    carriers.sink_to(DeltaSink(f"{tables}/carrier_days"), uid="carrier-days-table")
