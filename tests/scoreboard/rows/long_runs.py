"""Long runs without Spark: many batches, kills, savepoints, restores and runs with nothing to do, in one job root."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.scoreboard.row import Round, Row, Tier
from tests.scoreboard.rows.killed_drivers import box_of, check
from tests.support import root_files
from tests.support.job_fixture import SLICE, AccountsJob
from tests.support.processes import DEADLINE, Running
from tests.support.restores import go_back

_MIB = 1 << 20
_LOG_ENTRIES = 60
"""At most: what the commits between two collections and some starts write."""
_MEMORY_MIB = 20
_LOOK_SECONDS = 0.2
_BATCH_SECONDS = 2
"""How long a batch may take on a machine that has much else to do."""
_KILLED = -9


@dataclass(frozen=True)
class _Length:
    """How much a round is: runs with something in between, then one that is left alone.

    Attributes:
        batches: of each of the runs.
        last: batches of the last run.
    """

    runs: int
    batches: int
    last: int


def _length(seed: int) -> _Length:
    """The first round is the slice that ``make test`` plays."""
    return _Length(runs=12, batches=60, last=1000) if seed else _Length(runs=4, batches=15, last=120)


@dataclass
class _Watch:
    """Looks at what there is while a job runs.

    Attributes:
        objects: how many files root and scratch space had, each time.
        memory: of the run that works now.
    """

    box: AccountsJob
    chain: root_files.Chain
    objects: list[int] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    looked: float = 0.0

    def look(self, run: Running) -> None:
        self.chain.look()
        if time.monotonic() - self.looked < _LOOK_SECONDS:
            return
        self.looked = time.monotonic()
        entries = _files(self.box.root / "log")
        assert entries <= _LOG_ENTRIES, f"the log has {entries} entries"
        self.objects.append(_files(self.box.root) + _files(self.box.local))
        self.memory.append(_memory(run.pid))

    def work(self, batches: int, kill_after: float | None = None) -> int:
        """A run over so many new batches, killed at a moment or not; returns how many were killed."""
        self.box.deliver_more(batches * SLICE)
        self.memory.clear()
        run = self.box.start()
        if kill_after is not None:
            until = time.monotonic() + kill_after
            while time.monotonic() < until and run.poll() is None:
                self.look(run)
                time.sleep(0.01)
            run.kill()
        # A killed run leaves its batches to the next one.
        patience = DEADLINE + _BATCH_SECONDS * len(self.box.delivered) / SLICE
        ended = run.wait(lambda: self.look(run), patience)
        assert ended.code == 0 or (kill_after is not None and ended.code == _KILLED), str(ended)
        return int(ended.code == _KILLED)

    def check(self) -> None:
        """Neither memory of the last run nor files grew over its time."""
        memory = self.memory[len(self.memory) // 3 : -1]
        grown = max(memory) - memory[0] if memory else 0
        assert grown <= _MEMORY_MIB, f"the last run grew by {grown:.0f} MiB"
        half = len(self.objects) // 2
        first, second = max(self.objects[:half]), max(self.objects[half:])
        assert second <= 1.5 * first + _LOG_ENTRIES, f"{first} files at first, then {second}"


def _files(folder: Path) -> int:
    """Files below a folder; what a collection removes meanwhile is left out."""
    return sum(len(files) for _, _, files in os.walk(folder))


def _memory(pid: int) -> float:
    """MiB that the process has for itself; 0 when it has ended."""
    try:
        found = psutil.Process(pid).memory_info()
    except psutil.NoSuchProcess:
        return 0
    return (found.rss - found.shared) / _MIB


def _play(round_: Round) -> int:
    length, dice = _length(round_.seed), random.Random(round_.seed)
    with box_of(round_) as box:
        box.settings = {**box.settings, "history__retained": 50}
        box.deliver(SLICE)
        box.finish()
        watch = _Watch(box, root_files.Chain(box.root))
        injected = sum(_between(watch, length, number, dice) for number in range(length.runs))
        watch.work(length.last)
        watch.check()
        check(box, watch.chain)
    return injected


def _between(watch: _Watch, length: _Length, number: int, dice: random.Random) -> int:
    """One thing that happens to a job over the years; returns how many."""
    happenings: list[Callable[[], int]] = [
        lambda: watch.work(length.batches, kill_after=dice.uniform(0, 1.5)),
        lambda: watch.work(length.batches),
        lambda: _restore(watch, length, f"point-{number}"),
        lambda: _idle(watch.box, runs=5),
    ]
    # Each of them, whatever the dice say.
    return happenings[number % 4 if number < 4 else dice.randrange(4)]()


def _restore(watch: _Watch, length: _Length, name: str) -> int:
    box = watch.box
    made = box.command("savepoint", "create", "--name", name)
    assert made.code == 0, str(made)
    watch.work(length.batches)
    go_back(box, name)
    gone = box.command("savepoint", "dispose", name)
    assert gone.code == 0, str(gone)
    return 1


def _idle(box: AccountsJob, runs: int) -> int:
    for _ in range(runs):
        box.finish()
    return runs


ROWS = [
    Row(
        23,
        "long-runs",
        "thousands of batches of one job, with kills, savepoints, restores and idle runs in between",
        "as for killed-drivers; the log has at most 60 entries, files do not become more, and a run does not grow by "
        "20 MiB",
        _play,
        {Tier.SLICE: 1, Tier.HALF_HOUR: 4, Tier.NIGHTLY: 40},
        plant="kept-entries",
        plant_rounds=1,
    )
]
