"""State backends that a job can choose, under Flink's names. Each is a shorthand for settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


class StateBackend(ABC):
    """Base class of the arguments of `StreamExecutionEnvironment.set_state_backend`."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, object]:
        """The settings of the backend, by dotted name."""


@dataclass(frozen=True)
class MemoryStateBackend(StateBackend):
    """Keeps state in the tasks' memory and stores it in the manifest of each checkpoint, for small state and tests.

    Args:
        limit_bytes: maximum size of the state of all operators and subtasks together; a batch that ends with more
            fails. By default 5 MiB.
    """

    limit_bytes: int | None = None

    @property
    def settings(self) -> dict[str, object]:
        return {"state.backend": "memory", **_optional("state.memory_limit_bytes", self.limit_bytes)}


@dataclass(frozen=True)
class FsStateBackend(StateBackend):
    """Keeps state in the tasks' memory and stores it in one file per subtask and checkpoint.

    The cost of a batch is proportional to the state of the subtasks that it changes.

    Args:
        inline_below_bytes: state of a subtask below this size is stored in the manifest. By default 20 KiB, at most
            1 MiB.
    """

    inline_below_bytes: int | None = None

    @property
    def settings(self) -> dict[str, object]:
        return {"state.backend": "filesystem", **_optional("state.inline_below_bytes", self.inline_below_bytes)}


@dataclass(frozen=True)
class RocksDBStateBackend(StateBackend):
    """Keeps state in RocksDB, which may be larger than memory. The default.

    The cost of a batch is proportional to its changes.

    Args:
        incremental: whether a checkpoint references files of earlier checkpoints. Otherwise, each subtask that changes
            stores all of its files again.
    """

    incremental: bool = True

    @property
    def settings(self) -> dict[str, object]:
        return {"state.backend": "rocksdb", "state.incremental": self.incremental}


def _optional(name: str, value: int | None) -> dict[str, object]:
    return {} if value is None else {name: value}
