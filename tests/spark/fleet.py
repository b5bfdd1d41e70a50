"""What dags/jobs/fleet.py must come to, by loops over dictionaries that know nothing of Spark or stateflow.

Moments here are bounds that event time has reached: a day is over when the midnight at its end is.
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
    """Of an aircraft and a day, or of a carrier and a day."""

    flights: int = 0
    arrived: int = 0
    delay: float = 0.0
    aircraft: int = 0
    newcomers: int = 0


@dataclass
class Service:
    """How long an aircraft has been flying; `written` is when that was last noted, the end of the last day."""

    since: date
    last: date
    days: int
    written: datetime


@dataclass
class Oracle:
    """The three tables after some files, each of them one batch."""

    aircraft_days: Counter[Row] = field(default_factory=Counter)
    carrier_days: Counter[Row] = field(default_factory=Counter)
    late_flights: Counter[Row] = field(default_factory=Counter)
    reached: datetime = datetime(1970, 1, 1)  # noqa: DTZ001 - the flights' times have no zone
    returned: int = 0
    """How many times an aircraft came back after it had been away."""
    _open: dict[date, dict[Aircraft, Figures]] = field(default_factory=dict)
    _service: dict[Aircraft, Service] = field(default_factory=dict)

    @property
    def state(self) -> dict[tuple[str, Aircraft, date | None], list[Any]]:
        """What is known of the aircraft, but for those that are forgotten; dates in it as they are stored."""
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
        """How many aircraft have been here that must not be known any more."""
        return sum(known.written + FORGOTTEN <= self.reached for known in self._service.values())

    def take(self, file: Sequence[Flight]) -> None:
        """A batch: its rows are judged by how far event time was before it, and then move it on."""
        known = [flight for flight in file if flight["tailnum"] != UNKNOWN]
        for flight in known:
            if self._is_over(flight["time"].date(), self.reached):
                self.late_flights[_late_row(flight)] += 1
            else:
                self._count(flight)
        self.reached = max([self.reached, *(flight["time"] - LATENESS for flight in known)])
        self._close([day for day in self._open if self._is_over(day, self.reached)])

    def drain(self) -> None:
        """All days are closed; event time stays where it is."""
        self._close(list(self._open))

    @staticmethod
    def _is_over(day: date, reached: datetime) -> bool:
        return _end(day) <= reached

    def _count(self, flight: Flight) -> None:
        day = self._open.setdefault(flight["time"].date(), {})
        figures = day.setdefault((flight["carrier"], flight["tailnum"]), Figures())
        figures.flights += 1
        if flight["arr_delay"] is not None:
            figures.arrived += 1
            figures.delay += flight["arr_delay"]

    def _close(self, days: list[date]) -> None:
        for day in sorted(days):
            carriers: dict[str, Figures] = {}
            for (carrier, tailnum), figures in self._open.pop(day).items():
                service = self._served((carrier, tailnum), day)
                self.aircraft_days[
                    carrier, tailnum, day, figures.flights, figures.arrived, figures.delay, service.since, service.days
                ] += 1
                total = carriers.setdefault(carrier, Figures())
                total.aircraft += 1
                total.newcomers += service.days == 1
                total.flights += figures.flights
                total.arrived += figures.arrived
                total.delay += figures.delay
            for carrier, total in carriers.items():
                mean = total.delay / total.arrived if total.arrived else None
                self.carrier_days[
                    carrier, day, total.aircraft, total.newcomers, total.flights, total.arrived, mean
                ] += 1

    def _served(self, aircraft: Aircraft, day: date) -> Service:
        before = self._service.get(aircraft)
        away = before is not None and day > before.last + AWAY
        self.returned += away
        if before is None or away:
            before = Service(day, day, 0, _end(day))
        service = Service(before.since, day, before.days + 1, _end(day))
        self._service[aircraft] = service
        return service


def _end(day: date) -> datetime:
    return datetime.combine(day + timedelta(days=1), time())


def _late_row(flight: Flight) -> Row:
    return tuple(flight[name] for name in ("time", "carrier", "flight", "origin", "tailnum", "arr_delay"))
