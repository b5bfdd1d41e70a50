"""Decoders of declared types, which threads may share, and the decoding of JSON with a bound for memory.

msgspec analyzes a class when it is decoded for the first time, and attaches the result to the class before it is
complete. Another thread that decodes the same class concurrently uses the incomplete result, and the process crashes
with SIGSEGV: this happened in one of a thousand garbage collections, whose threads read manifests. Once a decoder is
created, its type and all member types are analyzed. So obtain every decoder of a declared type from this module.

Another user may have written a document of JSON, of which two bytes can become an object of hundreds of bytes in
memory. So `decode_json` computes an upper bound of the decoded size from the characters that create objects; if that
bound is too high, a child process decodes the document first.

The bound for a value of msgpack is computed from the headers of its items and the declared type alone: what a job may
write, it can read on each host. It is never below that of plain dicts and lists, for readers without the type.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import inspect

from stateflow.process_limits import ChildLimits, failure_of
from stateflow.types.declared_types import all_types

T = TypeVar("T")
D = TypeVar("D")


# Reentrant, since hooks and annotations of a type may request a decoder themselves.
_lock = threading.RLock()
_json: dict[type, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[type, msgspec.msgpack.Decoder[Any]] = {}


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Returns the decoder of JSON for a type; the same object for each call."""
    return _json.get(kind) or _get_or_create(_json, kind, msgspec.json.Decoder)


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """Returns the decoder of msgpack for a type; the same object for each call."""
    return _msgpack.get(kind) or _get_or_create(_msgpack, kind, msgspec.msgpack.Decoder)


def _get_or_create(known: dict[type, D], kind: type, make: Callable[[type], D]) -> D:
    with _lock:
        return known.setdefault(kind, make(kind))


def value_decoder(kind: Any, from_builtin: Callable[[type, object], object]) -> msgspec.msgpack.Decoder[Any]:
    """Returns a new decoder of msgpack for a type of a job.

    Args:
        kind: the type.
        from_builtin: creates values of member types that msgspec does not support, from type and decoded value.

    Raises:
        TypeError: msgspec cannot decode the type.
    """
    with _lock:
        return msgspec.msgpack.Decoder(kind, dec_hook=from_builtin)


MEMORY_LIMIT = 100 << 20
"""Largest size of a document in memory, in bytes: its text, and what it is decoded into."""
_PROGRAM = "decode_program.py"
_CPU_SECONDS = 10


# Bounds of the memory that each character of a kind can cause, in bytes; tests measure them.
_OBJECT, _LIST, _ITEM, _QUOTE = 352, 144, 128, 28
_WIDE = 7
"""Bytes of memory for a byte of a text with escapes, or with characters outside of ASCII: in Python, and while the text
is unescaped."""


class TooMuchMemory(msgspec.DecodeError):
    """Decoding a document would take more memory than `MEMORY_LIMIT`."""


def decode_json(kind: type[T], data: bytes, end: int | None = None) -> T:
    """Returns the document in `data[:end]`.

    Args:
        kind: type of the document.
        data: the text.
        end: its length in bytes; None for all of `data`.

    Raises:
        TooMuchMemory: decoding would exceed `MEMORY_LIMIT`.
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: the text is not a document of this type.
    """
    check_decoded_size(kind, data)
    return json_decoder(kind).decode(memoryview(data)[:end])


def check_decoded_size(kind: Any, data: bytes) -> None:
    """Raises TooMuchMemory when decoding a document of JSON would exceed `MEMORY_LIMIT`.

    Args:
        kind: type of the document. Only a class that a module defines, or a list of one, is decoded in a child process;
            for other types the bound alone decides.
        data: the text; may have more lines after it.
    """
    if largest_size(data) <= MEMORY_LIMIT:
        return
    name = _importable(kind)
    if len(data) >= MEMORY_LIMIT or name is None:
        raise TooMuchMemory("decoding it could take too much memory")
    program = resources.files(__package__).joinpath(_PROGRAM).read_text()
    folders = (Path(__file__).parents[1], Path(msgspec.__file__).parents[1])
    reason = failure_of(program, (len(data), *folders, *name), ChildLimits(MEMORY_LIMIT, _CPU_SECONDS), data)
    if reason:
        raise TooMuchMemory(reason)


def largest_size(data: bytes) -> int:
    """Returns an upper bound of the bytes that a document takes in memory, with its text."""
    objects = _OBJECT * data.count(b"{") + _LIST * data.count(b"[") + _ITEM * data.count(b",")
    is_plain = data.isascii() and b"\\" not in data
    return objects + _QUOTE * data.count(b'"') + len(data) * (2 if is_plain else 1 + _WIDE)


def _importable(kind: Any) -> tuple[str, ...] | None:
    """Returns module and name of a class, followed by ``list`` for a list of its instances; None for other types."""
    is_list = ("list",) if get_origin(kind) is list else ()
    inner = get_args(kind)[0] if is_list else kind
    if not isinstance(inner, type):
        return None
    module, name = inner.__module__, inner.__qualname__
    return (module, name, *is_list) if getattr(sys.modules.get(module), name, None) is inner else None


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
_NUMBER, _LONG, _CONTENT, _ARRAY, _DICT, _ENTRY = 48, 64, 80, 96, 256, 64
_DECODER = 4096
"""Memory that each decoding takes, with an error that contains a short text."""
_WIDE_TEXT = 6
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
        costs[tag] = _ARRAY
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
        containers = arrays * (_ARRAY - _NUMBER) + maps * (_DICT - _NUMBER) + (arrays + maps) * self.container
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
                    used += width if data[at - width + 1 : at].isascii() else width * _WIDE_TEXT
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
                used += length * (_WIDE_TEXT if is_wide else 1)
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
    return max(0, _object(info, ()) - (_ARRAY if is_array else _DICT))


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
