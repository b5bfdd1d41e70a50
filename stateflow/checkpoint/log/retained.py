"""The list of retained checkpoints: its newest part in the log entry, the rest in immutable objects.

An entry names one `RetainedSegment`, which names the one before it, and so on. A COMMIT whose own list has become long
moves it into a new segment; a full segment is never written again. Nothing is ever taken out of a segment: an entry
has two bounds, and what is outside of them is not retained. So the size of an entry, and what a COMMIT writes, do not
depend on how many checkpoints are retained. ``docs/design/0023`` has the alternatives.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from operator import attrgetter

from msgspec.structs import replace

from stateflow.checkpoint.documents import EntryRef, LogEntry, RetainedLink, RetainedSegment
from stateflow.checkpoint.files import read_document, write_document
from stateflow.state.handles import FileHandle
from stateflow.storage import Storage


@dataclass(frozen=True)
class SegmentSizes:
    """When checkpoints move from an entry into a segment.

    Attributes:
        inline: an entry that would have more than so many moves them.
        segment: so many are in a full segment.
    """

    inline: int = 16
    segment: int = 256


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay restorable in addition to the newest.

    Attributes:
        number: this many, the newest included.
        max_age: of these, those that are not older, by the clocks of those who committed them.
    """

    number: int
    max_age: timedelta | None = None


def inline_retained(entry: LogEntry) -> list[EntryRef]:
    """The retained checkpoints that the entry itself lists, oldest first."""
    times = entry.times or {}
    return [
        ref if ref.at else replace(ref, at=times.get(str(ref.id), ""))
        for ref in entry.retained
        if ref.id >= entry.oldest_retained
    ]


def oldest_kept(refs: list[EntryRef], kept: Retention, now: str, before: str) -> int | None:
    """Id of the oldest of `refs` that a COMMIT keeps besides itself; None when it keeps none.

    A clock that jumps forward makes all of them too old at once. So what counts is the earlier one of the times of this
    entry and the one before, and at most half of them go with one COMMIT for their age, the oldest ones.

    Args:
        refs: oldest first.
        now: the committer's clock.
        before: the time of the entry that the COMMIT stands on.
    """
    left = refs[max(0, len(refs) - kept.number + 1) :]
    if kept.max_age is not None:
        limit = min(datetime.fromisoformat(now), datetime.fromisoformat(before)) - kept.max_age
        # One whose time is not known is never too old.
        young = (i for i, ref in enumerate(left) if not ref.at or datetime.fromisoformat(ref.at) >= limit)
        left = left[min(next(young, len(left)), (len(left) + 1) // 2) :]
    return left[0].id if left else None


class RetainedCheckpoints:
    """Reads and writes the segments of one job; remembers those that it read last, because they never change."""

    def __init__(self, storage: Storage, sizes: SegmentSizes = SegmentSizes()) -> None:
        self.sizes = sizes
        self._storage = storage
        self._known: dict[str, RetainedSegment] = {}
        self._before: dict[str, RetainedSegment] = {}

    def of(self, entry: LogEntry) -> list[EntryRef]:
        """The checkpoints that the entry retains, oldest first. Raises MissingFile or CorruptFile."""
        visited: dict[str, RetainedSegment] = {}
        parts = [inline_retained(entry)]
        for link, segment in self._segments(entry):
            visited[link.handle.key] = segment
            parts.append(_within(segment, link.newest, entry.oldest_retained))
        # Of two walks: another thread may read an older entry at the same time.
        self._before, self._known = self._known, visited
        return list(chain.from_iterable(reversed(parts)))

    def objects(self, entry: LogEntry) -> list[FileHandle]:
        """The segments that the entry needs, newest first. Raises as `of`."""
        return [link.handle for link, _ in self._segments(entry)]

    def moved(
        self, entry: LogEntry, newest: EntryRef | None, folder: str, oldest: int
    ) -> RetainedLink | None:
        """Stores what the successor of `entry` retains in segments, when it is too much for the entry itself.

        Args:
            newest: the checkpoint of `entry`, which the successor retains as well.
            folder: of the successor's own data files.
            oldest: no checkpoint before this one is retained from now on.

        Returns None when it is not. Raises StorageError, MissingFile or CorruptFile.
        """
        refs = [ref for ref in [*inline_retained(entry), *([newest] if newest else [])] if ref.id >= oldest]
        if len(refs) <= self.sizes.inline:
            return None
        before: RetainedLink | None = None
        for link, segment in self._segments(
            replace(entry, oldest_retained=max(oldest, entry.oldest_retained))
        ):
            before = link
            there = _within(segment, link.newest, oldest)
            if len(there) >= self.sizes.segment:
                break
            # Not full, or a restore has left some of it: its content moves on, into the new segment.
            refs, before = [*there, *refs], cut_after(segment.before, link.newest)
            if there:
                break
        for number, start in enumerate(range(0, len(refs), self.sizes.segment)):
            part = refs[start : start + self.sizes.segment]
            segment = RetainedSegment(refs=part, before=before)
            handle = write_document(self._storage, f"{folder}retained-{number}.json", segment)
            self._known[handle.key] = segment
            before = RetainedLink(handle=handle, newest=part[-1].id)
        return before

    def _segments(self, entry: LogEntry) -> Iterator[tuple[RetainedLink, RetainedSegment]]:
        link = entry.retained_before
        while link is not None and link.newest >= entry.oldest_retained:
            segment = self._read(link.handle)
            yield link, segment
            link = cut_after(segment.before, link.newest)

    def _read(self, handle: FileHandle) -> RetainedSegment:
        known = self._known.get(handle.key) or self._before.get(handle.key)
        if known is None:
            known = self._known[handle.key] = read_document(self._storage, handle, RetainedSegment)
        return known


def cut_after(link: RetainedLink | None, newest: int) -> RetainedLink | None:
    """The same link without checkpoints above `newest`."""
    return link and replace(link, newest=min(link.newest, newest))


def _within(segment: RetainedSegment, newest: int, oldest: int) -> list[EntryRef]:
    # Every COMMIT needs them all, so this does not look at each one.
    refs, of = segment.refs, attrgetter("id")
    if refs and oldest <= refs[0].id and refs[-1].id <= newest:
        return refs
    return refs[bisect_left(refs, oldest, key=of) : bisect_right(refs, newest, key=of)]
