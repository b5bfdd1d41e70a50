"""Copies a growing log file line by line."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Self

_CHUNK_BYTES = 1 << 20
_LONGEST_LINE = 1 << 16
"""Bytes of a line that is passed on as a whole: memory and time must not grow with what a program prints."""


class LogFollower:
    """Passes each completed line of a file to a callback; a very long one in parts, before it is completed.

    Args:
        path: an existing file to which another process appends.
        emit: called with each line, without its end.
        skip_to_last: start at most this many bytes before the current end of the file; None to start at its beginning.
    """

    def __init__(self, path: Path, emit: Callable[[str], object], skip_to_last: int | None = None) -> None:
        self._file: BinaryIO = path.open("rb")
        self._emit = emit
        self._incomplete = b""
        if skip_to_last is not None:
            self._skip(path.stat().st_size - skip_to_last)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.copy()
        if self._incomplete:
            self._emit_all([self._incomplete])
        self._file.close()

    def copy(self) -> None:
        """Emits every line that was completed since the last call."""
        while data := self._file.read(_CHUNK_BYTES):
            *lines, self._incomplete = (self._incomplete + data).split(b"\n")
            self._emit_all(lines)
            *parts, self._incomplete = _parts(self._incomplete)
            self._emit_all(parts)

    def _emit_all(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            for part in _parts(line):
                self._emit(part.decode(errors="replace").rstrip("\r"))

    def _skip(self, position: int) -> None:
        if position > 0:
            self._file.seek(position)
            # The rest of a line is skipped, but not a whole one that is longer.
            if not self._file.readline(_LONGEST_LINE).endswith(b"\n"):
                self._file.seek(position)


def _parts(line: bytes) -> list[bytes]:
    """Returns a line in parts that are not too long, cut between characters of UTF-8."""
    parts, begin = [], 0
    while len(line) - begin > _LONGEST_LINE:
        end = begin + _LONGEST_LINE
        end -= next((back for back in range(4) if line[end - back] & 0xC0 != 0x80), 0)
        parts.append(line[begin:end])
        begin = end
    return [*parts, line[begin:]]


def last_lines(path: Path, count: int) -> list[str]:
    """Returns the last `count` lines of a log file, for an error message."""
    lines: deque[str] = deque(maxlen=count)
    with LogFollower(path, lines.append, skip_to_last=64 * 1024):
        pass
    return list(lines)
