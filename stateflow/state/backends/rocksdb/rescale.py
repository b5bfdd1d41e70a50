"""Rescaling of RocksDB state: merges the states of several old subtasks into the store of a new one.

Files are not copied: the data files of the parts are linked under new numbers, and a composed manifest assigns their
levels. A file may contain keys that its part did not own: after an earlier rescaling, a store has keys of its siblings,
hidden by a deleted range, until it is compacted. That is harmless in a store of one part. Together with another part,
the hidden keys would reappear, and the deleted range would hide keys of the other part. So wherever another part of
the new store has keys, those key groups are first *cut out* of the part.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from stateflow.errors import InternalError
from stateflow.state.backends.rocksdb.check import check_once, complete_store
from stateflow.state.backends.rocksdb.manifest import StoreFile, StoreManifest, manifest_of, parse
from stateflow.state.handles import Base, StateFile, SubtaskState
from stateflow.state.host_cache import HostCache, remove_tree
from stateflow.types.key_groups import KeyGroupRange

_FIRST_NUMBER = 2

CutOut = Callable[[Path, Sequence[KeyGroupRange]], None]
"""Opens the store in a folder, removes all keys and deleted ranges of some key groups from its files, and closes it."""


@dataclass(frozen=True)
class AssembledStore:
    """The content of a folder that can be opened as a store.

    Attributes:
        files: its files that are stored already, by local name.
        excess: key groups that its files contain and that the subtask does not own; hide them after opening.
    """

    files: dict[str, StateFile]
    excess: list[KeyGroupRange]


@dataclass(frozen=True)
class _PartFile:
    """A data file for the new store.

    Attributes:
        file: its entry in the part's manifest.
        stored: the stored file; None for a local one that cutting has written.
        path: path of the local file.
    """

    file: StoreFile
    stored: StateFile | None
    path: Path


def assemble(folder: Path, cache: HostCache, base: Base, cut_out: CutOut) -> AssembledStore:
    """Links the files of `base` into `folder` as one store.

    Args:
        folder: an empty folder.
        cache: the host's cache of stored files.
        base: the parts to merge.
        cut_out: removes key groups from a store.

    Raises:
        MissingFile, CorruptFile: a base file is not what was recorded.
    """
    scratch_folders: list[Path] = []
    merged = StoreManifest((), 0)
    files: dict[str, StateFile] = {}
    try:
        for number, state in enumerate(s for s in base.parts if s.has_store):
            scratch_folders.append(folder.with_name(f"{folder.name}.part-{number}"))
            part, part_files = _Part(scratch_folders[-1], cache, state, base.owned).files(cut_out)
            added = _renumbered(part_files, merged)
            taken = {}
            for part_file, file in zip(part_files, added, strict=True):
                if part_file.stored is None:
                    os.link(part_file.path, folder / file.name)
                else:
                    taken[folder / file.name] = part_file.stored
                    files[file.name] = replace(part_file.stored, local_name=file.name)
            cache.link_all(taken)
            merged = StoreManifest((*merged.files, *added), max(merged.last_sequence, part.last_sequence))
    finally:
        for scratch in scratch_folders:
            remove_tree(scratch)
    complete_store(folder, cache, merged, files)
    return AssembledStore(files, list(excess(merged.files, base.owned)))


def excess(files: Iterable[StoreFile], owned: KeyGroupRange) -> Iterator[KeyGroupRange]:
    """Yields the ranges of key groups below and above `owned` that some file contains."""
    ranges = [f.groups for f in files]
    low = min((r.first for r in ranges), default=owned.first)
    high = max((r.last for r in ranges), default=owned.last)
    if low < owned.first:
        yield KeyGroupRange(low, owned.first - 1)
    if high > owned.last:
        yield KeyGroupRange(owned.last + 1, high)


class _Part:
    """The contribution of one old subtask's state to a new subtask.

    Args:
        scratch: a folder for cutting; created only when key groups must be cut out.
        cache: the host's cache of stored files.
        state: state of the old subtask.
        owned: key groups of the new subtask.
    """

    def __init__(self, scratch: Path, cache: HostCache, state: SubtaskState, owned: KeyGroupRange) -> None:
        self._scratch = scratch
        self._cache = cache
        self._state = state
        self._owned = owned
        self._stored = {f.local_name: f for f in state.files}

    def files(self, cut_out: CutOut) -> tuple[StoreManifest, list[_PartFile]]:
        """Returns its manifest and the data files that overlap `owned`, without foreign content in owned key groups."""
        manifest = self._needed(manifest_of(self._state))
        check_once(self._scratch, self._cache, manifest, self._stored)
        # Cutting may reuse the numbers of files that are not needed: only these names refer to stored files.
        stored = {f.name: self._stored[f.name] for f in manifest.files}
        foreign = self._foreign(manifest)
        if foreign:
            manifest = self._cut(manifest, foreign, cut_out)
        return manifest, [_PartFile(f, stored.get(f.name), self._scratch / f.name) for f in manifest.files]

    def _needed(self, manifest: StoreManifest) -> StoreManifest:
        # Files outside may be left out only because everything outside is hidden in the end.
        files = tuple(f for f in manifest.files if f.groups.overlap(self._owned))
        return dataclasses.replace(manifest, files=files)

    def _foreign(self, manifest: StoreManifest) -> list[KeyGroupRange]:
        # The whole side, not only owned key groups: one old key beyond them would make a file span them.
        return [r for r in excess(manifest.files, self._state.groups) if self._owned.overlap(r)]

    def _cut(self, manifest: StoreManifest, foreign: list[KeyGroupRange], cut_out: CutOut) -> StoreManifest:
        self._scratch.mkdir(mode=0o700)
        self._cache.link_all({self._scratch / f.name: self._stored[f.name] for f in manifest.files})
        complete_store(self._scratch, self._cache, manifest, self._stored)
        cut_out(self._scratch, foreign)
        current = (self._scratch / "CURRENT").read_text().strip()
        left = self._needed(parse((self._scratch / current).read_bytes(), current))
        if self._foreign(left):
            raise InternalError(
                "a store still contains key groups that were cut out of it", subtask=self._state.subtask, groups=foreign
            )
        return left


def _renumbered(part_files: Sequence[_PartFile], merged: StoreManifest) -> list[StoreFile]:
    """Returns the files with their numbers and epochs in the new store.

    Within a part, the order of epochs, which follows the age of the files, is kept. Between parts, which share no keys,
    the order has no meaning, but RocksDB requires distinct epochs.
    """
    number = max((f.number for f in merged.files), default=_FIRST_NUMBER - 1) + 1
    epoch = merged.last_epoch
    return [
        dataclasses.replace(p.file, number=number + i, epoch=epoch + p.file.epoch) for i, p in enumerate(part_files)
    ]
