"""Jobs with timers, on a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stateflow import (
    Context,
    DeadLetters,
    KeyedProcessFunction,
    OnTimerContext,
    OutputTag,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from stateflow.api.source import CollectionSource
from stateflow.api.streams.data_stream import DataStream
from stateflow.clock import ManualClock
from stateflow.runtime.driver.job_run import JobRun
from tests.support.local_jobs import Growing, LocalJobs

STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
START = 1_767_225_600_000
"""Where a manual clock begins, in milliseconds."""
LOW = -(1 << 63)
"""The watermark before the first one."""
Streams = Callable[[StreamExecutionEnvironment], DataStream]


class Event(msgspec.Struct):
    key: str
    at: int


class Note(msgspec.Struct):
    what: str
    key: str
    at: int
    time: int
    watermark: int
    domain: str = ""


SIDE = OutputTag("side", Note)


class Alarm(KeyedProcessFunction[Event, Note]):
    """Sets a timer some milliseconds after each row, in event time, in processing time, or both."""

    def __init__(self, event: int | None = None, processing: int | None = None) -> None:
        self.event, self.processing = event, processing

    def process_element(self, row: Event, ctx: Context) -> Iterator[Note]:
        timers = ctx.timer_service()
        if self.event is not None:
            timers.register_event_time_timer(row.at + self.event)
        if self.processing is not None:
            timers.register_processing_time_timer(timers.current_processing_time() + self.processing)
        assert ctx.timestamp() in (None, row.at)
        yield Note("row", row.key, row.at, timers.current_processing_time(), timers.current_watermark())

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
        timers = ctx.timer_service()
        assert ctx.timestamp() == timestamp
        note = Note(
            "timer", ctx.get_current_key(), timestamp, timers.current_processing_time(), timers.current_watermark(),
            ctx.time_domain().value,
        )  # fmt: skip
        ctx.output(SIDE, note)
        yield note


def timed(
    env: StreamExecutionEnvironment, uid: str, rows: Sequence[Event], kind: type[CollectionSource] = Growing
) -> DataStream:
    return env.from_source(kind(rows, Event), uid=uid).assign_timestamps_and_watermarks(STRATEGY)


class TimerJobs(LocalJobs):
    """A job root with a manual clock, and runs over two rows of each source at a time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ManualClock(), source__max_rows_per_batch=2, max_parallelism=8)

    def process(self, streams: Streams, function: Any, on_error: str | DeadLetters = "fail", **settings: Any) -> JobRun:
        def build(env: StreamExecutionEnvironment) -> None:
            made = streams(env).key_by("key").process(function, output=Note, uid="op", on_error=on_error)
            made.sink_to(self.sink("out"), uid="out")
            made.get_side_output(SIDE).sink_to(self.sink("side"), uid="side")
            if on_error != "fail":
                made.get_dead_letters().sink_to(self.sink("letters"), uid="letters")

        run = self.prepare(build, **settings)
        self.execute(run)
        return run

    def events(self, function: Any, *rows: Sequence[Event], **settings: Any) -> JobRun:
        def streams(env: StreamExecutionEnvironment) -> DataStream:
            first, *others = [timed(env, f"s{at}", each) for at, each in enumerate(rows)]
            return first.union(*others) if others else first

        return self.process(streams, function, **settings)

    def notes(self, what: str = "", table: str = "out") -> list[Note]:
        notes = [msgspec.convert(row, Note) for row in self.sink(table).rows()]
        return [note for note in notes if what in ("", note.what)]

    def timers(self) -> list[tuple[str, int]]:
        """Key and timestamp of the timers that fired."""
        return [(note.key, note.at) for note in self.notes("timer")]
