"""Drivers of a `PublishingJob` that are killed, stopped or started at once, each in a process of its own.

Run as a program, it reads a `Scenario` as JSON from standard input and prints a `Report`. Drivers are forked from this
process, which opens no table itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

import msgspec

from stateflow.errors import StateflowError
from stateflow.testing.conformance.sink_table import PublishingJob, SinkFactory, newest_ordinal

if TYPE_CHECKING:
    from _typeshed import TraceFunction

_CRASHED = 70
_EXCLUDED = f"{Path(__file__).parent}/"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """How drivers are interrupted."""

    kind: str
    """``killed``, ``stopped``, ``failpoint``, ``raced`` or ``overtaken``."""
    module: str
    """File of the module that has the factory of the sink."""
    factory: str
    """Name of the factory in its module."""
    address: str
    root: str
    """Folder of the job root."""
    steps: int
    """At how many lines of the sink's code a driver is killed or stopped; of drivers that start at once."""
    failpoints: list[str] = []
    patience: float = 1.0
    """Seconds that a second driver may wait for a stopped one, which holds a lock of the table, before that resumes."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a scenario."""

    checkpoints: int
    """How many checkpoints are committed; all of them are published."""
    ends: list[int]
    """Exit codes of the drivers that the scenario interrupted or raced; the negative signal of those it killed."""
    newest: list[int] = []
    """Exit codes of the newest drivers, which older ones have disturbed."""


class LineTracer:
    """Calls `action` at the first execution of one line of the sink's code, and collects the executed lines.

    Args:
        folders: folders of the sink's code.
        line: file and number of the line; None to collect only.
        action: what happens there.
    """

    def __init__(
        self, folders: tuple[str, ...], line: tuple[str, int] | None = None, action: Callable[[], None] = lambda: None
    ) -> None:
        self.lines: dict[tuple[str, int], None] = {}
        self._folders = folders
        self._line = line
        self._action = action

    def __call__(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        file = frame.f_code.co_filename
        return self._trace if file.startswith(self._folders) and not file.startswith(_EXCLUDED) else None

    def _trace(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        line = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and line not in self.lines:
            self.lines[line] = None
            if line == self._line:
                self._action()
        return self._trace


class Drivers:
    """The drivers of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._factory: SinkFactory = getattr(_load(Path(scenario.module)), scenario.factory)
        self._checkpoints = 0
        self._newest: list[int] = []

    def play(self) -> Report:
        """Plays the scenario; afterwards all committed checkpoints are published."""
        kinds = {
            "killed": self._killed,
            "stopped": self._stopped,
            "failpoint": self._failpoints,
            "raced": self._raced,
            "overtaken": self._overtaken,
        }
        self._preload()
        ends = list(kinds[self._scenario.kind]())
        self._recover()
        return Report(checkpoints=self._checkpoints, ends=ends, newest=self._newest)

    def _preload(self) -> None:
        """Imports what a driver imports while it works, so that not each driver has to."""
        receiver, sender = os.pipe()
        self._checkpoints += 1

        def run() -> None:
            before = set(sys.modules)
            self._run(self._checkpoints)
            loaded = [name for name, module in sys.modules.items() if name not in before and module.__spec__]
            with open(sender, "wb") as pipe:
                pipe.write(msgspec.json.encode(loaded))

        driver = self._fork(run)
        os.close(sender)
        with open(receiver, "rb") as pipe:
            names = pipe.read()
        _check(driver)
        for name in msgspec.json.decode(names, type=list[str]):
            importlib.import_module(name)

    def _killed(self) -> Iterator[int]:
        """A driver is killed at a line of the sink's code; the next one continues."""
        for line in self._lines():
            yield _end(self._start(line, signal.SIGKILL))
            self._recover()

    def _stopped(self) -> Iterator[int]:
        """A driver is stopped at a line of the sink's code, and resumes after a newer run or when that waits for it."""
        for line in self._lines():
            stopped = self._start(line, signal.SIGSTOP)
            _, status = os.waitpid(stopped, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                yield os.waitstatus_to_exitcode(status)
                continue
            newer = self._fork(partial(self._run, self._checkpoints + 1))
            _wait(newer, self._scenario.patience)
            os.kill(stopped, signal.SIGCONT)
            yield _end(stopped)
            yield _end(newer)
            self._recover()

    def _overtaken(self) -> Iterator[int]:
        """A driver sleeps before it publishes, and wakes while the newest one is at a line of publishing the same."""
        for line in self._lines(is_pending=True):
            os.environ["STATEFLOW_FAILPOINT"] = "publish.before:1:stop"
            older = self._fork(partial(self._run, self._checkpoints))
            del os.environ["STATEFLOW_FAILPOINT"]
            os.waitpid(older, os.WUNTRACED)
            newest = self._start(line, signal.SIGSTOP)
            _, status = os.waitpid(newest, os.WUNTRACED)
            os.kill(older, signal.SIGCONT)
            _wait(older, self._scenario.patience)
            if os.WIFSTOPPED(status):
                os.kill(newest, signal.SIGCONT)
            self._newest.append(_end(newest) if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status))
            yield _end(older)
            self._recover()

    def _failpoints(self) -> Iterator[int]:
        """A driver is killed at each failpoint, by the environment variable as any run."""
        for name in self._scenario.failpoints:
            self._checkpoints += 1
            os.environ["STATEFLOW_FAILPOINT"] = name
            driver = self._fork(partial(self._run, self._checkpoints))
            del os.environ["STATEFLOW_FAILPOINT"]
            yield _end(driver)
            self._recover()

    def _raced(self) -> Iterator[int]:
        """Several drivers start at once; most of them are fenced."""
        for _ in range(2):
            upto = self._checkpoints + 2
            drivers = [self._fork(partial(self._run, upto)) for _ in range(self._scenario.steps)]
            self._checkpoints = upto
            yield from map(_end, drivers)
            self._recover()

    def _lines(self, is_pending: bool = False) -> Iterator[tuple[str, int]]:
        """Yields lines of the sink's code in the order in which a run executes them, evenly distributed.

        Args:
            is_pending: whether the run only publishes what an earlier one has committed.
        """
        receiver, sender = os.pipe()
        self._checkpoints += 1
        if is_pending:
            os.environ["STATEFLOW_FAILPOINT"] = "publish.before"
            _end(self._fork(partial(self._run, self._checkpoints)))
            del os.environ["STATEFLOW_FAILPOINT"]
        driver = self._fork(lambda: self._collect(sender))
        os.close(sender)
        with open(receiver, "rb") as pipe:
            found = pipe.read()
        _check(driver)
        lines = msgspec.json.decode(found, type=list[tuple[str, int]])
        steps = min(self._scenario.steps, len(lines))
        for step in range(steps):
            self._checkpoints += 1
            yield lines[step * (len(lines) - 1) // max(1, steps - 1)]

    def _collect(self, sender: int) -> None:
        """Runs the job for one checkpoint, and sends the lines of the sink's code that it executes."""
        tracer = LineTracer(self._folders())
        job = self._job()
        sys.settrace(tracer)
        job.run(self._checkpoints)
        sys.settrace(None)
        with open(sender, "wb") as pipe:
            pipe.write(msgspec.json.encode(list(tracer.lines)))

    def _start(self, line: tuple[str, int], signal_number: int) -> int:
        """Starts a driver that sends itself a signal at a line of the sink's code."""

        def run() -> None:
            job = self._job()
            sys.settrace(LineTracer(self._folders(), line, lambda: os.kill(os.getpid(), signal_number)))
            job.run(self._checkpoints)

        return self._fork(run)

    def _recover(self) -> None:
        """A run that nothing interrupts: it publishes what is pending, and makes what was not committed."""
        receiver, sender = os.pipe()

        def run() -> None:
            job = self._job()
            job.run(self._checkpoints)
            os.write(sender, str(newest_ordinal(job.root.head())).encode())

        _check(self._fork(run))
        self._checkpoints = int(os.read(receiver, 20))
        os.close(sender)
        os.close(receiver)

    def _run(self, upto: int) -> None:
        self._job().run(upto)

    def _job(self) -> PublishingJob:
        return PublishingJob(self._factory(self._scenario.address), Path(self._scenario.root))

    def _folders(self) -> tuple[str, ...]:
        """Returns the folders of the code of the sink's classes."""
        kinds = (kind for kind in type(self._factory(self._scenario.address)).__mro__ if kind is not object)
        files = (Path(str(sys.modules[kind.__module__].__file__)) for kind in kinds if kind.__module__ != "abc")
        return tuple({f"{file.parent}/" for file in files if file.parent.name != "api"})

    def _fork(self, work: Callable[[], None]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        code = _CRASHED
        try:
            work()
            code = 0
        except StateflowError as e:
            sys.stderr.write(f"[{e.code}] {e}\n")
            code = e.exit_code if e.code != "internal" else _CRASHED
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            # Not sys.exit: the forked process must not continue the scenario.
            os._exit(code)


def _load(file: Path) -> ModuleType:
    """Imports a module by its file: a test runner may have imported it under a name of its own."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _end(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _check(pid: int) -> None:
    code = _end(pid)
    if code != 0:
        sys.exit(f"a driver that nothing interrupted ended with exit code {code}")


def _wait(pid: int, timeout: float) -> None:
    """Waits until a process has ended, without collecting its exit code, or until the timeout in seconds."""
    descriptor = os.pidfd_open(pid)
    select.select([descriptor], [], [], timeout)
    os.close(descriptor)


def main() -> None:
    """Plays the scenario of standard input."""
    scenario = msgspec.json.decode(sys.stdin.buffer.read(), type=Scenario)
    report = Drivers(scenario).play()
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
