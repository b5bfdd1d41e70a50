"""Event time within a batch: how far it is before each row of a key, and the key's timers that are due then.

Rows of a key come in the order of event time. Flink, fed with the batch's rows in that order, would have a watermark of
the row's time less the out-of-orderness before each of them: no row of the batch, and none of a later batch that is not
late, can come below it. So the key's timers up to there fire before the row, as in Flink. Of several sources the
smallest counts, each with the key's own rows, and with what is known of it from the batches before: design 0024.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stateflow.api.timers import TimerService
from stateflow.runtime.inputs import KeyedRows
from stateflow.runtime.specs import UnitSpec
from stateflow.state.timers import NO_WATERMARK, Timer, Timers

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _RowTimes:
    """Of each row, its source's number, and the watermark of that source if it had no earlier rows than this one.

    Attributes:
        until: of each key, how far its rows may take event time.
    """

    sources: list[int]
    reached: list[int]
    until: list[int]


class KeyTime:
    """The event time of one key at a time, which begins at the operator's watermark with each key.

    Args:
        service: shows the watermark to functions.
    """

    def __init__(self, spec: UnitSpec, service: TimerService, timers: Timers) -> None:
        self._before = {each.number: each.watermark for each in spec.source_times}
        self._bounds = {each.number: each.out_of_orderness for each in spec.source_times}
        self._start = NO_WATERMARK if spec.watermark is None else spec.watermark
        self._at_start = spec.watermark
        self._service = service
        self._timers = timers
        self._known = dict(self._before)
        self._watermark = self._start
        self._rows = _RowTimes([], [], [])

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
        until = self._until(reached, sources, rows.starts).tolist()
        self._rows = _RowTimes(sources.tolist(), reached.tolist(), until)
        ends = {(group, key): time for (group, key, _), time in zip(rows.keys, until, strict=True)}
        self._timers.look_ahead(ends)

    def begin_key(self) -> None:
        """Another key's rows come."""
        self._known = dict(self._before)
        self._watermark = self._start
        self._service.advance(self._at_start)

    def begin_rows(self, number: int) -> None:
        """The rows of the key with that number come, which is current."""
        self._timers.begin_key(self._rows.until[number])

    def end_rows(self) -> None:
        """The rows of the key end, or those of the Arrow batch."""
        self._timers.end_key()

    def due_before(self, row: int) -> Iterator[Timer]:
        """Lets the row with that number be the next one; gives the key's timers that are due then, in order of time."""
        source, reached = self._rows.sources[row], self._rows.reached[row]
        if reached <= self._known.get(source, reached):
            return
        self._known[source] = reached
        watermark = min(self._known.values())
        if watermark > self._watermark:
            self._watermark = watermark
            self._service.advance(watermark)
            yield from self._timers.due_of_key(watermark)

    def _until(self, reached: Array, sources: Array, starts: Sequence[int]) -> Array:
        """How far the rows of each key may take event time. The first key may have had rows before."""
        each = []
        for number, before in self._before.items():
            of = np.where(sources == number, np.maximum(reached, before), before)
            latest = np.maximum.reduceat(of, starts)
            latest[0] = max(latest[0], self._known[number])
            each.append(latest)
        return np.maximum(np.min(each, axis=0), self._start)

