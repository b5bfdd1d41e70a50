"""Copies a growing log file, line by line."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Self

_AT_ONCE = 1 << 20


class LogFollower:
    """Hands the lines of `path` to `emit` as they are completed.

    Args:
        path: a file that exists and that another process appends to.
        emit: called with every line, without its end.
        skip_to_last: begin at most this many bytes before the file's present end; None for its beginning.
    """

    def __init__(self, path: Path, emit: Callable[[str], object], skip_to_last: int | None = None) -> None:
        self._file: BinaryIO = path.open("rb")
        self._emit = emit
        self._rest = b""
        if skip_to_last is not None:
            self._skip(path.stat().st_size - skip_to_last)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.copy()
        if self._rest:
            self._emit_all([self._rest])
        self._file.close()

    def copy(self) -> None:
        """Emits every line that has been completed since the last call."""
        while data := self._file.read(_AT_ONCE):
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._emit_all(lines)

    def _emit_all(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._emit(line.decode(errors="replace").rstrip("\r"))

    def _skip(self, position: int) -> None:
        if position > 0:
            self._file.seek(position)
            self._file.readline()


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log file, for an error message."""
    lines: deque[str] = deque(maxlen=count)
    with LogFollower(path, lines.append, skip_to_last=64 * 1024):
        pass
    return list(lines)
