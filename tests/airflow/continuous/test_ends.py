"""Tasks whose run stays up: how they end it, and triggers that follow it."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from stateflow_airflow import graceful_end, processes
from stateflow_airflow.failures import TransientFailure
from stateflow_airflow.launch import Launcher
from stateflow_airflow.launch_trigger import LaunchTrigger, to_launch
from stateflow_airflow.operators.run import StateflowRunOperator
from tests.airflow.continuous.conftest import Drivers
from tests.airflow.fakes import DEADLINE, FakeRun, FakeTaskInstance, fails
from tests.airflow.jobs import new_run, run_task, wait_for_rows
from tests.support.job_fixture import AccountsJob
from tests.support.processes import wait_for


def deferred(task: StateflowRunOperator, run: FakeRun) -> LaunchTrigger:
    """Starts a task, which defers; returns its trigger as a triggerer makes it."""
    with pytest.raises(TaskDeferred) as caught:
        task.execute(run.next_try())
    assert caught.value.method_name == "execute_complete"
    path, arguments = caught.value.trigger.serialize()
    assert path == "stateflow_airflow.launch_trigger.LaunchTrigger"
    return LaunchTrigger(**{**json.loads(json.dumps(arguments)), "poll_interval": 0.01})


async def next_event(trigger: LaunchTrigger) -> Any:
    """The payload of the trigger's event, as Airflow stores it."""
    async for event in trigger.run():
        return json.loads(json.dumps(event.payload))


@pytest.mark.parametrize("answer", [1, 0, OSError()], ids=["deferred", "ended", "unknown"])
def test_a_deferred_run_ends_with_its_task_but_not_with_a_triggerer_that_lost_the_trigger(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch, answer: int | OSError
) -> None:
    """Airflow calls the same method of a trigger whether a user has ended the task or another triggerer has got it."""
    asked: list[dict[str, Any]] = []

    def count(**criteria: Any) -> int:
        asked.append(criteria)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(RuntimeTaskInstance, "get_ti_count", count)
    launch = drivers.start("ends")
    trigger = LaunchTrigger(asdict(launch), DEADLINE)
    trigger.task_instance = cast("Any", FakeTaskInstance(map_index=-1))
    asyncio.run(trigger.on_kill())
    task = {"dag_id": "a_dag", "task_ids": ["run"], "run_ids": [FakeTaskInstance().run_id], "map_index": -1}
    assert asked == [{**task, "states": ["deferred"]}]
    if answer == 1:
        assert (launch.process() is None, drivers.signals) == (False, 0)
    else:
        assert drivers.launcher.wait(launch, DEADLINE)
        assert (launch.exit_code(), drivers.signals) == (7, 1)


@pytest.mark.slow(reason="waits for a run in a process of its own")
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


# -- how a task ends its run, and how long the driver may take ---------------------------------------------------------


@pytest.mark.slow(reason="waits for a run in a process of its own")
def test_a_killed_task_ends_its_run_with_a_checkpoint(job: AccountsJob, background: ThreadPoolExecutor) -> None:
    task = run_task(job)
    running = background.submit(task.execute, new_run("2026-01-01").next_try())
    wait_for_rows(job, 30)
    task.on_kill()
    ended = running.result(DEADLINE)
    assert (ended["stopped_because"], ended["rows_in"]) == ("signal", 30)
    assert job.commit_at(30).seq == ended["checkpoint_id"]
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
