"""The folders in which tasks keep the files of their launches, by DAG, task and DAG run."""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import conf

if TYPE_CHECKING:
    from airflow.sdk import Context


def root_folder(given: str | None) -> Path:
    """Returns the folder of all launches: `given`, or Airflow's setting, or a folder in AIRFLOW_HOME."""
    default = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "stateflow-runs"
    return Path(given or conf.get("stateflow", "run_folder", fallback=None) or default).absolute()


def task_folder(root: Path, context: Context) -> Path:
    """Returns the folder of a task, which has one folder per DAG run."""
    ti = context["ti"]
    return root / _segment(ti.dag_id) / _segment(ti.task_id)


def run_folder(root: Path, context: Context) -> Path:
    """Returns the folder of a task in one DAG run."""
    parts = (context["ti"].run_id, *map_index(context))
    return task_folder(root, context).joinpath(*(_segment(part) for part in parts))


def run_id(context: Context) -> str:
    """Returns the id of a try of a task, as the job's log stores it."""
    ti = context["ti"]
    return "/".join([ti.dag_id, ti.run_id, ti.task_id, *map_index(context), str(ti.try_number)])


def map_index(context: Context) -> list[str]:
    """Returns the index of a mapped task as the only element; nothing for other tasks."""
    index = context["ti"].map_index
    return [] if index is None or index < 0 else [str(index)]


def _segment(name: str) -> str:
    """Returns `name` as a folder name; different names give different folders."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
    return safe if safe == name else f"{safe}-{sha256(name.encode()).hexdigest()[:8]}"
