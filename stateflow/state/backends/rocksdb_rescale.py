"""One store out of the parts that a subtask takes from the states of several others.

Files are never copied: the parts' data files are linked under new numbers, and a manifest of our own says which level
each is in. What may go wrong is that a file says something about keys that its part did not own: a store that came out
of an earlier rescaling holds keys of its siblings, hidden by a deleted range, until it is compacted. In a store of one
part that is harmless. Beside another part its old keys would come to life again, and its deleted ranges would hide the
other's keys. So a part is first *cut* to its own key groups wherever another part of the new store has keys.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from stateflow.errors import CorruptFile, InternalError
from stateflow.keygroups import KeyGroupRange
from stateflow.state import store_manifest
from stateflow.state.handles import Base, StateFile, SubtaskState
from stateflow.state.store_manifest import DataFile, StoreManifest
from stateflow.state.transfer import HostCache, remove_tree

_MANIFEST = "MANIFEST-000001"
_FIRST_NUMBER = 2

CutOut = Callable[[Path, Sequence[KeyGroupRange]], None]
"""Opens the store in a folder, removes all that its files say about some key groups, and closes it."""


@dataclass(frozen=True)
class Assembled:
    """A folder that can be opened as a store.

    Attributes:
        files: what is in it and stored already, by the names that it has there.
        excess: key groups that its files reach into and that it does not own; they are still to be hidden.
    """

    files: dict[str, StateFile]
    excess: list[KeyGroupRange]


@dataclass(frozen=True)
class _Piece:
    """A data file on its way into the new store: a stored one, or one that was made here by cutting."""

    file: DataFile
    stored: StateFile | None
    path: Path


def assemble(folder: Path, cache: HostCache, base: Base, cut_out: CutOut) -> Assembled:
    """Lays the files of `base` out in `folder`, which is empty.

    Raises MissingFile or CorruptFile as `HostCache.link` does.
    """
    rooms: list[Path] = []
    merged = StoreManifest((), 0)
    files: dict[str, StateFile] = {}
    try:
        for number, state in enumerate(s for s in base.parts if s.has_store):
            rooms.append(folder.with_name(f"{folder.name}.part-{number}"))
            part, pieces = _Part(rooms[-1], cache, state, base.owned).taken(cut_out)
            added = _renumbered(pieces, merged)
            taken = {}
            for piece, file in zip(pieces, added, strict=True):
                if piece.stored is None:
                    os.link(piece.path, folder / file.name)
                else:
                    taken[folder / file.name] = piece.stored
                    files[file.name] = replace(piece.stored, local_name=file.name)
            cache.link_all(taken)
            merged = StoreManifest((*merged.files, *added), max(merged.last_sequence, part.last_sequence))
    finally:
        for room in rooms:
            remove_tree(room)
    write_manifest(folder, merged)
    return Assembled(files, list(excess(merged.files, base.owned)))


def read_store_manifest(cache: HostCache, state: SubtaskState) -> StoreManifest:
    """What a RocksDB's snapshot says of its files. Raises CorruptFile when it is none, or names others."""
    data, source = state.store_manifest, state.snapshot
    if not data:
        manifests = [f for f in state.files if f.local_name.startswith("MANIFEST-")]
        if len(manifests) != 1:
            names = sorted(f.local_name for f in state.files)
            raise CorruptFile("a snapshot has no store manifest, or several", files=names[:5])
        data, source = cache.read(manifests[0]), manifests[0].handle.key
    manifest = store_manifest.parse(data, source)
    missing = sorted({f.name for f in manifest.files} - {f.local_name for f in state.files})
    if missing:
        raise CorruptFile("a store's manifest names files that the snapshot does not have", file=source,
                          missing=missing[:5])  # fmt: skip
    return manifest


def write_manifest(folder: Path, manifest: StoreManifest) -> None:
    """Makes the data files in `folder` a store."""
    (folder / _MANIFEST).write_bytes(store_manifest.compose(manifest))
    (folder / "CURRENT").write_text(_MANIFEST + "\n")


def excess(files: Iterable[DataFile], owned: KeyGroupRange) -> Iterator[KeyGroupRange]:
    """The key groups below and above `owned` that some file reaches into."""
    ranges = [f.groups for f in files]
    low = min((r.first for r in ranges), default=owned.first)
    high = max((r.last for r in ranges), default=owned.last)
    if low < owned.first:
        yield KeyGroupRange(low, owned.first - 1)
    if high > owned.last:
        yield KeyGroupRange(owned.last + 1, high)


class _Part:
    """What one old subtask's state gives to a new subtask.

    Args:
        room: a folder for cutting; made only when there is something to cut.
        owned: the new subtask's key groups.
    """

    def __init__(self, room: Path, cache: HostCache, state: SubtaskState, owned: KeyGroupRange) -> None:
        self._room = room
        self._cache = cache
        self._state = state
        self._owned = owned
        self._stored = {f.local_name: f for f in state.files}

    def taken(self, cut_out: CutOut) -> tuple[StoreManifest, list[_Piece]]:
        """Its data files that say something about owned key groups; within them, nothing about those of others."""
        manifest = self._needed(read_store_manifest(self._cache, self._state))
        # Cutting gives new files numbers that belong to files which are not needed: only these are the stored ones.
        stored = {f.name: self._stored[f.name] for f in manifest.files}
        foreign = self._foreign(manifest)
        if foreign:
            manifest = self._cut(manifest, foreign, cut_out)
        return manifest, [_Piece(f, stored.get(f.name), self._room / f.name) for f in manifest.files]

    def _needed(self, manifest: StoreManifest) -> StoreManifest:
        # A file that lies outside may only be left out because everything there is hidden in the end.
        files = tuple(f for f in manifest.files if f.groups.overlap(self._owned))
        return dataclasses.replace(manifest, files=files)

    def _foreign(self, manifest: StoreManifest) -> list[KeyGroupRange]:
        # All of a side, also what lies beyond the owned key groups: one old key there would stretch a file over them.
        return [r for r in excess(manifest.files, self._state.groups) if self._owned.overlap(r)]

    def _cut(self, manifest: StoreManifest, foreign: list[KeyGroupRange], cut_out: CutOut) -> StoreManifest:
        self._room.mkdir(mode=0o700)
        self._cache.link_all({self._room / f.name: self._stored[f.name] for f in manifest.files})
        write_manifest(self._room, manifest)
        cut_out(self._room, foreign)
        current = (self._room / "CURRENT").read_text().strip()
        left = self._needed(store_manifest.parse((self._room / current).read_bytes(), current))
        if self._foreign(left):
            raise InternalError("a store still reaches into key groups that were cut out of it",
                                subtask=self._state.subtask, groups=foreign)  # fmt: skip
        return left


def _renumbered(pieces: Sequence[_Piece], merged: StoreManifest) -> list[DataFile]:
    """The files as they are called in the new store. Within a part the epochs keep their order, which says what is
    newer; between parts, which have no key in common, it means nothing, but RocksDB wants them to differ."""
    number = max((f.number for f in merged.files), default=_FIRST_NUMBER - 1) + 1
    epoch = merged.last_epoch
    return [
        dataclasses.replace(p.file, number=number + i, epoch=epoch + p.file.epoch)
        for i, p in enumerate(pieces)
    ]
