"""Reads and decodes the stored operator state of all subtasks, with a bound for the memory that it takes.

A few bytes in a file can become hundreds of bytes in memory. Arrays and maps of msgpack begin with their lengths. So
the size in memory is bounded from the lengths of the state's lists and maps, before any of them is decoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from stateflow.errors import CorruptFile
from stateflow.state.handles import OperatorContent, OperatorPart, RawKeyed
from stateflow.state.host_cache import check_content
from stateflow.storage import Storage
from stateflow.storage.paths import check_key
from stateflow.types.decoders import MEMORY_LIMIT, TooMuchMemory, msgpack_decoder
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


# Bounds of the memory of a state with its name, and of an element, a map's entry and a piece of raw keyed state without
# their bytes; tests measure them. References to them in copied lists are included.
_NAME, _ELEMENT, _ENTRY, _PIECE = 448, 80, 320, 176
_NO_MAP, _NO_LIST = Raw(b"\x80"), Raw(b"\x90")
_LENGTH_BYTES = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""Width of the length in the header of a large array or map, by its first byte."""


class _Outline(msgspec.Struct):
    """`OperatorContent` whose fields are not decoded."""

    lists: Raw = _NO_MAP
    unions: Raw = _NO_MAP
    broadcasts: Raw = _NO_MAP
    raw: Raw = _NO_LIST
    raw_keyed: Raw = _NO_LIST


@dataclass
class _Budget:
    """Adds up memory; raises TooMuchMemory above the limit."""

    limit: int
    used: int = 0

    def add(self, size: int) -> None:
        self.used += size
        if self.used > self.limit:
            raise TooMuchMemory(f"decoding it could take more than {self.limit} bytes of memory")

    def named(self, states: Raw) -> dict[str, Raw]:
        """Returns the undecoded states by name."""
        self.add(_NAME * _length(states))
        return msgpack_decoder(dict[str, Raw]).decode(states)


@dataclass(frozen=True)
class StoredContent:
    """Operator state that is not decoded, but within the limit for memory.

    Attributes:
        memory: a bound of the bytes of memory that it takes: its text, and what it is decoded into.
    """

    memory: int
    _lists: dict[str, Raw]
    _unions: dict[str, Raw]
    _broadcasts: dict[str, Raw]
    _raw: Raw
    _raw_keyed: Raw

    @classmethod
    def of(cls, data: bytes, limit: int) -> StoredContent:
        """Returns the operator state in a part.

        Args:
            data: the part's bytes.
            limit: the largest `memory` that is accepted.

        Raises:
            TooMuchMemory: it is above the limit.
            msgspec.DecodeError, UnicodeDecodeError, RecursionError: the bytes are not operator state.
        """
        budget = _Budget(limit)
        budget.add(2 * len(data))
        outline = msgpack_decoder(_Outline).decode(data)
        lists, unions, broadcasts = map(budget.named, (outline.lists, outline.unions, outline.broadcasts))
        budget.add(_ELEMENT * _total((*lists.values(), *unions.values(), outline.raw)))
        budget.add(_ENTRY * _total(broadcasts.values()))
        budget.add(_PIECE * _length(outline.raw_keyed))
        return cls(budget.used, lists, unions, broadcasts, outline.raw, outline.raw_keyed)

    def decode(self) -> OperatorContent:
        """Returns the decoded state. Raises msgspec.DecodeError or RecursionError if it is not operator state."""
        # Not from the part's bytes, where a field may occur twice.
        elements, entries = msgpack_decoder(list[bytes]), msgpack_decoder(dict[bytes, bytes])
        return OperatorContent(
            lists={name: elements.decode(data) for name, data in self._lists.items()},
            unions={name: elements.decode(data) for name, data in self._unions.items()},
            broadcasts={name: entries.decode(data) for name, data in self._broadcasts.items()},
            raw=elements.decode(self._raw),
            raw_keyed=msgpack_decoder(RawKeyed).decode(self._raw_keyed),
        )


def _total(collections: Iterable[Raw]) -> int:
    return sum(map(_length, collections))


def _length(collection: Raw) -> int:
    """Returns the length in the header of a msgpack array or map; 0 for anything else, which is not decoded."""
    head = bytes(memoryview(collection)[:5])
    if 0x80 <= head[0] <= 0x9F:
        return head[0] & 0x0F
    return int.from_bytes(head[1 : 1 + _LENGTH_BYTES.get(head[0], 0)])
