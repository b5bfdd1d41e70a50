"""Raw state: bytes that a function writes by itself at every barrier, and reads in the next batch."""

from __future__ import annotations

from stateflow.errors import StateError
from stateflow.keygroups import KeyGroupRange


class RawOperatorStateOutput:
    """Takes partitions of bytes, which are split evenly when the number of subtasks changes."""

    def __init__(self) -> None:
        self._partitions: list[bytearray] = []

    def start_new_partition(self) -> None:
        """What is written from now on is one piece."""
        self._partitions.append(bytearray())

    def write(self, data: bytes) -> None:
        """Adds to the partition. Raises StateError before the first one."""
        if not self._partitions:
            raise StateError(
                "raw operator state was written without a partition", hint="call start_new_partition"
            )
        self._partitions[-1] += data

    @property
    def partitions(self) -> list[bytes]:
        """For the runtime only: what was written."""
        return [bytes(each) for each in self._partitions]


class RawKeyedStateOutput:
    """Takes bytes per key group, which go where the key group goes.

    Args:
        groups: that the subtask owns.
    """

    def __init__(self, groups: KeyGroupRange) -> None:
        self._groups = groups
        self._written: dict[int, bytearray] = {}
        self._current: int | None = None

    def start_new_key_group(self, group: int) -> None:
        """What is written from now on belongs to `group`.

        Raises StateError for one that the subtask does not own, or that was written before.
        """
        if group not in self._groups or group in self._written:
            raise StateError("raw keyed state is written once for each key group that the subtask owns",
                             key_group=group, first=self._groups.first, last=self._groups.last)  # fmt: skip
        self._current = group
        self._written[group] = bytearray()

    def write(self, data: bytes) -> None:
        """Adds to the key group. Raises StateError before the first one."""
        if self._current is None:
            raise StateError(
                "raw keyed state was written without a key group", hint="call start_new_key_group"
            )
        self._written[self._current] += data

    @property
    def pieces(self) -> list[tuple[int, bytes]]:
        """For the runtime only: what was written, in order of key groups."""
        return [(group, bytes(self._written[group])) for group in sorted(self._written)]
