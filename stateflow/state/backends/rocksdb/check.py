"""Check of RocksDB stores that come from elsewhere, before this process opens them, and the bounds of their data files.

A store is checked once on each host: the cache remembers the stores that this host has written or checked. A user
who may write a job root or a savepoint can choose the bytes of a store and record the hashes that fit, and RocksDB
trusts its files: a forged one could crash or block the process. So Python follows the structure of every data file
before RocksDB opens the store. A process that may crash without harm skips that.

A manifest names the smallest and the largest key of each data file, and every checkpoint contains it. So a key of 1 MB
would be in every checkpoint, several times. A long bound is stored as a prefix, from which the key groups are known,
and read from the data file when the store is laid out to be opened.

A bound can also be the end of a deleted range, cut where the next file begins. The file itself does not contain that
end. So a bound is only stored as a prefix if it is exactly what will be read from the file.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

from stateflow.errors import CorruptFile
from stateflow.private_files import make_new_folder
from stateflow.process_limits import is_isolated
from stateflow.state.backends.rocksdb.manifest import StoreFile, StoreManifest, compose, write_manifest
from stateflow.state.backends.rocksdb.tables import check_table_file, key_bounds
from stateflow.state.handles import StateFile
from stateflow.state.host_cache import HostCache, damaged_copy, remove_tree

_LONGEST_REASON = 300


def fingerprint(manifest: bytes, files: Mapping[str, StateFile]) -> str:
    """Returns a hash of everything that a store consists of.

    Args:
        manifest: the composed manifest of the store.
        files: the data files by local name.
    """
    digest = hashlib.sha256(manifest)
    for name in sorted(files):
        digest.update(f"\n{name} {files[name].sha256}".encode())
    return digest.hexdigest()


def check_once(scratch: Path, cache: HostCache, manifest: StoreManifest, files: Mapping[str, StateFile]) -> None:
    """Checks a store, unless this host has written or checked exactly this store.

    Args:
        scratch: must not exist; a folder for the store, which is removed.
        cache: the host's cache of stored files.
        manifest: the store's data files.
        files: their stored files by local name; may contain more.

    Raises:
        CorruptFile: it is not safe to open the store; a retry does not help.
        DamagedCopy: a cached copy is damaged; it was dropped.
        MissingFile: a file does not exist.
    """
    used = {file.name: files[file.name] for file in manifest.files}
    known = fingerprint(compose(manifest), used)
    if not used or cache.is_checked(known):
        return
    make_new_folder(scratch)
    try:
        targets = {scratch / name: file for name, file in used.items()}
        # A file is checked while others are fetched, which is most of the time of a restore.
        cache.link_all(targets, lambda path: _check_structure(cache, path, targets[path]))
    finally:
        remove_tree(scratch)
    cache.remember_checked(known)


def complete_store(folder: Path, cache: HostCache, manifest: StoreManifest, files: Mapping[str, StateFile]) -> None:
    """Writes the manifest of a store with the exact bounds of its data files, so that it can be opened.

    Args:
        folder: contains the data files.
        cache: the host's cache of stored files.
        manifest: a manifest whose bounds may be prefixes.
        files: the stored files by local name; those without prefixes need none.

    Raises:
        CorruptFile: the keys of a data file do not fit the stored bounds.
        DamagedCopy: a cached copy is damaged; it was dropped.
    """

    def exact(file: StoreFile) -> StoreFile:
        try:
            return with_exact_bounds(file, folder / file.name)
        except ValueError as e:
            raise _unsafe(cache, folder / file.name, files[file.name], str(e)) from e

    write_manifest(folder, dataclasses.replace(manifest, files=tuple(map(exact, manifest.files))))


def _check_structure(cache: HostCache, path: Path, file: StateFile) -> None:
    if cache.is_checked(file.sha256):
        return
    try:
        check_table_file(path)
    except ValueError as e:
        raise _unsafe(cache, path, file, str(e)) from e
    # Workers of a savepoint read a store once for each range of key groups, and most files for several ranges. Others
    # remember whole stores.
    if is_isolated():
        cache.remember_checked(file.sha256)


def _unsafe(cache: HostCache, path: Path, file: StateFile, reason: str) -> CorruptFile:
    """Returns the error for a file that cannot be read; drops a damaged copy, which the next attempt fetches again."""
    if cache.drop_damaged([file]):
        return damaged_copy(file, path, reason)
    return CorruptFile(
        "a RocksDB store is not safe to open",
        hint="restore an older checkpoint or savepoint, and find out who changed this one: its hashes match",
        file=file.handle.key,
        reason=reason[:_LONGEST_REASON],
    )


LONGEST_BOUND = 64
"""Bytes of a stored bound without its trailer."""
_TRAILER = 8


class BoundsShortener:
    """Shortens the bounds of one open store's files; reads each file with long bounds once.

    Args:
        folder: folder of the store.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[StoreFile, StoreFile] = {}

    def shorten(self, manifest: StoreManifest) -> StoreManifest:
        """Returns the manifest to store.

        Raises:
            ValueError: a file is damaged; the message begins with its name.
        """
        self._known = {
            file: self._known.get(file) or with_prefixes(file, self._folder / file.name)
            for file in manifest.files
            if _is_long(file.smallest) or _is_long(file.largest)
        }
        return dataclasses.replace(manifest, files=tuple(self._known.get(file, file) for file in manifest.files))


def with_prefixes(file: StoreFile, path: Path) -> StoreFile:
    """Returns a file with prefixes for its long bounds, as far as the data file at `path` has the exact ones.

    Raises:
        ValueError: the data file is damaged; the message begins with its name.
    """
    found = _read(path)
    if found is None:
        return file
    can_shorten = [_is_long(bound) and bound == exact for bound, exact in zip(_bounds(file), found, strict=True)]
    smallest, largest = (
        bound[:LONGEST_BOUND] + bound[-_TRAILER:] if can else bound
        for can, bound in zip(can_shorten, _bounds(file), strict=True)
    )
    return dataclasses.replace(file, smallest=smallest, largest=largest, prefixes=(can_shorten[0], can_shorten[1]))


def with_exact_bounds(file: StoreFile, path: Path) -> StoreFile:
    """Returns a file of a stored manifest with the bounds that RocksDB needs, from the data file at `path`.

    Raises:
        ValueError: the data file is damaged, or its bounds do not begin with the stored prefixes; the message begins
            with its name.
    """
    if not any(file.prefixes):
        return file
    found = _read(path)
    exact = []
    for number, (is_prefix, bound) in enumerate(zip(file.prefixes, _bounds(file), strict=True)):
        if not is_prefix:
            exact.append(bound)
        elif found is not None and _is_prefix_of(bound, found[number]):
            exact.append(found[number])
        else:
            raise ValueError(f"{path.name}: its keys do not begin with the stored bounds")
    if exact[0][:-_TRAILER] > exact[1][:-_TRAILER]:
        raise ValueError(f"{path.name}: its keys are not in order")
    return dataclasses.replace(file, smallest=exact[0], largest=exact[1], prefixes=(False, False))


def _read(path: Path) -> tuple[bytes, bytes] | None:
    try:
        return key_bounds(path)
    except ValueError as e:
        raise ValueError(f"{path.name}: {e}") from e


def _bounds(file: StoreFile) -> tuple[bytes, bytes]:
    return file.smallest, file.largest


def _is_long(bound: bytes) -> bool:
    return len(bound) > LONGEST_BOUND + _TRAILER


def _is_prefix_of(stored: bytes, exact: bytes) -> bool:
    key, trailer = exact[:-_TRAILER], exact[-_TRAILER:]
    return key.startswith(stored[:-_TRAILER]) and trailer == stored[-_TRAILER:]
