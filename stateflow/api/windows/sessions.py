"""The open sessions of a key, and where their state is.

A session keeps its state in the namespace of a window that it was made of, so a row that extends it moves no state.
When sessions merge, the state of one of them stays where it is, and that of the others is moved there. The algorithm is
that of Flink's `MergingWindowSet`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from stateflow.api.functions.process import RuntimeContext
from stateflow.state.kinds.single_value import ValueState
from stateflow.types.descriptors import ValueStateDescriptor
from stateflow.types.time_window import TimeWindow

STATE_NAME = "merging-window-set"
"""Name of the state; part of the stored format. As in Flink."""


@dataclass(frozen=True)
class Session:
    """An open session: its window, and the window whose namespace has its state. Times are milliseconds since 1970."""

    start: int
    end: int
    state_start: int
    state_end: int

    @property
    def window(self) -> TimeWindow:
        """The window of the session."""
        return TimeWindow(self.start, self.end)

    @property
    def state_window(self) -> TimeWindow:
        """The namespace of its state."""
        return TimeWindow(self.state_start, self.state_end)


@dataclass(frozen=True)
class Merge:
    """What happens when a row's window is added.

    Attributes:
        window: the window that the row belongs to now.
        state_window: the namespace of its state.
        merged: windows that are replaced by `window`; empty if there is nothing to do for state and trigger.
        merged_states: namespaces whose state has to be moved to `state_window`.
    """

    window: TimeWindow
    state_window: TimeWindow
    merged: tuple[TimeWindow, ...] = ()
    merged_states: tuple[TimeWindow, ...] = ()


def add_window(sessions: Sequence[Session], added: TimeWindow) -> tuple[list[Session], Merge]:
    """Returns the sessions with a window added, and what has to be merged."""
    # Open sessions do not touch each other, so those that the row's window touches are all that become one.
    touched, others, start, end = list[Session](), list[Session](), added.start, added.end
    for each in sessions:
        # Without a TimeWindow for each session: this is done for each row.
        (touched if each.start <= end and start <= each.end else others).append(each)
    window = reduce(TimeWindow.cover, (each.window for each in touched), added)
    kept = touched[0].state_window if touched else added
    merged = tuple(each.window for each in touched)
    states = tuple(each.state_window for each in touched[1:])
    result = Session(window.start, window.end, kept.start, kept.end)
    if merged == (window,):
        # The row's window lies within an open session: nothing changes.
        return [*others, *touched], Merge(window, kept)
    return [*others, result], Merge(window, kept, merged, states)


class OpenSessions:
    """The sessions of the current key, as state."""

    _state: ValueState[list[Session]]

    def open(self, ctx: RuntimeContext) -> None:
        """Declares the state."""
        self._state = ctx.keyed_state.value_state(ValueStateDescriptor(STATE_NAME, list[Session]), per_key=True)

    def add(self, added: TimeWindow) -> Merge:
        """Adds the window of a row; returns what has to be merged."""
        before = self._state.value() or []
        after, merge = add_window(before, added)
        if merge.merged or len(after) > len(before):
            self._state.update(after)
        return merge

    def state_window(self, window: TimeWindow) -> TimeWindow | None:
        """Returns the namespace of a session's state; None if the session no longer exists."""
        start, end = window.start, window.end
        found = (each for each in self._state.value() or () if each.start == start and each.end == end)
        return next((each.state_window for each in found), None)

    def remove(self, window: TimeWindow) -> None:
        """Removes a session."""
        rest = [each for each in self._state.value() or () if each.window != window]
        self._state.update(rest or None)
