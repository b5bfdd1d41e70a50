"""The operator that runs a state server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import FrameType

import psutil
import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout

from stateflow.serving.client import QueryableStateClient
from stateflow_airflow.failures import PermanentFailure, TransientFailure
from stateflow_airflow.services.serve import StateflowServeOperator
from tests.serving.shops_job import ShopsJob, Total
from tests.support.processes import unless_ended, wait_for


def test_a_task_serves_until_on_kill_and_leaves_no_lease(tmp_path: Path, background: ThreadPoolExecutor) -> None:
    jobs = ShopsJob(tmp_path)
    newest = jobs.sell(20)
    task = StateflowServeOperator(task_id="serve", job_root=jobs.root, port="0", duration=timedelta(minutes=5))
    running = background.submit(task.execute, {})
    with QueryableStateClient(jobs.root, timeout=timedelta(minutes=2)) as client:
        wanted = jobs.expected[newest].totals
        found = client.get_many("totals", list(wanted), value_type=Total)
    assert [result.value for result in found] == list(wanted.values())
    task.on_kill()
    assert running.result(60) is None
    assert not jobs.storage.list("servers/")


def _queried(jobs: ShopsJob) -> None:
    with QueryableStateClient(jobs.root, timeout=timedelta(minutes=4)) as client:
        assert len(client.states()) == 3


def _servers(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if "serve" in child.cmdline()]


@pytest.mark.slow(reason="waits for a server in a process of its own")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_ends_before_its_time_is_a_failure_that_is_retried(
    tmp_path: Path, background: ThreadPoolExecutor, number: signal.Signals
) -> None:
    jobs = ShopsJob(tmp_path)
    jobs.sell(20)
    task = StateflowServeOperator(task_id="serve", job_root=jobs.root, port="0")
    running = background.submit(task.execute, {})
    _queried(jobs)
    (server,) = _servers(psutil.Process())
    server.send_signal(number)
    with pytest.raises(TransientFailure) as failed:
        running.result(60)
    assert failed.value.code == ("signal" if number == signal.SIGKILL else "server-ended")


@pytest.mark.slow(reason="waits for a server in a process of its own")
def test_a_task_that_is_timed_out_ends_its_server(tmp_path: Path, background: ThreadPoolExecutor) -> None:
    jobs = ShopsJob(tmp_path)
    jobs.sell(20)

    def time_out() -> None:
        _queried(jobs)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    def raise_timeout(number: int, frame: FrameType | None) -> None:
        raise AirflowTaskTimeout

    before = signal.signal(signal.SIGALRM, raise_timeout)
    try:
        waiting = background.submit(time_out)
        with pytest.raises(AirflowTaskTimeout):
            StateflowServeOperator(task_id="serve", job_root=jobs.root, port=0).execute({})
        waiting.result(60)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not jobs.storage.list("servers/") and not _servers(psutil.Process())


@pytest.mark.slow(reason="waits for a server in a process of its own")
def test_a_worker_that_is_killed_leaves_neither_a_server_nor_its_lease(tmp_path: Path) -> None:
    jobs = ShopsJob(tmp_path)
    jobs.sell(20)
    program = "import sys; from stateflow_airflow.services.serve import StateflowServeOperator as Serve; "
    program += "Serve(task_id='serve', job_root=sys.argv[1], port=0).execute({})"
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program, jobs.root], env=path) as worker:
        try:
            _queried(jobs)
            (server,) = _servers(psutil.Process(worker.pid))
        finally:
            worker.kill()
    wait_for(
        lambda: bool(unless_ended(lambda: server.status() == psutil.STATUS_ZOMBIE, True)), lambda: "the server ended"
    )
    assert not jobs.storage.list("servers/")


@pytest.mark.slow(reason="waits until a server has started and ended")
def test_the_task_ends_after_its_duration_and_fails_with_settings_that_the_server_refuses(tmp_path: Path) -> None:
    jobs = ShopsJob(tmp_path)
    task = StateflowServeOperator(task_id="serve", job_root=jobs.root, port=0, duration=timedelta(seconds=0.1))
    task.execute({})
    assert not jobs.storage.list("servers/")
    with pytest.raises(PermanentFailure) as refused:
        StateflowServeOperator(task_id="serve", job_root=jobs.root, port=0, host="0.0.0.0").execute({})
    assert refused.value.code == "config"
    with pytest.raises(PermanentFailure):
        StateflowServeOperator(task_id="serve", job_root="relative").execute({})
