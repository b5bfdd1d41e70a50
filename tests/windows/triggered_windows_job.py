"""A job with triggers, evictors and aggregates over earlier rows, and what its tables must have, by plain Python."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.support import folder_tables
from tests.support.job_fixture import Tables
from tests.windows.firings import FiringJob, firings, last_of_windows, replaced

Table = Counter[tuple[object, ...]]
LAGS = {"m0": 0, "m1": 9, "m2": 19}
"""By how much the readings of a meter are late."""


class Reading(NamedTuple):
    sensor: str
    meter: str
    at: int
    value: int
    number: int


def _readings(count: int, seed: int) -> list[Reading]:
    """Readings that are up to 19 ms out of order, but not within a meter; with pauses between them."""
    rng, rows, clock = random.Random(seed), [], 20
    for number in range(count):
        clock += rng.choice([1, 1, 3, 10, 40])
        meter = rng.choice(sorted(LAGS))
        rows.append(Reading(rng.choice("abc"), meter, clock - LAGS[meter], rng.randrange(50), number))
    return rows


class TriggeredWindowsJob(FiringJob):
    """The job of `tests/support/jobs/triggered_windows.py`."""

    seed = 3
    complete = frozenset({"fours", "jumps", "clock"})
    rows: list[Reading]

    def deliver(self, count: int) -> None:
        self.rows = _readings(count, self.seed)
        self.write("readings", [row._asdict() for row in self.rows])

    def found(self) -> Tables:
        read = {name: folder_tables.rows(self.table(name)) for name in self.wanted()}
        # Which readings share a window depends on the clock. Each of them is in one.
        clock = [(row["key"], number) for row in read.pop("clock") for number in row["numbers"]]
        # How often these windows fire depends on the batches. The last time, they have all readings.
        last = last_of_windows(firings(self.table("continuous")))
        continuous = [(*each[:3], number) for each in last for number in each.numbers]
        found = {name: Counter(map(_values, rows)) for name, rows in read.items()}
        return {**found, "clock": Counter(clock), "continuous": Counter(continuous)}

    def wanted(self) -> Tables:
        return {
            "sliding": self._sliding(),
            "gaps": self._gaps(),
            "early": self._early(),
            "fours": self._fours(),
            "jumps": self._jumps(),
            "continuous": Counter((r.sensor, r.at // 60 * 60, r.at // 60 * 60 + 60, r.number) for r in self.rows),
            "newest": self._newest(),
            "recent": self._recent(),
            "clock": Counter((row.sensor, row.number) for row in self.rows),
            "rows": self._over_rows(),
            "range": self._over_range(),
        }

    def firings(self) -> Tables:
        return {name: Counter(firings(self.table(name))) for name in ("early", "continuous")}

    def of_batches(self) -> Tables:
        results = firings(self.table("continuous"))
        return {"continuous": replaced(results, last_of_windows(results))}

    # -- windows ------------------------------------------------------------------------------------------------------

    def _sliding(self) -> Table:
        """Sums of 60 ms, every 20 ms."""
        sums: Counter[tuple[str, int]] = Counter()
        for row in self.rows:
            for start in range(row.at - 59, row.at + 1):
                if start % 20 == 0:
                    sums[row.sensor, start] += row.value
        return Counter((sensor, start, start + 60, value) for (sensor, start), value in sums.items())

    def _gaps(self) -> Table:
        """Sessions whose rows each keep them open for 10, 20 or 30 ms."""
        found: Table = Counter()
        for sensor, rows in self._by("sensor"):
            sessions: list[tuple[int, int, list[int]]] = []
            for row in sorted(rows, key=lambda row: row.at):
                start, end, numbers = row.at, row.at + 10 + row.value % 3 * 10, [row.number]
                if sessions and row.at <= sessions[-1][1]:
                    before = sessions.pop()
                    start, end, numbers = before[0], max(before[1], end), before[2] + numbers
                sessions.append((start, end, numbers))
            found.update((sensor, start, end, tuple(sorted(numbers))) for start, end, numbers in sessions)
        return found

    def _early(self) -> Table:
        """Sessions with a gap of 30 ms: as they are at each third row, and at their end."""
        found: Table = Counter()
        for meter, rows in self._by("meter"):
            sessions: list[list[Reading]] = []
            for row in rows:
                if sessions and row.at <= sessions[-1][-1].at + 30:
                    sessions[-1].append(row)
                else:
                    sessions.append([row])
            for session in sessions:
                for size in [*range(3, len(session) + 1, 3), len(session)]:
                    part = session[:size]
                    found[meter, part[0].at, part[-1].at + 30, _numbers(part)] += 1
        return found

    def _fours(self) -> Table:
        """Each four rows of a meter."""
        found: Table = Counter()
        for meter, rows in self._by("meter"):
            for start in range(0, len(rows) - 3, 4):
                found[meter, 0, 0, _numbers(rows[start : start + 4])] += 1
        return found

    def _jumps(self) -> Table:
        """The rows of a meter up to each one that differs by more than 20 from the one before that did."""
        found: Table = Counter()
        for meter, rows in self._by("meter"):
            part, last = rows[:1], rows[0]
            for row in rows[1:]:
                part.append(row)
                if abs(row.value - last.value) > 20:
                    found[meter, 0, 0, _numbers(part)] += 1
                    part, last = [], row
        return found

    def _newest(self) -> Table:
        """The last two rows of each 60 ms."""
        windows = self._hours("meter").items()
        return Counter((meter, start, start + 60, _numbers(rows[-2:])) for (meter, start), rows in windows)

    def _recent(self) -> Table:
        """The rows of each 60 ms that are less than 15 ms before the latest one."""
        found: Table = Counter()
        for (sensor, start), rows in self._hours("sensor").items():
            latest = max(row.at for row in rows)
            found[sensor, start, start + 60, _numbers([row for row in rows if row.at > latest - 15])] += 1
        return found

    def _hours(self, by: str) -> dict[tuple[str, int], list[Reading]]:
        windows = defaultdict(list)
        for row in self.rows:
            windows[str(getattr(row, by)), row.at // 60 * 60].append(row)
        return windows

    # -- aggregates over earlier rows ---------------------------------------------------------------------------------

    def _over_rows(self) -> Table:
        """Each row with the two before it, in the order of time; rows of the same time in the order of arrival."""
        found: Table = Counter()
        for _, rows in self._by("sensor"):
            ordered = sorted(rows, key=lambda row: (row.at, row.number))
            for at, row in enumerate(ordered):
                frame = ordered[max(at - 2, 0) : at + 1]
                found[*row, len(frame), sum(each.value for each in frame)] += 1
        return found

    def _over_range(self) -> Table:
        """Each row with those of the 30 ms before it, and of the same time."""
        found: Table = Counter()
        for row in self.rows:
            frame = [each for each in self.rows if each.sensor == row.sensor and row.at - 30 <= each.at <= row.at]
            found[*row, len(frame), sum(each.value for each in frame)] += 1
        return found

    def _by(self, column: str) -> Iterator[tuple[str, list[Reading]]]:
        """The rows of each key, in the order of arrival."""
        for key in sorted({getattr(row, column) for row in self.rows}):
            yield key, [row for row in self.rows if getattr(row, column) == key]


def _numbers(rows: list[Reading]) -> tuple[int, ...]:
    return tuple(sorted(row.number for row in rows))


def _values(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(tuple(value) if isinstance(value, list) else value for value in row.values())
