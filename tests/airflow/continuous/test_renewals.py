"""Tasks whose run stays up: how a task replaces it by a newer one."""

from __future__ import annotations

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset

from stateflow_airflow import processes, renewal
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.launch import Launch, Launcher
from stateflow_airflow.operators.run import StateflowRunOperator
from tests.airflow.fakes import DEADLINE, fails
from tests.airflow.jobs import new_run, run_task, wait_for_rows
from tests.support.job_fixture import AccountsJob
from tests.support.processes import wait_for


class Gone(BaseException):
    """Ends the thread that represents a worker as a kill ends the worker: no code of the task handles it."""


class Renewals:
    def __init__(self, job: AccountsJob, patch: pytest.MonkeyPatch) -> None:
        self.run = new_run("2026-01-01")
        self.asset = Asset("of-the-job")
        self._job, self._old = job, set[str]()
        self._submit = job.folder.parent / "bin" / "spark-submit"
        patch.setattr(renewal, "_age", self._age)

    def task(self) -> StateflowRunOperator:
        return run_task(self._job, renew_after=timedelta(hours=8), outlets=[self.asset])

    def make_old(self, name: str) -> None:
        self._old.add(name)

    def let_spark_hang(self) -> None:
        self._submit.write_text("#!/bin/sh\nexec sleep 1000\n")

    def launches(self) -> dict[str, bool]:
        folder = next((self._job.folder.parent / "runs").rglob("launch-1")).parent
        return {Path(launch.folder).name: launch.process() is not None for launch in Launcher(folder).launches()}

    def wait_until_active(self, *names: str) -> None:
        def active() -> set[str]:
            return {name for name, is_active in self.launches().items() if is_active}

        wait_for(lambda: active() == set(names), lambda: f"{names} instead of {active()}")

    def _age(self, launch: Launch) -> timedelta:
        return timedelta(hours=9 if Path(launch.folder).name in self._old else 0)


@pytest.fixture
def renewals(job: AccountsJob, monkeypatch: pytest.MonkeyPatch) -> Renewals:
    job.settings = {**job.settings, "run__take_over": "2 min", "requests__interval": "20ms"}
    return Renewals(job, monkeypatch)


@pytest.mark.slow(reason="waits for two runs in processes of their own")
def test_an_old_run_is_replaced_within_the_task(
    job: AccountsJob, renewals: Renewals, background: ThreadPoolExecutor
) -> None:
    running = background.submit(renewals.task().execute, renewals.run.next_try())
    wait_for_rows(job, 30)
    # A run reads the script of its source when it starts.
    job.deliver(40)
    renewals.make_old("launch-1")
    wait_for_rows(job, 40)
    renewals.wait_until_active("launch-2")
    assert not running.done()
    job.command("stop").check()
    returned = running.result(DEADLINE)
    assert (returned["stopped_because"], returned["rows_in"]) == ("stopped", 10)
    assert returned["started_from"] == job.commit_at(30).seq
    assert renewals.run.events[renewals.asset].extra["checkpoint_id"] == returned["checkpoint_id"]
    assert not renewals.run.store
    job.check_results()


def dies(task: StateflowRunOperator, step: str) -> StateflowRunOperator:
    """Lets the worker of a task die at a step of the renewal, and returns the task."""
    start, follow, launcher = task._start_successor, task._follow, task._task_launcher

    def start_and_die(context: Any, current: Launch) -> Any:
        if step == "after-the-folder":
            launcher().next_folder().mkdir()
        if step == "after-the-start":
            start(context, current)
        raise Gone

    def follow_and_die(launch: Launch, renewal: Any) -> None:
        follow(launch, renewal)
        raise Gone

    if step == "after-the-end":
        task._follow = follow_and_die  # type: ignore[method-assign]
    else:
        task._start_successor = start_and_die  # type: ignore[method-assign]
    return task


@pytest.mark.slow(reason="waits for two runs in processes of their own")
@pytest.mark.parametrize("step", ["before-the-start", "after-the-folder", "after-the-start", "after-the-end"])
def test_the_next_try_completes_the_renewal_of_a_dead_worker(
    job: AccountsJob, renewals: Renewals, background: ThreadPoolExecutor, step: str
) -> None:
    dead = background.submit(dies(renewals.task(), step).execute, renewals.run.next_try())
    wait_for_rows(job, 30)
    job.deliver(40)
    renewals.make_old("launch-1")
    assert isinstance(dead.exception(DEADLINE), Gone)
    second = background.submit(renewals.task().execute, renewals.run.next_try())
    wait_for_rows(job, 40)
    job.command("stop").check()
    returned = second.result(DEADLINE)
    assert (returned["stopped_because"], returned["rows_in"]) == ("stopped", 10)
    assert len(renewals.launches()) == 2 and job.requested() == [(0, 10), (10, 20), (20, 30), (30, 40)]
    job.check_results()


@pytest.mark.slow(reason="waits for three launches")
def test_a_successor_that_fails_leaves_the_run_active_and_another_one_starts_later(
    job: AccountsJob,
    renewals: Renewals,
    background: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = renewals.task()
    running = background.submit(task.execute, renewals.run.next_try())
    wait_for_rows(job, 30)
    job.deliver(40)
    good, task.settings = task.settings, {**task.settings, "run.until": "whenever"}
    renewals.make_old("launch-1")

    def errors() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.module == "renewal"]

    wait_for(lambda: any("whenever" in each and "launch-2" in each for each in errors()), lambda: str(errors()))
    assert renewals.launches() == {"launch-1": True, "launch-2": False}
    # As when its job file or its connection cannot be read.
    task.job = "relative.py"
    monkeypatch.setattr(renewal, "_NEXT_ATTEMPT", timedelta())
    renewals.make_old("launch-2")
    wait_for(lambda: any("relative.py" in str(r.exc_info) for r in caplog.records), lambda: str(errors()))
    task.settings, task.job = good, renewals.task().job
    wait_for_rows(job, 40)
    job.command("stop").check()
    assert running.result(DEADLINE)["rows_in"] == 10
    assert renewals.launches() == dict.fromkeys(("launch-1", "launch-2", "launch-3"), False)


@pytest.mark.slow(reason="waits for two launches")
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_successor_that_still_starts_ends_with_the_run(
    job: AccountsJob, renewals: Renewals, background: ThreadPoolExecutor, end: str
) -> None:
    task = renewals.task()
    running = background.submit(task.execute, renewals.run.next_try())
    wait_for_rows(job, 30)
    renewals.let_spark_hang()
    renewals.make_old("launch-1")
    renewals.wait_until_active("launch-1", "launch-2")
    if end == "stop":
        job.command("stop").check()
    else:
        task.on_kill()
    returned = running.result(DEADLINE)
    assert (returned["stopped_because"], returned["rows_in"]) == ("stopped" if end == "stop" else "signal", 30)
    assert job.commit_at(30).seq == returned["checkpoint_id"]
    assert renewals.launches() == {"launch-1": False, "launch-2": False}


ACTIVE, KILLED = "active", "killed"
STOPPED, TAKEN_OVER, FENCED, FAILED = (
    {"status": "finished", "stopped_because": "stopped"},
    {"status": "finished", "stopped_because": "taken-over"},
    {"status": "failed", "error": {"code": "fenced"}},
    {"status": "failed", "error": {"code": "batch-failed"}},
)


@pytest.mark.parametrize(
    ("before", "successor", "counts"),
    [
        (ACTIVE, ACTIVE, 1),
        (ACTIVE, FAILED, 1),
        (STOPPED, ACTIVE, 1),
        (STOPPED, FAILED, 1),
        (STOPPED, KILLED, 1),
        # It had taken over before it was ended.
        (STOPPED, STOPPED, 2),
        (TAKEN_OVER, ACTIVE, 2),
        (TAKEN_OVER, FAILED, 2),
        (TAKEN_OVER, KILLED, 2),
        (FENCED, ACTIVE, 2),
        (FENCED, KILLED, 2),
        (FAILED, ACTIVE, 2),
        (FAILED, FAILED, 1),
        (KILLED, ACTIVE, 2),
        (KILLED, STOPPED, 2),
    ],
    ids=str,
)
def test_which_of_two_launches_counts(tmp_path: Path, before: Any, successor: Any, counts: int) -> None:
    this = processes.find(os.getpid())
    assert this is not None
    for number, state in enumerate((before, successor), 1):
        folder = tmp_path / f"launch-{number}"
        folder.mkdir()
        started = this.started if state == ACTIVE else 0
        launch = Launch(str(folder), os.getpid(), started, socket.gethostname(), processes.boot_id(), 2)
        (folder / "launch.json").write_text(json.dumps(asdict(launch)))
        if isinstance(state, dict):
            launch.result_file.write_text(json.dumps(state))
    (tmp_path / "launch-2" / "predecessor").write_text("launch-1")
    counting = renewal.counting_launch(Launcher(tmp_path, 2))
    assert counting is not None and counting.folder == str(tmp_path / f"launch-{counts}")
    # Not after a clear.
    assert renewal.counting_launch(Launcher(tmp_path, 3)) is None


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"deferrable": True}, timedelta(hours=8)),
        ({"renew_after": timedelta(minutes=9)}, timedelta(minutes=9)),
        ({"settings": {}}, timedelta(hours=8)),
    ],
    ids=["deferred", "too-often", "without-take-over"],
)
def test_a_task_that_cannot_renew_its_run_is_refused(given: dict[str, Any], wrong: timedelta) -> None:
    good: dict[str, Any] = {"renew_after": timedelta(hours=8), "settings": {"run.take_over": "1 min"}}
    with fails(PermanentFailure, "config", renew_after=str(wrong)):
        StateflowRunOperator(task_id="run", job="/job.py", job_root="/root", **{**good, **given})
