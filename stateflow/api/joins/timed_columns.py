"""Joins of columns with timers. For the runtime's own operators."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from stateflow.api.functions.window_vectors import WindowVectorFunction, WindowVectorState
from stateflow.api.joins.pairs import Side
from stateflow.api.side_outputs import OutputTag
from stateflow.state.kinds.window_timers import DueTimers


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
