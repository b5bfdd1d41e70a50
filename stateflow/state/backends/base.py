"""The seam between state types and what keeps their bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stateflow.state.handles import StateFile


@dataclass(frozen=True)
class Snapshot:
    """What a store's content was made durable as.

    Attributes:
        files: every stored file that it consists of, also those that the base already had.
        inline: all of it as bytes, for the manifest; None when it is in files, or when there is nothing.
        store_manifest: what a store of files says of them; empty when it says nothing.
        compaction_bytes: how much of what was stored is old data in new files.
    """

    files: tuple[StateFile, ...] = ()
    inline: bytes | None = None
    store_manifest: bytes = b""
    compaction_bytes: int = 0


class KeyedStateBackend(ABC):
    """Bytes by key, for the key groups of one subtask. An object of it is born with its base state restored.

    What `write` took is seen by every later read; nothing of it is durable until the checkpoint that has the result of
    `snapshot` is committed.
    """

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None when it has none."""

    @abstractmethod
    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of many keys at once; fastest when the keys are sorted."""

    @abstractmethod
    def scan_range(self, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Entries from key `lower` on and before key `upper` (None: to the end), in order of keys, as they were when
        the scan began."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose key begins with `prefix`, in order of keys, as they were when the scan began."""
        return self.scan_range(prefix, after_prefix(prefix))

    @abstractmethod
    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Sets entries, and removes those whose value is None; all or nothing."""

    @abstractmethod
    def snapshot(self, name: str, full: bool = False) -> Snapshot:
        """Stores the present content, under keys that begin with `name`, and returns all that it consists of.

        What the base already had may be returned as it is, not written again.

        Args:
            full: whether all of it is stored anew.
        """

    @abstractmethod
    def close(self) -> None:
        """Lets go of local resources; what was not snapshotted is gone."""


def after_prefix(prefix: bytes) -> bytes | None:
    """The smallest key behind all keys that begin with `prefix`; None when there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None
