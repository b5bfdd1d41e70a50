"""Launches programs that outlive their Airflow worker, finds them again, and ends them with all child processes.

Every launch has a folder::

    <run folder>/<dag>/<task>/<run>[/<map index>]/launch-<n>/
        launch.json    process id and start time; written before the program starts
        driver.log     the program's output
        result.json    the program's result, which it writes itself, atomically
        exit           its exit code; missing if the whole session was killed at once

The job's safety does not depend on these files: the log in its job root fences a run that is lost here. They save work:
a retry finds the program that an earlier, dead try launched, and waits for it instead of fencing it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stateflow_airflow import processes
from stateflow_airflow.processes import Process


@dataclass(frozen=True)
class Launch:
    """A launched program.

    Attributes:
        folder: folder of its files; see `launcher`.
        pid: id of its first process, which is also the id of its session.
        started: start time of that process, in clock ticks since the host's boot.
        host: the host's name.
        boot: id of the host's boot.
        turn: the task's `max_tries` at the launch. Retries keep it, and Airflow raises it when a user clears the task.
            None if it is unknown.
        launch_id: the id by which a cluster finds the driver that the program follows; None for a driver on this host.
        successor_id: id of the launch that is to take over from this one; only Airflow stores it. None without one.
    """

    folder: str
    pid: int
    started: int
    host: str
    boot: str
    turn: int | None = None
    launch_id: str | None = None
    successor_id: str | None = None

    @property
    def log_file(self) -> Path:
        """The program's output."""
        return Path(self.folder) / "driver.log"

    @property
    def result_file(self) -> Path:
        """The file to which the program writes its result."""
        return result_file(Path(self.folder))

    @property
    def is_local(self) -> bool:
        """Whether the program was launched on this host since its last boot, so that its processes can be found."""
        return self.host == socket.gethostname() and self.boot == processes.boot_id()

    def process(self) -> Process | None:
        """Returns the first process; None if it has ended, and the launch with it, or ran on another host."""
        process = processes.find(self.pid) if self.is_local else None
        return process if process and process.started == self.started else None

    @property
    def may_be_active(self) -> bool:
        """Whether the program is active, or ran on another host and has not recorded its end."""
        if self.host == socket.gethostname():
            return self.process() is not None
        return not self.result_file.exists() and not (Path(self.folder) / "exit").exists()

    def exit_code(self) -> int | None:
        """Returns the program's exit code, negative for a signal; None if it was not recorded."""
        try:
            code = int((Path(self.folder) / "exit").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return code if code <= 128 else 128 - code


def result_file(folder: Path) -> Path:
    """Returns the file to which the program launched in `folder` writes its result."""
    return folder / "result.json"


def write_record(folder: Path, pid: int, turn: int | None, launch_id: str | None = None) -> Launch:
    """Writes the record of the process `pid` durably to `folder`, and returns it."""
    from stateflow.private_files import open_private

    process = processes.find(pid)
    if process is None:
        raise ChildProcessError(f"the launch shell in {folder} ended before its program started")
    launch = Launch(str(folder), pid, process.started, socket.gethostname(), processes.boot_id(), turn, launch_id)
    draft = folder / "launch.json.new"
    with open_private(draft) as file:
        file.write(json.dumps(asdict(launch)).encode())
        file.flush()
        os.fsync(file.fileno())
    draft.rename(folder / "launch.json")
    return launch


def read_record(folder: Path) -> Launch | None:
    """Returns the launch recorded in `folder`; None if its launcher died before the program started."""
    try:
        return Launch(**json.loads((folder / "launch.json").read_text()))
    except FileNotFoundError:
        return None


LAUNCH_VARIABLE = "STATEFLOW_LAUNCH"
"""Environment variable of every process of a launch; its value is the launch's folder."""


# The shell reads one line first, so that no program starts without a record: if the launcher dies before it has written
# the record, the pipe closes and the shell ends. The shell stays the parent of the program and records its exit code,
# since a later worker is not the parent and cannot wait for it. $0 is the exit file.
_GATE = """
read -r go || exit 125
"$@" </dev/null
code=$?
umask 077
echo "$code" >"$0.new" && mv "$0.new" "$0"
exit "$code"
"""


# Child processes of this process. It must wait for each of them, whichever object finds that it has ended.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Command:
    """A program to launch.

    Attributes:
        argv: the program and its arguments, which every user of the host can see.
        env: its environment.
        files: content of files that it finds in its launch folder, by name.
        launch_id: see `Launch`.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    launch_id: str | None = None


class Launcher:
    """The launches of one task of one DAG run: at most one of them is active, or two while one takes over.

    Args:
        folder: folder of the launches.
        turn: see `Launch`.
        root: `folder` or a folder above it: this folder and those below it must belong to the user of this process, and
            others must not be able to write to them.
    """

    def __init__(self, folder: Path, turn: int | None = None, root: Path | None = None) -> None:
        self.folder = folder
        self.turn = turn
        self._root = root or folder

    def active(self) -> Launch | None:
        """Returns the launch that is active on this host, whichever worker and turn launched it."""
        return next(iter(self.active_launches()), None)

    def active_launches(self) -> list[Launch]:
        """Returns all launches that are active on this host, newest first."""
        return [launch for launch in self.launches() if launch.process()]

    def is_of_this_turn(self, launch: Launch) -> bool:
        """Returns whether the task has not been cleared since the launch."""
        return launch.turn == self.turn

    def next_folder(self) -> Path:
        """Returns the folder of the next launch; `start` creates it."""
        newest = max(map(_number, self.folder.glob("launch-*")), default=0)
        return self.folder / f"launch-{newest + 1}"

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Prevents other workers on this file system from launching the same task concurrently.

        Raises:
            ConfigError: another user can write to the folder of the launches.
        """
        from stateflow.private_files import make_own_folders, open_private

        make_own_folders(self._root, self.folder, "run_folder")
        with open_private(self.folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def start(self, folder: Path, command: Command, predecessor: Launch | None = None) -> Launch:
        """Starts `command` in a new session, after ending all processes of earlier launches but the predecessor.

        Call it inside `hold_lock`, while no other launch is active. The record is durable before the program starts.
        """
        for launch in self.launches():
            if launch != predecessor:
                self.stop(launch)
        folder.mkdir(mode=0o700)
        child = self._spawn(folder, command)
        assert child.stdin is not None
        with child.stdin as gate:
            launch = write_record(folder, child.pid, self.turn, command.launch_id)
            gate.write(b"go\n")
        return launch

    def wait(self, launch: Launch, seconds: float) -> bool:
        """Waits up to `seconds`. Returns True if the launch has ended, after ending its remaining processes."""
        process = launch.process()
        if process and not processes.wait_for_end(process, seconds):
            return False
        _reap(launch.pid)
        self.stop(launch)
        return True

    def stop(self, launch: Launch, grace_seconds: float = 2.0) -> None:
        """Ends every process of the launch: SIGTERM, then SIGKILL after `grace_seconds`. Returns when all have ended.

        Signals each member of the launch's session, since Spark's Python workers leave the process group.
        """
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 1.5), (signal.SIGKILL, 1.5)):
            # Search again each time: a member may have started another process since the last search.
            if not (members := self.members(launch)):
                break
            for member in members:
                processes.send(member, number)
            processes.wait_for_all(members, seconds)
        _reap(launch.pid)

    def remove_old(self, keep: int) -> None:
        """Removes the folders of all but the `keep` newest launches, except those of active launches."""
        folders = sorted(self.folder.glob("launch-*"), key=_number)
        for folder in folders[: max(0, len(folders) - keep)]:
            launch = read_record(folder)
            if launch is None or not launch.may_be_active:
                shutil.rmtree(folder, ignore_errors=True)

    def launches(self) -> list[Launch]:
        """Returns the launches whose folders exist, newest first."""
        records = map(read_record, sorted(self.folder.glob("launch-*"), key=_number, reverse=True))
        return [launch for launch in records if launch]

    def members(self, launch: Launch) -> list[Process]:
        """Returns all living processes of the launch."""
        if not launch.is_local:
            return []
        members = processes.session_members(launch.pid)
        if launch.process():
            return members
        # Once the session's leader has ended, another session may have the same id.
        entry = f"{LAUNCH_VARIABLE}={launch.folder}"
        return [member for member in members if processes.has_environment(member.pid, entry)]

    def _spawn(self, folder: Path, command: Command) -> subprocess.Popen[bytes]:
        from stateflow.private_files import open_private

        for name, content in command.files.items():
            with open_private(folder / name) as file:
                file.write(content.encode())
        with open_private(folder / "driver.log") as log:
            child = subprocess.Popen(
                ["/bin/sh", "-c", _GATE, str(folder / "exit"), *command.argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**command.env, LAUNCH_VARIABLE: str(folder)},
                start_new_session=True,
            )
        _children[child.pid] = child
        return child


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("launch-"))


def _reap(pid: int) -> None:
    """Waits for a child process of this process that has ended, so that it does not stay a zombie."""
    child = _children.get(pid)
    if child and child.poll() is not None:
        del _children[pid]
