"""The same on Spark: kills at failpoints and at random moments, of drivers and of Python workers; two drivers."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recovery import disk
from tests.recovery.flights import FlightsBox
from tests.recovery.process import Running, spawn, wait_for

pytestmark = [pytest.mark.spark]


@pytest.fixture
def flights(tmp_path: Path) -> Iterator[FlightsBox]:
    scratch = {"spark__conf__spark.local.dir": tmp_path / "spark", "checkpoints__collect_every": 3}
    box = FlightsBox(tmp_path / "job", scratch, job="small_flights", launcher=spawn)
    yield box
    box.end_all()
    for process in box.processes:
        process.wait_family()


def test_kills_at_failpoints(flights: FlightsBox) -> None:
    flights.deliver(8)
    flights.reach("start.seeded:1", -9)
    flights.reach("batch.reported:2", -9)
    flights.reach("commit.after:2", -9)
    # The start publishes what is pending in both tables; the third is the first one's output of the next batch.
    flights.reach("publish.after:3", -9)
    # A worker dies, and Spark tries its task again: the run goes on.
    flights.reach("task.sink-closed:3", 0)
    _check(flights)


def test_kills_while_files_are_stored_and_checkpoints_committed_beside_the_batches(
    flights: FlightsBox,
) -> None:
    flights.settings = {**flights.settings, "checkpoints__asynchronous": "yes"}
    flights.deliver(6)
    # A worker dies with files that it owed: another process stores them, and the run goes on.
    flights.reach("upload.before:3", 0)
    _check(flights)
    flights.deliver(12)
    flights.reach("commit.stored:3", -9)
    flights.finish()
    _check(flights)


def test_kills_at_random_moments(flights: FlightsBox) -> None:
    _random_kills(flights, drivers=2, workers=1)


@pytest.mark.slow
def test_many_kills_at_random_moments(flights: FlightsBox) -> None:
    _random_kills(flights, drivers=30, workers=20)


@pytest.mark.slow
def test_many_kills_at_random_moments_beside_the_batches(flights: FlightsBox) -> None:
    flights.settings = {**flights.settings, "checkpoints__asynchronous": "yes"}
    _random_kills(flights, drivers=15, workers=10)


def test_two_drivers(flights: FlightsBox) -> None:
    """Two are started at once; then one is stopped between COMMIT and publishing, while another goes through."""
    flights.deliver(6)
    chain = disk.Chain(flights.root)
    first, second = flights.start(), flights.start()
    codes = sorted(_end(run, chain) for run in (first, second))
    assert codes in ([0, 0], [0, 3]), "\n".join(map(str, (first, second)))
    flights.check_results()
    flights.deliver(12)
    stopped = flights.start("commit.after:2:stop")
    stopped.wait_stopped(chain.look)
    other = flights.start()
    assert _end(other, chain) == 0, str(other)
    stopped.resume()
    assert _end(stopped, chain) == 3, str(stopped)
    chain.check()
    _check(flights)


def _check(flights: FlightsBox) -> None:
    """What must hold at rest; a JVM may outlive its driver for a moment."""
    for process in flights.processes:
        process.wait_family()
    flights.check_results()
    flights.check_clean()


def _end(run: Running, chain: disk.Chain) -> int:
    def look() -> None:
        chain.look()
        run.family()

    ended = run.wait(look)
    assert ended.code != 3 or "error [fenced]" in ended.err
    return ended.code


def _random_kills(flights: FlightsBox, drivers: int, workers: int) -> None:
    """Kills at moments that a seed decides: a worker's in a run that goes on, a driver's ends the run."""
    dice = random.Random(drivers)
    victims = ["driver"] * drivers + ["worker"] * workers
    dice.shuffle(victims)
    done = 0
    while done < len(victims):
        flights.deliver(_files_done(flights) + 6)
        run = flights.start()
        while done < len(victims) and _strike(run, victims[done], dice):
            done += 1
            if victims[done - 1] == "driver":
                break
        ended = run.wait(run.family)
        assert ended.code in (0, -9), str(ended)
    # A run that has work in every subtask sweeps the scratch space.
    flights.deliver(_files_done(flights) + 1)
    flights.finish()
    _check(flights)


def _strike(run: Running, victim: str, dice: random.Random) -> bool:
    """Waits for a random moment, from the restoring on, and kills; False when the run ended before."""
    # Workers are killed at least a batch apart: Spark gives a batch up that fails time after time, and so do we.
    batches = _batches(run) + (dice.randrange(1, 3) if victim == "worker" else dice.randrange(3))
    delay, began = dice.uniform(0, 1), 0.0

    def due() -> bool:
        nonlocal began
        workers = run.workers()
        if not began and " restored " in run.errors and _batches(run) >= batches:
            began = time.monotonic()
        late_enough = bool(began) and time.monotonic() - began >= delay
        return run.poll() is not None or (late_enough and (victim == "driver" or bool(workers)))

    wait_for(due, lambda: f"a moment to kill {run}")
    if run.poll() is not None:
        return False
    candidates = [run.pid] if victim == "driver" else [w.pid for w in run.workers()]
    try:
        os.kill(dice.choice(candidates), signal.SIGKILL)
    except (IndexError, ProcessLookupError):
        # Spark let its idle workers go in this very moment.
        return _strike(run, victim, dice)
    return True


def _batches(run: Running) -> int:
    """How many batches a run has committed so far."""
    return run.errors.count(" committed ")


def _files_done(flights: FlightsBox) -> int:
    """How many files are in checkpoints."""
    found = disk.entries(flights.root)
    return disk.files_read(found[-1]) if found else 0
