"""A job with windows in a folder, and what its tables must have, by plain Python."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.support import folder_tables
from tests.support.job_fixture import OracleJob, Tables

Window = tuple[str, int, int, int]


def _readings(count: int, seed: int) -> list[dict[str, object]]:
    """Readings that are up to 20 ms out of order, with pauses between them."""
    rng, rows, at = random.Random(seed), [], 0
    for number in range(count):
        at += rng.choice([0, 1, 3, 10, 40])
        rows.append({"sensor": rng.choice("abc"), "at": max(at - rng.randrange(20), 0), "value": number})
    return rows


class WindowsJob(OracleJob):
    """The job of `tests/support/jobs/windows.py`."""

    seed = 11
    rows: list[dict[str, object]]

    def deliver(self, count: int) -> None:
        self.rows = _readings(count, self.seed)
        self.write("readings", self.rows)

    def found(self) -> Tables:
        return {name: self.windows(name) for name in self.wanted()}

    def wanted(self) -> Tables:
        wanted = {"hours": self.hours(), "sessions": self.sessions(), "all-hours": self.all_hours()}
        return {**wanted, **{f"column-{name}": windows for name, windows in wanted.items()}}

    def windows(self, name: str) -> Counter[Window]:
        rows = folder_tables.rows(self.table(name))
        return Counter((row.get("sensor", "all"), row["start"], row["end"], row["value"]) for row in rows)

    def by_columns(self, name: str) -> Counter[Window]:
        """The windows of the operator by columns."""
        return self.windows(f"column-{name}")

    def hours(self) -> Counter[Window]:
        sums: Counter[tuple[str, int]] = Counter()
        for sensor, at, value in self._values():
            sums[sensor, at // 60 * 60] += value
        return Counter((sensor, start, start + 60, value) for (sensor, start), value in sums.items())

    def all_hours(self) -> Counter[Window]:
        sums: Counter[int] = Counter()
        for (_, start, _, value), count in self.hours().items():
            sums[start] += value * count
        return Counter(("all", start, start + 60, value) for start, value in sums.items())

    def sessions(self) -> Counter[Window]:
        of: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for sensor, at, value in sorted(self._values()):
            if of[sensor] and at <= of[sensor][-1][1]:
                start, _, before = of[sensor].pop()
                of[sensor].append((start, at + 30, before + value))
            else:
                of[sensor].append((at, at + 30, value))
        return Counter((sensor, *window) for sensor, windows in of.items() for window in windows)

    def _values(self) -> Iterator[tuple[str, int, int]]:
        return ((str(row["sensor"]), int(str(row["at"])), int(str(row["value"]))) for row in self.rows)
