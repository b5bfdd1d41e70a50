"""What functions set timers with."""

from __future__ import annotations

from stateflow.errors import StateError
from stateflow.state.timers import MAX_WATERMARK, NO_WATERMARK, TimeDomain, Timers


class TimerService:
    """The time, and the timers of the current key. All times are milliseconds since 1970.

    Args:
        timers: None where there are none.
        processing_time: of the batch.
        watermark: None before there is one.
        refused: why no timer can be set; empty if one can.

    Attributes:
        MAX_WATERMARK: the watermark when bounded sources have ended, or the job drains. A function that sets a new
            event-time timer whenever one fires must stop then: the new one is due at once.
    """

    MAX_WATERMARK = MAX_WATERMARK

    def __init__(
        self, timers: Timers | None = None, processing_time: int = 0, watermark: int | None = None, refused: str = ""
    ) -> None:  # fmt: skip
        self._timers = timers
        self._processing_time = processing_time
        self._watermark = watermark
        self._refused = refused or ("there are no timers here" if timers is None else "")

    def current_processing_time(self) -> int:
        """The batch's processing time: one value for all its rows and timers."""
        return self._processing_time

    def current_watermark(self) -> int:
        """No more rows of this time or an earlier one are expected: a row that has one is late. -2^63 before there is
        a watermark, `MAX_WATERMARK` at the end of input. It may be lower for the next key, and never for the same."""
        return NO_WATERMARK if self._watermark is None else self._watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        """Calls `on_timer` for the current key once the watermark has reached `timestamp`. A time that it has reached
        already is due when it moves next, at the latest in the next batch; at once when a timer is being fired.

        Raises StateError without a key, for what is no time, and when the function has no `on_timer`.
        """
        self._own().register(TimeDomain.EVENT_TIME, timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Calls `on_timer` for the current key in the first batch whose processing time has reached `timestamp`; raises
        as `register_event_time_timer` does."""
        self._own().register(TimeDomain.PROCESSING_TIME, timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Deletes the current key's timer of that time, if there is one."""
        self._own().delete(TimeDomain.EVENT_TIME, timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Deletes the current key's timer of that time, if there is one."""
        self._own().delete(TimeDomain.PROCESSING_TIME, timestamp)

    def advance(self, watermark: int | None) -> None:
        """For the runtime only: it is as late as that now."""
        self._watermark = watermark

    def _own(self) -> Timers:
        if self._timers is None or self._refused:
            raise StateError(f"a timer cannot be used: {self._refused}", hint="timers are for functions over keyed "
                             "rows that define on_timer")  # fmt: skip
        return self._timers
