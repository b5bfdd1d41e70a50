"""Tasks whose run stays up: how they end it, and how long the driver may take."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stateflow_airflow.launches import graceful_end, processes
from stateflow_airflow.launches.launch import Launch
from stateflow_airflow.launches.launcher import Command, Launcher
from tests.airflow.fakes import DEADLINE
from tests.airflow.jobs import new_run, run_task, use_submit
from tests.support.job_fixture import AccountsJob
from tests.support.processes import wait_for

DRIVER = """
import pathlib, signal, sys
end, folder = sys.argv[2], pathlib.Path(__file__).parent
def handle(number, frame):
    with (folder / "signals").open("a") as file:
        file.write("x")
    if end == "ends":
        sys.exit(7)
signal.signal(signal.SIGTERM, handle)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AccountsJob]:
    """A job whose runs stay up, and make no checkpoint before their end."""
    use_submit(tmp_path, monkeypatch)
    job = AccountsJob(tmp_path / "job", {"run__until": "stopped", "checkpoints__interval": "1h"})
    job.deliver(30)
    yield job
    job.end_all()


def wait_for_rows(job: AccountsJob, rows: int) -> None:
    wait_for(lambda: any(end == rows for _, end in job.requested()), lambda: f"{rows} rows")


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


class Drivers:
    """Launches programs that look like drivers, and records the signals that they get."""

    def __init__(self, folder: Path) -> None:
        self.launcher = Launcher(folder / "runs")
        self._program = folder / "stateflow" / "__main__.py"
        self._program.parent.mkdir()
        self._program.write_text(DRIVER)
        (self._program.parent / "signals").touch()

    def start(self, end: str) -> Launch:
        """Launches a driver that ends at SIGTERM, or ignores it; returns when it handles signals."""
        with self.launcher.locked():
            command = Command([sys.executable, str(self._program), "run", end], dict(os.environ))
            launch = self.launcher.start(self.launcher.next_folder(), command)
        wait_for(lambda: "ready" in launch.log_file.read_text(), lambda: "the driver")
        return launch

    @property
    def signals(self) -> int:
        """How many signals the drivers have got."""
        return len((self._program.parent / "signals").read_text())


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    """Drivers; all that still run are ended."""
    drivers = Drivers(tmp_path)
    yield drivers
    for launch in drivers.launcher.launches():
        drivers.launcher.stop(launch, 0)


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
