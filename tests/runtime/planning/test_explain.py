"""The explanation of a job's plan, as text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import msgspec
from syrupy.assertion import SnapshotAssertion

from stateflow import (
    Context,
    CountTrigger,
    GlobalWindows,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    RuntimeContext,
    SlidingProcessingTimeWindows,
    StateTtlConfig,
    Trigger,
    ValueStateDescriptor,
)
from stateflow.config.sources import resolve
from stateflow.runtime.planning.explain import explain_job, to_lines
from tests.support.graphs import DeclaredJob, Nowhere, Pass, Row, process


class Summed(msgspec.Struct):
    key: str
    number: int


HOUR = timedelta(hours=1)
LATE = OutputTag("late", Row)


class WithMap(KeyedProcessFunction[Row, Row]):
    def open(self, ctx: RuntimeContext) -> None:
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", str, int))
        self.part = ctx.info.subtask / ctx.info.parallelism

    def process_element(self, row: Row, ctx: Context) -> None:
        ctx.output(LATE, row)


class NeedsTask(KeyedProcessFunction[Row, Row]):
    def open(self, ctx: RuntimeContext) -> None:
        raise FileNotFoundError("model.bin")


class WithTtl(Pass):
    def open(self, ctx: RuntimeContext) -> None:
        day = StateTtlConfig.new_builder(timedelta(days=1, minutes=30)).build()
        second = StateTtlConfig.new_builder(timedelta(seconds=1)).update_ttl_on_read_and_write().use_event_time()
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", str, int, ttl=day))
        self.last = ctx.get_state(ValueStateDescriptor("last", int, ttl=second.build()))
        self.ever = ctx.get_state(ValueStateDescriptor("ever", int))


def is_good(row: Row) -> bool:
    return row.number > 0


def _chained(job: DeclaredJob) -> None:
    first = job.rows.filter(is_good).key_by("key", order_by=["number"]).process(WithMap(), output=Row, uid="first")
    first.get_side_output(LATE).sink_to(Nowhere(), uid="late")
    first.key_by("number").process(Pass(), output=Row, uid="second").sink_to(Nowhere(), uid="out")


def _united(job: DeclaredJob) -> None:
    first = process(job.rows.union(job.source("more")), "first")
    first.union(job.rows).sink_to(Nowhere(), uid="out")


def _windowed(job: DeclaredJob) -> None:
    windows = job.rows.key_by("key").window(SlidingProcessingTimeWindows.of(HOUR, HOUR / 12, -HOUR / 60))
    windows.reduce(lambda first, second: first, uid="hours").sink_to(Nowhere(), uid="out")
    sessions = job.rows.key_by("key").window(ProcessingTimeSessionWindows.with_gap(HOUR / 2))
    sessions.aggregate_columns({"number": ("sum", "number")}, output=Summed, uid="columns")
    trigger: Trigger[Row] = PurgingTrigger.of(CountTrigger.of(100))
    ever = job.rows.key_by("key").window(GlobalWindows.create()).trigger(trigger)
    ever.apply(lambda key, window, rows: rows, output=Row, uid="ever")


JOBS: dict[str, Callable[[DeclaredJob], object]] = {
    "keys, types, states, shuffles and sinks": _chained,
    "times-to-live": lambda job: process(job.rows, "op", WithTtl()),
    "unions and relays": _united,
    "windows and triggers": _windowed,
    "states that only a task can declare": lambda job: process(job.rows, "op", NeedsTask()),
}


def test_explanations_match_the_golden_file(golden: SnapshotAssertion) -> None:
    texts = []
    for name, declare in JOBS.items():
        job = DeclaredJob()
        declare(job)
        explanation = explain_job(job.env.graph, resolve({"name": "job", "parallelism": 2}), on_spark=False)
        texts += [f"--- {name}\n", *(f"{line}\n" for line in to_lines(explanation))]
    assert "".join(texts) == golden
