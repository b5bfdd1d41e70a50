"""The job and the drivers of tests of tasks whose run stays up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow_airflow.launch import Command, Launch, Launcher
from tests.airflow.jobs import use_submit
from tests.support.job_fixture import AccountsJob
from tests.support.processes import wait_for

DRIVER = """
import pathlib, signal, sys
end, folder = sys.argv[2], pathlib.Path(__file__).parent
def handle(number, frame):
    with (folder / "signals").open("a") as file:
        file.write("x")
    if end == "ends":
        sys.exit(7)
signal.signal(signal.SIGTERM, handle)
print("ready", flush=True)
while True:
    signal.pause()
"""


class Drivers:
    """Launches programs that look like drivers, and records the signals that they get."""

    def __init__(self, folder: Path) -> None:
        self.launcher = Launcher(folder / "runs")
        self._program = folder / "stateflow" / "__main__.py"
        self._program.parent.mkdir()
        self._program.write_text(DRIVER)
        (self._program.parent / "signals").touch()

    def start(self, end: str) -> Launch:
        """Launches a driver that ends at SIGTERM, or ignores it; returns when it handles signals."""
        with self.launcher.hold_lock():
            command = Command([sys.executable, str(self._program), "run", end], dict(os.environ))
            launch = self.launcher.start(self.launcher.next_folder(), command)
        wait_for(lambda: "ready" in launch.log_file.read_text(), lambda: "the driver")
        return launch

    @property
    def signals(self) -> int:
        return len((self._program.parent / "signals").read_text())


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AccountsJob]:
    """A job whose runs stay up, and make no checkpoint before their end."""
    use_submit(tmp_path, monkeypatch)
    job = AccountsJob(tmp_path / "job", {"run__until": "stopped", "checkpoints__interval": "1h"})
    job.deliver(30)
    yield job
    job.end_all()


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path)
    yield drivers
    for launch in drivers.launcher.launches():
        drivers.launcher.stop(launch, 0)
