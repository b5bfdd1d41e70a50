"""The harness computes what a run of the same function over the same batches computes, with log and sinks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from stateflow import Context, ListStateDescriptor, OnTimerContext, RuntimeContext
from stateflow.query.state import state_entries
from stateflow.testing import KeyedHarness, KeyedInput
from tests.runtime.timer_jobs import SIDE, START, Alarm, Event, Note, TimerJobs


class Sessions(Alarm):
    """Keeps a key's times until some of its timers, and emits their number at the end of a batch."""

    def open(self, ctx: RuntimeContext) -> None:
        self.times = ctx.get_list_state(ListStateDescriptor("times", int))

    def process_element(self, row: Event, ctx: Context) -> Iterator[Note]:
        self.times.add(row.at)
        yield from super().process_element(row, ctx)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
        yield from super().on_timer(timestamp, ctx)
        if timestamp % 3 == 0:
            self.times.clear()

    def on_batch_end(self, ctx: Context) -> Iterator[Note]:
        yield Note("batch", ctx.get_current_key(), len(list(self.times.get())), 0, 0)


def _by_key(notes: Iterable[Note]) -> dict[str, list[Note]]:
    """The order of rows is defined for a key, within an output."""
    result: dict[str, list[Note]] = {}
    for note in notes:
        result.setdefault(note.key, []).append(note)
    return result


@pytest.mark.parametrize("seed", range(3))
def test_rows_side_outputs_timers_and_state_are_those_of_a_run(tmp_path: Path, seed: int) -> None:
    rng, jobs = random.Random(seed), TimerJobs(tmp_path)
    events = [Event(rng.choice("abcde"), n + rng.randrange(30)) for n in range(50)]
    jobs.events(Sessions(10), events, parallelism=2, run__drain=True, source__max_rows_per_batch=5)
    source = KeyedInput(Event, "key", event_time="at", out_of_orderness=timedelta())
    with KeyedHarness(Sessions(10), source, output=Note, side_outputs=[SIDE], parallelism=2, max_parallelism=8) as h:
        h.advance_processing_time(START)
        for start in range(0, len(events), 5):
            h.push(*events[start : start + 5])
        h.drain()
        assert _by_key(h.output) == _by_key(jobs.notes())
        assert _by_key(h.side_output(SIDE)) == _by_key(jobs.notes(table="side")) != {}
        assert h.state_entries() == list(state_entries(str(tmp_path / "root"), "op")) != []
