"""Open data files of a snapshot, of which parts are read from storage."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from stateflow.compare.shared_files.file_sets import DataFile
from stateflow.errors import CorruptFile
from stateflow.state.backends.rocksdb.tables.reader import DeletedRange, KeyRange, PartFile, TableEntry, TableReader
from stateflow.state.handles import check_position
from stateflow.storage import Storage
from stateflow.storage.paths import check_key

MOST_OPEN = 64
"""Number of shared files that are open at a time."""


class OpenFiles:
    """Data files that are open until the end of a ``with`` block, or until too many others were opened.

    The index of an open file is in memory. No file is read as a whole, so its SHA-256 is not verified; the checksum of
    each block that is read is.

    Args:
        storage: the storage with the files.
        most_open: number of files that are open at a time; None for any number.
    """

    def __init__(self, storage: Storage, most_open: int | None = None) -> None:
        self._storage = storage
        self._most_open = most_open
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._closed_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._open:
            self._close_oldest()

    @property
    def read_bytes(self) -> int:
        """Bytes that were read."""
        return self._closed_bytes + sum(each.parts.read_bytes for each in self._open.values())

    def entries(self, file: DataFile, ranges: Sequence[KeyRange]) -> Iterator[TableEntry]:
        """Yields the entries in some ranges in order of keys; raises as `deleted_ranges`."""
        with _translated(file):
            yield from self._opened(file).table.entries(ranges)

    def deleted_ranges(self, file: DataFile) -> list[DeletedRange]:
        """Returns the deleted ranges of a file.

        Raises:
            MissingFile: the file does not exist.
            CorruptFile: it is damaged.
        """
        with _translated(file):
            return self._opened(file).table.deleted_ranges

    def _opened(self, file: DataFile) -> _OpenFile:
        name = file.stored.sha256
        if name not in self._open:
            self._open[name] = _OpenFile(self._storage, file)
        self._open.move_to_end(name)
        while self._most_open is not None and len(self._open) > self._most_open:
            self._close_oldest()
        return self._open[name]

    def _close_oldest(self) -> None:
        _, oldest = self._open.popitem(last=False)
        self._closed_bytes += oldest.parts.read_bytes
        oldest.stack.close()


class _OpenFile:
    def __init__(self, storage: Storage, file: DataFile) -> None:
        stored, part = file.stored, file.stored.part
        offset = 0
        if part is not None:
            check_position(stored.handle, part)
            offset = part.offset
        with ExitStack() as stack:
            read = stack.enter_context(storage.open_parts(check_key(stored.handle.key)))
            self.parts = PartFile(lambda at, size: read(offset + at, size))
            self.table = TableReader(self.parts, stored.size, file.largest_sequence, storage.part_gap)
            self.stack = stack.pop_all()


@contextmanager
def _translated(file: DataFile) -> Iterator[None]:
    try:
        yield
    except ValueError as e:
        raise CorruptFile(
            "a data file of a snapshot is damaged",
            hint="restore an older checkpoint",
            file=file.stored.handle.key,
            reason=str(e)[:300],
        ) from e
