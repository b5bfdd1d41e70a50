"""For DAG files of tests: each task's process is killed twice, right before its work and right behind it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

Hook = Callable[..., None]


def kill_each_task(dags: Sequence[DAG], folder: Path) -> None:
    """Gives every task of the DAGs its two deaths, and no retry: somebody has to clear it.

    Args:
        folder: gets an empty file for each death, so that no task dies twice at the same moment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for dag in dags:
        for task in dag.tasks:
            name = f"{dag.dag_id}.{task.task_id}"
            task.retries = 0
            task._pre_execute_hook = _then_die(task._pre_execute_hook, folder / f"{name}.before")
            task._post_execute_hook = _then_die(task._post_execute_hook, folder / f"{name}.after")


def _then_die(hook: Hook | None, marker: Path) -> Hook:
    def act(*arguments: Any) -> None:
        if hook is not None:
            hook(*arguments)
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return act
