"""Reads ledgers in parallel, counts the entries of each account, and has timers in event time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from stateflow import (
    Context,
    DeadLetters,
    KeyedProcessFunction,
    OnTimerContext,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from stateflow.testing.sinks import FolderSink
from tests.support.ledgers import Entry, Ledgers

STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")


class Count(msgspec.Struct):
    account: str
    count: int


class Counting(KeyedProcessFunction[Entry, Count]):
    """Emits how many entries an account has, and -1 one millisecond after an entry in event time."""

    def open(self, ctx: RuntimeContext) -> None:
        self.entries = ctx.get_state(ValueStateDescriptor("entries", int))

    def process_element(self, row: Entry, ctx: Context) -> Iterator[Count]:
        entries = (self.entries.value() or 0) + 1
        self.entries.update(entries)
        ctx.timer_service().register_event_time_timer(row.at + 1)
        yield Count(row.account, entries)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Count]:
        yield Count(ctx.get_current_key(), -timestamp)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job; with `budget`, bad rows are dead letters."""
    home = Path(env.parameter("home"))
    budget = int(env.parameter("budget", "0"))
    source = Ledgers(
        home / "in",
        arrow=env.parameter("arrow", "no") == "yes",
        split_size=3,
        on_error=DeadLetters(budget) if budget else "fail",
    )
    source.needs_spark = env.parameter("spark") == "yes"
    rows = env.from_source(source, uid="entries")
    if budget:
        rows.get_dead_letters().sink_to(FolderSink(home / "letters"), uid="letters")
    rows.sink_to(FolderSink(home / "entries"), uid="entries-out")
    counts = (
        rows.assign_timestamps_and_watermarks(STRATEGY).key_by("account").process(Counting(), output=Count, uid="op")
    )
    counts.sink_to(FolderSink(home / "counts"), uid="counts")
