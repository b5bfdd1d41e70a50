"""Event time within a batch: the watermark before each row of a key, and the key's timers that are due at it.

The rows of a key come in the order of event time. If Flink processed the rows of the batch in that order, its watermark
before each row would be the row's time minus the out-of-orderness: no row of this batch, and no row of a later batch
that is not late, is earlier. So the key's timers up to this watermark fire before the row, as in Flink. With several
sources the smallest watermark counts; that of a source follows from the key's own rows and from previous batches. See
design 0024.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stateflow.api.functions.timers import TimerService
from stateflow.runtime.task.operators.input_reader import KeyedRows
from stateflow.runtime.task_spec import ChainSpec, Numbers
from stateflow.state.kinds.key_context import EventClock
from stateflow.state.kinds.timers import NO_WATERMARK, Timer, Timers


class KeyTime:
    """The event time of one key at a time; begins at the operator's watermark for each key.

    Args:
        service: receives the watermark that functions read.
        clock: receives the event time by which state expires.
    """

    def __init__(self, spec: ChainSpec, service: TimerService, timers: Timers, clock: EventClock) -> None:
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
        """The number of each row's source."""
        self._reached: list[int] = []
        """For each row the watermark of its source, unless an earlier row had a later event time."""
        self._until: list[int] = []
        """For each key the highest watermark that its rows can reach."""

    def read(self, rows: KeyedRows, times: Numbers, sources: Numbers) -> None:
        """Prepares for the sorted rows of many keys.

        Args:
            rows: the keys and where their rows begin.
            times: event time of each row in milliseconds since 1970; `NO_WATERMARK` for a row without one.
            sources: number of each row's source.
        """
        reached = np.full(len(times), NO_WATERMARK)
        for number, bound in self._bounds.items():
            is_known = (sources == number) & (times > NO_WATERMARK + bound)
            reached = np.where(is_known, times - bound - 1, reached)
        self._sources, self._reached = sources.tolist(), reached.tolist()
        self._until = self._latest(reached, sources, rows.starts).tolist()
        ends = {(group, key): time for (group, key, _), time in zip(rows.keys, self._until, strict=True)}
        self._timers.prefetch(ends)

    def begin_key(self) -> None:
        """Resets event time, before the first row of another key."""
        self._known = dict(self._before)
        self._watermark = self._start
        self._service.advance(self._at_start)

    def begin_rows(self, number: int) -> None:
        """Prepares the timers of the current key, before its rows.

        Args:
            number: number of the key among those of `read`.
        """
        self._timers.begin_key(self._until[number])

    def end_rows(self) -> None:
        """Ends the rows of the current key in this Arrow batch."""
        self._timers.end_key()

    def advance_to(self, row: int) -> bool:
        """Advances event time to a row; returns whether timers of the key are due before it.

        Args:
            row: number of the row among those of `read`.
        """
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
        """Yields the key's timers that are due, in order of time; then sets the clock to the watermark again."""
        yield from self._timers.due_of_key(self._watermark)
        self._clock.set(self._watermark)

    def _latest(self, reached: Numbers, sources: Numbers, starts: Sequence[int]) -> Numbers:
        """Returns the highest watermark that the rows of each key can reach.

        The first key may have had rows in the previous Arrow batch.
        """
        each = []
        for number, before in self._before.items():
            of = np.where(sources == number, np.maximum(reached, before), before)
            latest = np.maximum.reduceat(of, starts)
            latest[0] = max(latest[0], self._known[number])
            each.append(latest)
        latest_of_all: Numbers = np.maximum(np.minimum.reduce(each), self._start)
        return latest_of_all
