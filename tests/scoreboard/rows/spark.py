"""The same on Spark: drivers, Python workers, and Spark itself killed; named steps of tasks and drivers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from tests.recovery.random_kills import DRIVER, JVM, WORKER, check_at_rest, kill_at_random
from tests.scoreboard.row import Round, Row, Tier
from tests.support.flights_job import FlightsJob
from tests.support.mutants import VARIABLE
from tests.support.processes import spawn

_KILLS = 3
_IN_TASKS = ("task.restored", "task.processed", "task.snapshot", "task.uploaded", "task.sink-closed")
_IN_DRIVERS = (
    "start.seeded:1",
    "batch.reported:2",
    "commit.stored:2",
    "commit.manifest:2",
    "log.created:3",
    "commit.after:2",
    "publish.before:3",
    "publish.after:3",
    "batch.end:2",
)


@contextmanager
def _flights(round_: Round) -> Iterator[FlightsJob]:
    settings = {
        "spark__conf__spark.local.dir": round_.folder / "spark",
        "checkpoints__collect_every": 3,
        "checkpoints__asynchronous": ["no", "yes"][round_.seed % 2],
    }
    box = FlightsJob(
        round_.folder / "job", settings, job="small_flights", launcher=spawn, variables={VARIABLE: round_.plant}
    )
    try:
        yield box
    finally:
        box.end_all()
        for process in box.processes:
            process.wait_family()


def _play_random(round_: Round, victim: str) -> int:
    with _flights(round_) as flights:
        kill_at_random(flights, [victim] * _KILLS, random.Random(round_.seed))
    return _KILLS


def _play_workers(round_: Round) -> int:
    """One at a named step, so that a dead attempt has left something, then some at random moments."""
    dice = random.Random(round_.seed)
    with _flights(round_) as flights:
        flights.deliver(4)
        point = _IN_TASKS[-1 - round_.seed % len(_IN_TASKS)]
        flights.reach(f"{point}:{dice.randrange(1, 4)}", 0)
        check_at_rest(flights)
        kill_at_random(flights, [WORKER] * _KILLS, dice)
    return 1 + _KILLS


def _play_points(round_: Round) -> int:
    points = random.Random(round_.seed).sample(_IN_DRIVERS, _KILLS)
    with _flights(round_) as flights:
        flights.deliver(3)
        flights.finish()
        for number, point in enumerate(points):
            flights.deliver(3 + 6 * (number + 1))
            flights.reach(point, -9)
        flights.finish()
        check_at_rest(flights)
    return _KILLS


_HOLDS = "Delta tables and state are what plain dictionaries say of all input; nothing is left over"
ROWS = [
    Row(
        2,
        "killed-drivers-spark",
        "SIGKILL of a driver on Spark at a random moment",
        _HOLDS,
        lambda r: _play_random(r, DRIVER),
        {Tier.HALF_HOUR: 2, Tier.NIGHTLY: 40},
        plant="no-seed",
        plant_rounds=2,
        on_spark=True,
    ),
    Row(
        3,
        "killed-workers",
        "SIGKILL of a Python worker in a task, at named steps and at random moments",
        _HOLDS,
        _play_workers,
        {Tier.HALF_HOUR: 2, Tier.NIGHTLY: 80},
        plant="all-there-is",
        plant_rounds=3,
        on_spark=True,
    ),
    Row(
        4,
        "killed-spark",
        "SIGKILL of Spark itself, all executors with it, at a random moment",
        _HOLDS,
        lambda r: _play_random(r, JVM),
        {Tier.HALF_HOUR: 2, Tier.NIGHTLY: 40},
        plant="no-seed",
        plant_rounds=2,
        on_spark=True,
    ),
    Row(
        5,
        "named-steps-spark",
        "SIGKILL of a driver on Spark at named steps",
        _HOLDS,
        _play_points,
        {Tier.HALF_HOUR: 2, Tier.NIGHTLY: 40},
        plant="no-seed",
        plant_rounds=2,
        on_spark=True,
    ),
]
