"""What a job can choose to keep its keyed state, under Flink's names. Each stands for some settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any


class StateBackend(ABC):
    """A choice for `StreamExecutionEnvironment.set_state_backend`."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings that it stands for, by dotted name."""


@dataclass(frozen=True)
class MemoryStateBackend(StateBackend):
    """State in the tasks' memory, and all of it in the manifest of each checkpoint: for small state and for tests.

    Args:
        limit_bytes: of all operators and subtasks together; a batch that ends with more fails. By default 5 MiB.
    """

    limit_bytes: int | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return {"state.backend": "memory", **_given("state.memory_limit_bytes", self.limit_bytes)}


@dataclass(frozen=True)
class FsStateBackend(StateBackend):
    """State in the tasks' memory, and all of it in a file per subtask and checkpoint: a batch costs as much as there is
    state in the subtasks that it changes.

    Args:
        inline_below_bytes: a subtask with less than this has it in the manifest. By default 20 KiB, at most 1 MiB.
    """

    inline_below_bytes: int | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return {"state.backend": "filesystem", **_given("state.inline_below_bytes", self.inline_below_bytes)}


@dataclass(frozen=True)
class RocksDBStateBackend(StateBackend):
    """State in RocksDB: larger than memory, and a batch costs as much as it changes. The default.

    Args:
        incremental: whether a checkpoint refers to files that the one before has stored. Without, each subtask that
            changes stores all of its files anew.
    """

    incremental: bool = True

    @property
    def settings(self) -> dict[str, Any]:
        return {"state.backend": "rocksdb", "state.incremental": self.incremental}


def _given(name: str, value: int | None) -> dict[str, Any]:
    return {} if value is None else {name: value}
