"""Copies rows of JSON files, and repeats each of them by a processing-time timer; with Spark.

Parameters: ``job.home``; ``job.delay``, the milliseconds until a row is repeated; ``job.bounded``, if the files are all
that there will be; ``job.more``, to add an operator.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class Row(msgspec.Struct):
    name: str
    number: int


class Repeat(KeyedProcessFunction[Row, Row]):
    def __init__(self, delay: int) -> None:
        self._delay = delay

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + self._delay)
        yield Row(row.name, count)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Row]:
        yield Row(ctx.get_current_key(), -(self.count.value() or 0))


def build(env: StreamExecutionEnvironment) -> None:
    home = Path(env.parameter("home"))
    bounded = env.parameter("bounded", "no") == "yes"
    rows = env.from_source(FileSource(home / "in", schema=Row, format="json", bounded=bounded), uid="rows")
    repeated = rows.key_by("name").process(Repeat(int(env.parameter("delay"))), output=Row, uid="repeat")
    repeated.sink_to(FolderSink(home / "out"), uid="out")
    if env.parameter("more", ""):
        more = rows.key_by("number").process(Repeat(0), output=Row, uid="more")
        more.sink_to(FolderSink(home / "more"), uid="more-out")
