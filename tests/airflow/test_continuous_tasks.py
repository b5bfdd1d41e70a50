"""Tasks whose run stays up: how they end it, and how long the driver may take."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from stateflow_airflow.failures import TransientFailure
from stateflow_airflow.launches import graceful_end, processes
from stateflow_airflow.launches.launch import Launch
from stateflow_airflow.launches.launch_trigger import LaunchTrigger, to_launch
from stateflow_airflow.launches.launcher import Command, Launcher
from stateflow_airflow.operators.run import StateflowRunOperator
from tests.airflow.fakes import DEADLINE, FakeRun, fails
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


# -- Deferred tasks ---------------------------------------------------------------------------------------------------


def deferred(task: StateflowRunOperator, run: FakeRun) -> LaunchTrigger:
    """Starts a task, which defers; returns its trigger as a triggerer makes it."""
    with pytest.raises(TaskDeferred) as caught:
        task.execute(run.next_try())
    assert caught.value.method_name == "execute_complete"
    path, arguments = caught.value.trigger.serialize()
    assert path == "stateflow_airflow.launches.launch_trigger.LaunchTrigger"
    return LaunchTrigger(**{**json.loads(json.dumps(arguments)), "poll_interval": 0.01})


async def next_event(trigger: LaunchTrigger) -> Any:
    """The payload of the trigger's event, as Airflow stores it."""
    async for event in trigger.run():
        return json.loads(json.dumps(event.payload))


def test_a_deferred_run_outlives_its_triggerer_and_ends_with_a_checkpoint_when_a_user_ends_the_task(
    job: AccountsJob,
) -> None:
    run = new_run("2026-01-01")
    trigger = deferred(run_task(job, deferrable=True), run)
    wait_for_rows(job, 30)

    async def restart_and_kill() -> Any:
        restarted = asyncio.create_task(next_event(trigger))
        await asyncio.sleep(0)
        restarted.cancel()
        await asyncio.wait([restarted])
        await trigger.cleanup()
        assert to_launch(trigger.launch).process()
        arguments: dict[str, Any] = trigger.serialize()[1]
        again = LaunchTrigger(**arguments)
        await again.on_kill()
        return await asyncio.wait_for(next_event(again), DEADLINE)

    event = asyncio.run(restart_and_kill())
    returned = run_task(job, deferrable=True).execute_complete(run.next_try(), event)
    assert (returned["stopped_because"], returned["rows_in"]) == ("signal", 30)
    assert job.commit_at(30).seq == returned["checkpoint_id"]
    assert not run.store
    job.check_results()


def test_the_next_try_of_a_deferred_task_follows_the_same_run(job: AccountsJob) -> None:
    """As after a timeout of the deferral; here the run is on another host, to which the triggerer has no access."""
    run = new_run("2026-01-01")
    first = deferred(run_task(job, deferrable=True), run)
    second = deferred(run_task(job, deferrable=True), run)
    assert first.launch == second.launch
    wait_for_rows(job, 30)
    unreachable: Any = asyncio.run(
        next_event(LaunchTrigger({**first.launch, "host": "other", "folder": "/nowhere"}, 1))
    )
    assert unreachable["status"] == "unreachable"
    job.command("stop").check()
    returned = run_task(job, deferrable=True).execute_complete(run.next_try(), unreachable | {"launch": first.launch})
    assert returned["stopped_because"] == "stopped"


def test_a_deferred_run_that_was_killed_fails_its_task(job: AccountsJob) -> None:
    run = new_run("2026-01-01")
    trigger = deferred(run_task(job, deferrable=True), run)
    Launcher(Path(to_launch(trigger.launch).folder).parent).stop(to_launch(trigger.launch), 0)
    event = asyncio.run(asyncio.wait_for(next_event(trigger), DEADLINE))
    with fails(TransientFailure, "killed"):
        run_task(job, deferrable=True).execute_complete(run.next_try(), event)
