"""State that expires by event time lives from the time of the row that wrote it, wherever batches begin and end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stateflow import (
    Context,
    KeyedProcessFunction,
    OnTimerContext,
    RuntimeContext,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from stateflow.testing import KeyedHarness, KeyedInput

LIFE = 10


class Row(msgspec.Struct, frozen=True, order=True):
    key: str
    at: int


class Seen(msgspec.Struct, frozen=True, order=True):
    """What a row read: when the state was written last; None if that has expired."""

    key: str
    at: int
    found: int | None


class Last(KeyedProcessFunction[Row, Seen]):
    """Reads and writes the time of a key's last row. Without timers, its event time moves from batch to batch."""

    def open(self, ctx: RuntimeContext) -> None:
        life = StateTtlConfig.new_builder(Time.milliseconds(LIFE)).use_event_time().build()
        self.last = ctx.get_state(ValueStateDescriptor("last", int, ttl=life))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Seen]:
        yield Seen(row.key, row.at, self.last.value())
        self.last.update(row.at)


class Timed(Last):
    """With timers, so that its event time moves from row to row."""

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> None: ...


# Of a source with a watermark; and as after a keyed operator, where the watermark moves between batches only.
SOURCE = KeyedInput(Row, "key", event_time="at", out_of_orderness=timedelta())
LATER = KeyedInput(Row, "key", event_time="at")


@given(
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from("ab")), max_size=40), st.sets(st.integers(1, 40), max_size=8)
)
def test_a_row_reads_what_was_written_within_the_time_to_live_wherever_batches_end(
    steps: list[tuple[int, str]], cuts: set[int]
) -> None:
    rows, wanted, last, at = [], [], dict[str, int](), 0
    for step, key in steps:
        at += step
        rows.append(Row(key, at))
        # Before the row, the watermark is its time less one.
        found = last.get(key)
        wanted.append(Seen(key, at, None if found is None or found + LIFE <= at - 1 else found))
        last[key] = at
    seen = []
    with KeyedHarness(Timed(), SOURCE, output=Seen) as harness:
        ends = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
        for begin, end in pairwise(ends):
            seen += harness.push(*rows[begin:end])
    assert sorted(seen) == sorted(wanted)


def test_state_lives_from_the_time_of_its_row_although_the_watermark_is_earlier() -> None:
    with KeyedHarness(Last(), LATER, output=Seen) as harness:
        harness.advance_watermark(0)
        harness.push(Row("a", 100))
        harness.advance_watermark(99 + LIFE)
        assert harness.state("last", key="a") == 100
        assert harness.push(Row("a", 200)) == [Seen("a", 200, 100)]
        harness.advance_watermark(200 + LIFE)
        assert harness.push(Row("a", 300)) == [Seen("a", 300, None)]
