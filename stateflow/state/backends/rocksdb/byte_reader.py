"""A reader of the numbers and fields that RocksDB's files consist of."""

from __future__ import annotations

_LONGEST_VARINT = 10
"""Bytes of a number of 64 bits; a longer one would cost quadratic time."""


class ByteReader:
    """Reads fields of variable size one after the other.

    The methods raise ValueError when the data ends in a field, or a number has more than 64 bits.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def position(self) -> int:
        """The number of bytes read."""
        return self._at

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def varint(self) -> int:
        """Reads a number: seven bits per byte, the lowest first."""
        value = 0
        size = 0
        for byte in self._data[self._at : self._at + _LONGEST_VARINT]:
            value |= (byte & 0x7F) << 7 * size
            size += 1
            if byte < 0x80 and value < 1 << 64:
                self._at += size
                return value
        raise ValueError("a number is cut off, or has more than 64 bits")

    def sized(self) -> bytes:
        """Reads a field that follows its size."""
        return self.take(self.varint())

    def skip(self, size: int) -> None:
        """Skips a number of bytes."""
        if size > len(self._data) - self._at:
            raise ValueError("a field is cut off")
        self._at += size

    def take(self, size: int) -> bytes:
        """Reads a number of bytes."""
        found = self._data[self._at : self._at + size]
        if len(found) != size:
            raise ValueError("a field is cut off")
        self._at += size
        return found
