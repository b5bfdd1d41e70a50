"""What the demo relies on: expected rows, and a comparison that finds every difference; and the demo in a bucket."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

import demo
import pytest
from deltalake import DeltaTable
from flights_demo import compare, expected
from flights_demo.client import AirflowClient, AirflowError
from flights_demo.flights import csv_file
from flights_demo.layout import Layout
from flights_demo.screen import Screen

from tests.servers.hostile import HostileServer, answer, hostile_server
from tests.support import root_files


def test_expected_rows_are_those_that_were_computed_by_hand() -> None:
    def flight(day: int, delay: float | None, carrier: str = "UA") -> dict[str, Any]:
        names = {"carrier": carrier, "origin": "EWR", "dest": "IAH", "tailnum": "N1", "flight": 1}
        return {"time": datetime(2013, 1, day), **names, "arr_delay": delay}  # noqa: DTZ001

    rows = [flight(1, None), flight(2, 10.0), flight(9, -5.0), flight(17, None, "B6"), flight(25, 1.0)]
    delays = [(r["flights"], r["measured"], r["mean_delay"], r["max_delay"]) for r in expected.expected_delays(rows)]
    assert delays == [(1, 0, None, None), (2, 1, 10.0, 10.0), (3, 2, 2.5, 10.0), (4, 2, 2.5, 10.0), (5, 3, 2.0, 10.0)]
    routes = [(r["carrier"], r["batch"], r["flights"], r["mean_delay"]) for r in expected.expected_routes(rows)]
    assert routes == [("UA", 1, 2, 10.0), ("UA", 2, 3, 2.5), ("B6", 1, 1, None), ("UA", 3, 4, 2.0)]
    (newest,) = expected.expected_aircraft(rows)
    assert (newest["time"].day, newest["carrier"], newest["flights"]) == (25, "UA", 5)


# -- comparison of tables ---------------------------------------------------------------------------------------------

ROUTES = [
    {"carrier": "B6", "origin": "JFK", "batch": 1, "flights": 1, "measured": 0, "mean_delay": None, "max_delay": None},
    {"carrier": "UA", "origin": "EWR", "batch": 1, "flights": 2, "measured": 2, "mean_delay": 0.1, "max_delay": 9.0},
]


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [(1, "mean_delay", 0.1 + 2**-55), (0, "mean_delay", float("nan")), (1, "max_delay", None), (0, "carrier", "b6")],
)
def test_comparison_finds_the_smallest_difference(row: int, column: str, value: object) -> None:
    right = compare.expected_table(ROUTES, "routes")
    assert compare.compare("routes", right, right).equal
    changed = [{**line} for line in ROUTES]
    changed[row][column] = value
    found = compare.compare("routes", compare.expected_table(changed, "routes"), right)
    assert not found.equal and column in found.difference
    for rows in (ROUTES[:1], [*ROUTES, ROUTES[1]]):
        found = compare.compare("routes", compare.expected_table(rows, "routes"), right)
        assert (found.equal, found.rows, found.expected_rows) == (False, len(rows), 2)


# -- calls of Airflow's API while its SQLite database is locked --------------------------------------------------------

LOCKED = (500, {"detail": {"reason": "Database error", "orig_error": "hidden"}})
BROKEN = (500, {"detail": "Internal Server Error"})
ANSWERS: list[tuple[int, object]] = []


@pytest.fixture
def airflow() -> Iterator[HostileServer]:
    ANSWERS[:] = [(200, {"access_token": "x"})]

    def next_answer(_: object) -> bytes:
        status, document = ANSWERS.pop(0)
        return answer(status, json.dumps(document).encode())

    with hostile_server(next_answer) as server:
        yield server


def test_a_call_is_repeated_while_the_database_is_locked(airflow: HostileServer) -> None:
    ANSWERS.extend([LOCKED, LOCKED, (200, {"state": "success"})])
    client = AirflowClient(f"http://{airflow.host}", "admin", "admin")
    assert client.run_state("flights", "one") == "success" and ANSWERS == []


def test_any_other_failure_is_an_error_at_once(airflow: HostileServer) -> None:
    ANSWERS.extend([BROKEN, (200, {})])
    with pytest.raises(AirflowError):
        AirflowClient(f"http://{airflow.host}", "admin", "admin").run_state("flights", "one")
    assert len(ANSWERS) == 1


# -- the demo in a bucket ---------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="processes a year of flights on Spark, in six runs")
def test_the_demo_in_a_bucket_is_killed_and_restored_and_its_tables_have_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `make demo-bucket` runs it; the files of the S3 server are the objects."""
    monkeypatch.delenv("STATEFLOW_DEMO_BUCKET", raising=False)
    # The demo adds the credentials of its server.
    with mock.patch.dict(os.environ):
        assert demo.run_in_bucket(Screen(), Layout(tmp_path)) == 0
    year = tmp_path / "s3" / "demo" / "year"
    flights = expected.read_flights(csv_file())
    for name, rows in (("delays", expected.expected_delays), ("routes", expected.expected_routes)):
        found = compare.in_order(DeltaTable(year / "tables" / name).to_pyarrow_table(), name)
        assert compare.compare(name, found, compare.expected_table(rows(flights), name)).equal
    # The second quarter ran again after the kill, the third one after the restore.
    actions = [record["kind"] for record in root_files.history(year / "jobs" / "flights") if "kind" in record]
    assert actions == ["run", "run", "run", "savepoint", "run", "restore", "run", "run"]
