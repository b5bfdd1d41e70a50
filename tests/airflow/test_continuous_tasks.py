"""Tasks whose run stays up: how they end it, triggers that follow it, and how a newer run replaces it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from stateflow_airflow import graceful_end, processes, renewal
from stateflow_airflow.failures import PermanentFailure, TransientFailure
from stateflow_airflow.launch import Command, Launch, Launcher
from stateflow_airflow.launch_trigger import LaunchTrigger, to_launch
from stateflow_airflow.operators.run import StateflowRunOperator
from tests.airflow.fakes import DEADLINE, FakeRun, FakeTaskInstance, fails
from tests.airflow.jobs import new_run, run_task, use_submit, wait_for_rows
from tests.servers.local_yarn import LocalYarn, local_yarn
from tests.support.job_fixture import AccountsJob
from tests.support.processes import wait_for
from tests.support.submissions import stopped_driver

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
        with self.launcher.hold_lock():
            command = Command([sys.executable, str(self._program), "run", end], dict(os.environ))
            launch = self.launcher.start(self.launcher.next_folder(), command)
        wait_for(lambda: "ready" in launch.log_file.read_text(), lambda: "the driver")
        return launch

    @property
    def signals(self) -> int:
        return len((self._program.parent / "signals").read_text())


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AccountsJob]:
    """A job whose runs stay up, and make no checkpoint before their end."""
    use_submit(tmp_path, monkeypatch)
    settings = {"run__until": "stopped", "checkpoints__interval": "1h", "storage__shared": "yes"}
    job = AccountsJob(tmp_path / "job", settings)
    job.deliver(30)
    yield job
    job.end_all()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path)
    yield drivers
    for launch in drivers.launcher.launches():
        drivers.launcher.stop(launch, 0)


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
        # The process that follows a driver in a cluster.
        (["python3", "/opt/stateflow/__main__.py", "submit", "/job.py", "--launch-id", "one", "--", "s"], True),
        (["/opt/java", "-cp", "x", "org.apache.spark.deploy.SparkSubmit", "/opt/stateflow/__main__.py", "run"], False),
        (["python3", "-m", "stateflow_worker_daemon"], False),
        ([], False),
    ],
)
def test_the_driver_is_the_python_process_of_the_run(arguments: list[str], driver: bool) -> None:
    assert graceful_end.is_driver(b"".join(word.encode() + b"\0" for word in arguments)) is driver


# -- how a task replaces its run by a newer one -----------------------------------------------------------------------


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
    assert returned["start_checkpoint_id"] == job.commit_at(30).seq
    assert renewals.run.events[renewals.asset].extra["checkpoint_id"] == returned["checkpoint_id"]
    assert not renewals.run.store
    job.check_results()


def test_a_successor_is_stored_once_it_has_taken_over(job: AccountsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run("2026-01-01")
    context = run.next_try()
    task = run_task(job)
    task.open_launches(context)
    ended, successor = (Launch(f"/runs/launch-{n}", n, 1, "host", "boot", 2, f"id-{n}") for n in (1, 2))
    followed: list[Launch] = []
    monkeypatch.setattr(task, "_follow", lambda launch, _: followed.append(launch))
    monkeypatch.setattr(renewal.Renewal, "next_after", lambda _, launch: successor)
    monkeypatch.setattr(task, "_returned", lambda *_: {})
    assert task.poll_until_complete(cast("Any", asdict(ended)), context) == {}
    assert followed == [ended, successor]
    assert run.store[StateflowRunOperator.external_id_key] == asdict(successor)


def test_the_id_of_a_successor_is_stored_before_its_driver_can_be_in_the_cluster(
    job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run("2026-01-01")
    context = run.next_try()
    task = run_task(job)
    task.open_launches(context)
    current = Launch("/runs/launch-1", 1, 1, "host", "boot", 2, "id-1")
    stored: list[Any] = []
    monkeypatch.setattr(task, "command", lambda *_: Command([], {}, {}, "id-2"))
    monkeypatch.setattr(task._task_launcher(), "start", lambda *_: stored.append(dict(run.store)))
    task._start_successor(context, current)
    assert stored == [{StateflowRunOperator.external_id_key: {**asdict(current), "successor_id": "id-2"}}]


@contextmanager
def connected_yarn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalYarn]:
    """A stand-in for YARN, on which tasks run their drivers."""
    connection = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
    with local_yarn(folder) as yarn:
        variables = {
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),
            "PATH": f"{yarn.folder}/bin:{os.environ['PATH']}",
        }
        for name, value in {**yarn.variables, **variables}.items():
            monkeypatch.setenv(name, value)
        yield yarn


def lose_host(task: StateflowRunOperator, run: FakeRun) -> None:
    """Loses the host of a task, with the processes that follow drivers, and with its files."""
    launcher = task._task_launcher()
    for launch in launcher.active_launches():
        for member in launcher.members(launch):
            processes.send(member, signal.SIGKILL)
        launcher.stop(launch, 0)
    run.store[StateflowRunOperator.external_id_key] |= {"host": "gone", "folder": "/gone"}
    runs = Path(task.run_folder or "")
    os.rename(runs, runs.with_name("lost"))


@pytest.mark.slow(reason="waits for two drivers of a stand-in for YARN")
@pytest.mark.parametrize("step", ["before-the-submission", "after-the-run-has-failed", "before-the-claim"])
def test_a_successor_whose_host_is_lost_before_it_has_taken_over_is_followed_by_a_try_on_another_host(
    job: AccountsJob,
    renewals: Renewals,
    background: ThreadPoolExecutor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    stopped: list[psutil.Process] = []
    with connected_yarn(tmp_path / "yarn", monkeypatch) as yarn:
        first = renewals.task()
        dead = background.submit(first.execute, renewals.run.next_try())
        wait_for_rows(job, 30)
        job.deliver(40)
        launcher = first._task_launcher()
        start = launcher.start

        def start_and_die(folder: Path, command: Command, predecessor: Launch | None = None) -> Launch:
            if step == "before-the-claim":
                start(folder, command, predecessor)
                # The run has been requested to end.
                stopped.append(stopped_driver(yarn, number=2))
            raise Gone

        monkeypatch.setattr(launcher, "start", start_and_die)
        first.env_vars = {"STATEFLOW_FAILPOINT": "request.posted:1:stop"}
        renewals.make_old("launch-1")
        assert isinstance(dead.exception(DEADLINE), Gone)
        lose_host(first, renewals.run)
        if step == "after-the-run-has-failed":
            yarn.kill_driver(yarn.applications()[0]["id"])
        second = background.submit(run_task(job).execute, renewals.run.next_try())
        wait_for(lambda: second.done() or any((tmp_path / "runs").rglob("launch-2")), lambda: "the second try")
        for driver in stopped:
            driver.resume()
        wait_for_rows(job, 40)
        job.command("stop").check()
        returned = second.result(DEADLINE)
        # One that was killed had no checkpoint.
        failed = step == "after-the-run-has-failed"
        assert (returned["stopped_because"], returned["rows_in"]) == ("stopped", 40 if failed else 10)
        ends = [found["finalStatus"] for found in yarn.applications()]
        assert ends == ["FAILED" if failed else "SUCCEEDED", "SUCCEEDED"]
        assert not renewals.run.store
    job.check_results()


@pytest.mark.slow(reason="waits for two drivers of a stand-in for YARN")
def test_a_successor_in_a_cluster_is_followed_by_a_try_on_another_host(
    job: AccountsJob,
    renewals: Renewals,
    background: ThreadPoolExecutor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with connected_yarn(tmp_path / "yarn", monkeypatch) as yarn:
        first = renewals.task()
        follow = first._follow

        def follow_and_die(launch: Launch, renewal: Any) -> None:
            if Path(launch.folder).name == "launch-2":
                raise Gone
            follow(launch, renewal)

        monkeypatch.setattr(first, "_follow", follow_and_die)
        dead = background.submit(first.execute, renewals.run.next_try())
        wait_for_rows(job, 30)
        job.deliver(40)
        renewals.make_old("launch-1")
        assert isinstance(dead.exception(DEADLINE), Gone)
        lose_host(first, renewals.run)
        second = background.submit(run_task(job).execute, renewals.run.next_try())
        wait_for_rows(job, 40)
        wait_for(lambda: second.done() or any((tmp_path / "runs").rglob("launch-1")), lambda: "the second try")
        renewals.wait_until_active("launch-1")
        job.command("stop").check()
        returned = second.result(DEADLINE)
        assert (returned["stopped_because"], returned["rows_in"]) == ("stopped", 10)
        assert [found["finalStatus"] for found in yarn.applications()] == ["SUCCEEDED", "SUCCEEDED"]
    job.check_results()


def dies(task: StateflowRunOperator, step: str) -> StateflowRunOperator:
    """Lets the worker of a task die at a step of the renewal, and returns the task."""
    start, follow, launcher = task._start_successor, task._follow, task._task_launcher

    def start_and_die(context: Any, current: Launch, launch_id: str | None = None) -> Any:
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
    {"status": "finished", "result": {"stopped_because": "stopped"}},
    {"status": "finished", "result": {"stopped_because": "taken-over"}},
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
