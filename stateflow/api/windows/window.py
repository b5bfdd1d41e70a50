"""The windows that assigners return."""

from __future__ import annotations

from typing import Final

from stateflow.state.kinds.timers import MAX_WATERMARK
from stateflow.types.time_window import TimeWindow


class GlobalWindow:
    """The only window of `GlobalWindows`; it never ends."""

    max_timestamp: Final = MAX_WATERMARK

    def __repr__(self) -> str:
        return "GlobalWindow()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GlobalWindow)

    def __hash__(self) -> int:
        return hash(GlobalWindow)


Window = TimeWindow | GlobalWindow


def namespace_of(window: Window) -> TimeWindow | None:
    """Returns the namespace of a window's state: the window itself; the void namespace for the global window."""
    return window if isinstance(window, TimeWindow) else None


def window_of(namespace: object) -> Window:
    """Returns the window whose state is in a namespace."""
    return namespace if isinstance(namespace, TimeWindow) else GlobalWindow()
