"""Jobs of rows, how they and their commands are killed, and what must hold afterwards."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import psutil

from stateflow.failpoints import NAMES
from tests.scoreboard.row import Round
from tests.servers.faults import Faults
from tests.servers.running import azure_server, s3_server
from tests.support.job_fixture import ON_REQUEST, AccountsJob
from tests.support.object_stores import behind_faults
from tests.support.patched_processes import WORTH_A_WORKER
from tests.support.processes import Ended, Running, unless_ended, wait_for
from tests.support.root_files import Chain
from tests.support.table_jobs import ContainerJob, FoldersJob, in_bucket, in_container

KILLED = -9
STEPS = sorted(NAMES.keys() - ON_REQUEST - {"start.seeded"})
"""Named steps of the protocol that a run passes without Spark."""


def checkpoint_settings(round_: Round) -> dict[str, object]:
    """Settings of checkpoints that the seed decides."""
    return {
        "checkpoints__asynchronous": ["no", "yes"][round_.seed % 2],
        "checkpoints__collect_every": 1 + round_.seed % 3,
        "checkpoints__retained": 1 + round_.seed % 4,
    }


@contextmanager
def accounts_job(round_: Round, **more: Any) -> Iterator[AccountsJob]:
    """A job with settings that the seed decides; nothing that it started outlives it."""
    settings = {**checkpoint_settings(round_), "state__backend": ["rocksdb", "rocksdb", "filesystem"][round_.seed % 3]}
    job = AccountsJob(round_.folder / "job", settings, **more)
    try:
        yield job
    finally:
        job.end_all()


@contextmanager
def store(round_: Round, settings: Mapping[str, object], faults: Faults | None = None) -> Iterator[dict[str, Any]]:
    """An S3 or an Azure server, which the seed decides; yields arguments of a job with job root and tables in it.

    Args:
        settings: of the job.
        faults: of a proxy in front of the server; none unless given.
    """
    with ExitStack() as stack:
        server = round_.folder / "server"
        serve = azure_server if is_on_azure(round_) else s3_server
        variables = stack.enter_context(serve(server, "bucket"))
        if faults is not None:
            variables = stack.enter_context(behind_faults(variables, faults))
        place = in_container if is_on_azure(round_) else in_bucket
        yield place(server, settings=settings, variables=variables)


def is_on_azure(round_: Round) -> bool:
    """Whether the store of a round is Azure's."""
    return round_.seed // 2 % 2 == 1


@contextmanager
def stored_tables_job(round_: Round, faults: Faults | None = None) -> Iterator[FoldersJob]:
    """A job with job root and tables in a `store`; the seed decides between Delta tables and folders of files."""
    kind, sink = ContainerJob if is_on_azure(round_) else FoldersJob, ["delta", "files"][round_.seed // 4 % 2]
    with store(round_, checkpoint_settings(round_), faults) as arguments:
        job = kind.create(round_.folder / "job", sink, **arguments)
        try:
            yield job
        finally:
            job.end_all()


def kill_after(seconds: float, run: Running, each: Callable[[], object]) -> None:
    """SIGKILL after so many seconds, unless the run has ended; calls `each` periodically."""
    until = time.monotonic() + seconds

    def is_due() -> bool:
        each()
        return time.monotonic() >= until or run.poll() is not None

    wait_for(is_due, lambda: f"the time to kill {run}")
    run.kill()


def check_complete(job: AccountsJob, chain: Chain) -> None:
    """All that was delivered is in the tables and the state, once; at rest nothing is left over."""
    job.deliver_more(10)
    job.finish()
    chain.check()
    job.check_results()
    job.check_clean()


Begin = Callable[[str], Running]
"""Starts a command, with a failpoint or none."""

_MOST_KILLS = 3
_INTERNAL = 1
_WORKERS = "stateflow.checkpoint.savepoints.canonical"
"""The package of the workers' program."""


@dataclass(frozen=True)
class Kills:
    """Kills the commands of a round.

    Attributes:
        seconds: how long a command takes on this machine.
        has_workers: whether savepoints have workers in other processes.
    """

    rng: random.Random
    seconds: float
    has_workers: bool

    @classmethod
    def of(cls, job: AccountsJob, round_: Round, rows: int) -> Kills:
        """Runs the job over its first rows, and decides whether its savepoints have workers in other processes."""
        # The first process may wait for the server that processes are forked from.
        job.run_to(rows)
        began = time.monotonic()
        job.finish()
        seconds = time.monotonic() - began
        has_workers = round_.seed % 2 == 1
        if has_workers:
            job.variables = {**job.variables, WORTH_A_WORKER: str(_state_bytes(job) // 2)}
        return cls(round_.rng, seconds, has_workers)

    def until_done(self, begin: Begin, steps: Sequence[str]) -> int:
        """Repeats a command that is killed until it succeeds; returns how often that happened."""
        first = [step for step in steps if ":" not in step]
        killed = self.once(begin, first, at_step=True)
        killed += sum(self.once(begin, steps) for _ in range(self.rng.randrange(_MOST_KILLS)))
        begin("").wait().check()
        return killed

    def once(self, begin: Begin, steps: Sequence[str], at_step: bool = False) -> int:
        """Kills a command, or one of its workers; returns whether that ended the command before it was done.

        No worker continues without its command.

        Args:
            begin: starts it.
            steps: failpoints, of which it may pass some only if an earlier attempt has not.
            at_step: kill it at one of them; otherwise there, at a random time, or by the death of a worker.
        """
        others = ["time", *(["worker"] if self.has_workers else [])]
        how = "step" if at_step else self.rng.choice(["step", "step", *others])
        run = begin(self.rng.choice(steps) if how == "step" else "")
        if how == "time":
            kill_after(self.rng.uniform(0, self.seconds), run, run.family)
        elif how == "worker":
            self._kill_worker(run)
        ended = run.wait(run.family)
        run.wait_family()
        return _is_killed(ended)

    def _kill_worker(self, run: Running) -> None:
        """Kills one of a command's workers at a random time of its life, if the command starts any."""
        wait_for(lambda: bool(_workers(run)) or run.poll() is not None, lambda: f"a worker of {run}")
        due = time.monotonic() + self.rng.uniform(0, self.seconds)
        wait_for(lambda: time.monotonic() >= due or run.poll() is not None, lambda: f"the time to kill one of {run}")
        if found := _workers(run):
            unless_ended(lambda: os.kill(self.rng.choice(found).pid, signal.SIGKILL), None)


def _workers(run: Running) -> list[psutil.Process]:
    return [p for p in run.family() if any(_WORKERS in part for part in unless_ended(p.cmdline, []))]


def _is_killed(ended: Ended) -> int:
    assert ended.code in (0, KILLED, _INTERNAL), str(ended)
    if ended.code == _INTERNAL:
        # The command of a worker that died.
        assert ended.error.code == "internal", str(ended)
    return int(ended.code != 0)


def _state_bytes(job: AccountsJob) -> int:
    subtasks = [s for o in job.manifest["operators"] for s in o["subtasks"]]
    stored = sum(int(f["handle"]["size"]) for s in subtasks for f in s["files"])
    return stored + sum(len(s["inline"] or "") for s in subtasks)


_ENDS = {0, KILLED, 5}
"""A driver succeeds, is killed, or reports that the server failed."""
_SECONDS = 1.5

J = TypeVar("J", bound=AccountsJob)


@dataclass
class ServerFaults(Generic[J]):
    """What fails in a round; a fault returns how many faults it injected."""

    round_: Round
    job: J
    chain: Chain

    def kill_driver_at_any_time(self) -> int:
        run = self.job.start()
        kill_after(self.round_.rng.uniform(0.2, _SECONDS), run, self.chain.look)
        return int(self.end(run).code == KILLED)

    def publish_after_another(self, run: Running) -> int:
        self.job.finish()
        run.resume()
        self.check_fenced(run)
        return 1

    def check_fenced(self, run: Running) -> None:
        """Waits for the end of a driver that another one has fenced."""
        late = run.wait(self.chain.look)
        assert (late.code, late.error.code) == (3, "fenced"), str(late)

    def stopped(self, step: str, times: int) -> Running:
        return self.job.start(f"{step}:{times}:stop").wait_stopped(self.chain.look)

    def end(self, run: Running) -> Ended:
        """Waits for the end of a driver, whose reason must be one of the faults."""
        ended = run.wait(self.chain.look)
        assert ended.code in _ENDS, str(ended)
        return ended


# -- file systems of a few megabytes, which can be full ---------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, megabytes: int = 24) -> Iterator[Path]:
    """A file system of a few megabytes; only root can make one."""
    folder.mkdir()
    size = f"size={megabytes}m,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Leaves so many bytes in the file system of a folder; returns the file that has all others."""
    space, filler = os.statvfs(folder), folder / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, space.f_bavail * space.f_frsize - leave))
    return filler
