"""The operator that runs a state server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from stateflow.serving.client import QueryableStateClient
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.services.serve import StateflowServeOperator
from tests.serving.shops_job import ShopsJob, Total


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
