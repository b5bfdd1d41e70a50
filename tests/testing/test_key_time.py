"""A key's timers between its rows, compared with a model of Flink that works record by record.

The model receives the rows of each batch in the order of event time. For more histories:
``HYPOTHESIS_PROFILE=nightly python -m pytest tests/testing/test_key_time.py -m slow``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stateflow import (
    Context,
    DeadLetters,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MemoryStateBackend,
    OnTimerContext,
    RocksDBStateBackend,
    RuntimeContext,
    ValueStateDescriptor,
)
from stateflow.api.state_backends import StateBackend
from stateflow.testing import KeyedHarness, KeyedInput

LOW, HIGH = -(1 << 63), (1 << 63) - 1
KEYS = ("a", "a\0b", "c")
"""The bytes of the first one begin those of the second one."""


class Row(msgspec.Struct, frozen=True):
    """A row: its number is unique, and its script is what the function does with it."""

    key: str
    at: int | None
    number: int = 0
    script: str = ""


class Seen(msgspec.Struct, frozen=True):
    """A call of the function: what it was called for, and what it saw."""

    key: str
    what: str
    time: int
    watermark: int
    rows: int


class _Timers:
    """What both the function and the model do with timers."""

    set: Callable[[int], None]
    delete: Callable[[int], None]

    def row(self, row: Row) -> None:
        for step in filter(None, row.script.split(";")):
            word, _, number = step.partition(" ")
            if word == "fail":
                raise ValueError(row.number)
            time = (30 if row.at is None else row.at) + int(number)
            self.set(time) if word == "set" else self.delete(time)

    def timer(self, time: int) -> None:
        """Sets and deletes others, later and earlier ones; ends after a few."""
        if time % 3 == 0:
            self.set(time + 1)
        if time % 5 == 0:
            self.delete(time + 2)
        if time % 7 == 0:
            self.set(time - 4)


class _Service(_Timers):
    def __init__(self, ctx: Context) -> None:
        self.set = ctx.timer_service().register_event_time_timer
        self.delete = ctx.timer_service().delete_event_time_timer


class Scripted(KeyedProcessFunction[Row, Seen]):
    def open(self, ctx: RuntimeContext) -> None:
        self.rows = ctx.get_state(ValueStateDescriptor("rows", int, default=0))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Seen]:
        self.rows.update((self.rows.value() or 0) + 1)
        watermark = ctx.timer_service().current_watermark()
        _Service(ctx).row(row)
        yield Seen(row.key, "row", row.number, watermark, self.rows.value() or 0)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Seen]:
        watermark = ctx.timer_service().current_watermark()
        _Service(ctx).timer(timestamp)
        yield Seen(ctx.get_current_key(), "timer", timestamp, watermark, self.rows.value() or 0)


@dataclass
class Record(_Timers):
    """Flink with one source and a watermark before each row: the row's time less the out-of-orderness, less one."""

    bound: int
    watermark: int = LOW
    timers: set[tuple[int, str]] = field(default_factory=set)
    rows: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seen: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    letters: list[int] = field(default_factory=list)
    key: str = ""

    def __post_init__(self) -> None:
        self.set = lambda time: self.timers.add((time, self.key))
        self.delete = lambda time: self.timers.discard((time, self.key))

    def batch(self, rows: Iterable[Row]) -> None:
        """A batch begins by firing what was set for a time that has passed."""
        self.fire(self.watermark)
        for row in sorted(rows, key=lambda row: (row.at is not None, row.at or 0)):
            if row.at is not None and row.at - self.bound - 1 > self.watermark:
                self.watermark = row.at - self.bound - 1
                self.fire(self.watermark)
            self.process(row)

    def process(self, row: Row) -> None:
        self.key, before = row.key, set(self.timers)
        try:
            self.row(row)
        except ValueError:
            self.timers = before
            self.letters.append(row.number)
            return
        self.rows[row.key] += 1
        self.seen[row.key].append(Seen(row.key, "row", row.number, self.watermark, self.rows[row.key]))

    def fire(self, until: int) -> None:
        while due := [each for each in self.timers if each[0] <= until]:
            time, self.key = min(due)
            self.timers.remove((time, self.key))
            self.timer(time)
            self.seen[self.key].append(Seen(self.key, "timer", time, until, self.rows[self.key]))


@dataclass(frozen=True)
class History:
    """Batches of rows; and, before each, the parallelism of a restore, or 0; and the number of key groups."""

    bound: int
    batches: tuple[tuple[tuple[Row, ...], int], ...]
    arrow_rows: int | None
    key_groups: int = 128


steps = st.one_of(
    st.builds("set {}".format, st.integers(-6, 40)), st.builds("set {}".format, st.integers(0, 8)),
    st.builds("delete {}".format, st.integers(0, 8)), st.just("fail"),
)  # fmt: skip
rows = st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(0, 60)), st.lists(steps, max_size=3))


@st.composite
def histories(draw: Callable[..., Any]) -> History:
    batches, number = [], 0
    for _ in range(draw(st.integers(1, 5))):
        batch = []
        for key, at, script in draw(st.lists(rows, max_size=8)):
            batch.append(Row(key, at, number, ";".join(script)))
            number += 1
        batches.append((tuple(batch), draw(st.sampled_from([0, 0, 0, 1, 2]))))
    bound, arrow_rows = draw(st.sampled_from([0, 1, 5, 20])), draw(st.sampled_from([None, 1, 2, 3]))
    return History(bound, tuple(batches), arrow_rows, draw(st.sampled_from([2, 128])))


def _source(bound: int, *order_by: str) -> KeyedInput:
    return KeyedInput(Row, "key", order_by, event_time="at", out_of_orderness=timedelta(milliseconds=bound))


def _arrow(rows: int | None) -> dict[str, Any]:
    """The setting that gives tasks so many rows at once; the rows of a key then come in several pieces."""
    return {} if rows is None else {"spark.conf.spark.sql.execution.arrow.maxRecordsPerBatch": str(rows)}


def _check(history: History, backend: StateBackend) -> None:
    model, seen, letters = Record(history.bound), defaultdict(list), 0
    more: dict[str, Any] = {"on_error": DeadLetters(budget=1000), "backend": backend, **_arrow(history.arrow_rows)}
    more["max_parallelism"] = history.key_groups
    h = KeyedHarness(Scripted(), _source(history.bound), output=Seen, parallelism=2, **more)
    for batch, parallelism in history.batches:
        if parallelism:
            letters += len(h.dead_letters)
            with h:
                h = KeyedHarness.restore(h.snapshot(), parallelism=parallelism)
        for each in h.push(*batch):
            seen[each.key].append(each)
        model.batch(batch)
        pending = {(t.time, t.key) for t in h.timers()}
        # A timer that is due with the next batch has not set the ones yet that it sets when it fires.
        due = {key for time, key in pending if time <= model.watermark}
        assert pending >= {t for t in model.timers if t[0] > model.watermark and t[1] not in due}
    with h:
        for each in h.drain():
            seen[each.key].append(each)
        assert letters + len(h.dead_letters) == len(model.letters)
        assert h.timers() == []
    model.fire(HIGH)
    for key in KEYS:
        assert list(map(_call, seen[key])) == list(map(_call, model.seen[key]))
        shown = [each.watermark for each in seen[key]]
        assert shown == sorted(shown)
        assert all(each.time <= each.watermark for each in seen[key] if each.what == "timer")


def _call(seen: Seen) -> tuple[Any, ...]:
    # The model fires a key's timer before the next row of any key, and so may see an earlier watermark.
    return (seen.what, seen.time, seen.rows, seen.watermark if seen.what == "row" else None)


@pytest.mark.long(reason="draws many histories")
@example(History(0, (((Row("a", 0, 0, "set 3;fail"), Row("a", 20, 1)), 0),), None))
@example(History(0, (((Row("a", 0, 0, "set 9"), Row("a", 1, 1, "delete 8;fail"), Row("a", 20, 2)), 0),), None))
@example(
    History(
        bound=0,
        batches=(((Row("a\0b", 1, 0, "set 20"),), 0), ((Row("a", 100, 1), Row("a\0b", 3, 2), Row("a\0b", 100, 3)), 0)),
        arrow_rows=None,
        key_groups=2,
    )
)
@given(histories())
def test_a_key_sees_its_rows_and_timers_in_the_order_of_flink(history: History) -> None:
    _check(history, MemoryStateBackend())


@pytest.mark.slow(reason="1,200 histories")
@settings(max_examples=max(1_200, settings().max_examples))
@given(histories(), st.sampled_from([MemoryStateBackend()] * 19 + [RocksDBStateBackend()]))
def test_many_histories_have_the_order_of_flink_in_all_backends(history: History, backend: StateBackend) -> None:
    _check(history, backend)


class Both(KeyedCoProcessFunction[Row, Row, Seen]):
    def process_element1(self, row: Row, ctx: Context) -> Iterator[Seen]:
        watermark = ctx.timer_service().current_watermark()
        _Service(ctx).row(row)
        yield Seen(row.key, "row", LOW if row.at is None else row.at, watermark, row.number)

    process_element2 = process_element1

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Seen]:
        watermark = ctx.timer_service().current_watermark()
        _Service(ctx).timer(timestamp)
        yield Seen(ctx.get_current_key(), "timer", timestamp, watermark, 0)


@pytest.mark.long(reason="draws many histories")
@given(histories(), histories())
def test_with_two_sources_no_timer_fires_before_a_row_that_is_not_late(first: History, second: History) -> None:
    inputs = [_source(first.bound, "at"), _source(second.bound, "at")]
    fired, shown = dict.fromkeys(KEYS, LOW), dict.fromkeys(KEYS, LOW)
    letters = DeadLetters(budget=1000)
    with KeyedHarness(Both(), *inputs, output=Seen, on_error=letters, **_arrow(first.arrow_rows)) as h:
        for (ones, _), (twos, _) in zip_longest(first.batches, second.batches, fillvalue=((), 0)):
            before = LOW if h.watermark is None else h.watermark
            for seen in h.push_both(ones, twos):
                assert seen.watermark >= shown[seen.key]
                shown[seen.key] = seen.watermark
                if seen.what == "row":
                    assert seen.time <= before or seen.time > fired[seen.key]
                else:
                    assert seen.time <= seen.watermark
                    # A timer of a time that has passed is independent of the rows.
                    fired[seen.key] = max(fired[seen.key], seen.time)
            after = LOW if h.watermark is None else h.watermark
            assert all(watermark <= after for watermark in shown.values())


def test_with_two_sources_each_delays_the_timers_of_the_other() -> None:
    def row(at: int, *script: str) -> Row:
        return Row("a", at, at, ";".join(script))

    with KeyedHarness(Both(), *[_source(0, "at")] * 2, output=Seen) as h:
        # Nothing is known of the second source: the row of 50 fires nothing.
        assert _calls(h.push_both([row(10, "set 1"), row(50)], [])) == [("row", 10), ("row", 50)]
        assert _calls(h.push_both([row(100)], [row(20)])) == [("timer", 11), ("row", 20), ("row", 100)]
        # Known of it is 19, then 89 from the key's own row.
        assert _calls(h.push_both([row(101, "set 2")], [row(90)])) == [("row", 90), ("row", 101)]
        # Still 89, however many batches have none of its rows.
        assert _calls(h.push_both([row(200)], [])) == [("row", 200)]
        assert _calls(h.push_both([row(300)], [])) == [("row", 300)]
        assert _calls(h.push_both([], [row(400)])) == [("timer", 103), ("row", 400)]


def test_with_two_sources_rows_of_earlier_arrow_batches_advance_the_watermark() -> None:
    with KeyedHarness(Both(), *[_source(0, "at")] * 2, output=Seen, **_arrow(1)) as h:
        ones = [Row("a", 10, 0, "set 1"), Row("a", 50)]
        assert _calls(h.push_both(ones, [Row("a", 60)])) == [("row", 10), ("row", 50), ("timer", 11), ("row", 60)]


def _calls(seen: Sequence[Seen]) -> list[tuple[str, int]]:
    return [(each.what, each.time) for each in seen]
