"""Check of RocksDB stores that come from elsewhere, before this process opens them.

A store is checked once on each host: the cache remembers the stores that this host has written or checked. A user
who may write a job root or a savepoint can choose the bytes of a store and record the hashes that fit, and RocksDB
trusts its files: a forged one could crash or block the process. So Python follows the structure of every data file,
and a child process opens the store first. A process that may crash without harm needs no child.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import rocksdict

from stateflow.errors import CorruptFile
from stateflow.private_files import make_new_folder
from stateflow.process_limits import ChildLimits, failure_of, is_isolated
from stateflow.state.backends.rocksdb.bounds import with_exact_bounds
from stateflow.state.backends.rocksdb.manifest import StoreFile, StoreManifest, compose, write_manifest
from stateflow.state.backends.rocksdb.tables.file import check_table_file
from stateflow.state.files.host_cache import HostCache, damaged_copy, has_content, remove_tree
from stateflow.state.handles import StateFile

_PROGRAM = "probe_program.py"
_MEMORY_BYTES = 100 << 20
_CPU_SECONDS = 2
_STORED_BYTES_PER_CPU_SECOND = 100 << 20
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
        # The structure is checked in any case: RocksDB skips the rest of some forged blocks without an error.
        if not is_isolated():
            complete_store(scratch, cache, manifest, used)
            _check_in_child(scratch, cache, used)
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


def _check_in_child(folder: Path, cache: HostCache, files: Mapping[str, StateFile]) -> None:
    reason = probe(folder, sum(file.size for file in files.values()))
    if reason:
        damaged = [name for name, file in files.items() if not has_content(folder / name, file)]
        name = damaged[0] if damaged else next(iter(files))
        raise _unsafe(cache, folder / name, files[name], reason)


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


def probe(folder: Path, stored_bytes: int) -> str:
    """Opens a store in a child process; returns why that failed, or an empty string."""
    program = resources.files(__package__).joinpath(_PROGRAM).read_text()
    packages = Path(rocksdict.__file__).parents[1]
    cpu_seconds = _CPU_SECONDS + stored_bytes // _STORED_BYTES_PER_CPU_SECOND
    return failure_of(program, (folder, packages), ChildLimits(_MEMORY_BYTES, cpu_seconds))
