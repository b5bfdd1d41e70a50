"""Reads a folder of JSON files, counts rows per name, and has a timer that is due after a while."""

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
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.testing.sinks import FolderSink

DELAY = timedelta(hours=1)


class Row(msgspec.Struct):
    name: str
    number: int


class Count(KeyedProcessFunction[Row, Row]):
    """Emits how many rows a name had, at each row, and -1 after a while."""

    def open(self, ctx: RuntimeContext) -> None:
        self.rows = ctx.get_state(ValueStateDescriptor("rows", int))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        rows = (self.rows.value() or 0) + 1
        self.rows.update(rows)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + int(DELAY.total_seconds() * 1000))
        yield Row(row.name, rows)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Row]:
        yield Row(ctx.get_current_key(), -1)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job; `more` adds an operator."""
    home = Path(env.parameter("home"))
    bounded = env.parameter("bounded", "no") == "yes"
    rows = env.from_source(FileSource(home / "in", schema=Row, format="json", bounded=bounded), uid="rows")
    rows.key_by("name").process(Count(), output=Row, uid="count").sink_to(FolderSink(home / "out"), uid="out")
    if env.parameter("more", "no") == "yes":
        rows.key_by("number").process(Count(), output=Row, uid="more").sink_to(FolderSink(home / "more"), uid="more")
