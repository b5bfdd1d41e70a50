"""Upper bound of the memory in which a value of msgpack is decoded.

One byte of a list can become an object of hundreds of bytes. The bound is a function of the bytes and the declared type
alone, so a value that a job may store can be read everywhere. It is computed from the headers of the value's items,
without decoding them; most values are too small to need even that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec
from msgspec import inspect

from stateflow.types.bounded_json import MEMORY_LIMIT, TooMuchMemory
from stateflow.types.declared_types import all_types

# Bounds of the memory of an item, with the reference to it, in bytes; tests measure them.
_NUMBER, _LONG, _TEXT, _ARRAY, _MAP, _ENTRY = 40, 56, 72, 88, 248, 64
_COPIES = 4
"""How often a value's bytes are in memory while it is decoded: compressed, as a block, as an entry, and as msgpack."""
_WIDE = 4
"""Bytes for a byte of text: Python stores four for each character if one of them needs four."""
_ROOM = 5
"""Entries for which a new dict has room."""
_PER_BYTE = _COPIES + _ARRAY + _ENTRY // 2
"""Bound for a plain byte that is not the header of a map: an empty list in a large map takes this much."""
_MAP_HEADERS = bytes((*range(0x80, 0x90), 0xDE, 0xDF))

_IN_SET, _LARGE, _FACTORY = 128, 72, 240
_OBJECTS: dict[type, tuple[int, int]] = {
    inspect.StructType: (64, 8),
    inspect.NamedTupleType: (64, 8),
    inspect.DataclassType: (464, 48),  # Its attributes can be in a dict.
}
"""Bytes of an instance of a class, and of a field in it, by the kind of class."""
_ITEMS: dict[type, int] = {
    inspect.SetType: _IN_SET,
    inspect.FrozenSetType: _IN_SET,
    inspect.DecimalType: _LARGE,
    inspect.UUIDType: _LARGE,
}
"""Bytes of an item in addition, by type: its places in the table of a set, and larger objects."""
_CONTAINERS: dict[type, int] = {inspect.SetType: 152, inspect.FrozenSetType: 152}
"""Bytes that an empty set takes in addition to an empty list."""

# Possessive quantifiers: others keep a position for each repetition, which takes more memory than the decoded value.
_RUN = re.compile(
    rb"([\x00-\x7f\xc0-\xc3\xe0-\xff]++)|((?:[\xcc\xd0].)++)|((?:[\xcd\xd1]..)++)|((?:[\xca\xce\xd2].{4})++)"
    rb"|((?:\xcb.{8})++)|((?:[\xcf\xd3].{8})++)|([\x90-\x9f]++)|((?:\xdc..)++)|((?:\xdd.{4})++)|([\x80-\x85]++)",
    re.DOTALL,
)
"""Items of one width, which are counted together: numbers, None, truth values, and headers of arrays and small maps."""
_RUN_ITEMS = [
    (0, 0),
    *((_NUMBER, width) for width in (1, 2, 3, 5, 9)),
    (_LONG, 9),
    *((_ARRAY, width) for width in (1, 3, 5)),
    (_MAP, 1),
]
"""Memory and width of an item, by the number of its group in `_RUN`."""
_TEXT_HEADERS = bytes((*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB))
_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDE: 2, 0xDF: 4}
"""Width of the length that follows the first byte of binary data, extensions, texts and maps."""
_LENGTHS = {
    **{0x80 + length: length for length in range(16)},
    **{0xA0 + length: length for length in range(32)},
    0xD4: 2,
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
}
"""Lengths that the first byte determines; that of an extension includes its type."""
_SIZED_EXTENSIONS = b"\xc7\xc8\xc9"


@dataclass(frozen=True)
class TypeMemory:
    """Memory of a declared type's objects in addition to that of lists, dicts, numbers and texts.

    Attributes:
        item: bytes for each item.
        container: bytes for each array and map.
    """

    item: int = 0
    container: int = 0

    @property
    def _per_byte(self) -> int:
        """Bound for a byte that is not the header of a map."""
        return _PER_BYTE + self.item + self.container

    @property
    def unchecked(self) -> int:
        """Size in bytes up to which `check` accepts each value; calling it for smaller ones is unnecessary."""
        return MEMORY_LIMIT // (self._per_byte + _MAP)

    def check(self, data: bytes) -> None:
        """Raises TooMuchMemory if decoding `data`, a value of msgpack, could take more than `MEMORY_LIMIT`."""
        if len(data) * self._per_byte > MEMORY_LIMIT or self.rough_size(data) > MEMORY_LIMIT:
            self.size(data, MEMORY_LIMIT)

    def rough_size(self, data: bytes) -> int:
        """Returns a bound of `size` from the numbers of bytes alone, which is much faster."""
        maps = len(data) - len(data.translate(None, _MAP_HEADERS))
        return len(data) * self._per_byte + maps * _MAP

    def size(self, data: bytes, limit: int) -> int:
        """Returns a bound of the memory for decoding `data`, in bytes; raises TooMuchMemory if it is above the limit.

        Of data that is not msgpack, or truncated, a part is counted: as much as can be decoded before that is noticed.
        """
        used, at = _COPIES * len(data), 0
        while at < len(data):
            if run := _RUN.match(data, at):
                memory, width = _RUN_ITEMS[run.lastindex or 0]
                extra = self.item + (self.container if memory >= _ARRAY else 0)
                used += (run.end() - at) // width * (memory + extra)
                at = run.end()
            else:
                memory, at = self._sized(data, at)
                used += memory
            if used > limit:
                raise TooMuchMemory(f"decoding it could take more than {limit} bytes of memory")
        return used

    def _sized(self, data: bytes, at: int) -> tuple[int, int]:
        """Returns the memory of the item at an offset whose size is in its header, and the offset after it."""
        tag = data[at]
        start = at + 1 + _LENGTH_BYTES.get(tag, 0)
        length = _LENGTHS[tag] if tag in _LENGTHS else int.from_bytes(data[at + 1 : start])
        length = min(length, len(data) - start)
        if tag in _MAP_HEADERS:
            return _MAP + self.item + self.container + (_ENTRY * length if length > _ROOM else 0), start
        end = start + length + (tag in _SIZED_EXTENSIONS)  # one byte for the type
        is_wide = tag in _TEXT_HEADERS and not data[start:end].isascii()
        return _TEXT + self.item + length * (_WIDE if is_wide else 1), end


PLAIN = TypeMemory()
"""Memory of values that are decoded without a type."""


def type_memory(value_type: object) -> TypeMemory:
    """Returns the memory of a declared type's objects, without what factories of default values create.

    Raises:
        TypeError: msgspec does not know the type.
    """
    types = list(all_types(value_type))
    return TypeMemory(
        item=max(_ITEMS.get(type(info), 0) for info in types),
        container=max(_CONTAINERS.get(type(info), 0) + _instance(info) for info in types),
    )


def _instance(info: inspect.Type) -> int:
    """Returns the bytes of a class's instance in addition to the list or dict from which it is decoded."""
    if not isinstance(info, inspect.StructType | inspect.DataclassType | inspect.NamedTupleType):
        return 0
    instance, field = _OBJECTS[type(info)]
    factories = sum(member.default_factory is not msgspec.NODEFAULT for member in info.fields)
    positional = isinstance(info, inspect.NamedTupleType) or getattr(info, "array_like", False)
    return max(0, instance + field * len(info.fields) + _FACTORY * factories - (_ARRAY if positional else _MAP))
