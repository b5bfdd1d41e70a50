"""Commands that are killed, or whose worker processes are, and that are repeated until they succeed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from tests.recovery.worker_processes import VARIABLE
from tests.scoreboard.jobs import KILLED, kill_after
from tests.scoreboard.row import Round
from tests.support.job_fixture import AccountsJob
from tests.support.processes import Ended, Running, unless_ended, wait_for

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
            job.variables = {**job.variables, VARIABLE: str(_state_bytes(job) // 2)}
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
