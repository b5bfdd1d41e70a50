"""A launched program outlives its launcher, is found again, and can be ended with all its children."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateflow_airflow.launches import processes
from stateflow_airflow.launches.launch import Launch
from stateflow_airflow.launches.launcher import LAUNCH_VARIABLE, Command, Launcher
from stateflow_airflow.launches.log_follower import LogFollower, last_lines
from stateflow_airflow.launches.old_runs import remove_old_runs
from tests.airflow.fakes import DEADLINE

PAUSE = "import signal; signal.pause()"
# SIGTERM is ignored by both, and the child leaves the process group as Spark's Python workers do.
STUBBORN = f"""
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {PAUSE!r}], process_group=0)
print(child.pid, flush=True)
signal.pause()
"""
# Told to end, it starts a stubborn child and is gone before anybody could look again.
HEIR = f"""
import os, signal, subprocess, sys
def leave(number, frame):
    subprocess.Popen([sys.executable, "-c", {PAUSE!r}])
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
signal.pause()
"""


class Workbench:
    """Launches Python programs, and ends them all after the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launchers: list[Launcher] = []
        self.launches: list[Launch] = []

    def launcher(self) -> Launcher:
        """Another worker's view of the same task."""
        self.launchers.append(Launcher(self.folder))
        return self.launchers[-1]

    def start(self, code: str, launcher: Launcher | None = None) -> Launch:
        launcher = launcher or self.launcher()
        with launcher.locked():
            command = Command([sys.executable, "-c", code], {"COLOUR": "blue"})
            launch = launcher.start(launcher.next_folder(), command)
        self.launches.append(launch)
        return launch


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    bench = Workbench(tmp_path / "task")
    yield bench
    for launcher in bench.launchers:
        for launch in bench.launches:
            launcher.stop(launch, grace_seconds=0.1)


def lines(launch: Launch, count: int) -> list[str]:
    """The first `count` lines of the launch's log, once they are there."""
    found: list[str] = []
    process = launch.process()
    assert process is not None
    with processes.watch(process) as descriptor, LogFollower(launch.log_file, found.append) as log:
        for _ in range(int(DEADLINE / 0.02)):
            log.copy()
            if len(found) >= count or descriptor is None or processes.has_ended(descriptor, 0.02):
                break
    return found[:count]


def test_program_runs_in_its_own_session_and_its_end_is_recorded(bench: Workbench) -> None:
    launcher = bench.launcher()
    code = "import os; print(os.getsid(0), os.environ['COLOUR'], os.getcwd()); raise SystemExit(3)"
    launch = bench.start(code, launcher)
    assert launcher.wait(launch, DEADLINE)
    session, colour, folder = last_lines(launch.log_file, 1)[0].split()
    assert (int(session), colour, folder) == (launch.pid, "blue", launch.folder)
    assert launch.exit_code() == 3
    assert launch.process() is None


def test_signal_is_a_negative_exit_code(bench: Workbench) -> None:
    launcher = bench.launcher()
    launch = bench.start("import os; os.kill(os.getpid(), 9)", launcher)
    assert launcher.wait(launch, DEADLINE)
    assert launch.exit_code() == -signal.SIGKILL


def test_wait_gives_up_after_its_time(bench: Workbench) -> None:
    launcher = bench.launcher()
    launch = bench.start(PAUSE, launcher)
    assert not launcher.wait(launch, 0.01)
    assert launch.process()


def test_another_worker_finds_the_live_launch_and_sees_its_end(bench: Workbench) -> None:
    launch = bench.start(PAUSE)
    other = bench.launcher()
    assert other.active() == launch
    other.stop(launch)
    assert other.active() is None
    assert other.wait(launch, 0.0)


def test_program_outlives_the_process_that_launched_it(bench: Workbench) -> None:
    code = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from stateflow_airflow.launches.launcher import Command, Launcher
launcher = Launcher(Path({str(bench.folder)!r}))
with launcher.locked():
    launcher.start(launcher.next_folder(), Command([sys.executable, "-c", {PAUSE!r}], {{}}))
os.kill(os.getpid(), 9)
"""
    worker = subprocess.run([sys.executable, "-c", code], timeout=DEADLINE, check=False)
    assert worker.returncode == -signal.SIGKILL
    launch = bench.launcher().active()
    assert launch is not None
    bench.launches.append(launch)


def test_program_never_begins_when_its_launcher_dies_before_the_record(bench: Workbench) -> None:
    code = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from stateflow_airflow.launches import processes
from stateflow_airflow.launches.launcher import Command, Launcher
processes.find = lambda pid: (print(pid, flush=True), os.kill(os.getpid(), 9))
launcher = Launcher(Path({str(bench.folder)!r}))
launcher.start(launcher.next_folder(), Command([sys.executable, "-c", "print('began')"], {{}}))
"""
    worker = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=DEADLINE, check=False)
    assert worker.returncode == -signal.SIGKILL
    if shell := processes.find(int(worker.stdout)):
        assert processes.wait_for_end(shell, DEADLINE)
    assert bench.launcher().active() is None
    assert (bench.folder / "launch-1" / "driver.log").read_bytes() == b""


def test_stop_ends_a_stubborn_program_and_its_child_in_another_group(bench: Workbench) -> None:
    launcher = bench.launcher()
    launch = bench.start(STUBBORN, launcher)
    child = processes.find(int(lines(launch, 1)[0]))
    assert child is not None and child.session == launch.pid
    launcher.stop(launch, grace_seconds=0.1)
    assert launch.process() is None
    assert processes.find(child.pid) is None
    assert processes.session_members(launch.pid) == []
    assert launch.exit_code() is None


def test_child_that_a_program_starts_when_it_is_asked_to_end_is_ended_too(bench: Workbench) -> None:
    launcher = bench.launcher()
    launch = bench.start(HEIR, launcher)
    assert lines(launch, 1) == ["ready"]
    launcher.stop(launch)
    assert processes.session_members(launch.pid) == []


def test_children_left_behind_are_ended_with_the_launch(bench: Workbench) -> None:
    launcher = bench.launcher()
    launch = bench.start(STUBBORN.replace("signal.pause()\n", "", 1) + "os.kill(os.getpid(), 9)", launcher)
    assert launcher.wait(launch, DEADLINE)
    assert processes.session_members(launch.pid) == []


def test_children_of_a_dead_launch_are_ended_before_the_next_one_starts(bench: Workbench) -> None:
    launch = bench.start(STUBBORN)
    child = int(lines(launch, 1)[0])
    for member in processes.session_members(launch.pid):
        if member.pid != child:
            processes.send(member, signal.SIGKILL)
            assert processes.wait_for_end(member, DEADLINE)
    assert processes.find(child)
    bench.start(PAUSE)
    assert processes.find(child) is None


def test_a_reused_process_id_is_not_the_launch(bench: Workbench) -> None:
    stranger = bench.start(PAUSE)
    launcher = bench.launcher()
    old = dataclasses.replace(stranger, folder=str(bench.folder / "launch-9"), started=stranger.started - 1)
    assert old.process() is None
    launcher.stop(old, grace_seconds=0.1)
    assert launcher.wait(old, 0.0)
    assert stranger.process() is not None


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"boot": "another"}])
def test_processes_of_another_host_or_boot_are_not_ours(bench: Workbench, change: dict[str, Any]) -> None:
    launch = bench.start(PAUSE)
    foreign = dataclasses.replace(launch, **change)
    assert not foreign.is_local
    assert foreign.process() is None
    bench.launcher().stop(foreign)
    assert launch.process() is not None


def test_record_tells_every_process_of_the_launch_where_it_belongs(bench: Workbench) -> None:
    launch = bench.start(PAUSE)
    record = json.loads((Path(launch.folder) / "launch.json").read_text())
    assert record == dataclasses.asdict(launch)
    assert processes.has_environment(launch.pid, f"{LAUNCH_VARIABLE}={launch.folder}")


def test_old_folders_go_and_live_ones_stay(bench: Workbench) -> None:
    launcher = bench.launcher()
    for _ in range(11):
        assert launcher.wait(bench.start("pass", launcher), DEADLINE)
    launch = bench.start(PAUSE, launcher)
    launcher.remove_old(keep=2)
    assert sorted(path.name for path in bench.folder.glob("launch-*")) == ["launch-11", "launch-12"]
    (bench.folder / "launch-13").mkdir()
    launcher.remove_old(keep=1)
    assert sorted(path.name for path in bench.folder.glob("launch-*")) == ["launch-12", "launch-13"]
    assert launch.process()


def test_old_dag_runs_go_and_what_may_live_or_begins_stays(bench: Workbench) -> None:
    task = bench.folder
    names = ["gone", "live", "elsewhere", "ended-elsewhere", "begins", "new"]
    launches = {}
    for age, name in enumerate(names):
        launcher = Launcher(task / name)
        bench.launchers.append(launcher)
        launches[name] = bench.start(PAUSE if name == "live" else "pass", launcher)
        assert name == "live" or launcher.wait(launches[name], DEADLINE)
        for path in (task / name, task / name / "lock"):
            os.utime(path, (age, age))
    for name in ("elsewhere", "ended-elsewhere"):
        record = Path(launches[name].folder) / "launch.json"
        record.write_text(json.dumps(dataclasses.asdict(launches[name]) | {"host": "elsewhere"}))
    (Path(launches["elsewhere"].folder) / "exit").unlink()
    with Launcher(task / "begins").locked():
        os.utime(task / "begins" / "lock", (4, 4))
        remove_old_runs(task, keep=1)
    assert sorted(path.name for path in task.iterdir()) == ["begins", "elsewhere", "live", "new"]


def test_follower_emits_whole_lines_and_the_rest_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    seen: list[str] = []
    path.write_bytes(b"")
    with path.open("ab", buffering=0) as writer, LogFollower(path, seen.append) as log:
        writer.write(b"one\ntw")
        log.copy()
        assert seen == ["one"]
        writer.write(b"o\r\n\xff\nlast")
        log.copy()
        assert seen == ["one", "two", "\N{REPLACEMENT CHARACTER}"]
    assert seen[3:] == ["last"]


def test_follower_can_begin_at_the_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(10)))
    seen: list[str] = []
    with LogFollower(path, seen.append, skip_to_last=10):
        pass
    assert seen == ["line 9"]
    assert last_lines(path, 2) == ["line 8", "line 9"]
