"""Bugs of canonical savepoints: of their workers, files and claims, and of restores from them."""

from __future__ import annotations

import dataclasses
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO
from unittest.mock import ANY, patch

from msgspec.structs import replace

from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import ClaimedSavepoint, Manifest, SavepointClaim
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.savepoints import catalog, claim_slots, claimed_savepoints, cleanup, create
from stateflow.checkpoint.savepoints.canonical import worker as tasks
from stateflow.checkpoint.savepoints.canonical.rekey import rekey
from stateflow.checkpoint.savepoints.canonical.worker_pool import SavepointWorkers
from stateflow.checkpoint.savepoints.canonical.writer import Destination, Shard, store_files
from stateflow.checkpoint.savepoints.catalog import TOMBSTONE, StoredSavepoint, put_marker
from stateflow.errors import InternalError
from stateflow.operations import external_savepoints
from stateflow.runtime.restore import state_import
from stateflow.runtime.restore.state_import import ImportTarget, StateLocation
from stateflow.state.backends import canonical_file, factory
from stateflow.state.backends.canonical_file import CanonicalHeader, encode_file_of_columns
from stateflow.state.backends.entry_stream import GROUP_BYTES, Entry, EntryBlock, EntryColumns, blocks_of, entries_of
from stateflow.state.backends.factory import StoreLocation
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.handles import Base, StateFile
from stateflow.storage import PosixStorage, Storage
from stateflow.storage.paths import SAVEPOINTS, savepoint_folder
from stateflow.types.key_groups import KeyGroupRange
from tests.support.mutants.registry import Mutant, Mutants

MUTANTS = Mutants()

# -- creating ----------------------------------------------------------------------------------------------------------

_encode = canonical_file.encode_file


@MUTANTS.plant("lost-last-group", (canonical_file, "encode_file"))
def _encode_without_last_group(header: CanonicalHeader, blocks: Iterable[EntryBlock]) -> Iterator[bytes]:
    """A worker does not write its last key group."""
    yield from _encode(header, blocks_of(entry for group in _groups(blocks)[:-1] for entry in group))


@MUTANTS.plant("unsorted-groups", (canonical_file, "encode_file"))
def _encode_unsorted(header: CanonicalHeader, blocks: Iterable[EntryBlock]) -> Iterator[bytes]:
    """A worker writes the entries of a key group in another order than that of their keys."""
    yield from _encode(header, blocks_of(entry for group in _groups(blocks) for entry in reversed(group)))


def _groups(blocks: Iterable[EntryBlock]) -> list[list[Entry]]:
    return [list(same) for _, same in groupby(entries_of(blocks), lambda entry: entry[0][:GROUP_BYTES])]


_put_file, _record_savepoint = PosixStorage.put_file, catalog.record_savepoint
_waiting: list[tuple[PosixStorage, str, bytes]] = []


def _put_savepoint_file_later(self: PosixStorage, key: str, source: Path) -> None:
    if key.startswith(SAVEPOINTS):
        _waiting.append((self, key, source.read_bytes()))
    else:
        _put_file(self, key, source)


def _record_after_late_files(root: JobRoot, made: StoredSavepoint, took_ms: float) -> None:
    while _waiting:
        storage, key, data = _waiting.pop()
        storage.put_new(key, data)
    _record_savepoint(root, made, took_ms)


MUTANTS.add(
    Mutant(
        "early-savepoint",
        "A savepoint is complete before its files are stored.",
        (
            (PosixStorage, "put_file", _put_savepoint_file_later),
            (create, "record_savepoint", _record_after_late_files),
            (cleanup, "record_savepoint", _record_after_late_files),
        ),
    )
)

_write = SavepointWorkers.write


@MUTANTS.plant("empty-shards", (SavepointWorkers, "write"))
def _write_nothing_for_dead_workers(
    self: SavepointWorkers, shards: Sequence[Shard], source: Storage, target: Storage, to: Destination
) -> list[StateFile]:
    """Key groups whose worker died count as empty."""
    try:
        return _write(self, shards, source, target, to)
    except InternalError:
        with tempfile.TemporaryDirectory() as scratch:
            empty = [_encode(shard.header, ()) for shard in shards]
            return [file for each in empty for file in store_files([each], target, to, Path(scratch))]


@MUTANTS.plant("kept-leftovers", (cleanup, "_abandon"))
def _abandon_without_deletion(storage: Storage, folder: str) -> bool:
    """A collection marks an unfinished savepoint as given up, and leaves its files."""
    return put_marker(storage, folder, TOMBSTONE)


# -- claiming ----------------------------------------------------------------------------------------------------------

_check = claim_slots._check


@MUTANTS.plant("shared-claim", (claim_slots, "_check"))
def _check_own_slots(storage: Storage, folder: str, slots: Sequence[SavepointClaim], job_uuid: str) -> None:
    """A claim by another job does not count: a savepoint can be claimed twice."""
    _check(storage, folder, [slot for slot in slots if slot.job_uuid in ("", job_uuid)], job_uuid)


_settle = claimed_savepoints._settle


@MUTANTS.plant("kept-claim", (claimed_savepoints, "_settle"))
def _settle_without_undoing(root: JobRoot, head: Head, claimed: ClaimedSavepoint) -> None:
    """A start forgets the claim of a killed process without undoing it."""
    if claimed.checkpoint:
        _settle(root, head, claimed)
    else:
        root.admin.end_claim(claimed)


# -- another max parallelism -------------------------------------------------------------------------------------------


@MUTANTS.plant("lost-last-bucket", (state_import, "rekey"))
def _rekey_without_last_bucket(
    source: Storage, manifest: Manifest, target: Storage, to: Destination, max_parallelism: int
) -> Manifest:
    """Another max parallelism loses the entries of the last bucket."""
    with patch.object(tasks, "encode_file_of_columns", _encode_without_last_subtask):
        return rekey(source, manifest, target, to, max_parallelism)


def _encode_without_last_subtask(header: CanonicalHeader, parts: Iterable[EntryColumns]) -> Iterator[bytes]:
    found = list(parts)
    yield from encode_file_of_columns(header, found if header.last_group < header.max_parallelism - 1 else ())


@MUTANTS.plant("old-groups", (state_import, "_rekeyed"))
def _copied_with_old_groups(target: ImportTarget, manifest: Manifest, location: StateLocation) -> Manifest:
    """State that gets another max parallelism keeps the old key groups of its keys."""
    return state_import._copied(target, manifest, location)


@MUTANTS.plant("new-copy-each-time", (external_savepoints, "savepoint_folder"))
def _new_folder(folder: str, within: str = SAVEPOINTS) -> str:
    """Each attempt to copy a savepoint with another max parallelism has a folder of its own."""
    return savepoint_folder(f"{folder}-{uuid.uuid4().hex[:8]}", within)


_do = SavepointWorkers.do


@MUTANTS.plant("lost-divisions", (SavepointWorkers, "do"))
def _do_without_dead_workers(self: SavepointWorkers, works: Sequence[Any], volume: Any) -> list[StateFile]:
    """The entries that a dead worker had not divided among buckets are left out."""
    try:
        return _do(self, works, volume)
    except InternalError:
        if any(hasattr(work, "to") for work in works):
            raise
        return []


# -- restoring ---------------------------------------------------------------------------------------------------------

_read_blocks, _decode_blocks, _load = factory._read_blocks, canonical_file.decode_groups, RocksDBBackend.load
_find_groups, _END = canonical_file._find_groups, b"\0"


@MUTANTS.plant("first-file-alone", (factory, "_read_blocks"))
def _read_first_files(location: StoreLocation, base: Base) -> Iterator[EntryBlock]:
    """A restore ignores all but the first file of a part."""
    first = tuple(replace(part, files=part.files[:1]) for part in base.parts)
    return _read_blocks(location, dataclasses.replace(base, parts=first))


@MUTANTS.plant("lost-last-owned", (canonical_file, "decode_groups"))
def _decode_all_but_last(stream: BinaryIO, name: str, owned: KeyGroupRange) -> Iterator[EntryBlock]:
    """A subtask does not read the last of its key groups."""
    return _decode_blocks(stream, name, KeyGroupRange(owned.first, max(owned.first, owned.last - 1)))


@MUTANTS.plant("lost-last-block", (RocksDBBackend, "load"))
def _load_all_but_last(self: RocksDBBackend, blocks: Iterable[EntryBlock]) -> None:
    """Loading into RocksDB leaves out the last block."""
    _load(self, list(blocks)[:-1])


@MUTANTS.plant("unchecked-end", (canonical_file, "_find_groups"))
def _find_without_end(stream: BinaryIO, name: str) -> tuple[Any, Any]:
    """The mark at the end of a file, and its number of entries, are not checked."""
    data = stream.read()
    groups, _ = _find_groups(BytesIO(data if data[-9:-8] == _END else data + _END + bytes(8)), name)
    return groups, ANY
