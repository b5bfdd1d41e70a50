"""What the demo relies on: files that arrive as promised, a comparison that finds every difference, and its kill."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flights_demo import compare, deliveries, expected
from flights_demo.crash import FAILPOINT, DemoCheckFailed, Kill, look_for_kill
from flights_demo.flights import ORDER, SCHEMA, csv_file, deliver, prepare

from dags.jobs.aircraft import Aircraft, Flight, NewestFlight
from stateflow.testing import KeyedHarness, KeyedInput
from stateflow_airflow.launch import Command, Launcher
from tests.airflow.conftest import REPOSITORY
from tests.airflow.fakes import DEADLINE
from tests.airflow.jobs import ACCOUNTS, settings
from tests.support.job_fixture import AccountsJob


@pytest.fixture(scope="module")
def staging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights") / "staging"
    assert prepare(folder) == 336_776
    return folder


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_files_are_sorted_typed_and_never_share_a_time_and_come_in_the_order_of_delivery(staging: Path) -> None:
    assert [path.name for path in files(staging)] == [d.file_name for d in deliveries.DELIVERIES]
    modified = [path.stat().st_mtime for path in files(staging)]
    assert modified == sorted(set(modified))
    last = datetime(2013, 1, 1)  # noqa: DTZ001
    for path in files(staging):
        table = pq.read_table(path)
        assert table.schema.equals(SCHEMA)
        times = table["time"].to_pylist()
        assert last < times[0]
        last = times[-1]
        assert table.equals(table.sort_by([(name, "ascending") for name in ORDER]))


def test_time_and_flight_number_order_the_flights_of_every_key() -> None:
    flights = expected.read_flights(csv_file())
    for key in (("tailnum",), ("carrier", "origin")):
        seen = {(*(row[name] for name in key), row["time"], row["flight"]) for row in flights}
        assert len(seen) == len(flights)


def test_delivery_brings_exactly_one_quarter(staging: Path, tmp_path: Path) -> None:
    copies = tmp_path / "staging"
    copies.mkdir()
    for path in files(staging):
        (copies / path.name).touch()
    assert len(deliver(2, copies, tmp_path / "landing")) == 12
    assert {path.name.split("-")[2] for path in files(tmp_path / "landing")} == {"04", "05", "06"}
    assert len(files(copies)) == 36


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


def test_a_late_flight_is_counted_and_replaces_no_newer_one() -> None:
    def flight(day: int) -> Flight:
        return Flight("N1", datetime(2013, 1, day), 1, "UA", "EWR", "IAH")  # noqa: DTZ001

    with KeyedHarness(NewestFlight(), KeyedInput(Flight, "tailnum"), output=Aircraft) as harness:
        (row,) = harness.push(flight(2), flight(9), flight(1))
    assert (row.time.day, row.flights) == (9, 3)


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


def test_comparison_finds_missing_and_repeated_rows() -> None:
    right = compare.expected_table(ROUTES, "routes")
    for rows in (ROUTES[:1], [*ROUTES, ROUTES[1]]):
        found = compare.compare("routes", compare.expected_table(rows, "routes"), right)
        assert (found.equal, found.rows, found.expected_rows) == (False, len(rows), 2)


def test_exported_tables_are_brought_into_the_form_of_the_expected_ones(tmp_path: Path) -> None:
    shuffled = pa.Table.from_pylist(ROUTES[::-1]).set_column(2, "batch", pa.array([1, 1], pa.int32()))
    (tmp_path / "routes").mkdir()
    pq.write_table(shuffled, tmp_path / "routes" / "part.parquet")
    actual = compare.read_exported(tmp_path, "routes")
    assert compare.compare("routes", actual, compare.expected_table(ROUTES, "routes")).equal


# -- the kill, over real runs without Spark that are launched as the operator launches them ---------------------------


class Stage:
    """A job root with one run that went well, and the launches of a second DAG run."""

    def __init__(self, job: AccountsJob) -> None:
        self.job = job
        self.runs = job.folder / "runs"
        self.tries = 0
        job.deliver(20)
        self._launch("first", 1, "")
        job.deliver(80)

    def next_try(self, failpoint: str) -> None:
        """A try of the DAG run that is killed at a failpoint, or succeeds."""
        self.tries += 1
        self._launch("second", self.tries, failpoint)

    def look(self) -> Kill | None:
        return look_for_kill(self.runs, self.job.root)

    def _launch(self, run: str, number: int, failpoint: str) -> None:
        launcher = Launcher(self.runs / run)
        argv = [sys.executable, "-m", "stateflow", "run", ACCOUNTS, "--job-root", str(self.job.root)]
        argv += [word for key, value in settings(self.job).items() for word in ("--set", f"{key}={value}")]
        argv += ["--run-id", f"flights/{run}/run/{number}"]
        once = "../failpoint-reached" if number == 1 else f"../failpoint-reached-{number}"
        environment = {
            "STATEFLOW_FAILPOINT": failpoint,
            "STATEFLOW_FAILPOINT_ONCE": once,
            "PYTHONPATH": str(REPOSITORY),
        }
        with launcher.locked():
            launch = launcher.start(launcher.next_folder(), Command(argv, environment))
        assert launcher.wait(launch, DEADLINE)
        assert launch.exit_code() == (-9 if failpoint else 0), launch.log_file.read_text()


@pytest.fixture
def stage(job: AccountsJob) -> Stage:
    return Stage(job)


def test_the_kill_is_seen_whether_or_not_the_next_try_has_begun(stage: Stage) -> None:
    assert stage.look() is None
    stage.next_try(FAILPOINT)
    found = stage.look()
    assert found is not None
    assert (found.exit_code, found.left_behind.files > 0) == (-9, True)
    # The next try has claimed the job. Once it works, it deletes the log entries of the try before.
    stage.next_try("claim.after")
    assert stage.look() == found
    stage.next_try("")
    stage.job.check_results()


@pytest.mark.parametrize(
    ("failpoint", "retried"), [("commit.after:3", False), ("commit.after:3", True), ("claim.after", False)]
)
def test_another_kill_than_the_promised_one_is_refused(stage: Stage, failpoint: str, retried: bool) -> None:
    stage.next_try(failpoint)
    if retried:
        stage.next_try("claim.after")
    with pytest.raises(DemoCheckFailed) as caught:
        stage.look()
    assert "committed" in caught.value.broken
