"""Windows of Flink in plain Python, row by row, to compare with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

LOWEST = -(1 << 63)
KEPT = 2
"""How many rows of a window are left after an eviction."""


class Row(msgspec.Struct, frozen=True):
    """A row: its number is unique."""

    key: str
    at: int
    number: int
    bit: int
    is_even: bool
    third: int


class Fired(msgspec.Struct, frozen=True):
    """An evaluation of a window."""

    key: str
    start: int
    end: int
    numbers: list[int]


@dataclass(frozen=True)
class Kind:
    """Windows of a size that begin every `slide`; sessions with a gap of `size` if `slide` is 0."""

    size: int
    slide: int
    offset: int = 0

    def windows(self, at: int) -> list[tuple[int, int]]:
        if not self.slide:
            return [(at, at + self.size)]
        starts = range(at, at - self.size, -1)
        return [(start, start + self.size) for start in starts if (start - self.offset) % self.slide == 0]


@dataclass
class Key:
    """The open windows of a key, with the rows of each, and which are due to fire."""

    open: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    due: set[tuple[int, int]] = field(default_factory=set)
    fired: list[Fired] = field(default_factory=list)


@dataclass
class Model:
    """Flink, with a watermark before each row of a key: the row's time less the out-of-orderness, less one."""

    kind: Kind
    bound: int
    lateness: int
    evicts: bool = False
    latest: int | None = None
    keys: dict[str, Key] = field(default_factory=lambda: defaultdict(Key))
    late: list[int] = field(default_factory=list)

    def batch(self, rows: Iterable[Row]) -> None:
        before = LOWEST if self.latest is None else self.latest - self.bound - 1
        for name in list(self.keys):
            self.advance(name, before)
        for row in sorted(rows, key=lambda row: row.at):
            watermark = max(before, row.at - self.bound - 1)
            self.advance(row.key, watermark)
            self.add(row, watermark)
            self.latest = row.at if self.latest is None else max(self.latest, row.at)

    def advance(self, name: str, watermark: int) -> None:
        key = self.keys[name]
        for window in sorted(key.due, key=lambda window: (window[1], window[0])):
            if window[1] - 1 <= watermark:
                self.fire(name, window)
        for window in [each for each in key.open if each[1] - 1 + self.lateness <= watermark]:
            del key.open[window]

    def fire(self, name: str, window: tuple[int, int]) -> None:
        key = self.keys[name]
        key.due.discard(window)
        if self.evicts:
            key.open[window] = sorted(key.open[window])[-KEPT:]
        key.fired.append(Fired(name, *window, sorted(key.open[window])))

    def add(self, row: Row, watermark: int) -> None:
        key, is_late = self.keys[row.key], True
        for window in self.kind.windows(row.at):
            rows = [row.number]
            if not self.kind.slide:
                for other in [each for each in key.open if each[0] <= window[1] and window[0] <= each[1]]:
                    rows += key.open.pop(other)
                    key.due.discard(other)
                    window = min(window[0], other[0]), max(window[1], other[1])
            if window[1] - 1 + self.lateness <= watermark:
                continue
            is_late = False
            key.open[window] = key.open.get(window, []) + rows
            if window[1] - 1 <= watermark:
                self.fire(row.key, window)
            else:
                key.due.add(window)
        # Between windows that leave gaps, a row without a window is late by its own time.
        if is_late and row.at + self.lateness <= watermark:
            self.late.append(row.number)
