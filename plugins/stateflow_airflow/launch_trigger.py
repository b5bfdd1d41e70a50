"""The trigger that follows a launched program while its task is deferred, without a worker slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TypedDict

from airflow.sdk import TaskInstanceState
from airflow.triggers.base import BaseTrigger, TriggerEvent

from stateflow_airflow import graceful_end
from stateflow_airflow.launch import Launch, Launcher
from stateflow_airflow.run_result import read_result

ENDED, UNREACHABLE = "ended", "unreachable"

_FOLLOWERS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="stateflow-launch")
"""Threads of this process that read launch folders. A file system that does not respond blocks these threads only."""


class LaunchEvent(TypedDict):
    """The end of a launch, or that this host cannot find it.

    Attributes:
        status: ``ended`` or ``unreachable``.
        launch: the launch, as a dictionary.
        result: the document in its result file; None without one.
        exit_code: see `Launch.exit_code`.
    """

    status: str
    launch: dict[str, object]
    result: Mapping[str, object] | None
    exit_code: int | None


class LaunchTrigger(BaseTrigger):
    """Waits for the end of a launched program; its only event has the result.

    It finds the program by process id and start time if it runs on the host of the worker, and otherwise by the files
    in the launch folder, which must then be shared. A triggerer that is restarted leaves the program running, and
    another one finds it again.

    Args:
        launch: the launch, as a dictionary.
        end_timeout: seconds that the program may take to end with a checkpoint when a user ends the task.
        poll_interval: seconds between two checks.
        job_root: the job root, through which a driver in a cluster is requested to end from each host; empty if it is
            unknown.
    """

    def __init__(
        self, launch: dict[str, object], end_timeout: float, poll_interval: float = 1.0, job_root: str = ""
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launch = launch
        self.end_timeout = end_timeout
        self.poll_interval = poll_interval
        self.job_root = job_root

    def serialize(self) -> tuple[str, dict[str, object]]:
        names = ("launch", "end_timeout", "poll_interval", "job_root")
        arguments = {name: getattr(self, name) for name in names}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        launch = to_launch(self.launch)
        while (event := await asyncio.get_running_loop().run_in_executor(_FOLLOWERS, find_end, launch)) is None:
            await asyncio.sleep(self.poll_interval)
        yield TriggerEvent(event)

    async def on_kill(self) -> None:
        """Ends the program, with a checkpoint if it makes one in time; called when a user ends the deferred task.

        Airflow does not call this when the triggerer is restarted, nor at a timeout of the task. It does so in a
        triggerer that did not respond for so long that another one has got its triggers. The task is still deferred
        then, and the program continues.
        """
        launch = to_launch(self.launch)
        is_reachable = bool(launch.launch_id and self.job_root)
        if not launch.is_local and not is_reachable:
            self.log.warning("The run is on host %s and cannot be ended from here; a new run fences it", launch.host)
            return
        # In one step, without an await before it: this coroutine can itself be cancelled.
        ending = asyncio.get_running_loop().run_in_executor(_FOLLOWERS, self._end_unless_deferred, launch)
        await asyncio.shield(ending)

    def _end_unless_deferred(self, launch: Launch) -> None:
        if self._is_deferred():
            self.log.warning("The task is still deferred: another triggerer follows the run in %s", launch.folder)
            return
        if launch.is_local:
            graceful_end.end_in_background(Launcher(Path(launch.folder).parent), launch, self.end_timeout)
        else:
            self._request_stop(str(launch.launch_id))

    def _request_stop(self, launch_id: str) -> None:
        """Requests the driver in the cluster to end; the process that follows it, on another host, ends with it."""
        from stateflow.clock import SystemClock
        from stateflow.storage import open_storage
        from stateflow.submission.cluster_run import request_stop

        storage, timeout = open_storage(self.job_root), timedelta(seconds=self.end_timeout)
        reason = "the task was ended in Airflow"
        if not request_stop(storage, launch_id, SystemClock(), timeout, reason=reason):
            self.log.warning("The driver of launch %s has not begun; it continues, and a new run fences it", launch_id)

    def _is_deferred(self) -> bool:
        """Returns whether the task is deferred, as far as Airflow's API server responds."""
        task = self.task_instance
        if task is None:
            return False
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        try:
            count = RuntimeTaskInstance.get_ti_count(
                dag_id=task.dag_id,
                map_index=task.map_index,
                task_ids=[task.task_id],
                run_ids=[task.run_id],
                states=[TaskInstanceState.DEFERRED],
            )
        except Exception:
            # An end with a checkpoint loses nothing, and a run that a user has ended would continue unnoticed.
            self.log.exception("The state of the task is unknown, so its run ends")
            return False
        return count > 0


def find_end(launch: Launch) -> LaunchEvent | None:
    """Returns the end of a launch; None while it is active."""
    if not launch.is_local and not Path(launch.folder).is_dir():
        return LaunchEvent(status=UNREACHABLE, launch=asdict(launch), result=None, exit_code=None)
    if launch.may_be_active:
        return None
    result = read_result(launch.result_file)
    return LaunchEvent(
        status=ENDED,
        launch=asdict(launch),
        result=None if result is None else dict(result.values),
        exit_code=launch.exit_code(),
    )


def to_launch(given: Mapping[str, object]) -> Launch:
    """Returns the launch of a dictionary that `asdict` made."""
    from msgspec import convert

    return convert(given, Launch)
