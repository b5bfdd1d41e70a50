"""Processes of the command line: started, waited for with deadlines, killed, stopped, resumed.

Most are forked from a server that has imported everything, so that one costs 0.1 s instead of 1 s; they run the very
same command line, and die by the very same signals. `spawn` starts one from nothing, as a user does.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import psutil

from tests.support.errors import ReportedError, reported_errors
from tests.support.mutants import VARIABLE as MUTANT
from tests.support.mutants import plant_from_environment

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 240.0
_POLL = 0.01
_DAEMONS = {"pyspark.daemon", "stateflow_worker_daemon"}
"""Modules that Spark's Python workers are forked from, its own and that of a quiet local run."""
_LOOK = 0.2


@dataclass(frozen=True)
class Launch:
    """What to start.

    Attributes:
        environment: added to that of the tests.
        output: a path; standard output and error go to files of this name with another ending, and so does a run's
            result.
        collect_batch: how many files a collection deletes at once; 0 leaves it as it is (`fork` only).
    """

    arguments: Sequence[str]
    output: Path
    environment: dict[str, str] = field(default_factory=dict)
    collect_batch: int = 0


@dataclass(frozen=True)
class Ended:
    """How a process ended; a signal is a negative exit code.

    Attributes:
        result: of a run, from its result file; empty for other commands, and for a run that failed or was killed.
        failure: the error in that file; empty for a run that ended well.
    """

    code: int
    out: str
    err: str
    result: dict[str, Any] = field(default_factory=dict)
    failure: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> ReportedError:
        found = reported_errors(self.err)
        assert len(found) == 1, str(self)
        return found[0]

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    def check(self) -> Ended:
        """It ended well."""
        assert self.code == 0, str(self)
        return self

    def check_error(self, exit_code: int, code: str, **facts: object) -> ReportedError:
        """It ended with this error, which has these facts, and maybe more."""
        error = self.error
        found = {name: error.facts.get(name) for name in facts}
        assert (self.code, error.code, found) == (exit_code, code, facts), str(self)
        return error

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.out}{self.err[-6000:]}"


class Running:
    """A process that was started. `poll`: returns the exit code, None while it runs."""

    def __init__(self, launch: Launch, pid: int, poll: Callable[[], int | None]) -> None:
        self.launch = launch
        self.pid = pid
        self.poll = poll
        self._family: dict[int, psutil.Process] = {}
        self._found: list[psutil.Process] = []
        self._looked = 0.0

    def wait(self, each: Callable[[], object] = lambda: None, seconds: float = DEADLINE) -> Ended:
        def ended() -> bool:
            each()
            return self.poll() is not None

        wait_for(ended, lambda: f"the end of {self}", seconds)
        code = self.poll()
        assert code is not None
        outcome = json.loads(self._text("json") or "{}")
        return Ended(code, self._text("out"), self.errors, outcome.get("result") or {}, outcome.get("error") or {})

    def wait_stopped(self, each: Callable[[], object] = lambda: None) -> Self:
        """Waits until it has stopped itself by SIGSTOP."""

        def stopped() -> bool:
            each()
            assert self.poll() is None, f"it ended instead of stopping: {self}"
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)

        wait_for(stopped, lambda: f"a stop of {self}")
        return self

    def resume(self) -> Self:
        os.kill(self.pid, signal.SIGCONT)
        return self

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        if self.poll() is None:
            # It may have ended, and its server not have reported it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def family(self) -> list[psutil.Process]:
        """The processes below it, as they were shortly before; remembered, because they may outlive it."""
        if time.monotonic() - self._looked >= _LOOK:
            self._found = unless_ended(lambda: psutil.Process(self.pid).children(recursive=True), [])
            self._looked = time.monotonic()
            self._family |= {p.pid: p for p in self._found}
        return self._found

    def wait_family(self) -> None:
        """Waits until nothing of what was below it is alive: it ends by itself when its driver is gone."""
        wait_for(lambda: not any(map(_is_alive, self._family.values())), lambda: f"the processes below {self}")

    def workers(self) -> list[psutil.Process]:
        """Spark's Python workers: the children of its daemon."""
        family = self.family()
        daemons = {p.pid for p in family if _DAEMONS.intersection(unless_ended(p.cmdline, []))}
        return sorted((p for p in family if unless_ended(p.ppid, 0) in daemons), key=lambda p: p.pid)

    @property
    def errors(self) -> str:
        return self._text("err")

    def count(self, event: str) -> int:
        """How often an event is in the log so far, which must be JSON."""
        complete = self.errors.rpartition("\n")[0]
        # Spark and the JVM write other lines, of which none is an object in JSON.
        lines = [json.loads(line) for line in complete.splitlines() if line.startswith("{")]
        return sum(line["event"] == event for line in lines)

    def _text(self, ending: str) -> str:
        path = self.launch.output.with_suffix(f".{ending}")
        return path.read_text() if path.exists() else ""

    def __str__(self) -> str:
        return f"{' '.join(self.launch.arguments)} {self.launch.environment}\n{self.errors[-2000:]}"


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    # pandas because pyarrow imports it when it first makes an array.
    ["pytest", "pandas", "stateflow.cli.main", "stateflow.testing.sources", "stateflow.testing.sinks", __name__]
)


def fork(launch: Launch) -> Running:
    """Starts the command line in a process that has imported it already; with the planted bug of this process."""
    launch = replace(launch, environment={MUTANT: os.environ.get(MUTANT, ""), **launch.environment})
    process = _context.Process(target=_command_line, args=(launch,), daemon=True)
    process.start()
    assert process.pid is not None
    return Running(launch, process.pid, lambda: process.exitcode)


def spawn(launch: Launch) -> Running:
    """Starts ``python -m stateflow``; with a planted bug, if the environment names one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **launch.environment}
    module = "tests.support.mutants" if environment.get(MUTANT) else "stateflow"
    command = [sys.executable, "-m", module, *launch.arguments]
    with launch.output.with_suffix(".out").open("wb") as out, launch.output.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=out, stderr=err)
    return Running(launch, process.pid, process.poll)


def unless_ended(look: Callable[[], Any], default: Any) -> Any:
    try:
        return look()
    except psutil.NoSuchProcess:
        return default


def _is_alive(process: psutil.Process) -> bool:
    return bool(unless_ended(lambda: process.is_running() and process.status() != psutil.STATUS_ZOMBIE, False))


def wait_for(condition: Callable[[], bool], what: Callable[[], str], seconds: float = DEADLINE) -> None:
    """Polls until the condition holds; fails with what was waited for at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what()}"
        time.sleep(_POLL)


def _command_line(launch: Launch) -> None:
    warnings.simplefilter("error")
    for ending, fd in (("out", 1), ("err", 2)):
        file = os.open(launch.output.with_suffix(f".{ending}"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(file, fd)
    faulthandler.enable()
    os.environ.update(launch.environment)
    sys.argv = ["stateflow", *launch.arguments]
    if launch.collect_batch:
        from stateflow.checkpoint import garbage_collector as garbage

        garbage.DELETED_AT_ONCE = launch.collect_batch
    from stateflow.cli.main import main
    from tests.recovery.failing_disks import disk_from_environment
    from tests.support.patched_processes import patch_from_environment

    plant_from_environment()
    patch_from_environment()
    with disk_from_environment():
        main()
