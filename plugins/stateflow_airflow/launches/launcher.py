"""Starts a program so that it outlives its Airflow worker, finds it again, and ends it with all its children.

Every launch has a folder::

    <run folder>/<dag>/<task>/<run>[/<map index>]/launch-<n>/
        launch.json    process id and start time; written before the program may begin
        driver.log     what the program prints
        result.json    what the program says about its end (it writes this file itself, atomically)
        exit           its exit code; absent when something ended the whole session at once

Nothing of this matters for the job's safety: its log in the job root fences a run that was forgotten here.
It saves work: a retry finds the program that its dead predecessor started and waits for it, instead of
fencing it.
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
from dataclasses import asdict, dataclass
from pathlib import Path

from stateflow_airflow import processes
from stateflow_airflow.processes import Process

LAUNCH_VARIABLE = "STATEFLOW_LAUNCH"
"""Environment variable that tells every process of a launch which folder it belongs to."""

# The shell waits for one line, so that no program ever runs without a record: when the launcher dies before
# it has written the record, the pipe closes and the shell ends. It stays in front of the program to note
# its exit code, which a later worker could not learn, since it is not the parent. $0 is the exit file.
_GATE = """
read -r go || exit 125
"$@" </dev/null
code=$?
echo "$code" >"$0.new" && mv "$0.new" "$0"
exit "$code"
"""

# What this process started itself, and so has to collect when it ends: whichever object notices the end.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Command:
    """A program with its arguments, and the environment it gets on top of the worker's own."""

    argv: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Launch:
    """A program that was started; enough to find it again from another process on the same host."""

    folder: str
    pid: int
    started: int
    host: str
    boot: str
    turn: int | None = None
    """Which turn of its task it was launched in: retries stay in it, a clear begins another. None: not known."""

    @property
    def log_file(self) -> Path:
        """Everything that the program prints."""
        return Path(self.folder) / "driver.log"

    @property
    def result_file(self) -> Path:
        """Where the program was told to write its result."""
        return result_file(Path(self.folder))

    @property
    def is_local(self) -> bool:
        """Whether the launch was on this host and since its last boot, so its processes can be seen."""
        return self.host == socket.gethostname() and self.boot == processes.boot_id()

    def process(self) -> Process | None:
        """The launch's first process while it lives. The launch is over when that one is."""
        process = processes.look(self.pid) if self.is_local else None
        return process if process and process.started == self.started else None

    @property
    def may_live(self) -> bool:
        """Whether it lives, or is on another host and has not noted its end."""
        if self.host == socket.gethostname():
            return self.process() is not None
        return not self.result_file.exists() and not (Path(self.folder) / "exit").exists()

    def exit_code(self) -> int | None:
        """The program's exit code, negative when a signal ended it; None when nobody could note it."""
        try:
            code = int((Path(self.folder) / "exit").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return code if code <= 128 else 128 - code


def result_file(folder: Path) -> Path:
    """Where the program launched in `folder` writes its result."""
    return folder / "result.json"


class Launcher:
    """Launches for one task of one DAG run, at most one at a time.

    Args:
        turn: see `Launch.turn`.
    """

    def __init__(self, folder: Path, turn: int | None = None) -> None:
        self.folder = folder
        self.turn = turn

    def live(self) -> Launch | None:
        """The launch that still runs on this host, whichever worker started it, and in whichever turn."""
        return next((launch for launch in self._launches() if launch.process()), None)

    def is_of_this_turn(self, launch: Launch) -> bool:
        """Whether nobody has asked for another run since the launch."""
        return launch.turn is None or launch.turn == self.turn

    def next_folder(self) -> Path:
        """The folder that the next launch will get; `start` creates it."""
        numbers = [int(path.name.removeprefix("launch-")) for path in self.folder.glob("launch-*")]
        return self.folder / f"launch-{max(numbers, default=0) + 1}"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other workers on this file system from starting a launch of the same task meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def start(self, folder: Path, command: Command) -> Launch:
        """Starts `command` in a session of its own, after ending what is left of earlier launches.

        Call it inside `locked`, after `live` found nothing to wait for. The record is on disk before the program
        begins.
        """
        for launch in self._launches():
            self.stop(launch)
        folder.mkdir(parents=True)
        child = self._spawn(folder, command)
        assert child.stdin is not None
        with child.stdin as gate:
            launch = _record(folder, child.pid, self.turn)
            gate.write(b"go\n")
        return launch

    def wait(self, launch: Launch, seconds: float) -> bool:
        """Waits up to `seconds`; True when the launch is over, and then none of its processes is left."""
        process = launch.process()
        if process and not processes.wait_for_end(process, seconds):
            return False
        _collect(launch.pid)
        self.stop(launch)
        return True

    def stop(self, launch: Launch, patience: float = 2.0) -> None:
        """Ends every process of the launch: SIGTERM, `patience` seconds, SIGKILL. Returns when all are gone.

        Members of the launch's session are found one by one: Spark's Python workers leave the process group.
        """
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 1.5), (signal.SIGKILL, 1.5)):
            # Looked for again each time: a member may have started another one after the last look.
            if not (members := self._members(launch)):
                break
            for member in members:
                processes.send(member, number)
            processes.wait_for_all(members, seconds)
        _collect(launch.pid)

    def forget_old(self, keep: int) -> None:
        """Removes all but the `keep` newest launches' folders; a live one always stays."""
        folders = sorted(
            self.folder.glob("launch-*"), key=lambda path: int(path.name.removeprefix("launch-"))
        )
        for folder in folders[: max(0, len(folders) - keep)]:
            launch = read_record(folder)
            if launch is None or not launch.may_live:
                shutil.rmtree(folder, ignore_errors=True)

    def _launches(self) -> list[Launch]:
        records = (read_record(path) for path in sorted(self.folder.glob("launch-*"), reverse=True))
        return [launch for launch in records if launch]

    def _members(self, launch: Launch) -> list[Process]:
        if not launch.is_local:
            return []
        members = processes.session_members(launch.pid)
        if launch.process():
            return members
        # Without its leader, the session's number may belong to strangers by now.
        mark = f"{LAUNCH_VARIABLE}={launch.folder}"
        return [member for member in members if processes.has_environment(member.pid, mark)]

    def _spawn(self, folder: Path, command: Command) -> subprocess.Popen[bytes]:
        with (folder / "driver.log").open("wb") as log:
            child = subprocess.Popen(
                ["/bin/sh", "-c", _GATE, str(folder / "exit"), *command.argv],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **command.env, LAUNCH_VARIABLE: str(folder)},
                start_new_session=True,
            )
        _children[child.pid] = child
        return child


def _collect(pid: int) -> None:
    """Leaves no zombie of a launch that this process started and that has ended."""
    child = _children.get(pid)
    if child and child.poll() is not None:
        del _children[pid]


def read_record(folder: Path) -> Launch | None:
    """The launch recorded in `folder`; None when its launcher died before the program could begin."""
    try:
        return Launch(**json.loads((folder / "launch.json").read_text()))
    except FileNotFoundError:
        return None


def forget_old_runs(task_folder: Path, keep: int) -> None:
    """Removes what DAG runs of long ago left in the folder of their task; the `keep` newest stay, and live launches.

    Which one is new is told by its last launch, not by its name: runs may come in any order.
    """
    ages = {folder: _last_change(folder) for folder in task_folder.iterdir() if folder.is_dir()}
    for folder in sorted(ages, key=lambda folder: ages[folder])[: max(0, len(ages) - keep)]:
        _remove_unless_used(folder)


def _last_change(folder: Path) -> float:
    times = [0.0]
    for path in (folder, *_locks(folder)):
        # A worker on another host may be removing it, too.
        with contextlib.suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return max(times)


def _locks(folder: Path) -> list[Path]:
    return [*folder.glob("lock"), *folder.glob("*/lock")]


def _remove_unless_used(folder: Path) -> None:
    with contextlib.ExitStack() as locks:
        try:
            for path in _locks(folder):
                # A worker that starts something there right now holds it.
                fcntl.flock(locks.enter_context(path.open()), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        records = (read_record(path.parent) for path in folder.rglob("launch.json"))
        if not any(launch and launch.may_live for launch in records):
            shutil.rmtree(folder, ignore_errors=True)


def _record(folder: Path, pid: int, turn: int | None) -> Launch:
    process = processes.look(pid)
    if process is None:
        raise ChildProcessError(f"the shell that waits in {folder} ended at once")
    launch = Launch(str(folder), pid, process.started, socket.gethostname(), processes.boot_id(), turn)
    draft = folder / "launch.json.new"
    with draft.open("w") as file:
        json.dump(asdict(launch), file)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(folder / "launch.json")
    return launch
