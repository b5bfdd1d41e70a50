"""Tasks whose run stays up: how a task ends it, and how long the driver may take."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from stateflow_airflow import graceful_end, processes
from stateflow_airflow.launch import Launcher
from tests.airflow.continuous.drivers import Drivers
from tests.airflow.fakes import DEADLINE
from tests.airflow.jobs import new_run, run_task, wait_for_rows
from tests.support.job_fixture import AccountsJob
from tests.support.processes import wait_for


def test_a_killed_task_ends_its_run_with_a_checkpoint(job: AccountsJob, background: ThreadPoolExecutor) -> None:
    task = run_task(job)
    running = background.submit(task.execute, new_run("2026-01-01").next_try())
    wait_for_rows(job, 30)
    task.on_kill()
    ended = running.result(DEADLINE)
    assert (ended["stopped_because"], ended["rows_in"]) == ("signal", 30)
    assert job.commit_at(30).seq == ended["checkpoint_id"]
    job.check_results()


def test_the_run_of_a_cleared_task_ends_with_a_checkpoint_before_the_next_one_begins(
    job: AccountsJob, background: ThreadPoolExecutor
) -> None:
    run = new_run("2026-01-01")
    # A thread represents a worker that is gone.
    dead = background.submit(run_task(job).execute, run.next_try())
    wait_for_rows(job, 30)
    # A run reads the script of its source when it starts.
    job.deliver(40)
    run.clear()
    cleared = background.submit(run_task(job).execute, run.next_try())
    first = dead.result(DEADLINE)
    wait_for_rows(job, 40)
    job.command("stop").check()
    second = cleared.result(DEADLINE)
    assert (first["stopped_because"], second["stopped_because"]) == ("signal", "stopped")
    assert (second["started_from"], second["rows_in"]) == (first["checkpoint_id"], 10)
    job.check_results()


def test_a_driver_that_ends_in_time_is_not_interrupted(drivers: Drivers) -> None:
    launch = drivers.start("ends")
    graceful_end.end(drivers.launcher, launch, DEADLINE)
    assert (launch.exit_code(), drivers.signals) == (7, 1)


def test_a_driver_gets_one_signal_from_all_that_end_the_run(drivers: Drivers) -> None:
    launch = drivers.start("ignores")
    assert graceful_end.begin(drivers.launcher, launch, DEADLINE)
    assert graceful_end.begin(Launcher(drivers.launcher.folder), launch, 0)
    wait_for(lambda: drivers.signals > 0, lambda: "a signal")
    assert (drivers.signals, launch.process() is None) == (1, False)


def test_a_driver_that_does_not_end_in_time_is_killed_although_its_task_is_gone(drivers: Drivers) -> None:
    launch = drivers.start("ignores")
    members = drivers.launcher.members(launch)
    graceful_end.end_in_background(drivers.launcher, launch, 0.2)
    processes.wait_for_all(members, DEADLINE)
    assert [processes.find(member.pid) for member in members] == [None] * len(members)


@pytest.mark.parametrize(
    ("arguments", "driver"),
    [
        (["python3", "/opt/stateflow/__main__.py", "run", "/job.py"], True),
        # The check before spark-submit, and the JVM.
        (["python3", "/opt/stateflow/__main__.py", "submit", "/job.py"], False),
        (["/opt/java", "-cp", "x", "org.apache.spark.deploy.SparkSubmit", "/opt/stateflow/__main__.py", "run"], False),
        (["python3", "-m", "stateflow_worker_daemon"], False),
        ([], False),
    ],
)
def test_the_driver_is_the_python_process_of_the_run(arguments: list[str], driver: bool) -> None:
    assert graceful_end.is_driver(b"".join(word.encode() + b"\0" for word in arguments)) is driver
