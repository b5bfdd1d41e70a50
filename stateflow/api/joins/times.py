"""Event time in joins: the times of rows, and the base of joins of columns with timers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from stateflow.api.functions.process import Context
from stateflow.api.functions.vectorized import Array
from stateflow.api.functions.window_vectors import WindowVectorFunction, WindowVectorState
from stateflow.api.joins.pairs import Side
from stateflow.api.side_outputs import OutputTag
from stateflow.errors import StateError
from stateflow.state.kinds.timers import NO_WATERMARK
from stateflow.state.kinds.window_timers import DueTimers

_LATEST = (1 << 63) // 1000
"""Times beyond it do not fit into a timestamp of microseconds."""


def time_of_row(ctx: Context) -> int:
    """Returns the event time of the current row, in milliseconds since 1970.

    Raises:
        StateError: the row has none.
    """
    timestamp = ctx.timestamp()
    if timestamp is None:
        raise _without_time()
    return timestamp


def check_times(times: Array, longest: int) -> None:
    """Checks event times of rows, in milliseconds since 1970; the lowest integer is that of a row without one.

    Args:
        longest: how much later than a row its timers are, at most.

    Raises:
        StateError: a row has no event time, or one that is out of range.
    """
    if not len(times):
        return
    if (times == NO_WATERMARK).any():
        raise _without_time()
    limit = _LATEST - longest
    if not -limit < times.min() <= times.max() < limit:
        raise StateError(
            "an event time is out of range",
            hint="filter such rows in a transform, or convert the column: event time is in milliseconds since 1970",
            earliest=int(times.min()),
            latest=int(times.max()),
        )


def _without_time() -> StateError:
    return StateError(
        "a row of a join by event time has no event time",
        hint="filter rows whose timestamp column is null before key_by",
    )


class TimedColumnJoin(WindowVectorFunction):
    """A join of the columns of two inputs, with timers of windows or of keys.

    Attributes:
        has_windows: whether timers belong to windows; otherwise to keys, and the windows of due timers have no meaning.
    """

    has_windows = True

    @property
    def late_tags(self) -> tuple[OutputTag[object] | None, OutputTag[object] | None]:
        """The side outputs of late rows of both inputs."""
        return None, None

    def join(self, left: Side, right: Side, state: WindowVectorState) -> Iterator[pa.RecordBatch]:
        """Called with rows of both sides, sorted by key; yields pairs."""
        raise NotImplementedError(f"{type(self).__name__} has no join")

    def end_windows(self, due: DueTimers, state: WindowVectorState) -> Iterator[pa.RecordBatch]:
        """Called with event-time timers that are due, in order of time; `state` has their keys, and no rows."""
        raise NotImplementedError(f"{type(self).__name__} has no end_windows")
