"""Ends a launch with a checkpoint: signals its driver first, and waits a bounded time before all processes are ended.

spark-submit is the process of the JVM. A SIGTERM to it, or to the whole session, stops Spark before the driver's Python
process can finish its batch. That process alone ends a run that stays up with a checkpoint, and every other run at
once; spark-submit ends after it.

As a program, this module waits for the end of a launch that was signalled, and then ends what is left of it. A task
starts the program when it is killed, because Airflow ends the task's process after five seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from stateflow_airflow import processes
from stateflow_airflow.launch import Launch, Launcher, read_record
from stateflow_airflow.processes import Process

_DEADLINE = "ending"
"""File of a launch folder that exists once its driver was signalled: seconds since the host's boot until which it may
take to end. A driver that gets a second signal ends without a checkpoint."""
_PROGRAM = b"stateflow/__main__.py"
LAUNCH_ID = "--launch-id"
"""Option of a process that follows a driver in a cluster."""
_CLUSTER_SECONDS = 90.0
"""How long such a process may take in addition, to have the cluster kill the driver and to remove what that leaves."""


def end(launcher: Launcher, launch: Launch, seconds: float) -> None:
    """Ends a launch, with a checkpoint if its driver makes one in time. Returns when all of its processes have ended.

    Args:
        launcher: the launches of the task.
        launch: one of them.
        seconds: how long the driver may take, since it was first requested to end.
    """
    begin(launcher, launch, seconds)
    _wait(launch)
    launcher.stop(launch)


def end_all(launcher: Launcher, launches: Iterable[Launch], seconds: float) -> None:
    """Ends launches as `end` does, all of them at the same time."""
    ending = list(launches)
    for launch in ending:
        begin(launcher, launch, seconds)
    for launch in ending:
        end(launcher, launch, seconds)


def end_in_background(launcher: Launcher, launch: Launch, seconds: float) -> None:
    """Signals the driver, and starts a program that ends the launch as `end` does. Returns before the launch has ended.

    A launch without a driver, such as one whose Spark still starts, is ended at once.
    """
    if not begin(launcher, launch, seconds):
        launcher.stop(launch)
        return
    # The shell ends at once, so that the program is not a child process of this one.
    subprocess.run(
        ["/bin/sh", "-c", '"$@" >/dev/null 2>&1 </dev/null &', "sh", sys.executable, "-m", __name__, launch.folder],
        env={"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
        check=True,
    )


def begin(launcher: Launcher, launch: Launch, seconds: float) -> bool:
    """Signals the driver of a launch, unless that was done before; returns whether there is a driver to wait for.

    Args: as of `end`.
    """
    if _deadline(launch) is not None:
        return True
    driver = next(filter(_is_driver, launcher.members(launch)), None)
    if driver is None:
        return False
    # First the file: without it, another process would send a second signal.
    more = _CLUSTER_SECONDS if launch.launch_id else 0.0
    if _record_deadline(Path(launch.folder), since_boot() + seconds + more):
        processes.send(driver, signal.SIGTERM)
    return True


def is_driver(arguments: bytes) -> bool:
    """Returns whether a process with these arguments, each followed by a zero byte, is a driver. Pure."""
    words = arguments.split(b"\0")
    # spark-submit has the program among its arguments, too, but its first one is Java.
    if len(words) <= 2 or not words[1].endswith(_PROGRAM):
        return False
    # The process that follows a driver in a cluster ends that as a driver ends itself.
    return words[2] == b"run" or (words[2] == b"submit" and LAUNCH_ID.encode() in words)


def _is_driver(process: Process) -> bool:
    with contextlib.suppress(OSError):
        return is_driver(processes.read_proc(process.pid, "cmdline"))
    return False


def _wait(launch: Launch) -> None:
    deadline, process = _deadline(launch), launch.process()
    if deadline is not None and process is not None:
        processes.wait_for_end(process, max(0.0, deadline - since_boot()))


def _record_deadline(folder: Path, deadline: float) -> bool:
    """Stores the deadline, durably enough for other processes of this host; returns False if there is one."""
    from stateflow.private_files import open_private

    draft = folder / f"{_DEADLINE}.{os.getpid()}.{time.monotonic_ns()}"  # noqa: TID251
    with open_private(draft) as file:
        file.write(f"{deadline:.3f}".encode())
    try:
        os.link(draft, folder / _DEADLINE)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _deadline(launch: Launch) -> float | None:
    try:
        return float((Path(launch.folder) / _DEADLINE).read_text())
    except FileNotFoundError:
        return None


def since_boot() -> float:
    """Returns seconds since the host's boot, which all processes of the host share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def main(arguments: Iterable[str]) -> None:
    """Waits for the end of the launch in a folder, and ends what is left of it at its deadline."""
    for folder in map(Path, arguments):
        launch = read_record(folder)
        if launch is not None:
            _wait(launch)
            Launcher(folder.parent).stop(launch)


if __name__ == "__main__":
    main(sys.argv[1:])
