"""A task that launches a program, follows it, and finds it again in its next try."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from airflow.sdk import ResumableJobMixin
from airflow.sdk.exceptions import TaskDeferred

from stateflow_airflow.failures import ended_without_result, log_failure, translate_errors
from stateflow_airflow.launches import graceful_end
from stateflow_airflow.launches.launch import Launch
from stateflow_airflow.launches.launch_trigger import UNREACHABLE, LaunchEvent, LaunchTrigger, to_launch
from stateflow_airflow.launches.launcher import Command, Launcher
from stateflow_airflow.launches.log_follower import LogFollower, last_lines
from stateflow_airflow.launches.old_runs import remove_old_runs
from stateflow_airflow.launches.renewal import PREDECESSOR, Renewal, counting_launch
from stateflow_airflow.launches.run_result import RunResult, read_result
from stateflow_airflow.launches.task_folders import root_folder, run_folder, task_folder

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

RUNNING, FINISHED, FAILED, CLEARED = "running", "finished", "failed", "cleared"

_LOG_SECONDS = 0.5
"""Interval at which the driver's log is copied. The end of the driver is detected immediately."""
_KEPT_LAUNCHES = 5
_REPEATED_LOG_BYTES = 64 * 1024
"""How much of the log a try copies of a program that an earlier try launched."""


class LaunchingTask(ResumableJobMixin):
    """The part of an operator that launches its program in a session of its own, which outlives the worker.

    Attributes:
        run_folder: folder for the files of launches; None for Airflow's setting.
        kept_runs: number of DAG runs whose launches are kept.
        end_timeout: how long a driver may take to end with a checkpoint.
        renew_after: age of a launch at which a successor is started that takes over from it; None for never.
        deferrable: whether a trigger follows the program, without a worker slot.
        execution_timeout: of the task.
    """

    # Airflow stores this key for tries that may still be running when this code is replaced: never rename it.
    external_id_key = "stateflow_launch"
    run_folder: str | None
    kept_runs: int
    end_timeout: timedelta
    renew_after: timedelta | None = None
    deferrable: bool
    execution_timeout: timedelta | None
    _launcher: Launcher | None = None
    _killed = False

    @abstractmethod
    def command(self, folder: Path, context: Context) -> Command:
        """Returns the program to launch in a folder. Raises PermanentFailure for a wrong argument."""

    def open_launches(self, context: Context) -> None:
        """Finds the launches of this task; to be called before `execute_resumable`."""
        runs = root_folder(self.run_folder)
        # Airflow raises max_tries when a task is cleared, and only then; if it runs, when its worker has ended it.
        self._launcher = Launcher(run_folder(runs, context), context["ti"].max_tries, runs)

    def submit_job(self, context: Context) -> JsonValue:
        """Launches the program, unless the one of an earlier try is still active."""
        launcher = self._task_launcher()
        with translate_errors(), launcher.locked():
            # An earlier worker may have died before Airflow stored the return value of this method.
            active = launcher.active_launches()
            if active and launcher.is_of_this_turn(active[0]):
                self.log.info("Waiting for the active run of an earlier try: %s", active[0].folder)
                return asdict(active[0])
            if active:
                self.log.info("The task was cleared, so the active run ends first: %s", active[0].folder)
                self._end(active)
            launcher.remove_old(_KEPT_LAUNCHES)
            remove_old_runs(task_folder(root_folder(self.run_folder), context), self.kept_runs)
            folder = launcher.next_folder()
            launch = launcher.start(folder, self.command(folder, context))
        self.log.info("Started process %d; its files are in %s", launch.pid, launch.folder)
        return asdict(launch)

    def get_job_status(self, external_id: JsonValue, context: Context) -> str:
        """Returns the launch's status, from its process and then from its result file."""
        launcher, launch = self._task_launcher(), to_launch(cast("dict[str, object]", external_id))
        if not launcher.is_of_this_turn(launch):
            return CLEARED
        if launch.process() or any(map(launcher.is_of_this_turn, launcher.active_launches())):
            return RUNNING
        launch = self._counting(external_id)
        if not launch.is_local:
            self.log.warning(
                "The last run was launched on host %s and cannot be found from here; a new one fences it", launch.host
            )
        return FINISHED if (result := read_result(launch.result_file)) and result.finished else FAILED

    def is_job_active(self, status: str) -> bool:
        return status == RUNNING

    def is_job_succeeded(self, status: str) -> bool:
        return status == FINISHED

    # The base class declares None, but returns this value for a try that only waited (and would push no XCom for None).
    def poll_until_complete(  # type: ignore[override]
        self, external_id: JsonValue, context: Context
    ) -> dict[str, object]:
        """Copies the program's log until the program ends, or defers until then. Returns its result."""
        launch = self._counting(external_id)
        # A task that was killed meanwhile has no trigger that a user could end.
        if self.deferrable and not self._killed:
            trigger = LaunchTrigger(asdict(launch), self.end_timeout.total_seconds())
            raise TaskDeferred(trigger=trigger, method_name="execute_complete", timeout=self.execution_timeout)
        launcher = self._task_launcher()
        start = partial(self._start_successor, context)
        renewal = Renewal(launcher, start, self.renew_after, self.end_timeout)
        while True:
            self._follow(launch, renewal)
            following = renewal.next_after(launch)
            if following == launch:
                return self._returned(launch, read_result(launch.result_file), launch.exit_code())
            launch = following

    def get_job_result(self, external_id: JsonValue, context: Context) -> dict[str, object]:
        """Returns the program's result. Raises the failure of a program that failed."""
        launch = self._counting(external_id)
        return self._returned(launch, read_result(launch.result_file), launch.exit_code())

    def result_of_event(self, event: LaunchEvent) -> dict[str, object] | None:
        """Returns the program's result after a deferral; None if the triggerer could not find the program.

        Raises the failure of a program that failed.
        """
        launch = to_launch(event["launch"])
        if event["status"] == UNREACHABLE:
            self.log.warning("The triggerer has no access to %s on host %s", launch.folder, launch.host)
            return None
        if launch.log_file.exists():
            with LogFollower(launch.log_file, self.log.info, _REPEATED_LOG_BYTES):
                self.log.info("The end of the run's log:")
        # Ends what the program has left.
        self._task_launcher().wait(launch, 0)
        result = event["result"]
        return self._returned(launch, None if result is None else RunResult(result), event["exit_code"])

    def on_kill(self) -> None:
        """Ends the program, its successor and all their child processes, within the five seconds that Airflow allows.

        A driver may take `end_timeout` to end with a checkpoint; another program ends it if this process does not last.
        """
        self._killed = True
        if self._launcher:
            # The oldest first: a successor may have no driver yet, and is waited for.
            for launch in reversed(self._launcher.active_launches()):
                graceful_end.end_in_background(self._launcher, launch, self.end_timeout.total_seconds())

    def _follow(self, launch: Launch, renewal: Renewal) -> None:
        """Copies the log of a launch until it ends, and has its successor started when it is due."""
        launcher = self._task_launcher()
        with LogFollower(launch.log_file, self.log.info, _REPEATED_LOG_BYTES) as log:
            while not launcher.wait(launch, _LOG_SECONDS):
                log.copy()
                if self._killed:
                    self._end(launcher.active_launches())
                else:
                    renewal.renew_if_due(launch)

    def _start_successor(self, context: Context, current: Launch) -> Launch:
        launcher = self._task_launcher()
        launcher.remove_old(_KEPT_LAUNCHES)
        folder = launcher.next_folder()
        command = self.command(folder, context)
        files = {**command.files, PREDECESSOR: Path(current.folder).name}
        return launcher.start(folder, replace(command, files=files), current)

    def _end(self, launches: list[Launch]) -> None:
        graceful_end.end_all(self._task_launcher(), launches, self.end_timeout.total_seconds())

    def _counting(self, external_id: JsonValue) -> Launch:
        """Returns the launch that counts; Airflow has stored the first one of the try that started it."""
        return counting_launch(self._task_launcher()) or to_launch(cast("dict[str, object]", external_id))

    def _task_launcher(self) -> Launcher:
        assert self._launcher is not None, "execute() was not called"
        return self._launcher

    def _returned(self, launch: Launch, result: RunResult | None, exit_code: int | None) -> dict[str, object]:
        if result is None:
            if launch.log_file.exists():
                self.log.error("The last lines of the run's log:\n%s", "\n".join(last_lines(launch.log_file, 20)))
            raise log_failure(ended_without_result(exit_code))
        if not result.finished:
            raise log_failure(result.failure())
        return result.returned()

    def forget_launch(self, context: Context) -> None:
        """Removes the launch from Airflow's store of the task: a cleared task launches a new program."""
        store = context.get("task_state_store")
        if self.durable and store is not None:
            store.delete(self.external_id_key)
