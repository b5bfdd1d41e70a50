"""Upper bound of the memory in which a value of msgpack is decoded.

One byte of a list can become an object of hundreds of bytes. The bound is computed from the headers of a value's items,
without decoding them, so it depends on the bytes and the declared type alone: what a job may write, it can read on each
host. The bound of a declared type is never below that of plain dicts and lists, for readers that do not have the type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from msgspec import inspect

from stateflow.types.declared_types import all_types
from stateflow.types.decoders import MEMORY_LIMIT, TooMuchMemory

# -- headers of msgpack's items ---------------------------------------------------------------------------------------

ARRAYS = bytes((*range(0x90, 0xA0), 0xDC, 0xDD))
MAPS = bytes((*range(0x80, 0x90), 0xDE, 0xDF))
_LARGE_ARRAYS = b"\xdc\xdd"
_SHORT_TEXTS, _LONG_TEXTS = bytes(range(0xA0, 0xC0)), b"\xd9\xda\xdb"
_BINARY = b"\xc4\xc5\xc6"
_LONG_EXTENSIONS = b"\xc7\xc8\xc9"
"""First bytes of extensions with a size, which does not include the byte of their type."""
_EXTENSIONS = _LONG_EXTENSIONS + bytes(range(0xD4, 0xD9))
_SIZE_BYTES = {
    **dict(zip(_BINARY + _LONG_EXTENSIONS + _LONG_TEXTS, (1, 2, 4) * 3, strict=True)),
    **dict(zip(_LARGE_ARRAYS + b"\xde\xdf", (2, 4) * 2, strict=True)),
}
"""Width of the size after the first byte of binary data, extensions, long texts, and large arrays and maps."""


def _widths() -> list[int]:
    widths = [1] * 256
    for width, tags in {2: "cc d0", 3: "cd d1 dc d4", 4: "d5", 5: "ca ce d2 dd", 6: "d6", 9: "cb cf d3"}.items():
        for tag in bytes.fromhex(tags):
            widths[tag] = width
    widths[0xD7], widths[0xD8] = 10, 18
    for tag in _SHORT_TEXTS:
        widths[tag] = 1 + tag - _SHORT_TEXTS[0]
    for tag in (*_BINARY, *_LONG_EXTENSIONS, *_LONG_TEXTS, 0xDE, 0xDF):
        widths[tag] = 0
    return widths


_WIDTHS = _widths()
"""Bytes from an item's first byte to the next item, by the first byte; 0 if a size follows it."""
_NUMBERS = re.compile(
    rb"([\x00-\x7f\xc0-\xc3\xe0-\xff]++)|((?:[\xcc\xd0].)++)|((?:[\xcd\xd1]..)++)|((?:[\xca\xce\xd2].{4})++)"
    rb"|((?:\xcb.{8})++)|((?:[\xcf\xd3].{8})++)",
    re.DOTALL,
)
"""Numbers of one width, which are counted together. The quantifiers are possessive: others keep a position for each
number, which takes more memory than the decoded value."""
_RUN_WIDTHS = (0, 1, 2, 3, 5, 9, 9)
"""Width of a number by its group in `_NUMBERS`."""


def container_header(data: bytes) -> tuple[int, int]:
    """Returns the length of the header of an array or map, and the number of items in it: two for each entry."""
    tag = data[0]
    start, size = _size_at(data, 0) if tag in _SIZE_BYTES else (1, tag % 16)
    return start, size * (2 if tag in MAPS else 1)


def _size_at(data: bytes, at: int) -> tuple[int, int]:
    """Returns the offset after a header with a size, and the size: of bytes, or the number of items or entries.

    The size is at most that of the data after the header, whatever a header claims.
    """
    tag = data[at]
    start = at + 1 + _SIZE_BYTES[tag]
    size = int.from_bytes(data[at + 1 : start]) + (tag in _LONG_EXTENSIONS)
    return start, min(size, len(data) - start)


# -- the bound --------------------------------------------------------------------------------------------------------

COPIES = 4
"""How often a value's bytes are in memory while it is decoded: compressed, as a block, as an entry, and as msgpack."""

# Bounds of the memory of an item in bytes, with the reference to it in a list, which is copied when the list grows: a
# number; a number of 64 bits; a text, binary data or an extension, without its contents; a list; a dict; and an entry
# of a dict that has no room for it. Tests measure them.
_NUMBER, _LONG, _CONTENT, _LIST, _DICT, _ENTRY = 48, 64, 80, 96, 256, 64
_DECODER = 4096
"""Memory that each decoding takes, with an error that contains a short text."""
_WIDE = 6
"""Bytes for a byte of text that is not ASCII: four for each character, and two of the copy that is widened."""
_ROOM = 5
"""Number of entries for which a new dict has room."""
_IN_ERROR, _WIDE_IN_ERROR = 12, 44
"""Bytes for a byte of a text in an error, which escapes each character: of an ASCII text, and of another."""

_SMALL_MAPS = MAPS[: _ROOM + 1]
_LARGE_MAPS = MAPS[_ROOM + 1 :]


def _plain_costs() -> list[int]:
    """Returns the memory of an item by its first byte, without the contents that follow a length."""
    costs = [_NUMBER] * 256
    costs[0xCF] = costs[0xD3] = _LONG
    for tag in (*_SHORT_TEXTS, *_LONG_TEXTS, *_BINARY, *_EXTENSIONS):
        costs[tag] = _CONTENT
    for tag in ARRAYS:
        costs[tag] = _LIST
    for tag in MAPS:
        costs[tag] = _DICT
    for entries in range(_ROOM + 1, 16):
        costs[0x80 + entries] = _DICT + _ENTRY * entries
    return costs


@dataclass(frozen=True)
class TypeMemory:
    """The memory in which values of a declared type are decoded.

    Attributes:
        item: bytes for each item in addition to those of plain values.
        container: bytes for each array and map in addition.
        error_texts: whether the error about a wrong value contains a text of it, with all characters escaped.
        unchecked: size in bytes up to which `check` accepts each value; callers that are fast do not call it for these.
    """

    item: int = 0
    container: int = 0
    error_texts: bool = False
    unchecked: int = field(init=False)
    _costs: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        containers = {*ARRAYS, *MAPS}
        costs = (cost + self.item + self.container * (tag in containers) for tag, cost in enumerate(_plain_costs()))
        object.__setattr__(self, "_costs", tuple(costs))
        of_byte = COPIES + _DICT + _ENTRY // 2 + self.item + self.container + _WIDE_IN_ERROR * self.error_texts
        object.__setattr__(self, "unchecked", (MEMORY_LIMIT - _DECODER) // of_byte)

    def check(self, data: bytes) -> None:
        """Raises TooMuchMemory if decoding `data`, a value of msgpack, could take more than `MEMORY_LIMIT`."""
        if len(data) <= self.unchecked:
            return
        # Counting bytes copies the data, so it is not done for data that it cannot accept.
        if len(data) * (COPIES + _NUMBER) > MEMORY_LIMIT or self.rough_size(data) > MEMORY_LIMIT:
            self.size(data, MEMORY_LIMIT)

    def rough_size(self, data: bytes) -> int:
        """Returns a bound from the numbers of bytes alone: for a value never below `size`, and computed much faster."""
        arrays, texts = _count(data, ARRAYS), _count(data, _SHORT_TEXTS + _LONG_TEXTS)
        large = _count(data, _LARGE_MAPS)
        maps = _count(data, _SMALL_MAPS) + large
        containers = arrays * (_LIST - _NUMBER) + maps * (_DICT - _NUMBER) + (arrays + maps) * self.container
        # An entry has two items, so at least two bytes.
        of_byte = COPIES + _NUMBER + self.item + _ENTRY // 2 * (large > 0) + _WIDE_IN_ERROR * self.error_texts
        return _DECODER + len(data) * of_byte + containers + texts * (_CONTENT - _NUMBER)

    def size(self, data: bytes, limit: int) -> int:
        """Returns the bound in bytes; raises TooMuchMemory if it is above the limit.

        Of data that is not msgpack, or truncated, a part is counted: as much as can be decoded before that is noticed.
        """
        costs, used, at, in_error = self._costs, _DECODER + COPIES * len(data), 0, 0
        while at < len(data):
            tag = data[at]
            used += costs[tag]
            if width := _WIDTHS[tag]:
                at += width
                if 0xA0 <= tag <= 0xBF:
                    used += width if data[at - width + 1 : at].isascii() else width * _WIDE
                elif tag in _LARGE_ARRAYS and (run := _NUMBERS.match(data, at)):
                    used += len(run[0]) // _RUN_WIDTHS[run.lastindex or 0] * costs[run[0][0]]
                    at = run.end()
            elif tag in _LARGE_MAPS:
                start, entries = _size_at(data, at)
                used += _ENTRY * entries
                at = start
            else:
                start, length = _size_at(data, at)
                at = start + length
                is_wide = tag in _LONG_TEXTS and not data[start:at].isascii()
                used += length * (_WIDE if is_wide else 1)
                in_error = max(in_error, length * (_WIDE_IN_ERROR if is_wide else _IN_ERROR) * self.error_texts)
            if used + in_error > limit:
                raise TooMuchMemory(f"decoding it could take more than {limit} bytes of memory")
        return used + in_error


PLAIN = TypeMemory()
"""Memory of values that are decoded without a type."""


def _count(data: bytes, values: bytes) -> int:
    """Returns how many bytes of the data have one of these values."""
    return len(data) - len(data.translate(None, values))


# -- declared types ---------------------------------------------------------------------------------------------------

_SET, _IN_SET, _LARGE_NUMBER, _DEFAULT = 152, 128, 80, 240
"""Bytes in addition: of a set to a list, of a place in the table of a set, of a decimal or UUID to a number; and bytes
of a default value."""
_INSTANCES: dict[type, tuple[int, int]] = {
    inspect.StructType: (64, 8),
    inspect.NamedTupleType: (64, 8),
    inspect.DataclassType: (464, 48),  # Its attributes can be in a dict.
}
"""Bytes of an instance and of a field in it, by the kind of its class."""


def type_memory(value_type: object) -> TypeMemory:
    """Returns the memory of a declared type, without what the functions create that make default values.

    Raises:
        TypeError: msgspec does not know the type.
    """
    types = list(all_types(value_type))
    has_sets = any(isinstance(info, inspect.SetType | inspect.FrozenSetType) for info in types)
    has_large = any(isinstance(info, inspect.DecimalType | inspect.UUIDType) for info in types)
    return TypeMemory(
        item=_IN_SET * has_sets + _LARGE_NUMBER * has_large,
        container=_SET * has_sets + max(map(_instance, types)),
        error_texts=any(map(_is_choice_of_texts, types)),
    )


def _is_choice_of_texts(info: inspect.Type) -> bool:
    values: Iterable[object] = ()
    if isinstance(info, inspect.EnumType):
        values = [member.value for member in info.cls]
    elif isinstance(info, inspect.LiteralType):
        values = info.values
    return any(isinstance(value, str) for value in values)


def _instance(info: inspect.Type) -> int:
    """Returns the bytes of a class's instance that exceed those counted for the array or map it is decoded from."""
    is_array = isinstance(info, inspect.NamedTupleType) or getattr(info, "array_like", False)
    return max(0, _object(info, ()) - (_LIST if is_array else _DICT))


def _object(info: inspect.Type, within: tuple[object, ...]) -> int:
    """Returns the bytes of a class's instance with its default values; 0 for other types."""
    if not isinstance(info, inspect.StructType | inspect.NamedTupleType | inspect.DataclassType):
        return 0
    instance, of_field = _INSTANCES[type(info)]
    factories = [f.default_factory for f in info.fields if f.default_factory is not msgspec.NODEFAULT]
    return instance + of_field * len(info.fields) + sum(_default(factory, (*within, info.cls)) for factory in factories)


def _default(factory: object, within: tuple[object, ...]) -> int:
    if not isinstance(factory, type) or factory in within:
        return _DEFAULT
    return _DEFAULT + _object(inspect.type_info(factory), within)
