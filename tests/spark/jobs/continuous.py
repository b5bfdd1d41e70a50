"""Copies rows of JSON files, and repeats each of them by a processing-time timer; with Spark.

Parameters: ``job.home``; ``job.delay``, the milliseconds until a row is repeated; ``job.listed``, to read a bounded
source as well; ``job.ttl``, the milliseconds that the last row of each name is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec

from stateflow import (
    Context,
    FileSource,
    KeyedProcessFunction,
    OnTimerContext,
    RuntimeContext,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.testing.sinks import FolderSink


class Row(msgspec.Struct):
    name: str
    number: int


class Repeat(KeyedProcessFunction[Row, Row]):
    """Emits the number of each name's rows with each row, and minus that number after a delay."""

    def __init__(self, delay: int, ttl: int) -> None:
        self._delay = delay
        self._ttl = StateTtlConfig.new_builder(timedelta(milliseconds=ttl)).build() if ttl else None

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))
        self.last = ctx.get_state(ValueStateDescriptor("last", Row, ttl=self._ttl))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if self._ttl:
            self.last.update(row)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + self._delay)
        yield Row(row.name, count)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Row]:
        yield Row(ctx.get_current_key(), -(self.count.value() or 0))


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    home = Path(env.parameter("home"))
    rows = env.from_source(FileSource(home / "in", schema=Row, format="json"), uid="rows")
    if env.parameter("listed", ""):
        rows = rows.union(env.from_collection([Row("listed", 0)], Row, uid="listed"))
    repeated = rows.key_by("name").process(
        Repeat(int(env.parameter("delay")), int(env.parameter("ttl", "0"))), output=Row, uid="repeat"
    )
    repeated.sink_to(FolderSink(home / "out"), uid="out")
