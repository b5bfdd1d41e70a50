"""The operator of patterns: processes the rows of a key in the order of event time.

A row waits until the watermark reaches its time, so that no earlier row can follow. A key has a timer at the time of
its earliest waiting row, and one at the time limit of its earliest partial match. The first of its timers that fires in
a batch processes all rows up to the watermark, so that the partial matches of a key are decoded once per batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import GenericAlias
from typing import Generic, TypeVar, cast

from stateflow.api.functions.process import Context, KeyedProcessFunction, OnTimerContext, RuntimeContext
from stateflow.api.functions.returned import checked_rows
from stateflow.api.patterns.automaton import automaton_of
from stateflow.api.patterns.functions import PatternProcessFunction, TimedOut
from stateflow.api.patterns.matcher import Match, Matcher
from stateflow.api.patterns.partial_matches import MatchBuffer, PartialMatches, stored_class
from stateflow.api.patterns.pattern import Pattern
from stateflow.api.side_outputs import OutputTag
from stateflow.errors import StateError
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.single_value import ValueState
from stateflow.state.kinds.timer_index import TimeDomain
from stateflow.state.kinds.timers import MAX_WATERMARK, NO_WATERMARK
from stateflow.types.descriptors import MapStateDescriptor, ValueStateDescriptor

Row = TypeVar("Row")

WAITING, MATCHED, PARTIAL = "waiting-rows", "matched-rows", "partial-matches"
"""Names of states, which are part of the stored format."""


@dataclass(frozen=True)
class PatternSettings(Generic[Row]):
    """What an operator matches.

    Attributes:
        row_class: class of the rows.
        late_rows: side output of late rows; None to drop them.
        timed_out: what is emitted for partial matches that exceeded the time limit; None for nothing.
    """

    pattern: Pattern
    row_class: type[Row]
    late_rows: OutputTag[Row] | None = None
    timed_out: TimedOut[object] | None = None


class PatternOperator(KeyedProcessFunction[Row, object], Generic[Row]):
    """Matches the rows of a key with a pattern.

    Args:
        settings: the pattern.
        function: called with each match.
    """

    _waiting: MapState[int, list[Row]]
    _matched: MapState[int, Row]
    _partial: ValueState[PartialMatches]
    _matcher: Matcher[Row]

    def __init__(self, settings: PatternSettings[Row], function: PatternProcessFunction[Row, object]) -> None:
        self.function = function
        self._settings = settings
        self._structure = settings.pattern.structure
        self._within = settings.pattern.within_ms
        # Of the keys of a batch: the earliest pending timer for a row, and the time up to which rows are processed.
        self._earliest: dict[tuple[object, ...], int] = {}
        self._processed: dict[tuple[object, ...], int] = {}

    def open(self, ctx: RuntimeContext) -> None:
        row_class, pattern = self._settings.row_class, self._settings.pattern
        rows = cast("type[list[Row]]", GenericAlias(list, (row_class,)))
        self._waiting = ctx.get_map_state(MapStateDescriptor(WAITING, int, rows))
        self._matched = ctx.get_map_state(MapStateDescriptor(MATCHED, int, row_class))
        self._partial = ctx.get_state(ValueStateDescriptor(PARTIAL, stored_class(self._structure)))
        self._matcher = Matcher(automaton_of(pattern), pattern.skip, self._within)
        self.function.open(ctx)

    def close(self) -> None:
        self.function.close()

    def process_element(self, row: Row, ctx: Context) -> None:
        time = ctx.timestamp()
        if time is None:
            raise StateError(
                "a row of a pattern has no event time", hint="filter rows whose timestamp column is null before key_by"
            )
        if time > ctx.timer_service().current_watermark():
            self._waiting.put(time, [*(self._waiting.get(time) or ()), row])
            earliest = self._earliest.get(ctx.key_values)
            if earliest is None or time < earliest:
                self._earliest[ctx.key_values] = time
                ctx.timer_service().register_event_time_timer(time)
        elif self._settings.late_rows is not None:
            ctx.output(self._settings.late_rows, row)
        else:
            self.late_rows_dropped += 1

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[object]:
        until = max(timestamp, ctx.timer_service().current_watermark())
        if timestamp <= self._processed.get(ctx.key_values, NO_WATERMARK):
            return  # the key was processed when an earlier timer fired
        self._processed[ctx.key_values] = until
        # More rows of the batch may follow.
        self._earliest.pop(ctx.key_values, None)
        buffer = MatchBuffer(self._partial.value() or PartialMatches(self._structure), self._matched)
        for time, rows in self._waiting.items():
            if time > until:
                self._earliest[ctx.key_values] = time
                ctx.timer_service().register_event_time_timer(time)
                break
            self._waiting.remove(time)
            # Partial matches end before rows of this time are processed: the time limit is exclusive.
            yield from self._advance(buffer, time, ctx)
            ctx.set_timer(TimeDomain.EVENT_TIME, time)
            for row in rows:
                yield from self._emitted(self._matcher.process(buffer, row, time), ctx)
        yield from self._advance(buffer, until, ctx)
        self._store(buffer, ctx)

    def _advance(self, buffer: MatchBuffer[Row], time: int, ctx: OnTimerContext) -> Iterator[object]:
        """Ends the partial matches whose time limit is at `time` or before, one after another."""
        while self._within is not None and buffer.matches.partial:
            expires = buffer.matches.partial[0].began + self._within
            if expires > time:
                return
            ctx.set_timer(TimeDomain.EVENT_TIME, expires)
            advanced = self._matcher.advance(buffer, expires)
            yield from self._emitted(advanced.matched, ctx)
            for match in advanced.timed_out:
                self._time_out(match, ctx)

    def _emitted(self, matches: Iterable[Match[Row]], ctx: OnTimerContext) -> Iterator[object]:
        process = self.function.process_match
        for match in matches:
            yield from checked_rows(process(match, ctx), process)

    def _time_out(self, match: Mapping[str, list[Row]], ctx: OnTimerContext) -> None:
        timed_out = self._settings.timed_out
        if timed_out is not None:
            ctx.output(timed_out.tag, timed_out.function(match))
        self.function.process_timed_out_match(match, ctx)

    def _store(self, buffer: MatchBuffer[Row], ctx: OnTimerContext) -> None:
        matches = buffer.matches
        if self._within is not None and matches.partial:
            # One timer at a time, for the earliest: when it fires, the next one is registered.
            expires = matches.partial[0].began + self._within
            if expires != matches.expires and expires < MAX_WATERMARK:
                matches.expires = expires
                buffer.changed = True
                ctx.timer_service().register_event_time_timer(expires)
        if buffer.changed:
            if matches.is_empty:
                self._partial.clear()
            else:
                self._partial.update(matches)
