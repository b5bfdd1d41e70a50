"""A failed upgrade: a savepoint, a version that writes wrong rows, and the restore by the recovery DAG."""

from __future__ import annotations

import shutil
from typing import Any

from flights_demo.approval import approve
from flights_demo.client import AirflowError
from flights_demo.crash import DemoCheckFailed
from flights_demo.layout import REPOSITORY, Layout
from flights_demo.polling import poll
from flights_demo.quarters import DemoContext
from flights_demo.screen import StatusLine

SAVEPOINT = "before-the-upgrade"
SAVEPOINT_DAG, RECOVERY_DAG = "flights_savepoint", "flights_recovery"
_RIGHT = "            self.total += delay\n"
_WRONG = "            self.total += abs(delay)  # a plane that lands early is not late\n"
_TIMEOUT_SECONDS = 180.0


def deploy(layout: Layout, wrong: bool = False) -> None:
    """Deploys the DAGs and the job.

    Args:
        wrong: deploy a version of the job with an error.
    """
    shutil.copytree(REPOSITORY / "dags", layout.dags, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    job = layout.dags / "jobs" / "flights.py"
    text = job.read_text()
    if text.count(_RIGHT) != 1:
        raise DemoCheckFailed("the demo does not know how to break this version of the job")
    if wrong:
        job.write_text(text.replace(_RIGHT, _WRONG))


def take_savepoint(demo: DemoContext, status_line: StatusLine) -> dict[str, Any]:
    """Runs the savepoint DAG; returns the result of its task."""
    conf = {"name": SAVEPOINT, "origin": "upgrade", "reason": "the new version of the job"}
    demo.client.unpause(SAVEPOINT_DAG)
    demo.client.trigger(SAVEPOINT_DAG, SAVEPOINT, conf)
    status_line("the savepoint DAG runs")
    _wait_for_success(demo, SAVEPOINT_DAG, SAVEPOINT)
    return dict(demo.client.returned(SAVEPOINT_DAG, SAVEPOINT, "savepoint"))


def go_back(demo: DemoContext, status_line: StatusLine) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs the recovery DAG and approves its plan; returns the plan and the result of the restore."""
    run_id = "back-to-the-savepoint"
    conf = {"target": SAVEPOINT, "reason": "the new version counts early arrivals as late"}
    demo.client.unpause(RECOVERY_DAG)
    demo.client.trigger(RECOVERY_DAG, run_id, conf)
    approve(demo.client, RECOVERY_DAG, run_id, status_line)
    status_line("approved; the job is being restored")
    _wait_for_success(demo, RECOVERY_DAG, run_id)
    return (demo.client.returned(RECOVERY_DAG, run_id, "plan"), demo.client.returned(RECOVERY_DAG, run_id, "restore"))


def _wait_for_success(demo: DemoContext, dag: str, run_id: str) -> None:
    if not poll(lambda: demo.client.run_state(dag, run_id) in ("success", "failed"), _TIMEOUT_SECONDS, interval=0.4):
        raise AirflowError(f"{dag} did not end in {_TIMEOUT_SECONDS:.0f} s")
    if demo.client.run_state(dag, run_id) != "success":
        raise AirflowError(f"{dag} failed; see its logs below {demo.layout.airflow}")
