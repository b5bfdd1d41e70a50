"""Files of a job root that are cut, changed, missing, or those of another place."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.recovery.damaged_job import Damage, Victim, check_refused, cut, flip, make_victim
from tests.scoreboard.row import Round, Row, Tier
from tests.support.mutants import VARIABLE

_EACH = 8
_BLOCK = 512
KINDS = ("FORMAT", "log entry", "manifest", "sst")


def _play(round_: Round, damage: Callable[[Victim, random.Random], Path]) -> int:
    dice = random.Random(round_.seed)
    victim = make_victim(round_.folder)
    # From here on: a planted bug must not spoil what is damaged.
    victim.box.variables = {VARIABLE: round_.plant}
    try:
        for _ in range(_EACH):
            check_refused(victim, damage(victim, dice))
            victim.reset()
    finally:
        victim.box.end_all()
    return _EACH


def _some_file(victim: Victim, dice: random.Random) -> Path:
    return dice.choice(victim.files(dice.choice(KINDS)))


def _cut_one(victim: Victim, dice: random.Random) -> Path:
    path = _some_file(victim, dice)
    size = path.stat().st_size
    _cut_to(dice.choice([0, size - 1, dice.randrange(size // _BLOCK + 1) * _BLOCK, dice.randrange(size)]))(path)
    return path


def _cut_to(size: int) -> Damage:
    return lambda path: cut(size / path.stat().st_size)(path)


def _flip_one(victim: Victim, dice: random.Random) -> Path:
    path = _some_file(victim, dice)
    flip(dice.random(), dice.randrange(8))(path)
    return path


def _misplace_one(victim: Victim, dice: random.Random) -> Path:
    kind = dice.choice(["manifest", "sst"])
    path = dice.choice(victim.files(kind))
    how = dice.choice(["missing", "another job's", "a neighbour's"])
    if how == "missing":
        path.unlink()
    elif how == "another job's" or kind != "sst":
        path.write_bytes(victim.files(kind, victim.other.root)[0].read_bytes())
    else:
        others = [other for other in victim.files(kind) if other.read_bytes() != path.read_bytes()]
        path.write_bytes(dice.choice(others).read_bytes())
    return path


ROWS = [
    Row(
        11,
        "torn-files",
        f"a file of a checkpoint ends too early (any of: {', '.join(KINDS)})",
        "a start names the file, and changes nothing",
        lambda r: _play(r, _cut_one),
        {Tier.SLICE: 1, Tier.HALF_HOUR: 10, Tier.NIGHTLY: 150},
        plant="no-hashes",
        plant_rounds=10,
    ),
    Row(
        12,
        "flipped-bits",
        "one bit of a file is another one",
        "as for torn-files",
        lambda r: _play(r, _flip_one),
        {Tier.SLICE: 1, Tier.HALF_HOUR: 25, Tier.NIGHTLY: 1250},
        plant="no-hashes",
        plant_rounds=10,
    ),
    Row(
        13,
        "misplaced-files",
        "a file is missing, or another one of this job or of another job is in its place",
        "as for torn-files",
        lambda r: _play(r, _misplace_one),
        {Tier.SLICE: 1, Tier.HALF_HOUR: 7, Tier.NIGHTLY: 250},
        plant="no-hashes",
        plant_rounds=10,
    ),
]
