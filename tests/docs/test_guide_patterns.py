"""The guide about patterns: its functions are run over flights, and compared with plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

import pytest

from stateflow import OutputTag
from stateflow.testing import KeyedHarness, KeyedInput
from tests.docs.pages import blocks, load_module, read
from tests.support import local_flights

DAY = timedelta(days=1)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    text = "\n".join(blocks(read("patterns"), "python"))
    return load_module(tmp_path_factory.mktemp("guide") / "guide_patterns.py", text)


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Some flights, in the order of their time."""
    files = local_flights.stage(tmp_path_factory.mktemp("flights") / "staging")
    rows = [row for file in files for row in local_flights.rows_of(file)]
    names = ("time", "tailnum", "origin", "arr_delay")
    planes = sorted({row["tailnum"] for row in rows if row["tailnum"]})[::9]
    kept = [{name: row[name] for name in names} for row in rows if row["tailnum"] in planes]
    return sorted(kept, key=lambda row: row["time"])[:1500]


class Keyed:
    """A stream that is keyed already, in place of one that the guide's functions call `key_by` on."""

    def __init__(self, keyed: Any) -> None:
        self._keyed = keyed

    def key_by(self, column: str) -> Any:
        return self._keyed


def _run(
    declare: Callable[[Any], Any], guide: ModuleType, flights: list[Row], tag: OutputTag[Any] | None = None
) -> list[Row]:
    rows = KeyedInput(guide.Flight, "tailnum", event_time="time", out_of_orderness=timedelta(hours=1))
    with KeyedHarness(lambda keyed: declare(Keyed(keyed)), rows, side_outputs=(tag,) if tag else ()) as h:
        for at in range(0, len(flights), 400):
            h.push(*flights[at : at + 400])
        h.drain()
        assert h.state_entries() == []
        found = h.side_output(tag) if tag else h.output
        return sorted(({name: getattr(row, name) for name in row.__struct_fields__} for row in found), key=repr)


def _by_plane(flights: list[Row]) -> Iterator[list[Row]]:
    by_plane = defaultdict(list)
    for row in flights:
        by_plane[row["tailnum"]].append(row)
    return iter(by_plane.values())


def _is_late(row: Row) -> bool:
    return row["arr_delay"] is not None and row["arr_delay"] > 30


def _alarms(flights: list[Row]) -> list[Row]:
    return [
        {"tailnum": rows[0]["tailnum"], "first": rows[0]["time"], "last": rows[2]["time"], "origin": rows[2]["origin"]}
        for of_plane in _by_plane(flights)
        for rows in zip(of_plane, of_plane[1:], of_plane[2:], strict=False)
        if all(map(_is_late, rows)) and rows[2]["time"] - rows[0]["time"] < DAY
    ]


def test_planes_that_are_late_three_times_are_those_of_plain_python(guide: ModuleType, flights: list[Row]) -> None:
    wanted = _alarms(flights)
    names = ("tailnum", "first", "last")
    assert wanted
    assert _run(guide.alarms, guide, flights) == sorted(({n: row[n] for n in names} for row in wanted), key=repr)
    at_jfk = [{n: row[n] for n in names} for row in wanted if row["origin"] == "JFK"]
    assert _run(guide.alarms_at_jfk, guide, flights) == sorted(at_jfk, key=repr)


def test_delays_that_grow_are_those_of_plain_python(guide: ModuleType, flights: list[Row]) -> None:
    wanted = []
    for rows in _by_plane(flights):
        at = 0
        while at < len(rows):
            end = at
            while end + 1 < len(rows) and (rows[end + 1]["arr_delay"] or -999) > (rows[end]["arr_delay"] or -999):
                end += 1
            in_time = end + 1 < len(rows) and rows[end + 1]["time"] - rows[at]["time"] < 7 * DAY
            if _is_late(rows[at]) and end > at and in_time:
                wanted.append(
                    {"tailnum": rows[0]["tailnum"], "delays": [row["arr_delay"] for row in rows[at : end + 1]]}
                )
                at = end + 2
            else:
                at += 1
    assert wanted
    assert _run(guide.growing_delays, guide, flights) == sorted(wanted, key=repr)


def test_planes_that_do_not_depart_again_are_those_of_plain_python(guide: ModuleType, flights: list[Row]) -> None:
    last = datetime.fromisoformat("9999-12-31")
    wanted = [
        {"tailnum": row["tailnum"], "since": row["time"]}
        for rows in _by_plane(flights)
        for row, following in zip(rows, [*(each["time"] for each in rows[1:]), last], strict=True)
        if _is_late(row) and following - row["time"] >= 2 * DAY
    ]
    assert wanted
    found = _run(lambda keyed: guide.silent_planes(keyed)[0], guide, flights, guide.SILENT)
    assert found == sorted(wanted, key=repr)
    assert _run(guide.grounded_planes, guide, flights) == sorted(wanted, key=repr)
