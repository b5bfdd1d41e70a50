"""A job with patterns in a folder, and what its tables must have, by plain Python."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.support import folder_tables
from tests.support.job_fixture import OracleJob, Tables

Match = tuple[str, tuple[int, ...]]
Values = list[tuple[int, int]]


def _readings(count: int, seed: int) -> list[tuple[str, int, int]]:
    """Readings that are up to 20 ms out of order: sensor, time, value. No sensor has two at one time."""
    rng, rows, at = random.Random(seed), [], 0
    for _ in range(count):
        at += rng.choice([1, 1, 3, 10, 40])
        rows.append((rng.choice("ab"), at, rng.randrange(8)))
    return sorted(rows, key=lambda row: row[1] + rng.randrange(20))


class PatternsJob(OracleJob):
    seed = 23
    rows: list[tuple[str, int, int]]

    def deliver(self, count: int) -> None:
        self.rows = _readings(120, self.seed)[:count]
        self.write("readings", [dict(zip(("sensor", "at", "value"), row, strict=True)) for row in self.rows])

    def found(self) -> Tables:
        return {name: self.matches(name) for name in self.wanted()}

    def wanted(self) -> Tables:
        return {"falls": self.falls(), "lows": self.lows(), "pairs": self.pairs(), "timed-out": self.timed_out()}

    def matches(self, name: str) -> Counter[Match]:
        return Counter((row["sensor"], tuple(row["times"])) for row in folder_tables.rows(self.table(name)))

    def falls(self) -> Counter[Match]:
        """Each stretch of falling values, less than 60 ms long, from each of its values on."""
        found: Counter[Match] = Counter()
        for sensor, values in self._by_sensor():
            for start in range(len(values)):
                for end in range(start + 1, len(values)):
                    if values[end][1] >= values[end - 1][1] or values[end][0] - values[start][0] >= 60:
                        break
                    found[sensor, tuple(at for at, _ in values[start : end + 1])] += 1
        return found

    def lows(self) -> Counter[Match]:
        """Each longest run of two low values or more, with the high value after it."""
        found: Counter[Match] = Counter()
        for sensor, values in self._by_sensor():
            run: list[int] = []
            for at, value in values:
                if value >= 5 and len(run) > 1:
                    found[sensor, (*run, at)] += 1
                run = [*run, at] if value < 5 else []
        return found

    def pairs(self) -> Counter[Match]:
        return Counter(match for match in self._pairs() if len(match[1]) == 2)

    def timed_out(self) -> Counter[Match]:
        return Counter(match for match in self._pairs() if len(match[1]) == 1)

    def _pairs(self) -> Iterator[Match]:
        """Each value of 1, with the first 2 after it in less than 100 ms, or alone."""
        for sensor, values in self._by_sensor():
            for start, value in values:
                if value == 1:
                    twos = [at for at, other in values if other == 2 and start < at < start + 100]
                    yield sensor, (start, *twos[:1])

    def _by_sensor(self) -> Iterator[tuple[str, Values]]:
        by_sensor: dict[str, Values] = defaultdict(list)
        for sensor, at, value in sorted(self.rows, key=lambda row: row[1]):
            by_sensor[sensor].append((at, value))
        return iter(by_sensor.items())
