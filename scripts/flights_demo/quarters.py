"""Runs a quarter: delivers its files, triggers the DAG and reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flights_demo.airflow_home import AirflowHome
from flights_demo.approval import approve
from flights_demo.client import AirflowClient, AirflowError
from flights_demo.crash import FAILPOINT, DemoCheckFailed, Kill, look_for_kill
from flights_demo.deliveries import YEAR, of_quarter
from flights_demo.flights import deliver
from flights_demo.job_root import history
from flights_demo.layout import Layout
from flights_demo.polling import poll
from flights_demo.screen import StatusLine

DAG, TASK = "flights", "run"
RETENTION_DAG, RETENTION_TASK = "flights_retention", "collect"
_TIMEOUT_SECONDS = 240.0


@dataclass(frozen=True)
class QuarterResult:
    """Result of a quarter's run."""

    run_id: str
    tries: int
    returned: dict[str, Any]
    kill: Kill | None


@dataclass(frozen=True)
class DemoContext:
    """Folders, Airflow and client of the demo."""

    layout: Layout
    airflow: AirflowHome
    client: AirflowClient


def run_quarter(
    demo: DemoContext, quarter: int, status_line: StatusLine, kill: bool = False, again: bool = False
) -> QuarterResult:
    """Delivers a quarter's files, runs the DAG and waits for its end.

    Args:
        kill: kill the first try in its third micro-batch, and check what it leaves.
        again: the files are delivered already, and the job was restored to the point before them.

    Raises:
        AirflowError: the run failed.
        DemoCheckFailed: a claim about the kill does not hold.
    """
    if not again:
        deliver(quarter, demo.layout.staging, demo.layout.landing)
    run_id = f"{YEAR}-Q{quarter}" + ("-again" if again else "")
    demo.client.trigger(DAG, run_id, {"failpoint": FAILPOINT} if kill else {})
    watcher = _Watcher(demo, run_id, status_line, expect_kill=kill)
    watcher.total = len(of_quarter(quarter))
    if not poll(watcher.finished, _TIMEOUT_SECONDS, interval=0.4):
        raise AirflowError(f"run {run_id} did not end in {_TIMEOUT_SECONDS:.0f} s")
    return _conclude(demo, run_id, watcher)


def collect_garbage(demo: DemoContext, status_line: StatusLine) -> dict[str, Any]:
    """Runs the retention DAG once, retaining a single checkpoint; returns the result of its task."""
    demo.client.unpause(RETENTION_DAG)
    demo.client.trigger(RETENTION_DAG, "after-the-year", {"retain": 1})
    # One checkpoint is less than the job's setting.
    approve(demo.client, RETENTION_DAG, "after-the-year", status_line)
    status_line("the retention DAG runs")

    def finished() -> bool:
        return demo.client.run_state(RETENTION_DAG, "after-the-year") in ("success", "failed")

    if not poll(finished, _TIMEOUT_SECONDS):
        raise AirflowError(f"the retention DAG did not end in {_TIMEOUT_SECONDS:.0f} s")
    return dict(demo.client.returned(RETENTION_DAG, "after-the-year", RETENTION_TASK))


def _conclude(demo: DemoContext, run_id: str, watcher: _Watcher) -> QuarterResult:
    task = demo.client.task(DAG, run_id, TASK)
    if task.state != "success":
        raise AirflowError(f"run {run_id} ended as {task.state}; its logs are below {demo.layout.runs}")
    returned = demo.client.returned(DAG, run_id, TASK)
    expected_tries = 2 if watcher.expect_kill else 1
    if task.number != expected_tries:
        raise DemoCheckFailed(f"run {run_id} took {task.number} tries instead of {expected_tries}")
    if watcher.expect_kill and (watcher.kill is None or returned["start_checkpoint_id"] != watcher.kill.checkpoint_id):
        raise DemoCheckFailed(f"the second try started from {returned['start_checkpoint_id']}, not from {watcher.kill}")
    return QuarterResult(run_id, task.number, returned, watcher.kill)


class _Watcher:
    """Polls a DAG run."""

    def __init__(self, demo: DemoContext, run_id: str, status_line: StatusLine, expect_kill: bool) -> None:
        self.expect_kill = expect_kill
        self.kill: Kill | None = None
        self.total = 0
        self._stage = demo
        self._run_id = run_id
        self._report: Callable[[str], None] = status_line
        self._before = len(history(demo.layout.job_root))

    def finished(self) -> bool:
        """Reports the progress and checks a kill; returns whether the run has ended."""
        layout = self._stage.layout
        if self.expect_kill and self.kill is None:
            self.kill = look_for_kill(layout.runs, layout.job_root)
        state = self._stage.client.run_state(DAG, self._run_id)
        task = self._stage.client.task(DAG, self._run_id, TASK)
        done = len(history(layout.job_root)) - self._before
        self._report(
            f"{self._run_id}: task {task.state or 'waiting'}, try {task.number or 1}, checkpoint {done} of {self.total}"
        )
        return state in ("success", "failed")
