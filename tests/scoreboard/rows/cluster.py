"""On a standalone cluster of Spark: executors and workers killed, while drivers go on."""

from __future__ import annotations

import random

from tests.recovery.killed_clusters import await_batches, batches_of, check_ended, clustered_flights, kill_executor_of
from tests.scoreboard.row import Round, Row, Tier
from tests.support.mutants import VARIABLE

_POINTS = ("task.sink-closed", "task.uploaded", "task.snapshot", "task.processed", "task.restored")
_EXECUTORS = 3
_FILES = 8


def _play(round_: Round) -> int:
    """One executor while a task of it is at a named step, so that a dead attempt has left something; some at random
    moments; then a worker of the cluster."""
    dice, marker = random.Random(round_.seed), round_.folder / "reached"
    point = {
        "STATEFLOW_FAILPOINT": f"{_POINTS[round_.seed % len(_POINTS)]}:2:stop",
        "STATEFLOW_FAILPOINT_ONCE": str(marker),
    }
    with clustered_flights(round_.folder, point, variables={VARIABLE: round_.plant}) as flights:
        flights.box.deliver(_FILES)
        run = flights.box.start()
        kill_executor_of(marker, run)
        done = 1
        while done < 1 + _EXECUTORS and run.poll() is None:
            await_batches(run, batches_of(run) + dice.randrange(1, 3))
            done += flights.kill_executor(dice)
        if run.poll() is None:
            flights.replace_worker()
            done += 1
        check_ended(run.wait(run.family))
        flights.end_well(_FILES + 2)
    return done


ROWS = [
    Row(
        4,
        "killed-executors",
        "SIGKILL of executors of a standalone cluster, one at a named step of a task and others "
        "at random moments, and of a worker; speculation on",
        "Delta tables and state are what plain dictionaries say of all input; nothing is left over",
        _play,
        {Tier.HALF_HOUR: 3, Tier.NIGHTLY: 40},
        plant="all-there-is",
        plant_rounds=3,
        on_spark=True,
    )
]
