"""Reads, writes and verifies the files of checkpoints, and seals small documents.

A sealed document is one line of JSON, then the SHA-256 of that line, which detects a damaged or truncated document
before its content is used, also for the newest log entry, whose hash no other document contains yet.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.errors import CorruptFile, DataError, MissingFile, StateError, StorageError, TooLarge
from stateflow.helpers import DaemonExecutor
from stateflow.state.handles import FileHandle
from stateflow.state.host_cache import check_content
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import check_key
from stateflow.types.decoders import MEMORY_LIMIT, TooMuchMemory, check_decoded_size, decode_json

T = TypeVar("T")
LIMIT = 48 << 20
"""Size of the largest document that is written or read, in bytes. Decoding it must not exceed `MEMORY_LIMIT` either."""
_DIGEST_LINE = 66
"""Bytes after the line of JSON: the hash between two line ends."""


def seal(document: msgspec.Struct, limit: int = LIMIT) -> tuple[bytes, str]:
    """Returns the bytes to store for `document`, and its hash.

    Every stored document is sealed by this function, so that none is stored that its readers refuse.

    Args:
        document: the document.
        limit: size of the largest document that its readers accept, in bytes.

    Raises TooLarge.
    """
    line = msgspec.json.encode(document)
    digest = hashlib.sha256(line).hexdigest()
    data = b"%b\n%b\n" % (line, digest.encode())
    if len(data) > limit:
        raise _too_large(type(document), len(data), limit)
    try:
        check_decoded_size(type(document), data)
    except TooMuchMemory as e:
        raise _too_large(type(document), len(data), MEMORY_LIMIT) from e
    return data, digest


def _too_large(kind: type, size: int, limit: int) -> TooLarge:
    return TooLarge(
        "a document exceeds the size that can be read again, and was not stored",
        hint=_HINTS.get(kind.__name__, _SHORTER),
        document=kind.__name__,
        size_bytes=size,
        limit_bytes=limit,
    )


_SHORTER = "use shorter names and texts"
_HINTS = {
    "LogEntry": "the source positions, or the notes of pins and restores, are too large: read fewer partitions with "
    "one source, and remove unused pins",
    "Manifest": "use fewer subtasks or fewer state files for each: a lower parallelism, or larger files (rocksdb "
    "settings)",
    "Savepoint": "use fewer subtasks or fewer state files for each: a lower parallelism, or larger files (rocksdb "
    "settings)",
}
"""Hints for documents that are too large, by class name."""


def unseal(data: bytes, kind: type[T], key: str) -> tuple[T, str]:
    """Returns the document in `data` and its hash.

    Args:
        data: the stored bytes.
        kind: class of the document.
        key: key of the stored object, for errors.

    Raises CorruptFile when the bytes are not exactly what `seal` returns for a document of this class.
    """
    # No copy: the data may be large.
    end = len(data) - _DIGEST_LINE
    digest = hashlib.sha256(memoryview(data)[: max(end, 0)]).hexdigest()
    if end < 0 or data.find(b"\n") != end or data[end:] != b"\n%b\n" % digest.encode():
        raise CorruptFile(
            "a stored document is damaged",
            hint="restore the file from a copy, or restore an older checkpoint",
            file=key,
            size_bytes=len(data),
        )
    try:
        return decode_json(kind, data, end), digest
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise CorruptFile(
            "a stored document does not have the structure that this version expects",
            hint="use the version of stateflow that wrote it, or restore the file from a copy",
            file=key,
            reason=str(e),
        ) from e


_READERS = min(8, os.cpu_count() or 1)


def write_manifest(storage: Storage, folder: str, manifest: Manifest, name: str = "manifest.json") -> FileHandle:
    """Stores a manifest and returns its handle.

    Args:
        storage: the job root.
        folder: data folder of the attempt to commit the checkpoint.
        manifest: the manifest.
        name: file name; another content needs another name.

    Raises TooLarge for a manifest that no start could read: after its COMMIT, the job could never start again.
    """
    return write_document(storage, f"{folder}{name}", manifest)


def read_manifest(storage: Storage, handle: FileHandle) -> Manifest:
    """Returns a manifest. Raises MissingFile or CorruptFile."""
    return read_document(storage, handle, Manifest)


def write_document(storage: Storage, key: str, document: msgspec.Struct) -> FileHandle:
    """Stores a document under a key of its own, and returns its handle. Raises TooLarge or StorageError."""
    data, _ = seal(document)
    return write_bytes(storage, key, data)


def read_document(storage: Storage, handle: FileHandle, kind: type[T]) -> T:
    """Returns the document of type `kind` that a handle refers to. Raises MissingFile or CorruptFile."""
    data = storage.get(check_key(handle.key), LIMIT)
    check_content(handle, len(data), hashlib.sha256(data).hexdigest())
    document, _ = unseal(data, kind, handle.key)
    return document


def get_or_none(storage: Storage, key: str) -> bytes | None:
    """Returns the content of a small object; None when it does not exist."""
    try:
        return storage.get(key, LIMIT)
    except MissingFile:
        return None


def write_bytes(storage: Storage, key: str, data: bytes) -> FileHandle:
    """Stores `data` under a key that no other writer uses, and returns its handle.

    Raises StorageError when the storage does not confirm it.
    """
    if storage.put_new(key, data) is not PutResult.CREATED:
        _confirm(storage, key, data)
    return FileHandle(key=key, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def _confirm(storage: Storage, key: str, data: bytes) -> None:
    try:
        found = storage.get(key, len(data))
    except MissingFile as e:
        # Not a MissingFile, which would mean lost data: the write was lost, or it is still in progress.
        raise StorageError("the storage does not confirm that an object was written", key=key) from e
    except CorruptFile:
        raise
    except DataError:
        found = None  # a larger object
    if found != data:
        raise StorageError("an object key was used twice", key=key)
    # An object that could not be synced can be read too, but a power failure would lose it.
    if storage.durable_size(key) is None:
        raise StorageError("an object disappeared after it was written", key=key)


def check_sizes(storage: Storage, handles: Iterable[FileHandle]) -> None:
    """Raises MissingFile or CorruptFile unless every file is stored with its handle's size. Reads no file."""
    for handle in handles:
        size = storage.size(check_key(handle.key))
        if size is None:
            raise MissingFile(
                "a stored file is missing",
                hint="restore another checkpoint or savepoint",
                file=handle.key,
                storage=storage.uri,
            )
        check_content(handle, size, handle.sha256)


def check_hashes(storage: Storage, handles: Iterable[FileHandle]) -> None:
    """Raises MissingFile or CorruptFile unless every file is stored with its handle's size and hash."""
    handles = list(handles)
    if storage.host_local and storage.local_path("x") is None:
        # Objects in memory: threads would not save time.
        for handle in handles:
            _check_hash(storage, handle)
        return
    # Hashing and I/O release the GIL.
    with DaemonExecutor(_READERS) as pool:
        for done in [pool.submit(_check_hash, storage, handle) for handle in handles]:
            done.result()


def _check_hash(storage: Storage, handle: FileHandle) -> None:
    digest, size = hashlib.sha256(), 0
    for chunk in storage.chunks(check_key(handle.key)):
        digest.update(chunk)
        size += len(chunk)
        if size > handle.size:
            break
    check_content(handle, size, digest.hexdigest())


def files_of(manifest: Manifest) -> list[FileHandle]:
    """Returns every file that the manifest refers to, once: after rescaling, several subtasks may share a file."""
    states = [handle for o in manifest.operators for handle in o.files]
    sources = [f.handle for f in manifest.spark.source_files if f.handle] if manifest.spark else []
    return list(dict.fromkeys(states + sources))


def state_bytes(operators: Iterable[OperatorState]) -> int:
    """Returns the size of the operators' state in bytes: stored files, each counted once, and inline state."""
    operators = list(operators)
    keyed = {
        (f.handle.key, f.part.offset if f.part else 0): f.size for o in operators for s in o.subtasks for f in s.files
    }
    others = {p.handle.key: p.handle.size for o in operators for p in o.parts if p.handle}
    inline = sum(len(s.inline or b"") for o in operators for s in o.subtasks)
    return sum(keyed.values()) + sum(others.values()) + inline + sum(len(p.content) for o in operators for p in o.parts)


def check_operator_memory(operators: Iterable[OperatorState]) -> None:
    """Raises StateError if tasks could not read the operator state of an operator again: each reads all parts."""
    for operator in operators:
        memory = sum(part.memory for part in operator.parts)
        if memory > MEMORY_LIMIT:
            raise operator_state_too_large(operator.uid, memory_bytes=memory)


def operator_state_too_large(uid: str, **facts: int) -> StateError:
    """Returns the error for an operator whose operator state a task cannot read."""
    return StateError(
        "the operator state takes too much memory",
        hint="every task of the operator reads the operator state of all subtasks; keep large state in keyed state",
        operator=uid,
        **facts,
        limit_bytes=MEMORY_LIMIT,
    )
