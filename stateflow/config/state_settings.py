"""Settings of state: backend, RocksDB, limits of entries, and the sort of a task's input; and checks of values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import timedelta

from stateflow.errors import ConfigError

COMPACTIONS = ("universal", "leveled")
BACKENDS = ("rocksdb", "filesystem", "memory")
LARGEST_INLINE = 1 << 20
LARGEST_SORT = 1 << 31
LARGEST_MEMORY_STATE = 24 << 20
"""A manifest has at most 48 MiB; state in it is base64-encoded, and it has other contents as well."""
_INLINE_TOTAL = 16 << 20
LARGEST_KEY = 1 << 20
LARGEST_VALUE = 16 << 20
"""Upper bounds of the limits for entries. They bound the blocks of data files, and so the memory in which stores from
elsewhere are checked."""


@dataclass(frozen=True)
class EntryLimits:
    """The largest entries that functions may write; stored entries may be larger.

    Attributes:
        key_bytes: size of an encoded key.
        map_key_bytes: size of an encoded key of a map.
        value_bytes: size of one encoded value: a value, an element of a list, a value of a map, or an accumulator.
    """

    key_bytes: int = 64 << 10
    map_key_bytes: int = 64 << 10
    value_bytes: int = 16 << 20


@dataclass(frozen=True)
class StateSettings:
    """State backend choice, limits and TTL cleanup.

    Attributes:
        backend: state backend: ``rocksdb``, ``filesystem`` or ``memory``; see [state backends](#state-backends). It can
            be changed: state of another backend is converted.
        incremental: RocksDB stores only the files that the previous checkpoint does not have. Flink's name
            ``state.backend.incremental`` is accepted; in a TOML file it needs quotes: ``"backend.incremental"`` in
            ``[state]``.
        memory_limit_bytes: maximum state of the memory backend, over all operators and subtasks; a batch that ends with
            more fails. At most 24 MiB.
        inline_below_bytes: the filesystem backend stores state of a subtask that is smaller in the manifest instead of
            a file. At most 1 MiB, and at most 16 MiB divided by the number of all subtasks.
        ttl_cleanup_interval: how often subtasks without rows remove expired entries of states with a time to live in
            processing time, if there are any, in a run that waits for input. While no input arrives, it makes a batch
            without rows for it, in which a subtask processes ten times as many entries.
        cache_limit_bytes: maximum size of the files that a host caches for closed stores, over all jobs. The limit is
            enforced when a store is opened, least recently used files first. Hard links to files of an open store or of
            a job root on the same file system do not count.
        max_key_bytes: maximum size of a key, encoded: a text takes its UTF-8 bytes, two more, and one for each NUL. A
            row with a larger key fails, or becomes a dead letter. At most 1 MiB. See [limits of keys and
            values](#limits-of-keys-and-values).
        max_map_key_bytes: the same for a key of a map state. At most 1 MiB.
        max_value_bytes: maximum size of one encoded value: a value, an element of a list, a value of a map, or an
            accumulator. At most 16 MiB, and less if it takes more than 100 MiB in memory.
    """

    backend: Choice = "rocksdb"
    incremental: bool = True
    memory_limit_bytes: int = 5 << 20
    inline_below_bytes: int = 20 << 10
    ttl_cleanup_interval: timedelta = timedelta(minutes=1)
    cache_limit_bytes: int = 20 << 30
    max_key_bytes: int = EntryLimits.key_bytes
    max_map_key_bytes: int = EntryLimits.map_key_bytes
    max_value_bytes: int = EntryLimits.value_bytes

    def __post_init__(self) -> None:
        check_one_of("state.backend", self.backend, BACKENDS, "state backend")
        why = "state in a manifest is written and read in one piece"
        check_at_most("state.inline_below_bytes", self.inline_below_bytes, LARGEST_INLINE, why)
        check_at_most("state.memory_limit_bytes", self.memory_limit_bytes, LARGEST_MEMORY_STATE, why)
        why = "larger entries could not be checked in bounded memory when they are restored"
        check_at_most("state.max_key_bytes", self.max_key_bytes, LARGEST_KEY, why)
        check_at_most("state.max_map_key_bytes", self.max_map_key_bytes, LARGEST_KEY, why)
        check_at_most("state.max_value_bytes", self.max_value_bytes, LARGEST_VALUE, why)

    @property
    def limits(self) -> EntryLimits:
        """The largest entries that functions may write."""
        return EntryLimits(self.max_key_bytes, self.max_map_key_bytes, self.max_value_bytes)

    @property
    def snapshots_are_full(self) -> bool:
        """Whether each checkpoint of changed state reads and stores all of it."""
        return self.backend != "rocksdb" or not self.incremental

    def shared_by(self, subtasks: int) -> StateSettings:
        """Returns these settings with `inline_below_bytes` so low that the state of all subtasks fits in a manifest."""
        fair = max(1, _INLINE_TOTAL // subtasks)
        return dataclasses.replace(self, inline_below_bytes=min(self.inline_below_bytes, fair))


@dataclass(frozen=True)
class RocksDBSettings:
    """Memory and compaction of RocksDB.

    Attributes:
        write_buffer_bytes: size of the memtable of a store; a second one is filled while the first is written. See
            [memory of a worker](#memory-of-a-worker).
        block_cache_bytes: size of the block cache that all stores of a worker process share, indexes and filters
            included.
        compaction: ``universal`` merges files of similar size, and all files at the size amplification limit;
            ``leveled`` keeps files without overlap on each level and merges a part of them at a time. It can be
            changed: [choose a compaction](guides/choose-compaction.md).
        compact_at_files: number of files that a lookup may have to read which triggers a compaction. It runs in the
            task, before the snapshot, at most once per batch and subtask.
        max_size_amplification_percent: universal compaction merges all files when the size of the others reaches this
            percentage of the largest one.
        level_base_bytes: size of the first level of leveled compaction, in four files; each level below has ten times
            as much.
    """

    write_buffer_bytes: int = 64 << 20
    block_cache_bytes: int = 64 << 20
    compaction: Choice = "universal"
    compact_at_files: int = 12
    max_size_amplification_percent: int = 60
    level_base_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        check_one_of("rocksdb.compaction", self.compaction, COMPACTIONS, "compaction style")


@dataclass(frozen=True)
class ShuffleSettings:
    """Sorting of rows in the tasks after a shuffle.

    Attributes:
        sort_memory_bytes: memory in which a task on Spark sorts its rows; more rows are spilled to unnamed files in
            ``local_dir``. At most 2 GiB. See [memory of a worker](#memory-of-a-worker).
    """

    sort_memory_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        check_at_most(
            "shuffle.sort_memory_bytes",
            self.sort_memory_bytes,
            LARGEST_SORT,
            "sorted rows are one Arrow buffer, whose offsets have 31 bits",
        )


Count = int
"""Annotation of an integer that may be 0; ``int`` is at least 1."""
Delay = timedelta
"""Annotation of a duration that may be zero; ``timedelta`` is positive."""
Choice = str
"""Annotation of an enumerated value. Case is ignored, and underscores equal hyphens, as in Flink's constants."""


EndCondition = str
"""Annotation of ``run.until``; a duration or a time of day is converted to text."""


def check_one_of(name: str, value: str, known: tuple[str, ...], what: str) -> None:
    """Raises ConfigError unless the value is a known one."""
    if value not in known:
        raise ConfigError(f"unknown {what}", hint=f"known: {', '.join(known)}", name=name, value=value)


def check_at_most(name: str, value: int, limit: int, why: str) -> None:
    """Raises ConfigError when the value exceeds the limit."""
    if value > limit:
        raise ConfigError("a setting exceeds its limit", hint=why, name=name, value=value, limit=limit)
