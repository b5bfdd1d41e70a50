"""Bugs of storages, and of what comes from them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stateflow.checkpoint.log import manifest_files
from stateflow.runtime.driver import checkpointing
from stateflow.state import host_cache
from stateflow.state.handles import StateFile
from stateflow.storage import PosixStorage, PutResult, object_store, posix
from stateflow.storage.object_store import ObjectStorage
from tests.support.mutants.registry import Mutant, Mutants

MUTANTS = Mutants()


@MUTANTS.plant("check-then-write", (PosixStorage, "put_new"))
def _check_then_write(self: PosixStorage, key: str, data: bytes) -> PutResult:
    """Put-if-absent is a check followed by a write."""
    path = self.local_path(key)
    assert path is not None
    if path.exists():
        return PutResult.EXISTS
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(data)
    return PutResult.CREATED


_put_new = ObjectStorage.put_new


@MUTANTS.plant("believed", (ObjectStorage, "put_new"))
def _believed(self: ObjectStorage, key: str, data: bytes) -> PutResult:
    """A write without a response is treated as successful."""
    result = _put_new(self, key, data)
    return PutResult.CREATED if result is PutResult.UNKNOWN else result


MUTANTS.add(
    Mutant("impatient", "A refused request is not repeated.", ((object_store, "_RETRIES", {"max_retries": 0}),))
)


class _NeverForked:
    """A fork of the process is not detected."""

    user: int | None = None

    @property
    def is_forked(self) -> bool:
        return False

    @is_forked.setter
    def is_forked(self, _: bool) -> None: ...


MUTANTS.add(
    Mutant("no-fork-guard", "A fork of the process is not detected.", ((object_store, "_process", _NeverForked()),))
)


@MUTANTS.plant("no-fsync", (posix, "sync_folder"))
def _never_synced(_: int) -> None:
    """A directory is not synced after a file was created in it."""


_sync = posix.sync_folder


def _sync_or_not(folder: int) -> None:
    with contextlib.suppress(OSError):
        _sync(folder)


_posix: Any = posix  # its `os` may be the one of a failing disk


def _put_regardless(self: PosixStorage, key: str, content: Iterable[bytes]) -> PutResult:
    with self._made_folder_of(key) as (folder, name), posix._unnamed_file(folder) as fd:
        for chunk in content:
            posix._write_all(fd, chunk)
        with contextlib.suppress(OSError):
            _posix.os.fsync(fd)
        return posix._publish(fd, folder, name)


MUTANTS.add(
    Mutant(
        "fsync-errors",
        "An error of fsync is ignored.",
        ((posix, "sync_folder", _sync_or_not), (PosixStorage, "_put_unnamed", _put_regardless)),
    )
)


@MUTANTS.plant(
    "no-hashes",
    (host_cache, "check_file"),
    (host_cache, "check_content"),
    (manifest_files, "check_content"),
    (checkpointing, "check_content"),
)
def _check_nothing(*_: object) -> None:
    """Data read from the storage is not compared with its hash."""


def _link_unchecked(copy: Path, file: StateFile, target: Path, _: object) -> bool:
    try:
        os.link(copy, target)
    except FileNotFoundError:
        return False
    return True


MUTANTS.add(
    Mutant(
        "trusted-cache",
        "Files in a host's cache are not checked again.",
        ((host_cache, "_link_copy", _link_unchecked), (host_cache, "_drop_if_damaged", lambda *_: True)),
    )
)
