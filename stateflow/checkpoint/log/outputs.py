"""Lists of pending output: short lists are stored in the log entry, long ones in immutable objects.

A checkpoint can add a hundred thousand files. Their list is stored once, before the COMMIT, in the data folder of the
barrier; each later entry with the same pending output refers to the same objects. ``docs/design/0022`` has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from stateflow.checkpoint.log.documents import OutputPart, PendingOutput
from stateflow.checkpoint.log.manifest_files import read_document, write_document
from stateflow.state.handles import Committable, FileHandle
from stateflow.storage import Storage


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
        if sum(_size(c) for p in output for c in p.committables or []) <= self.sizes.inline:
            return output
        stored, number = [], 0
        for pending in output:
            parts = []
            for chunk in _chunks(pending.committables or [], self.sizes.part):
                key = f"{folder}{name}-{number}.json"
                number += 1
                parts.append(write_document(self._storage, key, OutputPart(committables=chunk)))
                self._cached[key] = chunk
            stored.append(replace(pending, committables=None, parts=parts))
        return stored

    def read(self, pending: PendingOutput) -> list[Committable]:
        """Returns the committables of pending output. Raises MissingFile or CorruptFile."""
        inline = pending.committables or []
        return [*inline, *(c for part in pending.parts for c in self._part(part))]

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
