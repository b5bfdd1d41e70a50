"""The window that never ends, the namespaces of windows, and the durations that declare them."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol, runtime_checkable

from stateflow.errors import JobDefinitionError
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


_MILLISECOND = timedelta(milliseconds=1)


def duration_ms(what: str, duration: object) -> int:
    """Returns a duration in milliseconds, of any sign.

    Args:
        what: what it is the duration of, for the error.

    Raises:
        JobDefinitionError: it is not a timedelta.
    """
    if not isinstance(duration, timedelta):
        raise JobDefinitionError(f"{what} must be a timedelta", hint="pass a timedelta", given=repr(duration)[:200])
    return duration // _MILLISECOND


def duration_text(milliseconds: int) -> str:
    """Returns a duration such as ``1 d 12 h``, without units that are zero."""
    rest, found = abs(milliseconds), []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, size)
        if count:
            found.append(f"{count} {unit}")
    return ("-" if milliseconds < 0 else "") + " ".join(found)


def positive_ms(what: str, duration: object) -> int:
    """Returns a duration of a millisecond or more. Raises JobDefinitionError for another one."""
    length = duration_ms(what, duration)
    if length <= 0:
        raise JobDefinitionError(
            f"{what} must be positive", hint="pass a timedelta of a millisecond or more", given=repr(duration)
        )
    return length
