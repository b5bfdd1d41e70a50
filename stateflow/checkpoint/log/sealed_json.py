"""How small documents are stored: one line of JSON, then the SHA-256 of that line.

The second line makes a flipped bit or a cut-off document known before anything in it is believed, also for the newest
log entry, whose hash no other document holds yet.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from stateflow.decoders import json_decoder
from stateflow.errors import CorruptFile, TooLarge

T = TypeVar("T")
LIMIT = 64 << 20
"""Largest document that is written, and that is read, in bytes."""


def seal(document: msgspec.Struct, limit: int = LIMIT) -> tuple[bytes, str]:
    """The bytes to store for `document`, and its hash.

    Every stored document passes here before it is written, so that none is stored which no reader accepts.

    Args:
        limit: what its readers accept.

    Raises TooLarge.
    """
    line = msgspec.json.encode(document)
    digest = hashlib.sha256(line).hexdigest()
    data = line + b"\n" + digest.encode() + b"\n"
    kind = type(document).__name__
    if len(data) > limit:
        raise TooLarge("a document is too large to be read again, and was not stored", hint=_HINTS.get(kind, _SHORTER),
                       document=kind, size=len(data), limit=limit)  # fmt: skip
    return data, digest


_SHORTER = "use shorter names and texts"
_HINTS = {
    "LogEntry": "the source positions or the notes of pins and restores take the space: read fewer partitions with one "
    "source, and drop unused pins",
    "Manifest": "use fewer subtasks or fewer state files for each: a lower parallelism, or larger files (rocksdb "
    "settings)",
    "Savepoint": "use fewer subtasks or fewer state files for each: a lower parallelism, or larger files (rocksdb "
    "settings)",
}
"""What to do about a document of this kind."""


def unseal(data: bytes, kind: type[T], key: str) -> tuple[T, str]:
    """The document in `data` and its hash.

    Raises CorruptFile naming `key` when the bytes are not exactly what `seal` made of a document of this kind.
    """
    line, _, rest = data.partition(b"\n")
    digest = hashlib.sha256(line).hexdigest()
    if rest != digest.encode() + b"\n":
        raise CorruptFile("a stored document is damaged", hint="restore the file from a copy, or go back to an older "
                          "checkpoint", file=key, size=len(data))  # fmt: skip
    try:
        return json_decoder(kind).decode(line), digest
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise CorruptFile("a stored document has another shape than this version writes", file=key,
                          reason=str(e)) from e  # fmt: skip
