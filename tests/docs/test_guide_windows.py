"""The guide about windows: its functions are run over flights, and compared with plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

import pytest

from stateflow.testing import KeyedHarness, KeyedInput
from tests.docs.pages import blocks, load_module, read
from tests.support import local_flights

GUIDE = read("windows")
DAY = timedelta(days=1)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    text = "\n".join(blocks(GUIDE, "python"))
    return load_module(tmp_path_factory.mktemp("guide") / "guide_windows.py", text)


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Some flights, in the order of their time."""
    files = local_flights.stage(tmp_path_factory.mktemp("flights") / "staging")
    rows = [row for file in files for row in local_flights.rows_of(file)]
    names = ("time", "carrier", "tailnum", "arr_delay")
    return sorted(({name: row[name] for name in names} for row in rows), key=lambda row: row["time"])[:1500]


class Keyed:
    """A stream that is keyed already if it needs a key, in place of one that the guide's functions call `key_by` on."""

    def __init__(self, keyed: Any) -> None:
        self._keyed = keyed

    def key_by(self, column: str) -> Any:
        return self._keyed

    def window_all(self, assigner: Any) -> Any:
        return self._keyed.window_all(assigner)


def _run(declare: Callable[[Any], Any], guide: ModuleType, key: str | tuple[()], flights: list[Row]) -> list[Row]:
    rows = KeyedInput(guide.Flight, key, event_time="time", out_of_orderness=timedelta(hours=1))
    with KeyedHarness(lambda keyed: declare(Keyed(keyed)), rows) as h:
        for at in range(0, len(flights), 400):
            h.push(*flights[at : at + 400])
        h.drain()
        return [{name: getattr(row, name) for name in row.__struct_fields__} for row in h.output]


def _mean(delays: list[float | None]) -> float | None:
    known = [delay for delay in delays if delay is not None]
    return sum(known) / len(known) if known else None


def _statistics(flights: list[Row], starts: Callable[[datetime], Iterator[datetime]], size: timedelta) -> list[Row]:
    of: dict[tuple[str, datetime], list[Row]] = defaultdict(list)
    for row in flights:
        for start in starts(row["time"]):
            of[row["carrier"], start].append(row)
    return [
        {
            "carrier": carrier,
            "start": start,
            "end": start + size,
            "flights": len(rows),
            "mean_delay": pytest.approx(_mean([row["arr_delay"] for row in rows])),
        }
        for (carrier, start), rows in sorted(of.items())
    ]


def _midnight(time: datetime) -> datetime:
    return time.replace(hour=0, minute=0, second=0)


def _by_window(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["carrier"], row["start"]))


def test_days_and_weeks_have_the_statistics_of_plain_python(guide: ModuleType, flights: list[Row]) -> None:
    found = _by_window(_run(guide.daily, guide, "carrier", flights))
    assert found == _statistics(flights, lambda time: iter([_midnight(time)]), DAY)
    assert _by_window(_run(guide.daily_by_columns, guide, "carrier", flights)) == found
    weeks = _by_window(_run(guide.last_week_every_day, guide, "carrier", flights))
    assert _by_window(_run(guide.last_week_every_day_by_columns, guide, "carrier", flights)) == weeks
    assert weeks == _statistics(flights, lambda time: (_midnight(time) - n * DAY for n in range(7)), 7 * DAY)


def test_hours_of_all_carriers_are_those_of_plain_python(guide: ModuleType, flights: list[Row]) -> None:
    of: dict[datetime, list[str]] = defaultdict(list)
    for row in flights:
        of[row["time"].replace(minute=0, second=0)].append(row["carrier"])
    found = _run(guide.hours_of_all, guide, (), flights)
    assert found == [
        {"start": start, "flights": len(of[start]), "carriers": len(set(of[start]))} for start in sorted(of)
    ]
    counts = [{"start": start, "flights": len(of[start])} for start in sorted(of)]
    assert sorted(_run(guide.hours_of_all_by_columns, guide, (), flights), key=repr) == sorted(counts, key=repr)


def test_trips_end_after_a_day_without_a_flight(guide: ModuleType, flights: list[Row]) -> None:
    of: dict[str, list[list[Row]]] = defaultdict(list)
    for row in flights:
        trips = of[row["tailnum"]]
        if trips and row["time"] - trips[-1][-1]["time"] <= DAY:
            trips[-1].append(row)
        else:
            trips.append([row])
    wanted: list[Row] = [
        {"tailnum": key, "number": n, "flights": len(trip), "carriers": len({row["carrier"] for row in trip})}
        for key, trips in of.items()
        for n, trip in enumerate(trips, 1)
    ]
    assert any(row["number"] > 1 for row in wanted)
    times = [
        {"tailnum": key, "start": trip[0]["time"], "flights": len(trip)} for key, trips in of.items() for trip in trips
    ]
    found = _run(guide.trips_by_columns, guide, "tailnum", flights)
    assert sorted(found, key=repr) == sorted(times, key=repr)
    found = _run(guide.trips, guide, "tailnum", flights)
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    fired = [
        {"tailnum": key, "flights": flights}
        for key, trips in of.items()
        for trip in trips
        for flights in [*range(3, len(trip) + 1, 3), len(trip)]
    ]
    assert sorted(_run(guide.trips_so_far, guide, "tailnum", flights), key=repr) == sorted(fired, key=repr)


def test_counted_windows_fire_with_the_last_rows(guide: ModuleType, flights: list[Row]) -> None:
    of: dict[str, list[float | None]] = defaultdict(list)
    recent, thousands = [], []
    for row in flights:
        delays = of[row["carrier"]]
        delays.append(row["arr_delay"])
        if len(delays) % 10 == 0:
            recent.append({"carrier": row["carrier"], "mean_delay": pytest.approx(_mean(delays[-100:]))})
        if len(delays) % 1000 == 0:
            thousands.append({"carrier": row["carrier"], "mean_delay": pytest.approx(_mean(delays[-1000:]))})
    found = _run(guide.last_hundred_every_ten, guide, "carrier", flights)
    assert sorted(found, key=lambda row: row["carrier"]) == sorted(recent, key=lambda row: row["carrier"])
    assert _run(guide.batches_of_a_thousand, guide, "carrier", flights) == thousands


def test_updates_grow_to_the_statistics_of_the_day(guide: ModuleType, flights: list[Row]) -> None:
    last = {
        (row["carrier"], row["start"]): row for row in _run(guide.hourly_updates_of_the_day, guide, "carrier", flights)
    }
    wanted = _statistics(flights, lambda time: iter([_midnight(time)]), DAY)
    assert [last[row["carrier"], row["start"]] for row in wanted] == wanted


def test_a_late_flight_fires_its_day_again_or_is_a_side_output(guide: ModuleType) -> None:
    def flight(day: int, hour: int, delay: float) -> Any:
        return guide.Flight(datetime.fromisoformat(f"2013-01-{day:02}T{hour:02}:00"), "UA", "N1", delay)

    rows = KeyedInput(guide.Flight, "carrier", event_time="time", out_of_orderness=timedelta())
    declare = lambda keyed: guide.daily_with_late_flights(Keyed(keyed))[0]  # noqa: E731 - shorter
    with KeyedHarness(declare, rows, side_outputs=(guide.LATE,)) as h:
        h.push(flight(1, 10, 1.0), flight(2, 1, 5.0))
        assert [row.mean_delay for row in h.push(flight(1, 23, 3.0))] == [2.0]
        h.push(flight(2, 7, 5.0))
        h.push(flight(1, 23, 9.0))
        assert h.side_output(guide.LATE) == [flight(1, 23, 9.0)]
