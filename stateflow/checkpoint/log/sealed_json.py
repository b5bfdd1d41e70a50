"""The storage format of small documents: one line of JSON, then the SHA-256 of that line.

The second line detects a damaged or truncated document before its content is used, also for the newest log entry, whose
hash no other document contains yet.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from stateflow.errors import CorruptFile, TooLarge
from stateflow.types.decoders import json_decoder

T = TypeVar("T")
LIMIT = 64 << 20
"""Size of the largest document that is written or read, in bytes."""


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
    data = line + b"\n" + digest.encode() + b"\n"
    kind = type(document).__name__
    if len(data) > limit:
        raise TooLarge(
            "a document exceeds the size that can be read again, and was not stored",
            hint=_HINTS.get(kind, _SHORTER),
            document=kind,
            size=len(data),
            limit=limit,
        )
    return data, digest


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
    line, _, rest = data.partition(b"\n")
    digest = hashlib.sha256(line).hexdigest()
    if rest != digest.encode() + b"\n":
        raise CorruptFile(
            "a stored document is damaged",
            hint="restore the file from a copy, or restore an older checkpoint",
            file=key,
            size=len(data),
        )
    try:
        return json_decoder(kind).decode(line), digest
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise CorruptFile(
            "a stored document does not have the structure that this version expects", file=key, reason=str(e)
        ) from e
