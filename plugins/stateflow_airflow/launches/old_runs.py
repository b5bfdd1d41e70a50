"""Removal of the launch folders of old DAG runs."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from pathlib import Path

from stateflow_airflow.launches.launch import read_record


def remove_old_runs(task_folder: Path, keep: int) -> None:
    """Removes folders of old DAG runs from the folder of their task, except those with an active launch.

    The age of a run is that of its last launch: DAG runs may run in any order of their names.

    Args:
        task_folder: has one folder per DAG run.
        keep: number of newest DAG runs to keep.
    """
    ages = {folder: _last_change(folder) for folder in task_folder.iterdir() if folder.is_dir()}
    for folder in sorted(ages, key=lambda folder: ages[folder])[: max(0, len(ages) - keep)]:
        _remove_unless_used(folder)


def _last_change(folder: Path) -> float:
    times = [0.0]
    for path in (folder, *_locks(folder)):
        # A worker on another host may remove the folder concurrently.
        with contextlib.suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return max(times)


def _locks(folder: Path) -> list[Path]:
    return [*folder.glob("lock"), *folder.glob("*/lock")]


def _remove_unless_used(folder: Path) -> None:
    with contextlib.ExitStack() as locks:
        try:
            for path in _locks(folder):
                # A worker that is launching a program in this folder holds the lock.
                fcntl.flock(locks.enter_context(path.open()), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        records = (read_record(path.parent) for path in folder.rglob("launch.json"))
        if not any(launch and launch.may_be_active for launch in records):
            shutil.rmtree(folder, ignore_errors=True)
