"""Savepoints and going back on Spark, with Delta tables: beside a run, killed on the way, at another parallelism."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow.runtime.driver.termination import STOPPED
from tests.support import root_files
from tests.support.flights_job import FlightsJob, delta_rows, expected
from tests.support.job_fixture import multiset
from tests.support.processes import Running, spawn, wait_for

pytestmark = [pytest.mark.spark]


@pytest.fixture
def flights(tmp_path: Path) -> Iterator[FlightsJob]:
    scratch = {"spark__conf__spark.local.dir": tmp_path / "spark", "requests__interval": "20ms"}
    box = FlightsJob(tmp_path / "job", scratch, job="small_flights", launcher=spawn)
    yield box
    box.end_all()
    for process in box.processes:
        process.wait_family()


def test_a_savepoint_beside_a_run_and_the_way_back_to_it(flights: FlightsJob) -> None:
    """Taken while a run stands still in a batch; then more files, the way back, killed at each table, and more files
    again, at another parallelism."""
    flights.deliver(4)
    run = flights.start("batch.reported:2:stop")
    run.wait_stopped()
    asker = flights.begin("savepoint", "create", "--name", "early", "--json", "--timeout", "120")
    wait_for(lambda: (flights.root / "requests").is_dir(), lambda: "the request")
    run.resume()
    made, ended = asker.wait(), run.wait()
    assert (made.code, ended.code) == (0, 0), f"{made}\n{ended}"
    report = json.loads(made.out)
    assert report["taken_by"] == "run"
    files = int(json.loads(report["offsets"]["flights"])["logOffset"]) + 1
    assert 2 <= files <= 4
    flights.deliver(8)
    flights.finish()
    flights.check_results()

    plan = _plan(flights, "early")
    (source,) = plan["sources"]
    assert source["held"] is True
    newest = flights.folder / "flights" / "0007.parquet"
    newest.rename(flights.folder / "aside")
    (source,) = _plan(flights, "early")["sources"]
    assert source["held"] is False
    (flights.folder / "aside").rename(newest)
    assert _plan(flights, "early")["sources"] == plan["sources"]
    legs = len(delta_rows(flights.table("legs")))
    removed = {s["uid"]: s["rows_removed"] for s in plan["sinks"]}
    assert removed["legs"] == legs - len(expected(files).movements)
    assert removed["routes"] == len(expected(8).totals) - len(expected(files).totals)
    for failpoint in ("restore.intent:1", "rewind.table:2"):
        flights.marker.unlink(missing_ok=True)
        assert _execute(flights, failpoint) == -9
    assert _execute(flights) == 0
    assert multiset(delta_rows(flights.table("legs"))) == multiset(expected(files).movements)
    assert multiset(delta_rows(flights.table("routes"))) == multiset(expected(files).totals)

    flights.deliver(9)
    flights.finish(parallelism=3)
    flights.check_results()
    flights.collect()
    root_files.check_no_orphans(flights.root)
    assert set(root_files.savepoints(flights.root)) == {"early"}


@pytest.mark.slow
def test_a_sleeping_driver_adds_no_row_behind_the_way_back(flights: FlightsJob) -> None:
    flights.deliver(3)
    flights.finish()
    flights.deliver(6)
    sleeper = flights.start("commit.after:2:stop")
    sleeper.wait_stopped()
    flights.marker.unlink()
    target = root_files.kept_entries(flights.root)[0].seq
    _plan(flights, str(target))
    assert _execute(flights) == 0
    before = multiset(delta_rows(flights.table("legs")))
    sleeper.resume()
    ended = sleeper.wait()
    assert (ended.code, ended.error.code) == (3, "fenced"), str(ended)
    assert multiset(delta_rows(flights.table("legs"))) == before
    flights.finish()
    flights.check_results()


@pytest.mark.slow
def test_a_savepoint_a_fork_and_a_stop_are_killed_on_the_way(flights: FlightsJob, tmp_path: Path) -> None:
    """The next run, or the same command, does the rest: each is complete, once, and no row is lost or there twice."""
    flights.deliver(4)
    asker = _asked_of_a_run_that_dies(flights, "savepoint", "create", "--name", "early")
    assert flights.run("savepoint.copied").code == -9
    flights.marker.unlink()
    flights.finish()
    assert asker.wait().code == 0
    assert set(root_files.savepoints(flights.root)) == {"early"}

    into = tmp_path / "fork"
    fork = ("fork", "early", "--into", str(into), "--shadow")
    assert flights.command(*fork, failpoint="fork.imported").code == -9
    flights.marker.unlink()
    assert flights.command(*fork).code == 0
    forked = FlightsJob(
        flights.folder,
        {**flights.settings, "local_dir": tmp_path / "local"},
        job=flights.job,
        launcher=spawn,
        root_folder=into,
    )
    forked.finish()
    (source,) = root_files.savepoints(flights.root)["early"]["manifest"]["sources"]
    files = int(json.loads(source["offset"])["logOffset"]) + 1
    assert files < 4
    shadow = multiset(delta_rows(flights.table("legs_shadow")))
    assert shadow == multiset(expected(4).movements) - multiset(expected(files).movements)
    forked.end_all()

    flights.deliver(7)
    asker = _asked_of_a_run_that_dies(flights, "stop", "--savepoint", "--name", "last")
    assert flights.run("savepoint.complete").code == -9
    flights.marker.unlink()
    stopped = flights.finish()
    assert stopped.result["stopped_because"] == STOPPED and asker.wait().code == 0
    assert set(root_files.savepoints(flights.root)) == {"early", "last"}
    flights.finish()
    flights.check_results()
    flights.check_clean()


def _asked_of_a_run_that_dies(box: FlightsJob, *command: str) -> Running:
    """Somebody who waits for an answer; the run that was at work then is gone."""
    run = box.start("batch.reported:2:stop")
    run.wait_stopped()
    asker = box.begin(*command, "--request-id", command[-1], "--timeout", "300", "--patience", "300")
    wait_for((box.root / "requests" / command[-1]).exists, lambda: "the request")
    run.kill()
    run.wait()
    box.marker.unlink(missing_ok=True)
    return asker


def _plan(box: FlightsJob, target: str) -> dict[str, list[dict[str, object]]]:
    ended = box.begin(
        "restore", box.job_file, "--plan", target, "--json", "--out", str(box.folder / "plan.json"), with_job=True
    ).wait()
    assert ended.code == 0, str(ended)
    return json.loads(ended.out)  # type: ignore[no-any-return]


def _execute(box: FlightsJob, failpoint: str = "") -> int | None:
    return (
        box.begin(
            "restore", box.job_file, "--execute", str(box.folder / "plan.json"), failpoint=failpoint, with_job=True
        )
        .wait()
        .code
    )
