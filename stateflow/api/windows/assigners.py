"""Window assigners: which windows a row belongs to. The rules and names are Flink's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Generic, Never, Self, TypeVar

from stateflow.api.windows.trigger import Trigger
from stateflow.api.windows.triggers import EventTimeTrigger, NeverTrigger, ProcessingTimeTrigger
from stateflow.api.windows.window import GlobalWindow, duration_ms, duration_text, positive_ms
from stateflow.errors import JobDefinitionError, StateError
from stateflow.types.time_window import TimeWindow

In = TypeVar("In", contravariant=True)
Row = TypeVar("Row", contravariant=True)


class WindowAssigner(ABC, Generic[In]):
    """Assigns rows to windows. The windows of a row depend on its time only, or on the row.

    Attributes:
        is_event_time: whether windows end by event time; otherwise by processing time.
        merges: whether windows of a key that touch are merged into one.
    """

    is_event_time: ClassVar[bool] = True
    merges: ClassVar[bool] = False

    @abstractmethod
    def assign_windows(self, row: In, timestamp: int) -> Sequence[TimeWindow]:
        """Returns the windows of a row.

        Args:
            timestamp: event time of the row, or processing time, in milliseconds since 1970.
        """

    def __str__(self) -> str:
        """Returns the text that plans show."""
        return type(self).__name__

    def default_trigger(self) -> Trigger[object]:
        """Returns the trigger that is used unless the job declares one."""
        return EventTimeTrigger() if self.is_event_time else ProcessingTimeTrigger()


@dataclass(frozen=True)
class _Sliding(WindowAssigner[object]):
    """Windows of one length that begin at regular intervals.

    Attributes:
        size: length of a window in milliseconds.
        slide: time between the starts of two windows.
        offset: start of a window, since 1970.
    """

    size: int
    slide: int
    offset: int

    def __str__(self) -> str:
        every = f" every {duration_text(self.slide)}" if self.slide != self.size else ""
        offset = f", offset {duration_text(self.offset)}" if self.offset else ""
        return f"{type(self).__name__} of {duration_text(self.size)}{every}{offset}"

    def assign_windows(self, row: object, timestamp: int) -> list[TimeWindow]:
        """Returns the windows that contain the timestamp, the latest first."""
        latest = timestamp - (timestamp - self.offset) % self.slide
        return [TimeWindow(start, start + self.size) for start in range(latest, timestamp - self.size, -self.slide)]


class _Tumbling(_Sliding):
    """Windows of one length that follow each other without a gap."""

    @classmethod
    def of(cls, size: timedelta, offset: timedelta = timedelta()) -> Self:
        """Returns windows of a size.

        Args:
            size: length of a window.
            offset: time between a full multiple of the size since 1970 and the start of a window, in UTC. For days of
                a time zone at UTC+8: ``of(timedelta(days=1), timedelta(hours=-8))``.

        Raises:
            JobDefinitionError: the size is not positive, or the offset is not shorter than it.
        """
        length = positive_ms("the size of a window", size)
        return cls(length, length, _offset(offset, length))


class _Hopping(_Sliding):
    """Windows of one length that may overlap, or leave gaps."""

    @classmethod
    def of(cls, size: timedelta, slide: timedelta, offset: timedelta = timedelta()) -> Self:
        """Returns windows of a size that begin every `slide`; a row belongs to ``size / slide`` of them.

        Args:
            offset: as for `TumblingEventTimeWindows.of`.

        Raises:
            JobDefinitionError: size or slide is not positive, or the offset is not shorter than the slide.
        """
        interval = positive_ms("the slide of windows", slide)
        return cls(positive_ms("the size of a window", size), interval, _offset(offset, interval))


class TumblingEventTimeWindows(_Tumbling):
    """Windows of event time that follow each other: ``TumblingEventTimeWindows.of(timedelta(minutes=5))``."""


class SlidingEventTimeWindows(_Hopping):
    """Overlapping windows of event time: ``SlidingEventTimeWindows.of(timedelta(hours=1), timedelta(minutes=5))``."""


class TumblingProcessingTimeWindows(_Tumbling):
    """Windows of processing time that follow each other. All rows of a batch have the batch's processing time."""

    is_event_time = False


class SlidingProcessingTimeWindows(_Hopping):
    """Overlapping windows of processing time. All rows of a batch have the batch's processing time."""

    is_event_time = False


@dataclass(frozen=True)
class _Sessions(WindowAssigner[Row], Generic[Row]):
    """Windows that end after a time without rows.

    Attributes:
        gap: milliseconds, or a function that returns the gap after a row.
    """

    merges: ClassVar[bool] = True
    gap: int | Callable[[Row], timedelta]

    @classmethod
    def with_gap(cls, gap: timedelta) -> Self:
        """Returns sessions that end when a key has no rows for `gap`. Raises JobDefinitionError if it is not > 0."""
        return cls(positive_ms("the gap of a session", gap))

    @classmethod
    def with_dynamic_gap(cls, gap: Callable[[Row], timedelta]) -> Self:
        """Returns sessions with a gap that depends on the row.

        Args:
            gap: returns the gap after a row, a positive timedelta. Must be deterministic.

        Raises:
            JobDefinitionError: `gap` is not callable.
        """
        if isinstance(gap, type) or not callable(gap):
            raise JobDefinitionError(
                "the dynamic gap of a session must be a function",
                hint="pass a function that takes a row and returns a timedelta",
                given=repr(gap),
            )
        return cls(gap)

    def __str__(self) -> str:
        gap = f"a gap of {duration_text(self.gap)}" if isinstance(self.gap, int) else "a dynamic gap"
        return f"{type(self).__name__} with {gap}"

    def assign_windows(self, row: Row, timestamp: int) -> list[TimeWindow]:
        """Returns the window from the row to the end of its gap."""
        gap = self.gap if isinstance(self.gap, int) else _gap_after(self.gap(row))
        return [TimeWindow(timestamp, timestamp + gap)]


class EventTimeSessionWindows(_Sessions[Row]):
    """Sessions of event time: ``EventTimeSessionWindows.with_gap(timedelta(minutes=30))``."""


class ProcessingTimeSessionWindows(_Sessions[Row]):
    """Sessions of processing time. All rows of a batch have the batch's processing time."""

    is_event_time = False


@dataclass(frozen=True)
class GlobalWindows(WindowAssigner[object]):
    """One window for all rows of a key. It needs a trigger, because it never ends."""

    is_event_time: ClassVar[bool] = False

    @classmethod
    def create(cls) -> Self:
        """Returns the assigner."""
        return cls()

    def assign_windows(self, row: object, timestamp: int) -> list[TimeWindow]:
        """Returns the global window."""
        return [GlobalWindow()]

    def default_trigger(self) -> Trigger[object]:
        """Returns a trigger that never fires."""
        return NeverTrigger()


def windows_kind(assigner: WindowAssigner[Never]) -> str:
    """Returns the kind of windows, which is part of the stored format: windows of one kind can replace each other.

    Open windows fire at their own end, so size, slide, offset and gap may change while windows are open.
    """
    if isinstance(assigner, GlobalWindows):
        return "global window"
    return (
        f"{'sessions' if assigner.merges else 'windows'} of {'event' if assigner.is_event_time else 'processing'} time"
    )


def _offset(offset: object, limit: int) -> int:
    length = duration_ms("the offset of windows", offset)
    if abs(length) >= limit:
        raise JobDefinitionError(
            "the offset of windows must be shorter than the time between two of them",
            hint="pass the remainder: an offset of a whole interval has no effect",
            offset_ms=length,
            interval_ms=limit,
        )
    return length


def _gap_after(gap: object) -> int:
    length = gap // timedelta(milliseconds=1) if isinstance(gap, timedelta) else 0
    if length <= 0:
        raise StateError(
            "the dynamic gap of a session must be a positive duration",
            hint="return a timedelta of a millisecond or more for each row",
            given=repr(gap)[:200],
        )
    return length
