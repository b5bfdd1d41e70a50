"""What the workers of savepoints do, in a form that is sent to other processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from stateflow.checkpoint.barrier.task_report import Failure
from stateflow.checkpoint.savepoints.canonical.duplicates import without_duplicates
from stateflow.checkpoint.savepoints.canonical.rekey import NewSubtask, divide, sorted_entries
from stateflow.checkpoint.savepoints.canonical.shares import Shard
from stateflow.checkpoint.savepoints.canonical.writer import (
    Destination,
    LocalCopies,
    Storages,
    store_files,
    write_share,
)
from stateflow.errors import StateflowError
from stateflow.scratch_folder import ScratchFolder
from stateflow.state.backends.canonical_columns import encode_columns
from stateflow.state.backends.entry_columns import EntryColumns
from stateflow.state.handles import Document, StateFile
from stateflow.storage import open_storage


class WriteShare(Document, frozen=True, kw_only=True, tag=True):
    """Writes shards in the canonical format."""

    share: list[Shard]
    to: Destination

    def run(self, storages: Storages) -> list[StateFile]:
        """See `write_share`."""
        return write_share(self.share, storages, self.to)

    def size(self) -> int:
        """Returns how much stored state it reads, in bytes; its time limits follow from that."""
        return _size(self.share)

    def stored_files(self) -> list[str]:
        """Returns the keys of the stored files that it reads, for errors."""
        return _stored_files(self.share)


class DivideShare(Document, frozen=True, kw_only=True, tag=True):
    """Divides the entries of shards among the buckets of new subtasks."""

    share: list[Shard]
    subtasks: list[NewSubtask]
    """All new subtasks."""
    folder: str
    """Local folder of this worker."""

    def run(self, storages: Storages) -> list[StateFile]:
        """See `divide`; returns nothing."""
        divide(self.share, self.subtasks, storages.entries, Path(self.folder))
        return []

    def size(self) -> int:
        """See `WriteShare.size`."""
        return _size(self.share)

    def stored_files(self) -> list[str]:
        """See `WriteShare.stored_files`."""
        return _stored_files(self.share)


class SortBuckets(Document, frozen=True, kw_only=True, tag=True):
    """Sorts the buckets of new subtasks, and writes their canonical files."""

    subtasks: list[NewSubtask]
    folders: list[str]
    """Local folders of the workers that have divided entries."""
    to: Destination
    of_rows: bool = False
    """Whether the entries come from rows of a user, of which two may have the same key."""

    def run(self, storages: Storages) -> list[StateFile]:
        """Returns the file of each subtask."""
        folders = [Path(folder) for folder in self.folders]
        with ScratchFolder() as scratch:
            encoded = [
                encode_columns(subtask.header, self._entries(subtask, folders, scratch.path))
                for subtask in self.subtasks
            ]
            return store_files(encoded, storages.target, self.to, scratch.path)

    def _entries(self, subtask: NewSubtask, folders: Sequence[Path], scratch: Path) -> Iterator[EntryColumns]:
        parts = sorted_entries(subtask, folders, scratch)
        return without_duplicates(subtask.header, parts) if self.of_rows else parts

    def size(self) -> int:
        """Returns the size of all buckets, in bytes, of which it reads a part."""
        files = (path for folder in self.folders for path in Path(folder).rglob("*"))
        return sum(path.stat().st_size for path in files if path.is_file())

    def stored_files(self) -> list[str]:
        """Returns nothing: it reads only buckets, which workers wrote on this host."""
        return []


Work = WriteShare | DivideShare | SortBuckets


def _size(share: Sequence[Shard]) -> int:
    return sum(file.size for shard in share for file in shard.state.files)


def _stored_files(share: Sequence[Shard]) -> list[str]:
    return sorted({file.handle.key for shard in share for file in shard.state.files})


class WorkerTask(Document, frozen=True, kw_only=True):
    """What one worker does, in another process."""

    source: str
    """URI of the storage with the checkpoint's files."""
    target: str
    """URI of the storage of the savepoint."""
    work: Work

    def run(self, copies: LocalCopies) -> WorkerResult:
        """Does the work, and returns its files or its error; `copies` are those of the process."""
        try:
            storages = Storages(open_storage(self.source), copies, open_storage(self.target))
            return WorkerResult(files=self.work.run(storages))
        except StateflowError as e:
            return WorkerResult(failure=Failure.of(e))


class WorkerResult(Document, frozen=True, kw_only=True):
    """The files that a worker has written, or why it failed."""

    files: list[StateFile] = []
    failure: Failure | None = None

    def stored(self) -> list[StateFile]:
        """Returns the files; raises the error of a task that failed."""
        if self.failure:
            raise self.failure.to_error()
        return self.files
