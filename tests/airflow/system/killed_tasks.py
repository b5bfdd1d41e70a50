"""For DAG files of tests: each task is killed twice, right before its work together with the worker that supervises it,
and right after it alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator

Hook = Callable[..., None]


def kill_each_task(dags: Sequence[DAG], folder: Path) -> None:
    """Gives every task of the DAGs its two deaths, each of which leaves an empty file in `folder`, and no retry."""
    folder.mkdir(parents=True, exist_ok=True)
    for dag in dags:
        for task in dag.tasks:
            assert isinstance(task, BaseOperator), task
            name = f"{dag.dag_id}.{task.task_id}"
            task.retries = 0
            task._pre_execute_hook = _then_die(task._pre_execute_hook, folder / f"{name}.before", _kill_worker)
            task._post_execute_hook = _then_die(task._post_execute_hook, folder / f"{name}.after", _kill_task)


def _kill_worker() -> None:
    """Airflow learns of it by the missing heartbeat."""
    os.kill(os.getpgid(0), signal.SIGKILL)
    _kill_task()


def _kill_task() -> None:
    """The worker sees it, and reports a failure."""
    os.kill(os.getpid(), signal.SIGKILL)


def _then_die(hook: Hook | None, marker: Path, die: Callable[[], None]) -> Hook:
    def act(*arguments: Any) -> None:
        if hook is not None:
            hook(*arguments)
        if not marker.exists():
            marker.touch()
            die()

    return act
