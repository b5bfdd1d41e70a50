"""The expected output of dags/jobs/fleet.py, by loops over dictionaries that share no code with Spark or stateflow.

A timestamp here is a bound that event time has reached: a day is over when the midnight at its end is reached.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any

from flights_demo.deliveries import DELIVERIES, delivery_number

LATENESS = timedelta(hours=6)
AWAY = timedelta(days=30)
FORGOTTEN = timedelta(days=60)
UNKNOWN = "UNKNOWN"

Flight = dict[str, Any]
Aircraft = tuple[str, str]
Row = tuple[Any, ...]


def deliveries(flights: Iterable[Flight]) -> list[list[Flight]]:
    """The flights as files: most in that of their date, a few of them one or two files later."""
    chance = random.Random(13)
    files: list[list[Flight]] = [[] for _ in DELIVERIES]
    for flight in flights:
        number = delivery_number(flight["time"].month, flight["time"].day) + chance.choice([0] * 60 + [1, 2])
        files[min(number, len(files) - 1)].append(flight)
    return files


@dataclass
class Figures:
    """The flights of an aircraft on a day."""

    flights: int = 0
    arrived: int = 0
    delay: float = 0.0


@dataclass
class Service:
    """How long an aircraft has been flying; `written` is the end of the last day."""

    since: date
    last: date
    days: int
    written: datetime


@dataclass
class Oracle:
    """The three tables after some files, each of them one batch.

    Attributes:
        returned: number of times that an aircraft came back after it had been away.
    """

    aircraft_days: Counter[Row] = field(default_factory=Counter)
    carrier_days: Counter[Row] = field(default_factory=Counter)
    late_flights: Counter[Row] = field(default_factory=Counter)
    reached: datetime = datetime(1970, 1, 1)  # noqa: DTZ001 - the flights' times have no zone
    returned: int = 0
    _open: dict[date, dict[Aircraft, Figures]] = field(default_factory=dict)
    _service: dict[Aircraft, Service] = field(default_factory=dict)

    @property
    def state(self) -> dict[tuple[str, Aircraft, date | None], list[Any]]:
        """The state of all aircraft that are not forgotten, with dates as they are stored."""
        open_days = {
            ("days", aircraft, day): [figures.flights, figures.arrived, figures.delay]
            for day, found in self._open.items()
            for aircraft, figures in found.items()
        }
        return open_days | {
            ("service", aircraft, None): [known.since.isoformat(), known.last.isoformat(), known.days]
            for aircraft, known in self._service.items()
            if known.written + FORGOTTEN > self.reached
        }

    @property
    def forgotten(self) -> int:
        """The number of aircraft whose state has expired."""
        return sum(known.written + FORGOTTEN <= self.reached for known in self._service.values())

    def take(self, file: Sequence[Flight]) -> None:
        """A batch: its rows are late or not by the event time before it, and then advance it."""
        known = [flight for flight in file if flight["tailnum"] != UNKNOWN]
        for flight in known:
            day = flight["time"].date()
            if _end(day) <= self.reached:
                late = (flight[name] for name in ("time", "carrier", "flight", "origin", "tailnum", "arr_delay"))
                self.late_flights[tuple(late)] += 1
                continue
            figures = self._open.setdefault(day, {}).setdefault((flight["carrier"], flight["tailnum"]), Figures())
            figures.flights += 1
            if flight["arr_delay"] is not None:
                figures.arrived += 1
                figures.delay += flight["arr_delay"]
        self.reached = max([self.reached, *(flight["time"] - LATENESS for flight in file)])
        self._close([day for day in self._open if _end(day) <= self.reached])

    def drain(self) -> None:
        """Closes all days; event time stays where it is."""
        self._close(list(self._open))

    def _close(self, days: list[date]) -> None:
        for day in sorted(days):
            carriers: dict[str, list[tuple[Figures, bool]]] = {}
            for (carrier, tailnum), of in self._open.pop(day).items():
                service = self._served((carrier, tailnum), day)
                row = (carrier, tailnum, day, of.flights, of.arrived, of.delay, service.since, service.days)
                self.aircraft_days[row] += 1
                carriers.setdefault(carrier, []).append((of, service.days == 1))
            for carrier, found in carriers.items():
                arrived, delay = sum(of.arrived for of, _ in found), sum(of.delay for of, _ in found)
                newcomers, flights = sum(is_new for _, is_new in found), sum(of.flights for of, _ in found)
                mean = delay / arrived if arrived else None
                self.carrier_days[carrier, day, len(found), newcomers, flights, arrived, mean] += 1

    def _served(self, aircraft: Aircraft, day: date) -> Service:
        before = self._service.get(aircraft)
        away = before is not None and day > before.last + AWAY
        self.returned += away
        if before is None or away:
            before = Service(day, day, 0, _end(day))
        self._service[aircraft] = Service(before.since, day, before.days + 1, _end(day))
        return self._service[aircraft]


def _end(day: date) -> datetime:
    return datetime.combine(day + timedelta(days=1), time())
