"""Long runs without Spark: many batches, kills, savepoints, restores and runs with nothing to do, in one job root."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from tests.scoreboard.jobs import KILLED, accounts_job, check_complete, kill_after
from tests.scoreboard.row import Round, Row
from tests.support.job_fixture import SLICE, AccountsJob
from tests.support.processes import DEADLINE, Running, unless_ended
from tests.support.restores import go_back
from tests.support.root_files import Chain

_LOG_ENTRIES = 60
"""At most: what the commits between two collections and some starts write."""
_MEMORY_MIB = 20
_LOOK_SECONDS = 0.2
_BATCH_SECONDS = 2
"""How long a batch may take on a busy machine."""


@dataclass
class _Watch:
    """Looks at files and memory while a job runs.

    Attributes:
        objects: how many files root and scratch space had, each time.
        memory: of the current run.
    """

    job: AccountsJob
    chain: Chain
    objects: list[int] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    looked: float = 0.0

    def look(self, run: Running) -> None:
        self.chain.look()
        if time.monotonic() - self.looked < _LOOK_SECONDS:
            return
        self.looked = time.monotonic()
        entries = _files(self.job.root / "log")
        assert entries <= _LOG_ENTRIES, f"the log has {entries} entries"
        self.objects.append(_files(self.job.root) + _files(self.job.local))
        self.memory.append(_memory(run.pid))

    def work(self, batches: int, killed_after: float | None = None) -> int:
        """A run over so many new batches, killed at some time or not; returns how many were killed."""
        self.job.deliver_more(batches * SLICE)
        self.memory.clear()
        run = self.job.start()
        if killed_after is not None:
            kill_after(killed_after, run, lambda: self.look(run))
        # A killed run leaves its batches to the next one.
        patience = DEADLINE + _BATCH_SECONDS * len(self.job.delivered) / SLICE
        ended = run.wait(lambda: self.look(run), patience)
        assert ended.code == 0 or (killed_after is not None and ended.code == KILLED), str(ended)
        return int(ended.code == KILLED)

    def check(self) -> None:
        """Neither memory of the last run nor files grew over its time."""
        memory = self.memory[len(self.memory) // 3 : -1]
        grown = max(memory) - memory[0] if memory else 0
        assert grown <= _MEMORY_MIB, f"the last run grew by {grown:.0f} MiB"
        half = len(self.objects) // 2
        first, second = max(self.objects[:half]), max(self.objects[half:])
        assert second <= 1.5 * first + _LOG_ENTRIES, f"{first} files at first, then {second}"


def _files(folder: Path) -> int:
    """How many files are below a folder; a collection may remove some meanwhile."""
    return sum(len(files) for _, _, files in os.walk(folder))


def _memory(pid: int) -> float:
    """MiB of a process that it does not share; 0 when it has ended."""
    found = unless_ended(lambda: psutil.Process(pid).memory_info(), None)
    return float(found.rss - found.shared) / (1 << 20) if found else 0.0


@Row(23, "long-runs", plays=(0, 4, 40), mutants=("kept-entries",), within=1)
def test_long_runs_leave_nothing_that_grows(round_: Round) -> int:
    """Thousands of batches of one job with kills, savepoints, restores and idle runs.

    As for killed-drivers; the log has at most 60 entries, the number of files does not grow, and memory not by 20 MiB.
    """
    # `make test` plays the first round only.
    runs, batches, last_batches = (12, 60, 1000) if round_.seed else (4, 15, 120)
    with accounts_job(round_) as job:
        job.settings = {**job.settings, "history__retained": 50}
        job.deliver(SLICE)
        job.finish()
        watch = _Watch(job, Chain(job.root))
        injected = 0
        for number in range(runs):
            happenings: list[Callable[[], int]] = [
                lambda: watch.work(batches, killed_after=round_.rng.uniform(0, 1.5)),
                lambda: watch.work(batches),
                partial(_restore, watch, batches, f"point-{number}"),
                lambda: _idle(job, runs=5),
            ]
            # Each of them at least once.
            injected += happenings[number % 4 if number < 4 else round_.rng.randrange(4)]()
        watch.work(last_batches)
        watch.check()
        check_complete(job, watch.chain)
    return injected


def _restore(watch: _Watch, batches: int, name: str) -> int:
    job = watch.job
    # With the job file: the run before may have been killed between a checkpoint and the publication of its output.
    made = job.command("savepoint", "create", "--name", name, "--job", job.job_file, with_job=True)
    assert made.code == 0, str(made)
    watch.work(batches)
    go_back(job, name)
    gone = job.command("savepoint", "dispose", name)
    assert gone.code == 0, str(gone)
    return 1


def _idle(job: AccountsJob, runs: int) -> int:
    for _ in range(runs):
        job.finish()
    return runs
