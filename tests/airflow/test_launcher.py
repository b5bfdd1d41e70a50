"""A launched program outlives its launcher, is found again, and can be ended with all its children."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateflow.errors import ConfigError
from stateflow_airflow import processes
from stateflow_airflow.launch import LAUNCH_VARIABLE, Command, Launch, Launcher
from stateflow_airflow.launch_trigger import UNREACHABLE, find_end
from stateflow_airflow.operators.run import remove_old_runs
from stateflow_airflow.renewal import LogFollower, last_lines
from tests.airflow.fakes import DEADLINE
from tests.support.errors import raises
from tests.support.processes import wait_for

PAUSE = "import signal; signal.pause()"
# SIGTERM is ignored by both, and the child leaves the process group as Spark's Python workers do.
STUBBORN = f"""
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {PAUSE!r}], process_group=0)
print(child.pid, flush=True)
signal.pause()
"""
# On SIGTERM, it starts a stubborn child and ends before another process could look again.
HEIR = f"""
import os, signal, subprocess, sys
def leave(number, frame):
    subprocess.Popen([sys.executable, "-c", {PAUSE!r}])
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
signal.pause()
"""


class LauncherFixture:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launches: list[Launch] = []

    def launcher(self, run: str = "") -> Launcher:
        """Another worker's view of the same task, or of one of its DAG runs."""
        return Launcher(self.folder / run)

    def start(self, code: str, run: str = "") -> Launch:
        launcher = self.launcher(run)
        with launcher.hold_lock():
            command = Command([sys.executable, "-c", code], {**os.environ, "COLOUR": "blue"})
            launch = launcher.start(launcher.next_folder(), command)
        self.launches.append(launch)
        return launch

    def run(self, code: str, run: str = "") -> Launch:
        launch = self.start(code, run)
        assert self.launcher(run).wait(launch, DEADLINE)
        return launch

    def launch_and_die(self, code: str, patch: str = "") -> str:
        """Launches a program from a worker that is killed right after; returns what the worker printed."""
        worker = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from stateflow_airflow import processes
from stateflow_airflow.launch import LAUNCH_VARIABLE, Command, Launcher
{patch}
launcher = Launcher(Path({str(self.folder)!r}))
with launcher.hold_lock():
    launcher.start(launcher.next_folder(), Command([sys.executable, "-c", {code!r}], {{}}))
os.kill(os.getpid(), 9)
"""
        done = subprocess.run([sys.executable, "-c", worker], stdout=subprocess.PIPE, timeout=DEADLINE, check=False)
        assert done.returncode == -signal.SIGKILL
        return done.stdout.decode()


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[LauncherFixture]:
    fixture = LauncherFixture(tmp_path / "task")
    yield fixture
    for launch in fixture.launches:
        fixture.launcher().stop(launch, grace_seconds=0.1)


def first_line(launch: Launch) -> str:
    wait_for(lambda: b"\n" in Path(launch.log_file).read_bytes(), lambda: "a line of the log")
    return last_lines(launch.log_file, 1)[0]


def test_a_program_runs_in_its_own_session_and_its_end_is_recorded(fixture: LauncherFixture) -> None:
    launch = fixture.run("import os; print(os.getsid(0), os.environ['COLOUR'], os.getcwd()); raise SystemExit(3)")
    session, colour, folder = last_lines(launch.log_file, 1)[0].split()
    assert (int(session), colour, folder) == (launch.pid, "blue", launch.folder)
    assert launch.exit_code() == 3
    assert launch.process() is None
    assert fixture.run("import os; os.kill(os.getpid(), 9)").exit_code() == -signal.SIGKILL


def test_the_files_of_a_launch_are_private_whatever_the_umask(fixture: LauncherFixture) -> None:
    before = os.umask(0o000)
    try:
        launch = fixture.run("open('own', 'w')")
    finally:
        os.umask(before)
    modes = {p.name: oct(stat.S_IMODE(p.stat().st_mode)) for p in (fixture.folder, *fixture.folder.rglob("*"))}
    # The umask of the program itself is not changed: its tables may be for others.
    assert modes.pop("own") == "0o666"
    assert {name for name, mode in modes.items() if mode == "0o700"} == {fixture.folder.name, Path(launch.folder).name}
    assert set(modes.values()) == {"0o700", "0o600"} and {"driver.log", "launch.json", "exit", "lock"} < set(modes)


def test_another_worker_finds_a_program_that_outlives_its_launcher_and_ends_it(fixture: LauncherFixture) -> None:
    fixture.launch_and_die(PAUSE)
    other = fixture.launcher()
    launch = other.active()
    assert launch is not None and not other.wait(launch, 0.01)
    record = json.loads((Path(launch.folder) / "launch.json").read_text())
    assert record == dataclasses.asdict(launch)
    assert processes.has_environment(launch.pid, f"{LAUNCH_VARIABLE}={launch.folder}")
    other.stop(launch)
    assert other.active() is None and other.wait(launch, 0.0)


def test_a_program_never_begins_when_its_launcher_dies_before_the_record(fixture: LauncherFixture) -> None:
    dies = "processes.find = lambda pid: (print(pid, flush=True), os.kill(os.getpid(), 9))"
    pid = int(fixture.launch_and_die("print('began')", dies))
    if shell := processes.find(pid):
        assert processes.wait_for_end(shell, DEADLINE)
    assert fixture.launcher().active() is None
    assert (fixture.folder / "launch-1" / "driver.log").read_bytes() == b""


def test_a_stop_ends_a_stubborn_program_and_its_child_in_another_group(fixture: LauncherFixture) -> None:
    launch = fixture.start(STUBBORN)
    child = processes.find(int(first_line(launch)))
    assert child is not None and child.session == launch.pid
    fixture.launcher().stop(launch, grace_seconds=0.1)
    assert launch.process() is None
    assert processes.find(child.pid) is None
    assert processes.session_members(launch.pid) == []
    assert launch.exit_code() is None


def test_a_child_that_a_program_starts_during_its_stop_is_ended_too(fixture: LauncherFixture) -> None:
    launch = fixture.start(HEIR)
    assert first_line(launch) == "ready"
    fixture.launcher().stop(launch)
    assert processes.session_members(launch.pid) == []


def test_children_of_a_dead_launch_are_ended_before_the_next_one_starts(fixture: LauncherFixture) -> None:
    launch = fixture.start(STUBBORN)
    child = int(first_line(launch))
    for member in processes.session_members(launch.pid):
        if member.pid != child:
            processes.send(member, signal.SIGKILL)
            assert processes.wait_for_end(member, DEADLINE)
    assert processes.find(child)
    fixture.start(PAUSE)
    assert processes.find(child) is None


def test_a_reused_process_id_is_not_the_launch(fixture: LauncherFixture) -> None:
    stranger = fixture.start(PAUSE)
    old = dataclasses.replace(stranger, folder=str(fixture.folder / "launch-9"), started=stranger.started - 1)
    assert old.process() is None
    fixture.launcher().stop(old, grace_seconds=0.1)
    assert fixture.launcher().wait(old, 0.0)
    assert stranger.process() is not None


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"boot": "another"}], ids=["host", "boot"])
def test_processes_of_another_host_or_boot_are_neither_found_nor_stopped(
    fixture: LauncherFixture, change: dict[str, Any]
) -> None:
    launch = fixture.start(PAUSE)
    foreign = dataclasses.replace(launch, **change)
    assert not foreign.is_local
    assert foreign.process() is None
    fixture.launcher().stop(foreign)
    assert launch.process() is not None
    # Without its folder, nothing shows whether it has ended.
    found = find_end(dataclasses.replace(foreign, folder=str(fixture.folder / "nowhere")))
    assert found and found["status"] == UNREACHABLE


def test_old_launch_folders_are_removed_and_live_ones_kept(fixture: LauncherFixture) -> None:
    for _ in range(11):
        fixture.run("pass")
    launch, launcher = fixture.start(PAUSE), fixture.launcher()
    launcher.remove_old(keep=2)
    assert sorted(path.name for path in fixture.folder.glob("launch-*")) == ["launch-11", "launch-12"]
    (fixture.folder / "launch-13").mkdir()
    launcher.remove_old(keep=1)
    assert sorted(path.name for path in fixture.folder.glob("launch-*")) == ["launch-12", "launch-13"]
    assert launch.process()


def test_folders_of_old_dag_runs_are_removed_unless_a_launch_begins_or_may_be_live(fixture: LauncherFixture) -> None:
    task = fixture.folder
    for age, name in enumerate(("gone", "live", "elsewhere", "ended-elsewhere", "begins", "new")):
        launch = fixture.start(PAUSE, name) if name == "live" else fixture.run("pass", name)
        for path in (task / name, task / name / "lock"):
            os.utime(path, (age, age))
        if "elsewhere" in name:
            record = json.dumps(dataclasses.asdict(launch) | {"host": "elsewhere"})
            (Path(launch.folder) / "launch.json").write_text(record)
        if name == "elsewhere":
            (Path(launch.folder) / "exit").unlink()
    with Launcher(task / "begins").hold_lock():
        os.utime(task / "begins" / "lock", (4, 4))
        remove_old_runs(task, keep=1)
    assert sorted(path.name for path in task.iterdir()) == ["begins", "elsewhere", "live", "new"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to another user")
@pytest.mark.parametrize("planted", ["", "dag", "dag/task/run"])
def test_a_run_folder_of_another_user_is_refused(tmp_path: Path, planted: str) -> None:
    """Its owner could replace a launch's settings, before the driver reads them, and its result."""
    runs = tmp_path / "runs"
    launches = runs / "dag" / "task" / "run"
    (runs / planted).mkdir(mode=0o700, parents=True)
    for path in (runs / planted, *runs.rglob("*")):
        path.chmod(0o700)
    os.chown(runs / planted, 65534, 65534)
    locked = Launcher(launches, root=runs).hold_lock()
    with raises(ConfigError, path=str(runs / planted), owner=65534):
        locked.__enter__()
    assert not list(launches.glob("*"))


# -- logs -------------------------------------------------------------------------------------------------------------


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


def test_follower_emits_a_very_long_line_in_parts_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "log"
    text = "ü€😀" * 100_000
    path.write_text(f"{text}\nnext\n{text}")
    seen: list[str] = []
    with LogFollower(path, seen.append):
        pass
    at = seen.index("next")
    assert "".join(seen[:at]) == "".join(seen[at + 1 :]) == text
    assert max(len(part.encode()) for part in seen) <= 1 << 16 and len(last_lines(path, 1)[0].encode()) <= 1 << 16


# -- processes that are ending, or just beginning ---------------------------------------------------------------------

NUMBERS = " ".join(str(n) for n in range(4, 30))


@pytest.mark.parametrize(
    ("state", "alive"), [("R", True), ("S", True), ("D", True), ("T", True), ("Z", False), ("X", False)]
)
def test_a_process_that_ended_is_not_alive(state: str, alive: bool) -> None:
    """Z: its parent has not collected it yet. X: its parent is collecting it right now, which no test can
    arrange for a real one; seen once in some hundred looks at what was just killed."""
    files = {(123, "stat"): f"123 (a) Z (b) {state} {NUMBERS}\n".encode()}
    assert processes.find(123, lambda pid, name: files[pid, name]) == (
        processes.Process(pid=123, started=22, session=6) if alive else None
    )


def test_a_process_in_the_middle_of_an_exec_is_inspected_again() -> None:
    """For a short time it has neither arguments nor environment; seen in 109 of 3,000 looks on a busy machine."""
    answers = {
        "stat": [f"123 (a) R {NUMBERS}".encode()],
        "cmdline": [b"", b"a\0"],
        "environ": [b"", b"", b"A=b\0C=d\0"],
    }
    assert processes.has_environment(123, "C=d", lambda _, name: answers[name].pop(0))


def test_a_zombie_has_ended_and_no_environment() -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    process = processes.find(pid)
    assert process is not None and not processes.has_environment(pid, "A=b")
    os.kill(pid, signal.SIGKILL)
    assert processes.wait_for_end(process, DEADLINE)
    assert processes.find(pid) is None
    assert not processes.has_environment(pid, "A=b")
    os.waitpid(pid, 0)
    assert not processes.has_environment(pid, "A=b")
