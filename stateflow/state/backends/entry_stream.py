"""What the forms in which entries are stored as streams have in common: entries, exact reads, and the error."""

from __future__ import annotations

from typing import BinaryIO

from stateflow.errors import CorruptFile

Entry = tuple[bytes, bytes]
"""A key, which begins with its key group, and its value."""
GROUP_BYTES = 2


def read_exactly(stream: BinaryIO, size: int, name: str) -> bytes:
    """Returns the next `size` bytes of a stream; raises CorruptFile if it ends before. `name` is that of the file."""
    data = stream.read(size)
    if len(data) != size:
        raise unreadable(name, "it is truncated")
    return data


def unreadable(name: str, reason: str) -> CorruptFile:
    """Returns the error for a file of entries that is not in its format."""
    return CorruptFile(
        "a file of state cannot be read",
        hint="restore an older checkpoint, or another savepoint",
        file=name,
        reason=reason,
    )
