"""The stored entries of one operator in one snapshot, in order of keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from stateflow import failpoints
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.savepoints.canonical.buckets import BucketWriter, bucket_file, read_sorted
from stateflow.checkpoint.savepoints.canonical.shares import divide_key_groups
from stateflow.clock import Clock
from stateflow.config.state_settings import RocksDBSettings
from stateflow.errors import ConfigError, StateError
from stateflow.private_files import make_folders
from stateflow.state.backends.entry_stream import EntryBlock, select_key_groups
from stateflow.state.backends.factory import StoreLocation, read_blocks
from stateflow.state.backends.rocksdb.manifest import StoreManifest
from stateflow.state.backends.rocksdb.rescale import read_store_manifest
from stateflow.state.files.host_cache import HostCache
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.rehash import Rehash
from stateflow.storage import Storage
from stateflow.types.key_groups import KeyGroupRange

_BUCKET_BYTES = 8 << 20
_MOST_BUCKETS = 256


@dataclass(frozen=True)
class Keying:
    """What the key group of a key depends on.

    Attributes:
        key_types: Spark's names of the types of the key columns.
        max_parallelism: number of key groups.
    """

    key_types: tuple[str, ...]
    max_parallelism: int

    @property
    def groups(self) -> KeyGroupRange:
        """All key groups."""
        return KeyGroupRange(0, self.max_parallelism - 1)


@dataclass(frozen=True)
class Side:
    """One operator in one snapshot.

    Attributes:
        storage: the storage with its files.
        operator: the operator.
        max_parallelism: number of key groups.
    """

    storage: Storage
    operator: OperatorState
    max_parallelism: int

    @property
    def keying(self) -> Keying:
        """What its key groups depend on."""
        return Keying(tuple(self.operator.key_types), self.max_parallelism)

    @property
    def subtasks(self) -> list[SubtaskState]:
        """Its subtasks in order of key groups."""
        return sorted(self.operator.subtasks, key=lambda subtask: subtask.first_group)

    @property
    def bytes(self) -> int:
        """Bytes of its keyed state; a file that several subtasks share counts once."""
        files = {file.sha256: file.size for subtask in self.operator.subtasks for file in subtask.files}
        return sum(files.values()) + sum(len(subtask.inline or b"") for subtask in self.operator.subtasks)


@dataclass
class EntryReader:
    """Reads the entries of one snapshot's operators, through a cache of its files on local disk.

    Attributes:
        scratch: a folder for the cache and for open stores; created if it does not exist.
        clock: the clock of the cache.
        siblings: caches of other readers, which may have the same files.
        read_bytes: bytes of the subtasks that were read.
    """

    scratch: Path
    clock: Clock
    siblings: Sequence[Path] = ()
    read_bytes: int = 0
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def cache_folder(self) -> Path:
        """The folder of the cache, for `siblings` of another reader."""
        return self.scratch / "cache"

    def store_manifest(self, side: Side, subtask: SubtaskState) -> StoreManifest | None:
        """Returns the data files of a RocksDB store; None if another backend wrote the state.

        Raises:
            MissingFile, CorruptFile: the manifest is missing or damaged.
        """
        if subtask.backend != "rocksdb":
            return None
        return read_store_manifest(self._cache(side), subtask) if subtask.has_store else StoreManifest((), 0)

    def _cache(self, side: Side) -> HostCache:
        make_folders(self.scratch)
        return HostCache.direct(self.cache_folder, side.storage, self.clock, self.siblings)

    def blocks(self, side: Side, groups: KeyGroupRange) -> Iterator[EntryBlock]:
        """Yields the entries of some key groups.

        Raises:
            MissingFile, CorruptFile: a file is missing or damaged.
        """
        cache = self._cache(side)
        for subtask in side.subtasks:
            if not subtask.groups.overlap(groups):
                continue
            location = StoreLocation(self.scratch / f"store-{next(self._numbers)}", cache, RocksDBSettings())
            self.read_bytes += sum(file.size for file in subtask.files) + len(subtask.inline or b"")
            with closing(read_blocks(location, Base.of(subtask))) as blocks:
                for block in select_key_groups(blocks, groups):
                    failpoints.hit("diff.entries")
                    yield block
            cache.keep_only(())

    def rehashed_blocks(self, side: Side, keying: Keying) -> Iterator[EntryBlock]:
        """Yields all entries with the key groups that they have with another max parallelism, sorted again.

        This needs as much scratch space on disk as the state.

        Raises:
            MissingFile, CorruptFile: a file is missing or damaged.
            ConfigError: the keys are not of the types of `keying`.
        """
        names = [schema.name for schema in side.operator.states]
        buckets = divide_key_groups(keying.groups, max(1, min(_MOST_BUCKETS, side.bytes // _BUCKET_BYTES)))
        folder, sorting = self.scratch / f"buckets-{next(self._numbers)}", self.scratch / "sorting"
        make_folders(sorting)
        rehash = Rehash(keying.key_types, names, keying.max_parallelism)
        writer = BucketWriter(folder, rehash, [bucket.first for bucket in buckets])
        try:
            writer.add(self.blocks(side, side.keying.groups))
        except StateError as e:
            raise _other_key_types(side, keying) from e
        writer.flush()
        for bucket in buckets:
            file = bucket_file(folder, bucket.first)
            yield from read_sorted([file], sorting)
            file.unlink(missing_ok=True)


def check_comparable(old: Side, new: Side) -> None:
    """Raises ConfigError if the keys of the two sides cannot be equal, because their columns have other types."""
    before, after = old.keying.key_types, new.keying.key_types
    if len(before) != len(after) or any(map(_differ, before, after)):
        raise _other_key_types(old, new.keying)


def _differ(old: str, new: str) -> bool:
    return old != new and not any({old, new} <= family for family in _FAMILIES)


_FAMILIES = ({"tinyint", "smallint", "int", "bigint"}, {"float", "double"})
"""Types whose values are encoded in the same way in stored keys, although they have other key groups."""


def _other_key_types(side: Side, keying: Keying) -> ConfigError:
    return ConfigError(
        "the key columns of an operator have other types in the two snapshots",
        hint="compare the other operators only: name them",
        operator=side.operator.uid,
        old=list(side.keying.key_types),
        new=list(keying.key_types),
    )
