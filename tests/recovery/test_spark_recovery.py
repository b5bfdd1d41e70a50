"""Savepoints and going back on Spark, with Delta tables: during a run, killed on the way, at another parallelism."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateflow.runtime.driver.termination import STOPPED
from tests.support import root_files
from tests.support.flights_job import FlightsJob, expected
from tests.support.job_fixture import KILLED, multiset
from tests.support.processes import Running, spawn, wait_for
from tests.support.restores import execute, go_back, plan

pytestmark = [pytest.mark.spark]


@pytest.fixture
def flights(flights: FlightsJob) -> FlightsJob:
    flights.settings = {**flights.settings, "requests__interval": "20ms"}
    return flights


def _files(offset: str) -> int:
    """How many files were read up to an offset."""
    return int(json.loads(offset)["logOffset"]) + 1


def test_a_savepoint_during_a_run_and_the_way_back_to_it(flights: FlightsJob) -> None:
    """Taken while a run stands still in a batch; then more files, the way back, killed at each table, and more files
    again, at another parallelism."""
    flights.deliver(4)
    made, _ = flights.asked_at("batch.reported:2", "savepoint", "create", "--name", "early", "--json")
    report = made.check().document
    files = _files(report["offsets"]["flights"])
    assert report["taken_by"] == "run" and 2 <= files <= 4
    flights.run_to(8)
    flights.check_results()

    newest = flights.input / "0007.parquet"
    newest.rename(flights.folder / "aside")
    assert [source["held"] for source in plan(flights, "early")["sources"]] == [False]
    (flights.folder / "aside").rename(newest)
    planned = plan(flights, "early")
    assert [source["held"] for source in planned["sources"]] == [True]
    removed = {s["uid"]: s["rows_removed"] for s in planned["sinks"]}
    assert removed["legs"] == len(flights.rows("legs")) - len(expected(files).movements)
    assert removed["routes"] == len(expected(8).totals) - len(expected(files).totals)
    for failpoint in ("restore.intent:1", "rewind.table:2"):
        assert execute(flights, failpoint=failpoint).code == KILLED
    execute(flights).check()
    assert multiset(flights.rows("legs")) == multiset(expected(files).movements)
    assert multiset(flights.rows("routes")) == multiset(expected(files).totals)

    flights.run_to(9, parallelism=3)
    flights.check_results()
    flights.collect()
    root_files.check_no_orphans(flights.root)
    assert flights.savepoints.keys() == {"early"}


@pytest.mark.slow
def test_a_sleeping_driver_adds_no_row_after_the_way_back(flights: FlightsJob) -> None:
    flights.run_to(3)
    flights.deliver(6)
    sleeper = flights.start("commit.after:2:stop").wait_stopped()
    go_back(flights, str(root_files.kept_entries(flights.root)[0].seq))
    before = multiset(flights.rows("legs"))
    sleeper.resume().wait().check_error(3, "fenced")
    assert multiset(flights.rows("legs")) == before
    flights.finish()
    flights.check_results()


@pytest.mark.slow
def test_a_savepoint_a_fork_and_a_stop_are_killed_on_the_way(flights: FlightsJob, tmp_path: Path) -> None:
    """The next run, or the same command, does the rest: each is complete, once, and no row is lost or there twice."""
    flights.deliver(4)
    asker = _asked_of_a_run_that_dies(flights, "savepoint", "create", "--name", "early")
    flights.reach("savepoint.copied")
    flights.finish()
    asker.wait().check()
    assert flights.savepoints.keys() == {"early"}

    into = tmp_path / "fork"
    fork = ("fork", "early", "--into", str(into), "--shadow")
    assert flights.command(*fork, failpoint="fork.imported").code == KILLED
    flights.command(*fork).check()
    settings = {**flights.settings, "local_dir": tmp_path / "local"}
    forked = FlightsJob(flights.folder, settings, job=flights.job, launcher=spawn, root_folder=into)
    forked.finish()
    files = _files(flights.savepoints["early"]["manifest"]["sources"][0]["offset"])
    assert files < 4
    shadow = multiset(expected(4).movements) - multiset(expected(files).movements)
    assert multiset(flights.rows("legs_shadow")) == shadow
    forked.end_all()

    flights.deliver(7)
    asker = _asked_of_a_run_that_dies(flights, "stop", "--savepoint", "--name", "last")
    flights.reach("savepoint.complete")
    assert flights.finish().result["stopped_because"] == STOPPED
    asker.wait().check()
    assert flights.savepoints.keys() == {"early", "last"}
    flights.finish()
    flights.check()


def _asked_of_a_run_that_dies(box: FlightsJob, *command: str) -> Running:
    """Somebody who waits for an answer; the run that was at work then is gone."""
    run = box.start("batch.reported:2:stop").wait_stopped()
    asker = box.begin(*command, "--request-id", command[-1], "--timeout", "300", "--patience", "300")
    wait_for((box.root / "requests" / command[-1]).exists, lambda: "the request")
    run.kill()
    run.wait()
    return asker
