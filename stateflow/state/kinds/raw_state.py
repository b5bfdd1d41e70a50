"""Raw state: bytes that a function writes at every barrier and reads in the next batch."""

from __future__ import annotations

from stateflow.errors import StateError
from stateflow.types.key_groups import KeyGroupRange


class RawOperatorStateOutput:
    """Output for partitions of bytes, which are split evenly when the parallelism changes."""

    def __init__(self) -> None:
        self._partitions: list[bytearray] = []

    def start_new_partition(self) -> None:
        """Starts a new partition, which is never split."""
        self._partitions.append(bytearray())

    def write(self, data: bytes) -> None:
        """Appends to the current partition.

        Raises:
            StateError: no partition was started.
        """
        if not self._partitions:
            raise StateError("raw operator state was written without a partition", hint="call start_new_partition")
        self._partitions[-1] += data

    @property
    def partitions(self) -> list[bytes]:
        """For the runtime only: the partitions written."""
        return [bytes(each) for each in self._partitions]


class RawKeyedStateOutput:
    """Output for bytes per key group, which are redistributed with the key groups.

    Args:
        groups: the key groups of the subtask.
    """

    def __init__(self, groups: KeyGroupRange) -> None:
        self._groups = groups
        self._written: dict[int, bytearray] = {}
        self._current: int | None = None

    def start_new_key_group(self, group: int) -> None:
        """Starts the bytes of a key group.

        Raises:
            StateError: the subtask does not own the key group, or it was written before.
        """
        if group not in self._groups or group in self._written:
            raise StateError(
                "raw keyed state was written twice for a key group, or for one that the subtask does not own",
                hint="write each key group of the subtask once",
                key_group=group,
                first=self._groups.first,
                last=self._groups.last,
            )
        self._current = group
        self._written[group] = bytearray()

    def write(self, data: bytes) -> None:
        """Appends to the current key group.

        Raises:
            StateError: no key group was started.
        """
        if self._current is None:
            raise StateError("raw keyed state was written without a key group", hint="call start_new_key_group")
        self._written[self._current] += data

    @property
    def pieces(self) -> list[tuple[int, bytes]]:
        """For the runtime only: (key group, bytes) pairs, in order of key groups."""
        return [(group, bytes(self._written[group])) for group in sorted(self._written)]
