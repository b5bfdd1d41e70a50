"""What the workers of savepoints do, in a form that is sent to other processes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from stateflow.checkpoint.barrier.task_report import Failure
from stateflow.checkpoint.savepoints.canonical.rekey import NewSubtask, divide, sorted_entries
from stateflow.checkpoint.savepoints.canonical.shares import Shard
from stateflow.checkpoint.savepoints.canonical.writer import Destination, shard_entries, store_files, write_share
from stateflow.clock import SystemClock
from stateflow.errors import StateflowError
from stateflow.state.backends import canonical_file
from stateflow.state.handles import Document, StateFile
from stateflow.storage import Storage, open_storage


class WriteShare(Document, frozen=True, kw_only=True, tag=True):
    """Writes shards in the canonical format."""

    share: list[Shard]
    to: Destination

    def run(self, source: Storage, target: Storage) -> list[StateFile]:
        """See `write_share`."""
        return write_share(self.share, source, target, self.to)


class DivideShare(Document, frozen=True, kw_only=True, tag=True):
    """Divides the entries of shards among the buckets of new subtasks."""

    share: list[Shard]
    subtasks: list[NewSubtask]
    """All new subtasks."""
    folder: str
    """Local folder of this worker."""

    def run(self, source: Storage, _: Storage) -> list[StateFile]:
        """See `divide`; returns nothing."""
        clock = SystemClock()
        with tempfile.TemporaryDirectory(prefix="stateflow-savepoint-") as scratch:
            divide(
                self.share,
                self.subtasks,
                lambda shard: shard_entries(shard, source, Path(scratch), clock),
                Path(self.folder),
            )
        return []


class SortBuckets(Document, frozen=True, kw_only=True, tag=True):
    """Sorts the buckets of new subtasks, and writes their canonical files."""

    subtasks: list[NewSubtask]
    folders: list[str]
    """Local folders of the workers that have divided entries."""
    to: Destination

    def run(self, _: Storage, target: Storage) -> list[StateFile]:
        """Returns the file of each subtask."""
        folders = [Path(folder) for folder in self.folders]
        with tempfile.TemporaryDirectory(prefix="stateflow-savepoint-") as scratch:
            encoded = [
                canonical_file.encode(subtask.header, sorted_entries(subtask, folders, Path(scratch)))
                for subtask in self.subtasks
            ]
            return store_files(encoded, target, self.to, Path(scratch))


class WorkerTask(Document, frozen=True, kw_only=True):
    """What one worker does, in another process."""

    source: str
    """URI of the storage with the checkpoint's files."""
    target: str
    """URI of the storage of the savepoint."""
    work: WriteShare | DivideShare | SortBuckets

    def run(self) -> WorkerResult:
        """Does the work, and returns its files or its error."""
        try:
            return WorkerResult(files=self.work.run(open_storage(self.source), open_storage(self.target)))
        except StateflowError as e:
            return WorkerResult(failure=Failure.of(e))


class WorkerResult(Document, frozen=True, kw_only=True):
    """The files that a worker has written, or why it failed."""

    files: list[StateFile] = []
    failure: Failure | None = None
