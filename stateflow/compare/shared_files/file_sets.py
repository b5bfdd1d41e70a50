"""Divides the data files of two stores into those that both have and those that only one of them has. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stateflow.state.backends.rocksdb.manifest import StoreFile, StoreManifest
from stateflow.state.handles import StateFile, SubtaskState
from stateflow.types.key_groups import KeyGroupRange

_TRAILER = 8


@dataclass(frozen=True)
class DataFile:
    """A data file of a store.

    Attributes:
        stored: the stored file.
        listed: its entry in the manifest of the store.
    """

    stored: StateFile
    listed: StoreFile

    @property
    def identity(self) -> tuple[str, tuple[int, int]]:
        """What two files must have in common to have the same entries in the same order of age."""
        return self.stored.sha256, self.listed.sequences

    @property
    def largest_sequence(self) -> int:
        """The largest sequence number of its entries."""
        return self.listed.sequences[1]

    def may_have(self, first: bytes, end: bytes) -> bool:
        """Returns whether it may have keys from `first` on that are less than `end`."""
        if end <= self.listed.smallest[:-_TRAILER]:
            return False
        # The prefix of a bound is less than the bound.
        return self.listed.prefixes[1] or first <= self.listed.largest[:-_TRAILER]


@dataclass(frozen=True)
class FileSets:
    """The data files of two stores that have some key groups.

    Attributes:
        shared: the files that both stores have, those with the largest sequence numbers first.
        old, new: the files that only one store has.
    """

    shared: tuple[DataFile, ...]
    old: tuple[DataFile, ...]
    new: tuple[DataFile, ...]

    @property
    def own_bytes(self) -> int:
        """Bytes of the files that only one store has."""
        return sum(file.stored.size for file in (*self.old, *self.new))

    @property
    def all_bytes(self) -> int:
        """Bytes of the files of both stores, shared ones twice."""
        return self.own_bytes + 2 * sum(file.stored.size for file in self.shared)


def data_files(state: SubtaskState, manifest: StoreManifest, groups: KeyGroupRange) -> list[DataFile]:
    """Returns the files of a subtask's store that may have some key groups.

    Args:
        state: the subtask's state, which has every file of the manifest.
        manifest: the manifest of its store.
        groups: the key groups.
    """
    stored = {file.local_name: file for file in state.files}
    return [DataFile(stored[file.name], file) for file in manifest.files if file.groups.overlap(groups)]


def divide_files(old: Iterable[DataFile], new: Iterable[DataFile]) -> FileSets:
    """Returns the files of two stores, divided."""
    before, after = ({file.identity: file for file in files} for files in (old, new))
    shared = sorted(
        (file for identity, file in before.items() if identity in after), key=lambda file: -file.largest_sequence
    )
    return FileSets(
        tuple(shared),
        tuple(file for identity, file in before.items() if identity not in after),
        tuple(file for identity, file in after.items() if identity not in before),
    )
