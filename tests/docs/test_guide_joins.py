"""The guide about joins: its functions are run over rows, and compared with plain Python.

Those that look rows up need Spark: test_guides_of_look_ups.py.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

import pytest

from stateflow import RowKind
from stateflow.testing import KeyedHarness, KeyedInput
from tests.docs.pages import blocks, load_module, read
from tests.joins.joined_rows import unkeyed

HOUR = timedelta(hours=1)
START = datetime.fromisoformat("2013-01-01")


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    text = "\n".join(blocks(read("joins"), "python"))
    return load_module(tmp_path_factory.mktemp("guide") / "guide_joins.py", text)


@pytest.fixture(scope="module")
def streams(guide: ModuleType) -> tuple[list[Any], list[Any]]:
    """Flights at any minute, reports each hour or two."""
    rng = random.Random(3)
    flights = [
        guide.Flight(START + timedelta(minutes=rng.randrange(2000)), f"N{n}", rng.choice(["EWR", "JFK"]))
        for n in range(100)
    ]
    reports = [
        guide.Report(START + timedelta(minutes=rng.randrange(60), hours=hour), station, float(rng.randrange(30)))
        for hour in range(34)
        for station in ("EWR", "JFK")
        if rng.random() < 0.8
    ]
    return sorted(flights, key=lambda row: row.time), sorted(reports, key=lambda row: row.time)


def _run(declare: Callable[[Any, Any], Any], guide: ModuleType, streams: tuple[list[Any], list[Any]]) -> list[Any]:
    flights, reports = streams
    inputs = [
        KeyedInput(row_class, key, event_time="time", out_of_orderness=HOUR)
        for row_class, key in ((guide.Flight, "origin"), (guide.Report, "station"))
    ]
    with KeyedHarness(lambda *keyed: declare(*map(unkeyed, keyed)), *inputs) as h:
        for day in range(0, 48, 12):
            since, until = START + day * HOUR, START + (day + 12) * HOUR
            h.push_both(*([row for row in rows if since <= row.time < until] for rows in (flights, reports)))
        h.drain()
        return sorted(h.output, key=repr)


def _departures(
    guide: ModuleType, streams: tuple[list[Any], list[Any]], matches: Callable[[datetime, datetime], bool]
) -> list[Any]:
    flights, reports = streams
    found = [
        guide.Departure(flight.tailnum, flight.time, report.wind_speed)
        for flight in flights
        for report in reports
        if flight.origin == report.station and matches(flight.time, report.time)
    ]
    return sorted(found, key=repr)


def _hour(time: datetime) -> datetime:
    return time.replace(minute=0)


def test_an_interval_join_finds_the_reports_of_the_last_hour(
    guide: ModuleType, streams: tuple[list[Any], list[Any]]
) -> None:
    wanted = _departures(guide, streams, lambda time, reported: time - HOUR < reported <= time)
    assert wanted and _run(guide.departures, guide, streams) == wanted
    assert _run(guide.departures_by_columns, guide, streams) == wanted
    in_wind = [row for row in wanted if row.wind_speed > 15.0]
    assert in_wind and _run(guide.departures_in_wind, guide, streams) == in_wind


def test_a_window_join_finds_the_reports_of_the_same_hour(
    guide: ModuleType, streams: tuple[list[Any], list[Any]]
) -> None:
    wanted = _departures(guide, streams, lambda time, reported: _hour(time) == _hour(reported))
    assert wanted and _run(guide.departures_by_hour, guide, streams) == wanted
    by_hour = [guide.DepartureInHour(row.tailnum, _hour(row.time), row.wind_speed) for row in wanted]
    assert _run(guide.departures_by_hour_by_columns, guide, streams) == sorted(by_hour, key=repr)


def test_a_co_group_has_hours_without_a_report(guide: ModuleType, streams: tuple[list[Any], list[Any]]) -> None:
    flights, reports = streams
    of: dict[tuple[str, datetime], list[float]] = defaultdict(list)
    for report in reports:
        of[report.station, _hour(report.time)].append(report.wind_speed)
    counts: dict[tuple[str, datetime], int] = defaultdict(int)
    for flight in flights:
        counts[flight.origin, _hour(flight.time)] += 1
    wanted = [guide.Hour(*key, count, max(of[key], default=None)) for key, count in counts.items()]
    assert any(row.wind_speed is None for row in wanted)
    assert _run(guide.hours, guide, streams) == sorted(wanted, key=repr)


def test_a_regular_join_finds_the_plane_before_or_after_the_flight(
    guide: ModuleType, streams: tuple[list[Any], list[Any]]
) -> None:
    flights = streams[0]
    planes = [guide.Plane(flight.tailnum, 2012 + n % 2, n) for n, flight in enumerate(flights[::2])]
    seats = {plane.tailnum: plane for plane in planes}
    wanted = [
        (guide.Seats(row.tailnum, row.origin, row.time, seats[row.tailnum].seats), seats[row.tailnum].built)
        for row in flights
        if row.tailnum in seats
    ]
    for declare in (guide.seats, guide.seats_of_the_last_week, guide.seats_of_new_planes):
        inputs = KeyedInput(guide.Flight, "tailnum"), KeyedInput(guide.Plane, "tailnum")
        with KeyedHarness(lambda *keyed, declare=declare: declare(*map(unkeyed, keyed)), *inputs) as h:
            h.push_both(flights[:60], planes[:10])
            h.push_both(flights[60:], planes[10:])
            is_new = declare is guide.seats_of_new_planes
            of_new = sorted((row for row, built in wanted if not is_new or built == 2013), key=repr)
            assert of_new and sorted(h.output, key=repr) == of_new


def test_a_temporal_join_finds_the_owner_at_the_time_of_the_flight(
    guide: ModuleType, streams: tuple[list[Any], list[Any]]
) -> None:
    flights = streams[0]
    owners = [guide.Owner(row.time + HOUR * (n % 3 - 1), row.tailnum, f"C{n % 5}") for n, row in enumerate(flights)]
    of = {owner.tailnum: owner for owner in owners}
    wanted = [
        guide.Operated(row.tailnum, row.time, of[row.tailnum].carrier if of[row.tailnum].time <= row.time else None)
        for row in flights
    ]
    inputs = [
        KeyedInput(row_class, "tailnum", event_time="time", out_of_orderness=2 * HOUR)
        for row_class in (guide.Flight, guide.Owner)
    ]
    with KeyedHarness(lambda *keyed: guide.operated(*map(unkeyed, keyed)), *inputs) as h:
        h.push_both(flights[:50], owners[:50])
        h.push_both(flights[50:], owners[50:])
        h.drain()
        assert sorted(h.output, key=repr) == sorted(wanted, key=repr)


def test_flights_after_the_sale_of_a_plane_have_no_owner(
    guide: ModuleType, streams: tuple[list[Any], list[Any]]
) -> None:
    flights = streams[0]
    bought = [guide.OwnerChange(RowKind.INSERT, START, row.tailnum, f"C{n}") for n, row in enumerate(flights)]
    sold = [guide.OwnerChange(RowKind.DELETE, row.time, row.tailnum, "") for n, row in enumerate(flights) if n % 3 == 0]
    inputs = [
        KeyedInput(row_class, "tailnum", event_time="time", out_of_orderness=2 * HOUR)
        for row_class in (guide.Flight, guide.OwnerChange)
    ]
    with KeyedHarness(lambda *keyed: guide.operated_until_sold(*map(unkeyed, keyed)), *inputs) as h:
        h.push_both(flights, bought + sold)
        h.drain()
        found = {row.tailnum: row.carrier for row in h.output}
    assert found == {row.tailnum: f"C{n}" for n, row in enumerate(flights) if n % 3}


def test_an_outer_join_corrects_flights_whose_plane_comes_later(
    guide: ModuleType, streams: tuple[list[Any], list[Any]]
) -> None:
    flights = streams[0]
    planes = [guide.Plane(row.tailnum, 2012, n) for n, row in enumerate(flights) if n % 4]
    inputs = KeyedInput(guide.Flight, "tailnum"), KeyedInput(guide.Plane, "tailnum")
    table: dict[str, int | None] = {}
    with KeyedHarness(lambda *keyed: guide.boardings(*map(unkeyed, keyed)), *inputs) as h:
        for rows in (h.push_both(flights, planes[:30]), h.push_both([], planes[30:])):
            for row in rows:
                if row.kind == "-D":
                    assert table.pop(row.tailnum) is None
                else:
                    table[row.tailnum] = row.seats
    assert table == {row.tailnum: n if n % 4 else None for n, row in enumerate(flights)}


def test_an_outer_join_with_a_condition_has_the_seats_of_modern_planes(
    guide: ModuleType, streams: tuple[list[Any], list[Any]]
) -> None:
    flights = streams[0]
    planes = [guide.Plane(row.tailnum, 1999 + n % 2, n) for n, row in enumerate(flights)]
    inputs = KeyedInput(guide.Flight, "tailnum"), KeyedInput(guide.Plane, "tailnum")
    with KeyedHarness(lambda *keyed: guide.modern_boardings(*map(unkeyed, keyed)), *inputs) as h:
        h.push_both(flights, [])
        found = {row.tailnum: row.seats for row in [*h.output, *h.push_both([], planes)] if not row.kind.is_retraction}
    assert found == {row.tailnum: n if n % 2 else None for n, row in enumerate(flights)}


def test_a_join_of_a_changelog_replaces_the_seats_of_a_plane(
    guide: ModuleType, streams: tuple[list[Any], list[Any]]
) -> None:
    flights = streams[0]
    planes = [guide.Plane(row.tailnum, 2012, n) for n, row in enumerate(flights) if n % 4]
    newer = [guide.Plane(row.tailnum, 2013, n + 500) for n, row in enumerate(flights) if n % 4 == 1]
    inputs = KeyedInput(guide.Flight, "tailnum"), KeyedInput(guide.Plane, "tailnum")
    table: dict[str, int | None] = {}
    with KeyedHarness(lambda *keyed: guide.boardings_of_changing_planes(*map(unkeyed, keyed)), *inputs) as h:
        for batch in ((flights[:50], planes), (flights[50:], newer)):
            for row in h.push_both(*batch):
                if row.kind.is_retraction:
                    assert table.pop(row.tailnum) == row.seats
                else:
                    table[row.tailnum] = row.seats
    assert table == {row.tailnum: None if n % 4 == 0 else n + 500 * (n % 4 == 1) for n, row in enumerate(flights)}
