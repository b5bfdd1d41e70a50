"""The window that never ends, and the namespaces of windows."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from stateflow.state.kinds.timers import MAX_WATERMARK, NO_WATERMARK
from stateflow.types.time_window import TimeWindow


@runtime_checkable
class HasWindows(Protocol):
    """A function that evaluates windows.

    Attributes:
        windows_text: the windows and their trigger, for plans.
    """

    windows_text: str


class GlobalWindow(TimeWindow):
    """The only window of `GlobalWindows`: all of time."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(NO_WATERMARK, MAX_WATERMARK)

    @property
    def max_timestamp(self) -> int:
        """The highest watermark: the window never ends."""
        return MAX_WATERMARK


def namespace_of(window: TimeWindow) -> TimeWindow | None:
    """Returns the namespace of a window's state: the window itself; the void namespace for the global window."""
    return None if isinstance(window, GlobalWindow) else window


def window_of(namespace: object) -> TimeWindow:
    """Returns the window whose state is in a namespace."""
    return namespace if isinstance(namespace, TimeWindow) else GlobalWindow()
