"""Event time within a batch: how far it is before each row of a key, and the key's timers that are due then.

Rows of a key come in the order of event time. Flink, fed with the batch's rows in that order, would have a watermark of
the row's time less the out-of-orderness before each of them: no row of the batch, and none of a later batch that is not
late, can come below it. So the key's timers up to there fire before the row, as in Flink. Of several sources the
smallest counts, each with the key's own rows, and with what is known of it from the batches before: design 0024.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stateflow.api.timers import TimerService
from stateflow.runtime.inputs import KeyedRows
from stateflow.runtime.specs import UnitSpec
from stateflow.state.current import EventClock
from stateflow.state.timers import NO_WATERMARK, Timer, Timers

Array = np.ndarray[Any, Any]


class KeyTime:
    """The event time of one key at a time, which begins at the operator's watermark with each key.

    Args:
        service: shows the watermark to functions.
        clock: by which state expires.
    """

    def __init__(self, spec: UnitSpec, service: TimerService, timers: Timers, clock: EventClock) -> None:
        self._before = {each.number: each.watermark for each in spec.source_times}
        self._bounds = {each.number: each.out_of_orderness for each in spec.source_times}
        self._start = NO_WATERMARK if spec.watermark is None else spec.watermark
        self._at_start = spec.watermark
        self._service = service
        self._timers = timers
        self._clock = clock
        self._known = dict(self._before)
        self._watermark = self._start
        self._sources: list[int] = []
        """Of each row, the number of its source."""
        self._reached: list[int] = []
        """Of each row, the watermark of its source, if no earlier row had a later event time."""
        self._until: list[int] = []
        """Of each key, how far its rows may take event time."""

    def read(self, rows: KeyedRows, times: Array, sources: Array) -> None:
        """Sorted rows of many keys come.

        Args:
            times: the rows' event times, `NO_WATERMARK` where there is none.
            sources: the numbers of the sources that they come from.
        """
        reached = np.full(len(times), NO_WATERMARK)
        for number, bound in self._bounds.items():
            is_known = (sources == number) & (times > NO_WATERMARK + bound)
            reached = np.where(is_known, times - bound - 1, reached)
        self._sources, self._reached = sources.tolist(), reached.tolist()
        self._until = self._latest(reached, sources, rows.starts).tolist()
        ends = {(group, key): time for (group, key, _), time in zip(rows.keys, self._until, strict=True)}
        self._timers.look_ahead(ends)

    def begin_key(self) -> None:
        """Another key's rows come."""
        self._known = dict(self._before)
        self._watermark = self._start
        self._service.advance(self._at_start)

    def begin_rows(self, number: int) -> None:
        """The rows of the key with that number come, which is current."""
        self._timers.begin_key(self._until[number])

    def end_rows(self) -> None:
        """The rows of the key end, or those of the Arrow batch."""
        self._timers.end_key()

    def reach(self, row: int) -> bool:
        """Lets the row with that number be the next one; returns whether timers of the key are due before it."""
        source, reached, known = self._sources[row], self._reached[row], self._known
        if reached <= known.get(source, reached):
            return False
        known[source] = reached
        watermark = reached if len(known) == 1 else min(known.values())
        if watermark <= self._watermark:
            return False
        self._watermark = watermark
        self._service.advance(watermark)
        self._clock.set(watermark)
        return self._timers.is_due_of_key(watermark)

    def due(self) -> Iterator[Timer]:
        """The key's timers that are due, in order of time; sets the clock back to the watermark after them."""
        yield from self._timers.due_of_key(self._watermark)
        self._clock.set(self._watermark)

    def _latest(self, reached: Array, sources: Array, starts: Sequence[int]) -> Array:
        """How far the rows of each key may take event time. The first key may have had rows before."""
        each = []
        for number, before in self._before.items():
            of = np.where(sources == number, np.maximum(reached, before), before)
            latest = np.maximum.reduceat(of, starts)
            latest[0] = max(latest[0], self._known[number])
            each.append(latest)
        latest_of_all: Array = np.maximum(np.minimum.reduce(each), self._start)
        return latest_of_all
