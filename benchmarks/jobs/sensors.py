"""Three keyed operators in two levels, with a Delta table, and a source in the driver's process: a run without Spark.

Parameters: ``job.batches``, ``job.rows`` (of a batch), ``job.table`` (folder of the Delta table).
"""

from collections.abc import Iterator
from datetime import timedelta

import msgspec

from stateflow import (
    Context,
    DeltaSink,
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from stateflow.api.schema import RowSchema
from stateflow.api.source import LocalSource, Slice
from stateflow.config.settings import SourceSettings

KEYS = 5_000
_STRIDE = 7_919


class Event(msgspec.Struct):
    """A measurement of a sensor; `at` is in milliseconds."""

    sensor: int
    region: str
    at: int
    value: int


class Total(msgspec.Struct):
    """The sum of a sensor so far."""

    sensor: int
    region: str
    total: int


class AddUp(KeyedProcessFunction[Event, Total]):
    """Emits the new sum of a sensor for each measurement."""

    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row: Event, ctx: Context) -> Iterator[Total]:
        total = (self.total.value() or 0) + row.value
        self.total.update(total)
        yield Total(row.sensor, row.region, total)


class Compare(KeyedProcessFunction[Total, Total]):
    """Keeps the newest sum of each sensor of a region, and emits each that is a multiple of 100."""

    def open(self, ctx: RuntimeContext) -> None:
        self.totals = ctx.get_map_state(MapStateDescriptor("totals", int, int))

    def process_element(self, row: Total, ctx: Context) -> Iterator[Total]:
        self.totals.put(row.sensor, row.total)
        if row.total % 100 == 0:
            yield row


class BatchSource(LocalSource):
    """A given number of batches, made when they are read."""

    schema = RowSchema.of(Event)

    def __init__(self, batches: int, rows: int) -> None:
        self._batches = batches
        self._rows = rows

    @property
    def description(self) -> str:
        return "BatchSource"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        number = int(position or 0)
        if number >= self._batches:
            return None
        numbers = range(number * self._rows, (number + 1) * self._rows)
        return Slice([_event(n) for n in numbers], str(number + 1))


def _event(number: int) -> Event:
    sensor = number * _STRIDE % KEYS
    return Event(sensor, f"region-{sensor % 500}", number * 10, number % 7)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    source = BatchSource(int(env.parameter("batches")), int(env.parameter("rows")))
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    events = env.from_source(source, uid="events").assign_timestamps_and_watermarks(strategy)
    totals = events.key_by("sensor").process(AddUp(), output=Total, uid="totals")
    compared = totals.key_by("region").process(Compare(), output=Total, uid="compared")
    minutes = (
        events.key_by("region")
        .window(TumblingEventTimeWindows.of(timedelta(minutes=1)))
        .reduce(lambda a, b: Event(b.sensor, b.region, b.at, a.value + b.value), uid="minutes")
    )
    compared.print(uid="discarded", limit=0)
    minutes.sink_to(DeltaSink(env.parameter("table")), uid="minutes-table")
