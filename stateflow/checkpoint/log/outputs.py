"""Output that waits to be published: small lists in the log entry, large ones in immutable objects that it names.

A checkpoint can bring a hundred thousand files. They are stored once, before its COMMIT, in the data folder of its
barrier; each entry that carries the output on names the same objects. ``docs/design/0022`` has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from stateflow.checkpoint.documents import OutputPart, PendingOutput
from stateflow.checkpoint.files import read_document, write_document
from stateflow.state.handles import Committable, FileHandle
from stateflow.storage import Storage


@dataclass(frozen=True)
class OutputSizes:
    """Where a checkpoint's committables are stored, in bytes of JSON.

    Attributes:
        inline: up to so many are in the log entry.
        part: an object has about so many.
    """

    inline: int = 256 << 10
    part: int = 8 << 20


class OutputLists:
    """Stores and reads the committables of pending output; remembers those that are not published yet."""

    def __init__(self, storage: Storage, sizes: OutputSizes = OutputSizes()) -> None:
        self.sizes = sizes
        self._storage = storage
        self._known: dict[str, list[Committable]] = {}

    def stored(self, folder: str, name: str, output: list[PendingOutput]) -> list[PendingOutput]:
        """The output as a log entry names it; what is too large for one is stored first.

        Args:
            folder: of the data files of the checkpoint's barrier.
            name: of the objects, to which a number is added; not used before in this folder.

        Raises TooLarge or StorageError.
        """
        if sum(_size(c) for p in output for c in p.committables or []) <= self.sizes.inline:
            return output
        outside, number = [], 0
        for pending in output:
            parts = []
            for chunk in _chunks(pending.committables or [], self.sizes.part):
                key = f"{folder}{name}-{number}.json"
                number += 1
                parts.append(write_document(self._storage, key, OutputPart(committables=chunk)))
                self._known[key] = chunk
            outside.append(replace(pending, committables=None, parts=parts))
        return outside

    def read(self, pending: PendingOutput) -> list[Committable]:
        """The files of pending output. Raises MissingFile or CorruptFile."""
        inline = pending.committables or []
        return [*inline, *(c for part in pending.parts for c in self._part(part))]

    def keep_only(self, pending: Iterable[PendingOutput]) -> None:
        """Forgets the lists of all other output."""
        carried = {part.key for p in pending for part in p.parts}
        self._known = {key: files for key, files in self._known.items() if key in carried}

    def _part(self, handle: FileHandle) -> list[Committable]:
        known = self._known.get(handle.key)
        if known is None:
            known = read_document(self._storage, handle, OutputPart).committables
            self._known[handle.key] = known
        return known


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
