"""The record of a launched program, from which another process on the same host finds the program again."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from stateflow_airflow.launches import processes
from stateflow_airflow.launches.processes import Process


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
    """

    folder: str
    pid: int
    started: int
    host: str
    boot: str
    turn: int | None = None

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


def write_record(folder: Path, pid: int, turn: int | None) -> Launch:
    """Writes the record of the process `pid` durably to `folder`, and returns it."""
    from stateflow.private_files import open_private

    process = processes.find(pid)
    if process is None:
        raise ChildProcessError(f"the launch shell in {folder} ended before its program started")
    launch = Launch(str(folder), pid, process.started, socket.gethostname(), processes.boot_id(), turn)
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
