"""A job with late readings in a folder, and what its tables must have.

Which readings are late depends on the batches. Whatever these are, a reading is either in the last result of its
window, or in the side output of late readings.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support import folder_tables
from tests.support.job_fixture import OracleJob, Tables

Table = Counter[tuple[object, ...]]
HOUR, GAP, BOUND = 60, 20, 10
"""Milliseconds: the size of windows, the gap of sessions, and the out-of-orderness that the watermark allows for."""
LATENESS = {"hours": 40, "sessions": 60}


class Firing(NamedTuple):
    """A result of a window: the numbers of its rows. A later result of the window has all of them, and more."""

    key: str
    start: int
    end: int
    numbers: tuple[int, ...]


def _firings(table: Path) -> list[Firing]:
    rows = folder_tables.rows(table)
    return [Firing(row["key"], row["start"], row["end"], tuple(sorted(row["numbers"]))) for row in rows]


def _last_of_windows(found: Iterable[Firing]) -> list[Firing]:
    """The largest result of each window, for windows that do not merge."""
    return list({each[:3]: each for each in sorted(found, key=lambda each: len(each.numbers))}.values())


def _last_of_sessions(found: Iterable[Firing]) -> list[Firing]:
    """The results whose rows no later result has: a late row may have merged the session into another one."""
    sets = {frozenset(each.numbers): each for each in found}
    return [each for rows, each in sets.items() if not any(rows < other for other in sets)]


LAST = {"hours": _last_of_windows, "sessions": _last_of_sessions}


class Reading(NamedTuple):
    sensor: str
    at: int
    number: int


def _readings(count: int, seed: int) -> list[Reading]:
    """Readings that are up to 200 ms out of order, with pauses between them."""
    rng, rows, clock = random.Random(seed), [], 200
    for number in range(count):
        clock += rng.choice([1, 1, 3, 10, 40])
        delay = rng.randrange(rng.choice([1, 5, 60, 200]))
        rows.append(Reading(rng.choice("abc"), clock - delay, number))
    return rows


class LateWindowsJob(OracleJob):
    """The job of `tests/support/jobs/late_windows.py`."""

    seed = 4
    rows: list[Reading]

    def deliver(self, count: int) -> None:
        self.rows = _readings(count, self.seed)
        self.write("readings", [row._asdict() for row in self.rows])

    def found(self) -> Tables:
        """The readings in last results and in side outputs."""
        return {name: self._in_last_results(name) + self._late(name) for name in LATENESS}

    def wanted(self) -> Tables:
        return {name: Counter(self.rows) for name in LATENESS}

    def check_all(self, *, drained: bool = True) -> None:
        super().check_all(drained=drained)
        assert [each for name in LATENESS for each in self._contradictions(name)] == []

    def firings(self) -> Tables:
        """Every result, and every late row."""
        return {**{name: Counter(_firings(self.table(name))) for name in LATENESS}, **self._all_late()}

    def of_batches(self) -> Tables:
        """The results that a later one replaces, and the late rows: other batches have others."""
        results = {name: set(_firings(self.table(name))) for name in LATENESS}
        return {
            **{name: Counter(found - set(LAST[name](found))) for name, found in results.items()},
            **self._all_late(),
        }

    def _all_late(self) -> Tables:
        return {f"late-{name}": self._late(name) for name in LATENESS}

    def _late(self, name: str) -> Counter[Reading]:
        """The readings that are too late for the windows of an operator."""
        rows = folder_tables.rows(self.table(f"late-{name}"))
        return Counter(Reading(row["sensor"], row["at"], row["number"]) for row in rows)

    def _in_last_results(self, name: str) -> Counter[Reading]:
        last = LAST[name](_firings(self.table(name)))
        return Counter(self.rows[number] for each in last for number in each.numbers)

    # -- contradictions -----------------------------------------------------------------------------------------------

    def _contradictions(self, name: str) -> Iterator[tuple[object, ...]]:
        """What is true in no batches."""
        results = Counter(_firings(self.table(name)))
        yield from (("repeated", name, each) for each, count in results.items() if count > 1)
        yield from (("bounds", name, each) for each in results if each[1:3] != self._bounds(name, each))
        yield from (("key", name, each) for each in results for n in each.numbers if self.rows[n].sensor != each.key)
        yield from (("not late", name, row) for row in self._late(name) if not self._may_be_late(name, row))
        yield from (("by columns", name, each) for each in self._only_by_rows_or_columns(name, results))

    def _bounds(self, name: str, result: Firing) -> tuple[int, int]:
        """Start and end of the window of these readings."""
        times = [self.rows[number].at for number in result.numbers]
        if name == "sessions":
            return min(times), max(times) + GAP
        return min(times) // HOUR * HOUR, max(times) // HOUR * HOUR + HOUR

    def _may_be_late(self, name: str, row: Reading) -> bool:
        """Whether the readings before it can have advanced the watermark past the end of its window."""
        end = row.at + GAP if name == "sessions" else row.at // HOUR * HOUR + HOUR
        latest = max((each.at for each in self.rows[: row.number]), default=0)
        return latest - BOUND - 1 >= end - 1 + LATENESS[name]

    def _only_by_rows_or_columns(self, name: str, results: Counter[Firing]) -> list[object]:
        """What only one of two operators emitted: they get the same batches."""
        by_rows: Table = Counter((*each[:3], len(each.numbers), sum(each.numbers)) for each in results.elements())
        by_columns: Table = Counter(tuple(row.values()) for row in folder_tables.rows(self.table(f"column-{name}")))
        late, column_late = self._late(name), self._late(f"column-{name}")
        return [*(by_rows - by_columns), *(by_columns - by_rows), *(late - column_late), *(column_late - late)]
