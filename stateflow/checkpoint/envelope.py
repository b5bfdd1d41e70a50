"""How small documents are stored: one line of JSON, then the SHA-256 of that line.

The second line makes a flipped bit or a cut-off document known before anything in it is believed, also for the newest
log entry, whose hash no other document holds yet.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from stateflow.decoders import json_decoder
from stateflow.errors import CorruptFile

T = TypeVar("T")
LIMIT = 64 << 20
"""Largest document that is read, in bytes."""


def seal(document: msgspec.Struct) -> tuple[bytes, str]:
    """The bytes to store for `document`, and its hash."""
    line = msgspec.json.encode(document)
    digest = hashlib.sha256(line).hexdigest()
    return line + b"\n" + digest.encode() + b"\n", digest


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
