"""The TTL in event time of states that a vectorized function writes for many keys at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow.api.functions.process import Context, KeyedProcessFunction, RuntimeContext
from stateflow.api.functions.vectorized import VectorizedKeyedFunction, VectorState
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.testing import KeyedHarness, KeyedInput
from stateflow.types.descriptors import MapStateDescriptor, ValueStateDescriptor
from stateflow.types.ttl_config import StateTtlConfig


class Timed(msgspec.Struct, frozen=True):
    key: str
    at: int | None
    number: int


class Found(msgspec.Struct, frozen=True):
    """What was stored before."""

    key: str
    count: int | None
    last: int | None


class _States:
    def __init__(self, ttl: StateTtlConfig) -> None:
        self._ttl = ttl

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int, ttl=self._ttl))
        self.last = ctx.get_map_state(MapStateDescriptor("last", str, int, ttl=self._ttl))


class ByRow(_States, KeyedProcessFunction[Timed, Found]):
    def process_element(self, row: Timed, ctx: Context) -> Iterator[Found]:
        yield Found(ctx.get_current_key(), self.count.value(), self.last.get(""))
        if row.number:
            self.count.update((self.count.value() or 0) + row.number)
            self.last.put("", row.number)


class ByColumn(_States, VectorizedKeyedFunction):
    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        numbers, every = batch.column("number").to_numpy(), np.arange(len(state))
        sums = np.add.reduceat(numbers, state.starts)
        names = pa.array([""] * len(state), pa.string())
        count, last = state.read(self.count), state.read_entries(self.last, every, names)
        state.write(self.count, pc.add(count.fill_null(0), pa.array(sums)), sums > 0)
        for at in np.flatnonzero(sums).tolist():
            (own,) = [numbers[start : start + size] for start, size in [(state.starts[at], state.counts[at])]]
            state.write_entries(self.last, np.array([at]), names[:1], pa.array([int(own[own > 0][-1])]))
        return pa.RecordBatch.from_arrays([state.keys.column("key"), count, last], names=["key", "count", "last"])


class ByRowAtEnd(_States, KeyedProcessFunction[Timed, Found]):
    def process_element(self, row: Timed, ctx: Context) -> None:
        self.count.update((self.count.value() or 0) + row.number)

    def on_batch_end(self, ctx: Context) -> Iterator[Found]:
        yield Found(ctx.get_current_key(), self.count.value(), None)


def test_a_value_counts_from_its_row_also_if_the_function_is_called_at_the_end_of_the_batch() -> None:
    ttl = StateTtlConfig.new_builder(timedelta(milliseconds=30)).use_event_time().disable_cleanup_in_background()
    with _harness(ByRowAtEnd, ttl.build()) as h:
        h.advance_watermark(20)
        h.push(Timed("a", 60, 1), Timed("b", 10, 1))
        h.advance_watermark(55)
        # The row of b is earlier than the watermark, from which its value counts then.
        assert set(h.push(Timed("a", 61, 2), Timed("b", 62, 2))) == {Found("a", 3, None), Found("b", 2, None)}


ROWS = st.lists(st.builds(Timed, st.sampled_from("ab"), st.one_of(st.none(), st.integers(0, 60)), st.integers(0, 3)))


def _harness(function: Callable[[StateTtlConfig], Any], ttl: StateTtlConfig) -> KeyedHarness:
    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        return rows.process(function(ttl), output=Found, uid="op")

    return KeyedHarness(declare, KeyedInput(Timed, "key", order_by=("at",), event_time="at"))


@given(st.booleans(), st.lists(st.tuples(st.integers(0, 20), ROWS), max_size=6))
@example(False, [(20, [Timed("a", 0, 1), Timed("b", 60, 1)]), (20, []), (0, [Timed("a", 41, 0), Timed("b", 41, 0)])])
def test_the_time_to_live_of_a_key_counts_from_its_own_rows(
    renews: bool, batches: list[tuple[int, list[Timed]]]
) -> None:
    ttl = StateTtlConfig.new_builder(timedelta(milliseconds=30)).use_event_time().disable_cleanup_in_background()
    config = (ttl.update_ttl_on_read_and_write() if renews else ttl).build()
    with _harness(ByRow, config) as rows, _harness(ByColumn, config) as columns:
        now = 0
        for step, batch in batches:
            now += step
            made = []
            for h in (rows, columns):
                # The row function emits for each row: the first one of a key shows what was stored before.
                made.append({row.key: row for row in reversed(h.push(*batch))})
                h.advance_watermark(now)
            assert made[0] == made[1]
