"""The storage format of small documents: one line of JSON, then the SHA-256 of that line.

The second line detects a damaged or truncated document before its content is used, also for the newest log entry, whose
hash no other document contains yet.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from stateflow.errors import CorruptFile, TooLarge
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
        size=size,
        limit=limit,
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
            size=len(data),
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
