"""The timer service of functions."""

from __future__ import annotations

from stateflow.errors import StateError
from stateflow.state.kinds.timer_index import TimeDomain
from stateflow.state.kinds.timers import MAX_WATERMARK, NO_WATERMARK, Timers


class TimerService:
    """The current time and the timers of the current key. All times are milliseconds since 1970.

    Args:
        timers: None if the function cannot use timers.
        processing_time: processing time of the batch.
        watermark: None before there is one.
        refused: why timers cannot be registered; empty if they can.

    Attributes:
        MAX_WATERMARK: the watermark after bounded sources have ended, or while the job drains. A function that
            registers a new event-time timer whenever one fires must stop then, since the new timer is due immediately.
    """

    MAX_WATERMARK = MAX_WATERMARK

    def __init__(
        self, timers: Timers | None = None, processing_time: int = 0, watermark: int | None = None, refused: str = ""
    ) -> None:
        self._timers = timers
        self._processing_time = processing_time
        self._watermark = watermark
        self._refused = refused or ("this function has no timers" if timers is None else "")

    def current_processing_time(self) -> int:
        """Returns the batch's processing time, which is constant during the batch."""
        return self._processing_time

    def current_watermark(self) -> int:
        """Returns the current watermark. A row with this event time or an earlier one is late.

        It is -2^63 before there is a watermark and `MAX_WATERMARK` at the end of the input. It never decreases for a
        key, but may be lower for the next key.
        """
        return NO_WATERMARK if self._watermark is None else self._watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        """Registers a timer that fires for the current key when the watermark reaches `timestamp`.

        If the watermark has reached it already, the timer fires at the next advance of the watermark, at the latest in
        the next batch; within `on_timer`, it fires immediately.

        Raises:
            StateError: there is no key, `timestamp` is invalid, or the function has no `on_timer`.
        """
        self._own().register(TimeDomain.EVENT_TIME, timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Registers a timer that fires for the current key in the first batch whose processing time is >= `timestamp`.

        Raises: as `register_event_time_timer`.
        """
        self._own().register(TimeDomain.PROCESSING_TIME, timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Deletes the current key's timer with this timestamp, if it exists."""
        self._own().delete(TimeDomain.EVENT_TIME, timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Deletes the current key's timer with this timestamp, if it exists."""
        self._own().delete(TimeDomain.PROCESSING_TIME, timestamp)

    def advance(self, watermark: int | None) -> None:
        """For the runtime only: sets the current watermark."""
        self._watermark = watermark

    def _own(self) -> Timers:
        if self._timers is None or self._refused:
            raise StateError(
                f"a timer cannot be used: {self._refused}",
                hint="use timers in functions of keyed streams that define on_timer",
            )
        return self._timers
