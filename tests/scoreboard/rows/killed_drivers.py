"""Drivers killed by SIGKILL: at random moments, and at each named step of the protocol."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stateflow.failpoints import NAMES
from tests.scoreboard.row import Round, Row, Tier
from tests.servers.running import s3_server
from tests.support import root_files
from tests.support.job_fixture import ASKED, AccountsJob
from tests.support.mutants import VARIABLE

_KILLS = 5
_KILLED = -9
POINTS = sorted(NAMES.keys() - ASKED - {"start.seeded"})
_ONCE = {"claim.before", "claim.after", "start.published", "run.end"}


def settings_of(seed: int) -> dict[str, Any]:
    """Of a run: asynchronous or not, collecting often, keeping few."""
    return {
        "checkpoints__asynchronous": ["no", "yes"][seed % 2],
        "checkpoints__collect_every": 1 + seed % 3,
        "checkpoints__retained": 1 + seed % 4,
        "state__backend": ["rocksdb", "rocksdb", "filesystem"][seed % 3],
    }


@contextmanager
def box_of(round_: Round, **more: Any) -> Iterator[AccountsJob]:
    """A job of a round; nothing that it started outlives it."""
    variables = {VARIABLE: round_.plant, **more.pop("variables", {})}
    box = AccountsJob(round_.folder / "job", settings_of(round_.seed), variables=variables, **more)
    try:
        yield box
    finally:
        box.end_all()


def check(box: AccountsJob, chain: root_files.Chain) -> None:
    """All that was delivered is in the tables and the state, once; at rest nothing is left over."""
    box.deliver(len(box.delivered) + 10)
    box.finish()
    chain.check()
    box.check_results()
    box.check_clean()


def kill_at_random(box: AccountsJob, dice: random.Random, rows: int) -> int:
    """Kills runs at moments between their start and their end; returns how many died.

    Args:
        rows: delivered for each run.
    """
    chain = root_files.Chain(box.root)
    killed = 0
    box.deliver(rows)
    # How long a run takes depends on the machine: with a fixed time, all kills can fall into the start.
    began = time.monotonic()
    box.finish()
    longest = time.monotonic() - began
    for _ in range(_KILLS):
        box.deliver(len(box.delivered) + rows)
        run = box.start()
        until = time.monotonic() + dice.uniform(0, longest)
        while time.monotonic() < until and run.poll() is None:
            chain.look()
        run.kill()
        ended = run.wait(chain.look)
        assert ended.code in (0, _KILLED), str(ended)
        killed += ended.code == _KILLED
    check(box, chain)
    return killed


def _play_posix(round_: Round) -> int:
    with box_of(round_) as box:
        return kill_at_random(box, random.Random(round_.seed), rows=150)


def _play_s3(round_: Round) -> int:
    with s3_server(round_.folder / "s3", "bucket") as variables:
        root = round_.folder / "s3" / "data" / "bucket" / "job"
        with box_of(round_, root_folder=root, address="s3://bucket/job", variables=variables) as box:
            return kill_at_random(box, random.Random(round_.seed), rows=30)


def _play_points(round_: Round) -> int:
    point = POINTS[round_.seed % len(POINTS)]
    dice = random.Random(round_.seed)
    with box_of(round_) as box:
        box.settings = {**box.settings, "checkpoints__collect_every": 1, "checkpoints__retained": 1}
        if point.startswith("upload."):
            box.settings = {**box.settings, "checkpoints__asynchronous": "yes", "state__backend": "rocksdb"}
        chain = root_files.Chain(box.root)
        box.deliver(40)
        box.finish()
        chain.look()
        box.deliver(120)
        nth = 1 if point in _ONCE else dice.randrange(1, 4)
        ended = box.start(f"{point}:{nth}").wait(chain.look)
        assert ended.code == _KILLED and box.marker.exists(), f"{point} was not reached: {ended}"
        check(box, chain)
    return 1


ROWS = [
    Row(
        2,
        "killed-drivers",
        "SIGKILL of a driver at a random moment, job root on POSIX",
        "tables and state are what plain dictionaries say of all input, the log is one chain, nothing is left over",
        _play_posix,
        {Tier.SLICE: 2, Tier.HALF_HOUR: 24, Tier.NIGHTLY: 200},
        plant="no-token",
        plant_rounds=40,
    ),
    Row(
        2,
        "killed-drivers-s3",
        "the same, job root on an S3 server",
        "as for killed-drivers",
        _play_s3,
        {Tier.SLICE: 1, Tier.HALF_HOUR: 6, Tier.NIGHTLY: 40},
        plant="no-token",
        plant_rounds=40,
    ),
    Row(
        5,
        "named-steps",
        f"SIGKILL at each of {len(POINTS)} named steps of the protocol",
        "as for killed-drivers",
        _play_points,
        {Tier.SLICE: 8, Tier.HALF_HOUR: 3 * len(POINTS), Tier.NIGHTLY: 20 * len(POINTS)},
        plant="no-token",
        plant_rounds=len(POINTS),
    ),
]
