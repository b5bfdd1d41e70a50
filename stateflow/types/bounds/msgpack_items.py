"""The headers of msgpack's items, for walks that follow a value item by item without decoding it."""

from __future__ import annotations

import re

ARRAYS = bytes((*range(0x90, 0xA0), 0xDC, 0xDD))
LARGE_ARRAYS = b"\xdc\xdd"
MAPS = bytes((*range(0x80, 0x90), 0xDE, 0xDF))
LARGE_MAPS = b"\xde\xdf"
SHORT_TEXTS, LONG_TEXTS = bytes(range(0xA0, 0xC0)), b"\xd9\xda\xdb"
BINARY = b"\xc4\xc5\xc6"
EXTENSIONS = bytes((*range(0xC7, 0xCA), *range(0xD4, 0xD9)))
_LONG_EXTENSIONS = EXTENSIONS[:3]
"""First bytes of extensions with a size, which does not include the byte of their type."""
SIZE_BYTES = {
    0xC4: 1,
    0xC5: 2,
    0xC6: 4,
    0xC7: 1,
    0xC8: 2,
    0xC9: 4,
    0xD9: 1,
    0xDA: 2,
    0xDB: 4,
    0xDC: 2,
    0xDD: 4,
    0xDE: 2,
    0xDF: 4,
}
"""Width of the size after the first byte of binary data, extensions, long texts, and large arrays and maps."""


def _widths() -> list[int]:
    widths = [1] * 256
    for width, tags in {2: "cc d0", 3: "cd d1 dc d4", 4: "d5", 5: "ca ce d2 dd", 6: "d6", 9: "cb cf d3"}.items():
        for tag in bytes.fromhex(tags):
            widths[tag] = width
    widths[0xD7], widths[0xD8] = 10, 18
    for tag in SHORT_TEXTS:
        widths[tag] = 1 + tag - SHORT_TEXTS[0]
    for tag in (*BINARY, *_LONG_EXTENSIONS, *LONG_TEXTS, *LARGE_MAPS):
        widths[tag] = 0
    return widths


WIDTHS = _widths()
"""Bytes from an item's first byte to the next item, by the first byte; 0 if a size follows it."""
NUMBERS = re.compile(
    rb"([\x00-\x7f\xc0-\xc3\xe0-\xff]++)|((?:[\xcc\xd0].)++)|((?:[\xcd\xd1]..)++)|((?:[\xca\xce\xd2].{4})++)"
    rb"|((?:\xcb.{8})++)|((?:[\xcf\xd3].{8})++)",
    re.DOTALL,
)
"""Numbers of one width, which are counted together. The quantifiers are possessive: others keep a position for each
number, which takes more memory than the decoded value."""
RUN_WIDTHS = (0, 1, 2, 3, 5, 9, 9)
"""Width of a number by its group in `NUMBERS`."""


def size_at(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Returns the offset after a header with a size, and the size: of bytes, or the number of items or entries.

    The size is at most that of the data after the header, whatever a header claims.
    """
    tag = data[at]
    start = at + 1 + SIZE_BYTES[tag]
    size = int.from_bytes(data[at + 1 : start]) + (tag in _LONG_EXTENSIONS)
    return start, min(size, len(data) - start)
