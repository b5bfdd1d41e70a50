"""Reading and writing the files that checkpoints consist of, with their hashes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec

from stateflow.checkpoint.documents import Manifest, OperatorState
from stateflow.checkpoint.envelope import LIMIT, seal, unseal
from stateflow.errors import MissingFile, StorageError
from stateflow.state.handles import FileHandle
from stateflow.state.transfer import check_content, check_local
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import check_key

_READERS = min(8, os.cpu_count() or 1)

T = TypeVar("T", bound=msgspec.Struct)


def write_manifest(
    storage: Storage, folder: str, manifest: Manifest, name: str = "manifest.json"
) -> FileHandle:
    """Stores the manifest below `folder` (a data folder of its own attempt) and returns its handle.

    Args:
        name: another one for another content.

    Raises TooLarge for one that could never be read: a checkpoint that has it would be the end of the job.
    """
    return write_document(storage, f"{folder}{name}", manifest)


def read_manifest(storage: Storage, handle: FileHandle) -> Manifest:
    """The manifest; raises MissingFile or CorruptFile naming it."""
    return read_document(storage, handle, Manifest)


def write_document(storage: Storage, key: str, document: msgspec.Struct) -> FileHandle:
    """Stores a document under a name that is unique to it, and returns its handle. Raises TooLarge or StorageError."""
    data, _ = seal(document)
    return write_bytes(storage, key, data)


def read_document(storage: Storage, handle: FileHandle, kind: type[T]) -> T:
    """A document that another one names; raises MissingFile or CorruptFile naming it."""
    data = storage.get(check_key(handle.key), LIMIT)
    check_content(handle, len(data), hashlib.sha256(data).hexdigest())
    document, _ = unseal(data, kind, handle.key)
    return document


def get_or_none(storage: Storage, key: str) -> bytes | None:
    """A small object; None when there is none."""
    try:
        return storage.get(key, LIMIT)
    except MissingFile:
        return None


def write_bytes(storage: Storage, key: str, data: bytes) -> FileHandle:
    """Stores `data` under a name that nobody else uses. Raises StorageError when the storage does not confirm it."""
    if storage.put_new(key, data) is not PutResult.CREATED:
        _confirm(storage, key, data)
    return FileHandle(key=key, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def _confirm(storage: Storage, key: str, data: bytes) -> None:
    try:
        found = storage.get(key)
    except MissingFile as e:
        # No data is lost, as MissingFile would say: the request was, or it is still on its way.
        raise StorageError("the storage does not say whether an object was written", key=key) from e
    if found != data:
        raise StorageError("an object name was used twice", key=key)
    # What could not be synced is there as well, until power fails.
    if storage.durable_size(key) is None:
        raise StorageError("an object that was just there is gone", key=key)


def check_sizes(storage: Storage, handles: Iterable[FileHandle]) -> None:
    """Raises MissingFile or CorruptFile unless every file is stored with its handle's size; reads none."""
    for handle in handles:
        size = storage.size(check_key(handle.key))
        if size is None:
            raise MissingFile("a stored file is not there", hint="go back to another checkpoint or savepoint",
                              file=handle.key, storage=storage.uri)  # fmt: skip
        check_content(handle, size, handle.sha256)


def check_stored(storage: Storage, handles: Iterable[FileHandle]) -> None:
    """Raises MissingFile or CorruptFile unless every file is stored as its handle says."""
    checks = [_check_of(storage, handle) for handle in handles]
    if storage.host_local and storage.local_path("x") is None:
        # Objects in memory: there is nothing to wait for.
        for check in checks:
            check()
        return
    # Hashing and waiting let go of the interpreter.
    with ThreadPoolExecutor(_READERS) as pool:
        for done in [pool.submit(check) for check in checks]:
            done.result()


def _check_of(storage: Storage, handle: FileHandle) -> Callable[[], None]:
    path = storage.local_path(check_key(handle.key))
    if path is not None and path.is_file():
        return partial(check_local, handle, path)
    return partial(_check_object, storage, handle)


def _check_object(storage: Storage, handle: FileHandle) -> None:
    digest, size = hashlib.sha256(), 0
    for chunk in storage.chunks(handle.key):
        digest.update(chunk)
        size += len(chunk)
        if size > handle.size:
            break
    check_content(handle, size, digest.hexdigest())


def files_of(manifest: Manifest) -> list[FileHandle]:
    """Every file that the manifest refers to, once: after rescaling, several subtasks may have one in common."""
    states = [handle for o in manifest.operators for handle in o.files]
    sources = [f.handle for f in manifest.spark.source_files if f.handle] if manifest.spark else []
    return list(dict.fromkeys(states + sources))


def state_bytes(operators: Iterable[OperatorState]) -> int:
    """How much state these are: stored files, each counted once, and what is in the manifest itself."""
    operators = list(operators)
    keyed = {(f.handle.key, f.part.offset if f.part else 0): f.size
             for o in operators for s in o.subtasks for f in s.files}  # fmt: skip
    others = {p.handle.key: p.handle.size for o in operators for p in o.parts if p.handle}
    inline = sum(len(s.inline or b"") for o in operators for s in o.subtasks)
    return (
        sum(keyed.values())
        + sum(others.values())
        + inline
        + sum(len(p.content) for o in operators for p in o.parts)
    )
