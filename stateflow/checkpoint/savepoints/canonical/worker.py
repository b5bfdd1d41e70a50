"""A worker of savepoints: its tasks, and the main program of its process.

The program reads `WorkerTask`s from standard input, and answers each with a `WorkerResult`. Its argument is the id of
the parent process. A task is a line; an answer follows its length.
"""

from __future__ import annotations

import base64
import os
import select
import struct
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow.compute as pc

from stateflow.checkpoint.barriers import Failure
from stateflow.checkpoint.savepoints.canonical.buckets import NewSubtask, divide_into_buckets, read_sorted_entries
from stateflow.checkpoint.savepoints.canonical.writer import (
    Destination,
    LocalCopies,
    Shard,
    Storages,
    store_files,
    write_share,
)
from stateflow.errors import CorruptFile, DataError, StateflowError
from stateflow.private_files import ScratchFolder
from stateflow.process_limits import end_with_parent, isolate, time_limits
from stateflow.state.backends.canonical_file import CanonicalHeader, encode_file_of_columns
from stateflow.state.backends.entry_stream import EntryBlock, EntryColumns
from stateflow.state.handles import Document, StateFile
from stateflow.state.kinds.keyed_state import state_names
from stateflow.state.stored_key import KEY_OFFSET, STATE_PART, TIMER_IDS
from stateflow.storage import open_storage
from stateflow.types.decoders import msgpack_decoder
from stateflow.types.key_encoding import decode_key


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
        """See `divide_into_buckets`; returns nothing."""
        divide_into_buckets(self.share, self.subtasks, storages.entries, Path(self.folder))
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
                encode_file_of_columns(subtask.header, self._entries(subtask, folders, scratch.path))
                for subtask in self.subtasks
            ]
            return store_files(encoded, storages.target, self.to, scratch.path)

    def _entries(self, subtask: NewSubtask, folders: Sequence[Path], scratch: Path) -> Iterator[EntryColumns]:
        parts = read_sorted_entries(subtask, folders, scratch)
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
    """The task of one worker, in another process."""

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

    def get_files(self) -> list[StateFile]:
        """Returns the files; raises the error of a task that failed."""
        if self.failure:
            raise self.failure.to_error()
        return self.files


def without_duplicates(header: CanonicalHeader, parts: Iterable[EntryColumns]) -> Iterator[EntryColumns]:
    """Yields the entries unchanged, but a timer that occurs several times only once.

    Args:
        header: the states of the operator.
        parts: the entries, in ascending order of keys; no part is empty.

    Raises:
        DataError: a key of a state occurs twice.
    """
    last = b""
    for entries in parts:
        keys, before = entries.keys, last
        last = keys[len(keys) - 1].as_py()
        if keys[0].as_py() == before or pc.any(pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1))).as_py():
            entries = _of_distinct_keys(header, entries.block(), before)
        if len(entries):
            yield entries


def _of_distinct_keys(header: CanonicalHeader, block: EntryBlock, last: bytes) -> EntryColumns:
    keys: list[bytes] = []
    values: list[bytes] = []
    timers = set(TIMER_IDS.values())
    for key, value in zip(block.keys, block.values, strict=True):
        if key != last:
            keys.append(key)
            values.append(value)
        elif key[STATE_PART] not in timers:
            raise _duplicate(header, key)
        last = key
    return EntryColumns.of(keys, values)


def _duplicate(header: CanonicalHeader, stored: bytes) -> DataError:
    schema = state_names(header.states).get(stored[STATE_PART])
    try:
        parts = decode_key(stored[KEY_OFFSET:])
    except CorruptFile:
        parts = (stored.hex()[:200],)
    columns = len(header.key_types)
    facts = {"map_key": repr(parts[columns + 1])[:200]} if len(parts) > columns + 1 else {}
    return DataError(
        "two rows have the same key",
        hint="aggregate the rows of a key, or drop duplicates, before the state is written",
        operator=header.uid,
        state=schema.name if schema else "",
        key=repr(parts[:columns])[:300],
        **facts,
    )


LENGTH = struct.Struct(">I")
"""Header of an answer of the program: the number of its bytes."""
_LOW_PRIORITY = 10
_MEMORY_BYTES = 2 << 30
_CPU_SECONDS, _CPU_SECONDS_PER_MIB = 60, 10
"""A thousand times what writing takes: only a forged file that makes RocksDB loop exceeds it."""
_SECONDS, _SECONDS_PER_MIB = 3600, 60
"""RocksDB can block without end when an allocation fails."""


def main(parent: int) -> None:
    """Does tasks until standard input ends, or the parent process does."""
    end_with_parent(parent)
    os.nice(_LOW_PRIORITY)
    # What libraries print must not get into the results.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    threading.Thread(target=_exit_with_input, daemon=True).start()
    isolate(_MEMORY_BYTES)
    copies = LocalCopies()
    for line in sys.stdin.buffer:
        task = msgpack_decoder(WorkerTask).decode(base64.b64decode(line))
        mebibytes = task.work.size() >> 20
        cpu_seconds = _CPU_SECONDS + mebibytes * _CPU_SECONDS_PER_MIB
        with time_limits(cpu_seconds, _SECONDS + mebibytes * _SECONDS_PER_MIB):
            result = msgspec.msgpack.encode(task.run(copies))
        answers.write(LENGTH.pack(len(result)) + result)
        answers.flush()
    os._exit(0)


def _exit_with_input() -> None:
    """Ends this process when its standard input ends, also during a task: a parent that closes it needs no result."""
    ended = select.poll()
    # Without an event, `poll` returns only when standard input ends, also if it still contains a task.
    ended.register(0, 0)
    ended.poll()
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
