"""The harness against a whole run of the same function over the same batches, with job root, log and sinks."""

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
from stateflow.query.state import StateEntry, read_state
from stateflow.runtime.task import store_cache
from stateflow.testing import KeyedHarness, KeyedInput
from tests.support.local_jobs import LocalJobs

BATCH = 4


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
    """Collects a key's times until 10 ms after the last; late rows go aside."""

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
    """What is promised of the order: of a key, within an output."""
    result: dict[Any, list[Note]] = {}
    for row in rows:
        result.setdefault(row["key"], []).append(Note(**row))
    return result


def _run(folder: Path, events: Sequence[Event]) -> tuple[LocalJobs, list[StateEntry]]:
    box = LocalJobs(folder)

    def build(env: StreamExecutionEnvironment) -> None:
        disorder = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=5))
        strategy = disorder.with_timestamp_column("at")
        stream = env.from_collection(events, Event, uid="events").assign_timestamps_and_watermarks(strategy)
        notes = stream.key_by("key").process(Sessions(), output=Note, uid="operator")
        notes.sink_to(box.sink("notes"), uid="notes")
        notes.get_side_output(LATE).sink_to(box.sink("late"), uid="late")

    try:
        box.run(build, **{"source.max_rows_per_batch": str(BATCH), "max_parallelism": "128"})
    finally:
        store_cache.close_all()
    return box, list(read_state(str(folder / "root"), "operator"))


def _harness(events: Sequence[Event], parallelism: int) -> KeyedHarness:
    """The same batches with the watermarks of a run, and the end of its input."""
    source = KeyedInput(Event, "key", event_time="at", out_of_orderness=timedelta(milliseconds=5))
    h = KeyedHarness(Sessions(), source, output=Note, side_outputs=[LATE], parallelism=parallelism)
    for start in range(0, len(events), BATCH):
        h.push(*events[start : start + BATCH])
    h.drain()
    return h


@pytest.mark.parametrize("seed", range(3))
def test_rows_side_outputs_timers_and_state_are_those_of_a_run(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    events = [Event(dice.choice("abcde"), n + dice.randrange(30)) for n in range(50)]
    box, stored = _run(tmp_path, events)
    with _harness(events, 2) as h:
        assert _by_key(map(msgspec.structs.asdict, h.output)) == _by_key(box.sink("notes").rows())
        late = _by_key(map(msgspec.structs.asdict, h.side_output(LATE)))
        assert late == _by_key(box.sink("late").rows())
        assert h.state_entries() == stored
        assert late and stored and any(row.what == "session" for row in h.output)


def test_parallelism_changes_nothing_of_what_is_computed() -> None:
    events = [Event("abcdefgh"[n % 8], n * 7 % 50 + n) for n in range(80)]
    source = KeyedInput(Event, "key", event_time="at")
    h = KeyedHarness(Sessions(), source, output=Note)
    for parallelism, batch in zip((1, 3, 2, 1), (events[n : n + 20] for n in range(0, 80, 20)), strict=True):
        with h:
            snapshot = h.snapshot()
        h = KeyedHarness.restore(snapshot, parallelism=parallelism)
        h.push(*batch)
    with h:
        sessions = [row for row in h.drain() if row.what == "session"]
    times = {key: [event.at for event in events if event.key == key] for key in "abcdefgh"}
    assert sorted(sessions, key=lambda row: row.key) == [
        Note("session", key, max(of) + 10, len(of)) for key, of in times.items()
    ]
