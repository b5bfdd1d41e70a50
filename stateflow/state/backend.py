"""The seam between state types and what keeps their bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from stateflow.state.handles import StateFile


class KeyedStateBackend(ABC):
    """Bytes by key, for the key groups of one subtask. An object of it is born with its base state restored.

    What `write` took is seen by every later read; nothing of it is durable until `snapshot` returns.
    """

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None when it has none."""

    @abstractmethod
    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of many keys at once; fastest when the keys are sorted."""

    @abstractmethod
    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose key begins with `prefix`, in order of keys, as they were when the scan began."""

    @abstractmethod
    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Sets entries, and removes those whose value is None; all or nothing."""

    @abstractmethod
    def snapshot(self, name: str) -> list[StateFile]:
        """Makes the present content durable under `name` and returns every file that it consists of.

        Files that the base already had are returned as they are, not written again.
        """

    @abstractmethod
    def close(self) -> None:
        """Lets go of local resources; what was not snapshotted is gone."""
