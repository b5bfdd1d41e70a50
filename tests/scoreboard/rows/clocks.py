"""Clocks that are wrong by hours, differ from process to process, and jump."""

from __future__ import annotations

import random

from tests.recovery.wrong_clocks import VARIABLE
from tests.scoreboard.row import Round, Row, Tier
from tests.scoreboard.rows.killed_drivers import box_of, check
from tests.support import root_files
from tests.support.mutants import VARIABLE as PLANT

_RUNS, _PATIENCE = 4, 40


def _play(round_: Round) -> int:
    """Each run has a clock of its own; some are killed, some race with another one."""
    dice, clocks = random.Random(round_.seed), 0
    with box_of(round_) as box:
        box.settings = {**box.settings, "checkpoints__max_age": "30m"}
        chain = root_files.Chain(box.root)
        for number in range(_RUNS):
            box.deliver(50 * (number + 1))
            runs = []
            for _ in range(dice.choice([1, 1, 2])):
                box.variables = {PLANT: round_.plant, VARIABLE: str(dice.randrange(1 << 30))}
                runs.append(box.start(dice.choice(["", "commit.after:2", "batch.reported:2"])))
                clocks += 1
            for run in runs:
                ended = run.wait(chain.look, _PATIENCE)
                assert ended.code in (0, -9, 3), str(ended)
        check(box, chain)
    return clocks


ROWS = [
    Row(
        19,
        "clocks",
        "every process has a clock that is wrong by up to two hours and jumps, also back",
        "as for killed-drivers: clocks are for people and for waiting",
        _play,
        {Tier.SLICE: 1, Tier.HALF_HOUR: 10, Tier.NIGHTLY: 200},
        plant="newest-by-time",
        plant_rounds=10,
    )
]
