"""Writes the keyed state of a checkpoint in the canonical format, which is independent of state backends.

`shares_of` divides this work among workers.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self, TypeVar

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.clock import SystemClock
from stateflow.config.settings import RocksDBSettings, SavepointSettings
from stateflow.private_files import ScratchFolder, local_disk_errors, open_private
from stateflow.state.backends import canonical_file
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.backends.factory import StoreLocation, read_blocks
from stateflow.state.handles import CANONICAL, Base, Document, FileHandle, FilePart, StateFile, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.storage import Storage
from stateflow.storage.paths import SAVEPOINT_FILES
from stateflow.types.key_groups import KeyGroupRange


class Destination(Document, frozen=True, kw_only=True):
    """Where workers write."""

    folder: str
    """Prefix of the savepoint's keys, which its document does not have."""
    prefix: str = SAVEPOINT_FILES
    """Prefix of the files' keys in the savepoint."""


class LocalCopies:
    """The local files of the subtask whose state was read last: its next shard may need the same ones.

    Local disk has the files of one subtask, without those that only other key groups need: those of all subtasks would
    need as much as the whole state.
    """

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._folder: ScratchFolder | None = None
        self._content: tuple[str, SubtaskState] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def entries(self, shard: Shard, source: Storage) -> Iterator[EntryBlock]:
        """Yields the entries of a shard in order of keys, in blocks; raises MissingFile and CorruptFile.

        Args:
            shard: the shard.
            source: the storage with its files.
        """
        folder = self._folder_for(shard, source)
        cache = HostCache.direct(folder / "cache", source, self._clock)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            location = StoreLocation(Path(work) / "store", cache, RocksDBSettings())
            yield from read_blocks(location, Base(shard.state.subtask, shard.groups, (shard.state,)))

    def _folder_for(self, shard: Shard, source: Storage) -> Path:
        wanted = (source.uri, shard.state)
        if self._folder is None or wanted != self._content:
            self._remove()
            self._folder = ScratchFolder()
            self._content = wanted
        return self._folder.path

    def _remove(self) -> None:
        if self._folder is not None:
            self._folder.remove()
            self._folder = None


@dataclass(frozen=True)
class Storages:
    """Where work reads and writes.

    Attributes:
        source: the storage with the checkpoint's files.
        copies: the local files of the source.
        target: the storage of the savepoint.
    """

    source: Storage
    copies: LocalCopies
    target: Storage

    def entries(self, shard: Shard) -> Iterator[EntryBlock]:
        """See `LocalCopies.entries`."""
        return self.copies.entries(shard, self.source)


def write_share(share: Sequence[Shard], storages: Storages, to: Destination) -> list[StateFile]:
    """Writes the shards of one worker one after the other into one object of the savepoint.

    The checkpoint must be pinned. Memory is that of one block and one open store, whatever the size of the state; local
    disk has the copies, and one file of the savepoint.

    Args:
        share: the shards.
        storages: the checkpoint and the savepoint.
        to: prefixes of the object's key.

    Returns:
        The canonical file of each shard, with keys relative to the savepoint's folder. Its name in the store has to be
        replaced by one that is unique within the subtask.

    Raises:
        MissingFile, CorruptFile: a file of the checkpoint is missing or damaged.
    """
    with ScratchFolder() as scratch:
        encoded = [canonical_file.encode_file(shard.header, storages.entries(shard)) for shard in share]
        return store_files(encoded, storages.target, to, scratch.path)


def store_files(files: Sequence[Iterable[bytes]], target: Storage, to: Destination, scratch: Path) -> list[StateFile]:
    """Stores files as one object, whose key is derived from the content; returns them.

    Args:
        files: each file in chunks.
        target: the storage.
        to: prefixes of the object's key.
        scratch: a local folder.

    Raises:
        StorageError: the storage or the local disk failed.
    """
    path = scratch / "object"
    parts: list[FilePart] = []
    whole = _Digest()
    with local_disk_errors(path), open_private(path, must_create=True) as file:
        for chunks in files:
            part = _Digest()
            for chunk in chunks:
                for digest in (whole, part) if len(files) > 1 else (whole,):
                    digest.update(chunk)
                file.write(chunk)
            parts.append(FilePart(offset=whole.size - part.size, size=part.size, sha256=part.sha256))
    handle = FileHandle(key=f"{to.prefix}{whole.sha256}", size=whole.size, sha256=whole.sha256)
    failpoints.hit("savepoint.share")
    target.put_file(f"{to.folder}{handle.key}", path)
    path.unlink()
    if len(files) == 1:
        return [StateFile(handle=handle, local_name=CANONICAL)]
    return [StateFile(handle=handle, local_name=CANONICAL, part=part) for part in parts]


class _Digest:
    """The SHA-256 and the size of data."""

    def __init__(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()

    def update(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self._sha256.update(chunk)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


def with_canonical_files(
    manifest: Manifest, shards: Sequence[Shard], files: Sequence[StateFile]
) -> list[list[SubtaskState]]:
    """Returns the states of each operator's subtasks, in canonical files.

    Args:
        manifest: the checkpoint's manifest.
        shards: all shards, as `shards_of` returns them.
        files: the canonical file of each shard.
    """
    written: dict[tuple[int, int], list[StateFile]] = {}
    for shard, file in zip(shards, files, strict=True):
        of_subtask = written.setdefault((shard.operator, shard.state.subtask), [])
        of_subtask.append(replace(file, local_name=f"{CANONICAL}-{len(of_subtask)}"))
    return [
        [replace_files(state, written.get((index, state.subtask), [])) for state in operator.subtasks]
        for index, operator in enumerate(manifest.operators)
    ]


def replace_files(state: SubtaskState, files: list[StateFile]) -> SubtaskState:
    """Returns the state of a subtask in canonical files."""
    content = hashlib.sha256("".join(file.sha256 for file in files).encode()).hexdigest()
    return replace(
        state, snapshot=f"{CANONICAL}-{content}", backend=CANONICAL, files=files, inline=None, store_manifest=b""
    )


T = TypeVar("T")
WORTH_A_WORKER = 16 << 20
"""Bytes of state below which another worker costs more time than it saves."""


class Shard(Document, frozen=True, kw_only=True):
    """A range of key groups of one subtask's state, which becomes one canonical file."""

    operator: int
    """Index of the operator in the manifest."""
    header: CanonicalHeader
    """Header of the file, with the operator and the key groups."""
    state: SubtaskState
    """The state of the subtask."""
    bytes: int
    """Size of the state that it reads; a part of the subtask's size."""

    @property
    def groups(self) -> KeyGroupRange:
        """The key groups to write."""
        return KeyGroupRange(self.header.first_group, self.header.last_group)


def shards_of(manifest: Manifest, max_parallelism: int, settings: SavepointSettings) -> list[Shard]:
    """Returns the shards of all keyed state, in order of operators, subtasks and key groups.

    A subtask has min(⌈size / worker_bytes⌉, max_workers) shards of contiguous key groups; one without entries has none.
    """
    return [
        shard
        for index, operator in enumerate(manifest.operators)
        for state in operator.subtasks
        if state.files or state.inline
        for shard in _shards(index, operator, state, max_parallelism, settings)
    ]


def _shards(
    index: int, operator: OperatorState, state: SubtaskState, max_parallelism: int, settings: SavepointSettings
) -> Iterator[Shard]:
    workers = min(-(-state.size_bytes // settings.worker_bytes), settings.max_workers)
    ranges = divide_key_groups(state.groups, max(1, workers))
    for groups in ranges:
        header = CanonicalHeader(
            uid=operator.uid,
            key_types=operator.key_types,
            max_parallelism=max_parallelism,
            first_group=groups.first,
            last_group=groups.last,
            states=operator.states,
        )
        yield Shard(operator=index, header=header, state=state, bytes=state.size_bytes // len(ranges))


def divide_key_groups(groups: KeyGroupRange, count: int) -> list[KeyGroupRange]:
    """Returns `count` contiguous ranges of about equal length; fewer if there are fewer key groups.

    Key groups 1 to 100 in three are 1 to 33, 34 to 66, and 67 to 100.
    """
    size = groups.last - groups.first + 1
    count = min(count, size)
    bounds = [groups.first + size * number // count for number in range(count + 1)]
    return [KeyGroupRange(first, after - 1) for first, after in pairwise(bounds)]


def shares_of(shards: Iterable[Shard], worth_a_worker: int = WORTH_A_WORKER) -> list[list[Shard]]:
    """Returns what each worker writes: one large shard, or small ones that follow each other.

    Args:
        shards: all shards.
        worth_a_worker: total size up to which small shards share a worker, in bytes.
    """
    shares: list[list[Shard]] = []
    size = 0
    for shard in shards:
        if not shares or size + shard.bytes > worth_a_worker:
            shares.append([])
            size = 0
        shares[-1].append(shard)
        size += shard.bytes
    return shares


def divide_evenly(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Returns the items in at most `parts` contiguous groups of about equal number, none of them empty."""
    parts = min(parts, len(items))
    bounds = [len(items) * number // parts for number in range(parts + 1)] if parts else []
    return [items[first:after] for first, after in pairwise(bounds)]
