"""Tasks of a person at the pages: how many clicks they take, and how many seconds."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.support.browser import Look

NOTE = Path(__file__).resolve().parents[2] / "docs" / "design" / "0095-pages.md"
_TABLE = re.compile(r"(?<=<!-- tasks -->\n).*?(?=<!-- end of tasks -->)", re.DOTALL)
# A press is a click, whatever it is on: clicking a label is two events of a click, but one press.
_COUNT = "addEventListener('pointerdown', () => window.notePress(), true)"


@dataclass(frozen=True)
class Measured:
    name: str
    start: str
    clicks: int
    seconds: float


@dataclass
class Tasks:
    """Counts the clicks of people, in all pages that it watches."""

    done: list[Measured] = field(default_factory=list)
    _clicks: int = 0

    def watch(self, look: Look) -> None:
        """Counts the clicks in a page from now on."""
        look.page.expose_function("notePress", self._note)
        look.page.add_init_script(_COUNT)
        look.page.evaluate(_COUNT)

    def _note(self) -> None:
        self._clicks += 1

    @contextmanager
    def measure(self, name: str, start: str, *, most_clicks: int, most_seconds: float | None = None) -> Iterator[None]:
        """Measures a task. Fails if it takes more clicks or seconds.

        Args:
            start: where the person is before.
        """
        clicks, began = self._clicks, time.monotonic()
        yield
        measured = Measured(name, start, self._clicks - clicks, time.monotonic() - began)
        self.done.append(measured)
        assert measured.clicks <= most_clicks, measured
        assert most_seconds is None or measured.seconds <= most_seconds, measured

    def write(self) -> None:
        """Writes the table of all tasks into the design note, in place of the one that is there."""
        day, load = datetime.now(UTC).date().isoformat(), os.getloadavg()[0]
        measured = f"measured on {day} with a load of {load:.0f} on {os.cpu_count()} cores"
        lines = [f"| task, {measured} | from | clicks | seconds |"]
        lines += ["|---|---|---:|---:|"]
        lines += [f"| {each.name} | {each.start} | {each.clicks} | {each.seconds:.1f} |" for each in self.done]
        text, number = _TABLE.subn(lambda _: "\n".join(lines) + "\n", NOTE.read_text())
        assert number == 1, "the note has no place for the table"
        NOTE.write_text(text)
