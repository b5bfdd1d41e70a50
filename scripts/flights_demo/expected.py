"""Expected rows of both tables, computed from the CSV file in plain Python, without Spark or stateflow."""

from __future__ import annotations

import csv
import io
import zipfile
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from flights_demo.deliveries import delivery_number

Row = dict[str, Any]


@dataclass
class Running:
    """Running count, mean and maximum."""

    flights: int = 0
    measured: int = 0
    total: float = 0.0
    longest: float | None = None

    def add(self, delay: float | None) -> None:
        """Adds a flight; one without a delay is counted, and not measured."""
        self.flights += 1
        if delay is not None:
            self.measured += 1
            self.total += delay
            self.longest = delay if self.longest is None else max(self.longest, delay)

    def columns(self) -> Row:
        """Returns the figures as columns of a row."""
        return {
            "flights": self.flights,
            "measured": self.measured,
            "mean_delay": self.total / self.measured if self.measured else None,
            "max_delay": self.longest,
        }


def read_flights(csv_zip: Path) -> list[Row]:
    """Returns all flights in the order in which the job must process them: by time, then by flight number."""
    with zipfile.ZipFile(csv_zip) as archive, archive.open(archive.namelist()[0]) as file:
        records = csv.reader(io.TextIOWrapper(file, "utf-8"))
        columns = {name: position for position, name in enumerate(next(records))}
        flights = [_flight(record, columns) for record in records]
    return sorted(flights, key=itemgetter("time", "flight", "carrier", "origin", "dest"))


def expected_delays(flights: list[Row]) -> list[Row]:
    """Returns one row per flight, with the running figures of its aircraft."""
    aircraft: dict[str, Running] = defaultdict(Running)
    rows = []
    for flight in flights:
        running = aircraft[flight["tailnum"]]
        running.add(flight["arr_delay"])
        rows.append({**flight, **running.columns()})
    return rows


def expected_routes(flights: list[Row]) -> list[Row]:
    """Returns one row per carrier, origin and micro-batch with such flights, with the figures after that batch."""
    routes: dict[tuple[str, str], Running] = defaultdict(Running)
    batches: dict[tuple[str, str], int] = defaultdict(int)
    rows = []
    for delivery in _by_delivery(flights):
        for flight in delivery:
            routes[flight["carrier"], flight["origin"]].add(flight["arr_delay"])
        for key in sorted({(flight["carrier"], flight["origin"]) for flight in delivery}):
            batches[key] += 1
            carrier, origin = key
            rows.append({"carrier": carrier, "origin": origin, "batch": batches[key], **routes[key].columns()})
    return rows


def expected_aircraft(flights: list[Row]) -> list[Row]:
    """Returns one row per aircraft, with its newest flight and the number of its flights."""
    newest: dict[str, Row] = {}
    counts: dict[str, int] = defaultdict(int)
    for flight in flights:
        newest[flight["tailnum"]] = flight
        counts[flight["tailnum"]] += 1
    columns = ("tailnum", "time", "flight", "carrier", "origin", "dest")
    return [{**{name: row[name] for name in columns}, "flights": counts[row["tailnum"]]} for row in newest.values()]


def _by_delivery(flights: list[Row]) -> list[list[Row]]:
    deliveries: dict[int, list[Row]] = defaultdict(list)
    for flight in flights:
        deliveries[delivery_number(flight["time"].month, flight["time"].day)].append(flight)
    return [deliveries[number] for number in sorted(deliveries)]


def _flight(record: list[str], columns: dict[str, int]) -> Row:
    def number(name: str) -> int:
        return int(record[columns[name]])

    hour, minute = divmod(number("sched_dep_time"), 100)
    delay = _present(record[columns["arr_delay"]])
    return {
        "time": datetime(number("year"), number("month"), number("day"), hour, minute),  # noqa: DTZ001
        "carrier": record[columns["carrier"]],
        "flight": number("flight"),
        "origin": record[columns["origin"]],
        "dest": record[columns["dest"]],
        "tailnum": _present(record[columns["tailnum"]]) or "UNKNOWN",
        "arr_delay": float(delay) if delay else None,
    }


def _present(text: str) -> str:
    return "" if text in ("", "NA", "NaN") else text
