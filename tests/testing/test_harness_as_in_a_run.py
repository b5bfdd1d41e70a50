"""The harness computes what a run of the same function over the same batches computes, with log and sinks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow import (
    Context,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OnTimerContext,
    OutputTag,
    RuntimeContext,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from stateflow.query.state import StateEntry, state_entries
from stateflow.runtime.task import store_cache
from stateflow.testing import KeyedHarness, KeyedInput
from tests.support.local_jobs import LocalJobs

BATCH = 4
DISORDER = timedelta(milliseconds=5)


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


class Note(msgspec.Struct, frozen=True):
    what: str
    key: str
    at: int
    count: int


LATE = OutputTag("late", Note)


class Sessions(KeyedProcessFunction[Event, Note]):
    """Collects a key's times until 10 ms after the last; late rows go to a side output."""

    def open(self, ctx: RuntimeContext) -> None:
        self.times = ctx.get_list_state(ListStateDescriptor("times", int))
        self.kinds = ctx.get_map_state(MapStateDescriptor("kinds", str, int))

    def process_element(self, row: Event, ctx: Context) -> None:
        if row.at <= ctx.timer_service().current_watermark():
            self.kinds.put("late", (self.kinds.get("late") or 0) + 1)
            ctx.output(LATE, Note("late", row.key, row.at, self.kinds.get("late") or 0))
            return
        self.times.add(row.at)
        ctx.timer_service().register_event_time_timer(row.at + 10)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Note]:
        times = list(self.times.get())
        if times and max(times) + 10 <= timestamp:
            self.times.clear()
            yield Note("session", ctx.get_current_key(), timestamp, len(times))

    def on_batch_end(self, ctx: Context) -> Iterable[Note]:
        yield Note("batch", ctx.get_current_key(), 0, len(list(self.times.get())))


def _by_key(rows: Iterable[dict[str, Any]]) -> dict[Any, list[Note]]:
    """The order of rows is defined for a key, within an output."""
    result: dict[Any, list[Note]] = {}
    for row in rows:
        result.setdefault(row["key"], []).append(Note(**row))
    return result


def _run(folder: Path, events: Sequence[Event]) -> tuple[LocalJobs, list[StateEntry]]:
    jobs = LocalJobs(folder)

    def build(env: StreamExecutionEnvironment) -> None:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(DISORDER).with_timestamp_column("at")
        stream = env.from_collection(events, Event, uid="events").assign_timestamps_and_watermarks(strategy)
        notes = stream.key_by("key").process(Sessions(), output=Note, uid="operator")
        notes.sink_to(jobs.sink("notes"), uid="notes")
        notes.get_side_output(LATE).sink_to(jobs.sink("late"), uid="late")

    try:
        jobs.run(build, **{"source.max_rows_per_batch": str(BATCH), "max_parallelism": "128"})
    finally:
        store_cache.close_all()
    return jobs, list(state_entries(str(folder / "root"), "operator"))


@pytest.mark.parametrize("seed", range(3))
def test_rows_side_outputs_timers_and_state_are_those_of_a_run(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    events = [Event(rng.choice("abcde"), n + rng.randrange(30)) for n in range(50)]
    jobs, stored = _run(tmp_path, events)
    source = KeyedInput(Event, "key", event_time="at", out_of_orderness=DISORDER)
    with KeyedHarness(Sessions(), source, output=Note, side_outputs=[LATE], parallelism=2) as h:
        for start in range(0, len(events), BATCH):
            h.push(*events[start : start + BATCH])
        h.drain()
        late = _by_key(map(msgspec.structs.asdict, h.side_output(LATE)))
        assert _by_key(map(msgspec.structs.asdict, h.output)) == _by_key(jobs.sink("notes").rows())
        assert late == _by_key(jobs.sink("late").rows())
        assert h.state_entries() == stored
        assert late and stored and any(row.what == "session" for row in h.output)
