"""The interface of state backends, which store keyed state as bytes, and the errors for entries that are too large.

The limits are checked when a function writes, never when it reads: entries that were stored with higher limits stay
readable, and timers of such keys fire.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stateflow.clock import Stopwatch
from stateflow.config.settings import EntryLimits
from stateflow.errors import EntryTooLarge
from stateflow.state.handles import StateFile


@dataclass(frozen=True)
class LiveState:
    """A lower bound of the live entries of a store: those that were neither overwritten nor deleted.

    Attributes:
        entries: the number of live entries is at least this.
        size_bytes: approximate size of so many entries, in bytes.
    """

    entries: int
    size_bytes: int


@dataclass(frozen=True)
class StoreSnapshot:
    """References to the durable content of a store.

    Attributes:
        files: every stored file of the content, including those of the base.
        inline: the whole content, for the manifest; None if it is in files or empty.
        store_manifest: RocksDB's manifest for the files; empty for other backends.
        compaction_bytes: bytes stored only because a compaction rewrote old data.
        live: a lower bound of its live entries; None if it is not known.
    """

    files: tuple[StateFile, ...] = ()
    inline: bytes | None = None
    store_manifest: bytes = b""
    compaction_bytes: int = 0
    live: LiveState | None = field(default=None, compare=False)


class KeyedStateReader(ABC):
    """Reads the entries of a store of bytes by key, for the key groups of one subtask.

    Attributes:
        watch: measures the time in the store; a task sets its own.
    """

    watch = Stopwatch()

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """Returns the value of `key`; None without one."""

    @abstractmethod
    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns the values of many keys, in their order; fastest for sorted keys."""

    @abstractmethod
    def scan_range(self, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Returns the entries with lower <= key < upper in order of keys, as of this call.

        Args:
            lower: the first key.
            upper: the end, exclusive; None for no end.
        """

    def read_range(self, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yields what `scan_range` returns, in less time; nothing may be written before the last one."""
        return self.scan_range(lower, upper)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Returns the entries whose key begins with `prefix` in order of keys, as of this call."""
        return self.scan_range(prefix, after_prefix(prefix))

    @abstractmethod
    def close(self) -> None:
        """Releases local resources; changes since the last snapshot are lost."""


class KeyedStateBackend(KeyedStateReader):
    """A store of bytes by key, for the key groups of one subtask; its constructor restores the base state.

    Every later read sees the changes of `write`. They are durable once a checkpoint with the result of `snapshot` is
    committed.
    """

    @abstractmethod
    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Sets entries, and removes those whose value is None; atomic."""

    @abstractmethod
    def count_entries(self) -> int:
        """Returns the number of entries; an estimate for a backend that is not in memory, in little time."""

    @abstractmethod
    def snapshot(self, name: str, full: bool = False) -> StoreSnapshot:
        """Stores the current content; files of the base may be referenced instead of stored again.

        Args:
            name: prefix for the keys of new objects.
            full: whether to store everything again, without references to files of the base.
        """


def after_prefix(prefix: bytes) -> bytes | None:
    """Returns the smallest key greater than all keys with this prefix; None when there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None


def largest_size(encoded: Iterable[bytes | None]) -> int:
    """Returns the size of the largest element in bytes; None has no size."""
    return max(map(len, filter(None, encoded)), default=0)


def key_too_large(size: int, limits: EntryLimits) -> EntryTooLarge:
    """Returns the error for a key of `size` bytes."""
    return EntryTooLarge(
        "a key is too large",
        hint="filter such rows in a transform, key by a hash of the column, or raise the setting",
        size_bytes=size,
        limit_bytes=limits.key_bytes,
        setting="state.max_key_bytes",
    )


def map_key_too_large(state: str, size: int, limits: EntryLimits) -> EntryTooLarge:
    """Returns the error for a key of `size` bytes in a map of the state named `state`."""
    return EntryTooLarge(
        "a key of a map is too large",
        hint="use a hash of it as the key, or raise the setting",
        state=state,
        size_bytes=size,
        limit_bytes=limits.map_key_bytes,
        setting="state.max_map_key_bytes",
    )


def value_too_large(state: str, size: int, limits: EntryLimits) -> EntryTooLarge:
    """Returns the error for a value of `size` bytes in the state named `state`."""
    return EntryTooLarge(
        "a value of state is too large",
        hint="divide it into elements of a list or entries of a map, remove what is old, or raise the setting",
        state=state,
        size_bytes=size,
        limit_bytes=limits.value_bytes,
        setting="state.max_value_bytes",
    )
