"""Formats of times, in the patterns that Java and Spark use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_LETTERS = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|[^A-Za-z']+")


def in_utc(value: datetime) -> datetime:
    """Returns a time as the clock shows it in UTC."""
    return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)


@dataclass(frozen=True)
class DateFormats:
    """The letters of patterns whose texts are the same in all languages."""

    letters: tuple[str, ...] = ("yyyy", "MM", "dd", "HH", "mm", "ss", "SSS", "SSSSSS")

    def unknown(self, pattern: str) -> str:
        """Returns the first part of a pattern that is not supported; empty if there is none."""
        rest = pattern
        for found in _LETTERS.finditer(pattern):
            part = found[0]
            rest = pattern[found.end() :]
            if part[0].isalpha() and part not in self.letters:
                return part
        return "'" if "'" in rest else ""

    def text(self, value: datetime, pattern: str) -> str:
        """Returns a time as text."""
        return "".join(self._part(value, found[0]) for found in _LETTERS.finditer(pattern))

    def _part(self, value: datetime, part: str) -> str:
        if part[0] == "'":
            return part[1:-1].replace("''", "'") or "'"
        if not part[0].isalpha():
            return part
        numbers = {
            "yyyy": f"{value.year:04}",
            "MM": f"{value.month:02}",
            "dd": f"{value.day:02}",
            "HH": f"{value.hour:02}",
            "mm": f"{value.minute:02}",
            "ss": f"{value.second:02}",
            "SSS": f"{value.microsecond // 1000:03}",
            "SSSSSS": f"{value.microsecond:06}",
        }
        return numbers[part]


FORMATS = DateFormats()
