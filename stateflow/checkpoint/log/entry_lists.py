"""The lists of a log entry that can become long: retained checkpoints and pending output.

The newest part of the list of retained checkpoints is in the log entry, the rest in immutable objects.

An entry refers to one `RetainedSegment`, which refers to the one before it, and so on. A COMMIT whose own list is too
long moves it into a new segment; a full segment is never written again. Nothing is ever removed from a segment: an
entry has a lower and an upper bound, and checkpoints outside of them are not retained. So neither the size of an entry
nor what a COMMIT writes depends on the number of retained checkpoints. ``docs/design/0023`` compares alternatives.

A checkpoint can add a hundred thousand files. Their list is stored once, before the COMMIT, in the data folder of the
barrier; each later entry with the same pending output refers to the same objects. ``docs/design/0022`` has the reasons.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from stateflow.checkpoint.log.documents import (
    EntryRef,
    LogEntry,
    OutputPart,
    PendingOutput,
    RetainedLink,
    RetainedSegment,
)
from stateflow.checkpoint.log.manifest_files import read_document, write_document
from stateflow.clock import is_timestamp
from stateflow.errors import CorruptFile
from stateflow.state.handles import Committable, FileHandle
from stateflow.storage import Storage


@dataclass(frozen=True)
class SegmentSizes:
    """Limits of the list in a log entry and of a segment.

    Attributes:
        inline: number of checkpoints in an entry; a longer list moves into segments.
        segment: number of checkpoints in a full segment.
    """

    inline: int = 16
    segment: int = 256


def list_inline_refs(entry: LogEntry) -> list[EntryRef]:
    """Returns the retained checkpoints that the entry itself lists, oldest first."""
    return [ref for ref in entry.retained if ref.id >= entry.oldest_retained]


class RetainedCheckpoints:
    """Reads and writes the segments of one job, and caches those of the last two reads: segments never change."""

    def __init__(self, storage: Storage, sizes: SegmentSizes = SegmentSizes()) -> None:
        self.sizes = sizes
        self._storage = storage
        # By the hash as well: a key alone would let segments that refer to each other pass as verified.
        self._cached: dict[FileHandle, RetainedSegment] = {}
        self._previous: dict[FileHandle, RetainedSegment] = {}

    def read(self, entry: LogEntry) -> list[EntryRef]:
        """Returns the checkpoints that the entry retains, oldest first. Raises MissingFile or CorruptFile."""
        visited: dict[FileHandle, RetainedSegment] = {}
        parts = [list_inline_refs(entry)]
        for link, segment in self._segments(entry):
            visited[link.handle] = segment
            parts.append(_within(segment, link.newest, entry.oldest_retained))
        # The segments of two reads are cached: another thread may read an older entry at the same time.
        self._previous, self._cached = self._cached, visited
        return list(chain.from_iterable(reversed(parts)))

    def segment_handles(self, entry: LogEntry) -> list[FileHandle]:
        """Returns the handles of the segments that the entry needs, newest first. Raises as `read`."""
        return [link.handle for link, _ in self._segments(entry)]

    def store_segments(self, entry: LogEntry, newest: EntryRef | None, folder: str, oldest: int) -> RetainedLink | None:
        """Stores the list of the entry after `entry` in segments when it is too long for the entry itself.

        Args:
            entry: the entry before.
            newest: the current checkpoint of `entry`, which the next entry retains as well.
            folder: folder of the next entry's own data files.
            oldest: id of the first checkpoint that is still retained.

        Returns a link to the newest segment, or None when the list fits into the entry. Raises StorageError,
        MissingFile or CorruptFile.
        """
        refs = [ref for ref in [*list_inline_refs(entry), *([newest] if newest else [])] if ref.id >= oldest]
        if len(refs) <= self.sizes.inline:
            return None
        moved, before = self._content_to_move(entry, oldest)
        return self._write_segments([*moved, *refs], before, folder)

    def _content_to_move(self, entry: LogEntry, oldest: int) -> tuple[list[EntryRef], RetainedLink | None]:
        """Returns the checkpoints of segments that are not full, and the link to the first full segment before them.

        A segment is not full when it was written so, or when a restore has dropped some of its checkpoints.
        """
        for link, segment in self._segments(replace(entry, oldest_retained=max(oldest, entry.oldest_retained))):
            retained = _within(segment, link.newest, oldest)
            if len(retained) >= self.sizes.segment:
                return [], link
            if retained:
                return retained, cut_after(segment.before, link.newest)
        return [], None

    def _write_segments(self, refs: list[EntryRef], before: RetainedLink | None, folder: str) -> RetainedLink | None:
        for number, start in enumerate(range(0, len(refs), self.sizes.segment)):
            part = refs[start : start + self.sizes.segment]
            segment = RetainedSegment(refs=part, before=before)
            handle = write_document(self._storage, f"{folder}retained-{number}.json", segment)
            self._cached[handle] = segment
            before = RetainedLink(handle=handle, newest=part[-1].id)
        return before

    def _segments(self, entry: LogEntry) -> Iterator[tuple[RetainedLink, RetainedSegment]]:
        link = entry.retained_before
        stored = None
        while link is not None and link.newest >= entry.oldest_retained:
            segment = self._segment(link.handle)
            yield link, segment
            stored = _check_older(link.handle, segment.before, stored)
            link = cut_after(segment.before, link.newest)

    def _segment(self, handle: FileHandle) -> RetainedSegment:
        segment = self._cached.get(handle) or self._previous.get(handle)
        if segment is None:
            segment = read_document(self._storage, handle, RetainedSegment)
            for ref in segment.refs:
                if not is_timestamp(ref.at):
                    raise CorruptFile(
                        "a list of checkpoints contains a time that is not valid", file=handle.key, time=ref.at[:100]
                    )
            self._cached[handle] = segment
        return segment


def _check_older(handle: FileHandle, before: RetainedLink | None, newer: int | None) -> int | None:
    """Returns the newest checkpoint of the segment before, as stored; `newer` is that of the segment itself.

    A restore cuts links in the log entry only, so stored numbers decrease, and a chain of segments ends. Raises
    CorruptFile when they do not.
    """
    if before is not None and newer is not None and before.newest >= newer:
        raise CorruptFile(
            "a list of retained checkpoints refers to a list that is not older",
            hint="restore the file from a copy, or restore a savepoint in a new job root",
            file=handle.key,
            newest=newer,
            newest_before=before.newest,
        )
    return before.newest if before is not None else None


def cut_after(link: RetainedLink | None, newest: int) -> RetainedLink | None:
    """Returns the link without checkpoints above `newest`."""
    return link and replace(link, newest=min(link.newest, newest))


def _within(segment: RetainedSegment, newest: int, oldest: int) -> list[EntryRef]:
    # Every COMMIT reads all segments, so this avoids looking at each checkpoint.
    refs, by_id = segment.refs, attrgetter("id")
    if refs and oldest <= refs[0].id and refs[-1].id <= newest:
        return refs
    return refs[bisect_left(refs, oldest, key=by_id) : bisect_right(refs, newest, key=by_id)]


@dataclass(frozen=True)
class OutputSizes:
    """Size limits of the lists of committables, in bytes of JSON.

    Attributes:
        inline: maximum size of a checkpoint's list in the log entry.
        part: approximate size of one object of a longer list.
    """

    inline: int = 256 << 10
    part: int = 8 << 20


class OutputLists:
    """Stores and reads the committables of pending output, and caches them until they are published."""

    def __init__(self, storage: Storage, sizes: OutputSizes = OutputSizes()) -> None:
        self.sizes = sizes
        self._storage = storage
        self._cached: dict[str, list[Committable]] = {}

    def store(self, folder: str, name: str, output: list[PendingOutput]) -> list[PendingOutput]:
        """Returns the output as a log entry contains it, after storing lists that are too long for an entry.

        Args:
            folder: data folder of the checkpoint's barrier.
            name: prefix of the objects' names, not used before in this folder.
            output: the output with its committables.

        Raises TooLarge or StorageError.
        """
        if sum(_size(c) for p in output for c in p.committables) <= self.sizes.inline:
            return output
        stored, number = [], 0
        for pending in output:
            parts = []
            for chunk in _chunks(pending.committables, self.sizes.part):
                key = f"{folder}{name}-{number}.json"
                number += 1
                parts.append(write_document(self._storage, key, OutputPart(committables=chunk)))
                self._cached[key] = chunk
            stored.append(replace(pending, committables=[], parts=parts))
        return stored

    def read(self, pending: PendingOutput) -> list[Committable]:
        """Returns the committables of pending output. Raises MissingFile or CorruptFile."""
        return [*pending.committables, *(c for part in pending.parts for c in self._part(part))]

    def keep_only(self, pending: Iterable[PendingOutput]) -> None:
        """Drops the cached lists of all other output."""
        pending_keys = {part.key for p in pending for part in p.parts}
        self._cached = {key: files for key, files in self._cached.items() if key in pending_keys}

    def _part(self, handle: FileHandle) -> list[Committable]:
        committables = self._cached.get(handle.key)
        if committables is None:
            committables = read_document(self._storage, handle, OutputPart).committables
            self._cached[handle.key] = committables
        return committables


def _chunks(committables: list[Committable], size: int) -> Iterator[list[Committable]]:
    chunk: list[Committable] = []
    filled = 0
    for committable in committables:
        chunk.append(committable)
        filled += _size(committable)
        if filled >= size:
            yield chunk
            chunk, filled = [], 0
    if chunk:
        yield chunk


def _size(committable: Committable) -> int:
    return len(msgspec.json.encode(committable))
