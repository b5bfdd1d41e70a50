"""Jobs that begin a new job root with a savepoint: killed at random steps, in tables that may have gone on."""

from __future__ import annotations

import random
import shutil

from tests.recovery.new_roots import NewRoot
from tests.scoreboard.row import Round, Row, Tier
from tests.support.job_fixture import AccountsJob
from tests.support.mutants import VARIABLE

_STEPS = (
    "claim.before",
    "claim.after",
    "start.published",
    "begin.created",
    "begin.imported",
    "begin.adopted",
    "commit.manifest",
    "commit.after",
    "publish.after",
    "gc.deleting",
    "run.end",
)
_MOST_KILLS = 3


def _play(round_: Round) -> int:
    dice = random.Random(round_.seed)
    old = AccountsJob(round_.folder / "job")
    try:
        return _begin(NewRoot(old, round_.folder), dice, round_.plant)
    finally:
        old.end_all()


def _begin(roots: NewRoot, dice: random.Random, plant: str) -> int:
    has_gone_on = dice.random() < 0.5
    if has_gone_on:
        roots.old.deliver(50 + 10 * dice.randrange(1, 4))
        roots.old.finish()
    if dice.random() < 0.5:
        shutil.rmtree(roots.old.root)
    roots.new.variables = {VARIABLE: plant}
    roots.new.deliver(100)
    try:
        if has_gone_on:
            refused = roots.run("--tables", "continue", own_tables=False)
            assert refused.code != 0, "rows after the savepoint are written a second time"
            return 1 + _with_kills(roots, dice, own_tables=True)
        return _with_kills(roots, dice, own_tables=False)
    finally:
        roots.new.end_all()


def _with_kills(roots: NewRoot, dice: random.Random, own_tables: bool) -> int:
    """The same command until it ends well; returns how often it was killed."""
    more = () if own_tables else ("--tables", "continue")
    killed = 0
    for _ in range(dice.randrange(1, _MOST_KILLS + 1)):
        roots.new.marker.unlink(missing_ok=True)
        ended = roots.run(*more, failpoint=dice.choice(_STEPS), own_tables=own_tables)
        assert ended.code in (0, -9), str(ended)
        killed += ended.code == -9
    ended = roots.run(*more, own_tables=own_tables)
    assert ended.code == 0, str(ended)
    roots.check_own_tables() if own_tables else roots.new.check_results()
    return killed


ROWS = [
    Row(
        24,
        "new-roots",
        "a run that begins a new job root with a savepoint is killed; the tables may have gone on",
        "rows and state are the oracle's, none twice; tables that hold more than the savepoint are refused",
        _play,
        {Tier.SLICE: 0, Tier.HALF_HOUR: 6, Tier.NIGHTLY: 60},
        plant="any-table",
        plant_rounds=6,
    )
]
