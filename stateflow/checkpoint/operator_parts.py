"""Reads the stored operator state of all subtasks, within a bound for memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from stateflow.errors import CorruptFile
from stateflow.state.files.host_cache import check_content
from stateflow.state.handles import OperatorContent, OperatorPart
from stateflow.state.operator_content import StoredContent
from stateflow.storage import Storage
from stateflow.storage.paths import check_key
from stateflow.types.bounded_json import MEMORY_LIMIT, TooMuchMemory
from stateflow.types.key_encoding import decode_key
from stateflow.types.serializers import check_untyped


def read_parts(
    storage: Storage | None, parts: Iterable[OperatorPart]
) -> Iterator[tuple[OperatorPart, OperatorContent]]:
    """Reads the parts of an operator, and yields each with its content.

    Args:
        storage: not needed for parts that are stored in the manifest.
        parts: the parts of all subtasks.

    Raises:
        MissingFile: a part's file does not exist.
        CorruptFile: a part is damaged, or all of them would take more than `MEMORY_LIMIT`.
    """
    left = MEMORY_LIMIT
    for part in parts:
        name = part.handle.key if part.handle else "the manifest"
        try:
            stored = StoredContent.of(_bytes_of(storage, part, left), left)
            content = stored.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            raise CorruptFile(
                "stored operator state cannot be read",
                hint="restore an older checkpoint",
                file=name,
                subtask=part.subtask,
                reason=str(e),
            ) from e
        left -= stored.memory
        yield part, content


def _bytes_of(storage: Storage | None, part: OperatorPart, memory: int) -> bytes:
    """Returns the bytes of a part. Raises TooMuchMemory if it could not be decoded within `memory`."""
    if part.handle is None:
        return part.content
    assert storage is not None
    if part.handle.size > memory // 2:
        raise TooMuchMemory("it is too large")
    data = storage.get(check_key(part.handle.key), memory // 2)
    check_content(part.handle, len(data), hashlib.sha256(data).hexdigest())
    return data


def check_parts(storage: Storage, parts: Iterable[OperatorPart]) -> None:
    """Checks everything in the parts of an operator; raises as `read_parts` does."""
    for _, content in read_parts(storage, parts):
        for elements in (*content.lists.values(), *content.unions.values()):
            for element in elements:
                check_untyped(element)
        for entries in content.broadcasts.values():
            for key, value in entries.items():
                decode_key(key)
                check_untyped(value)
