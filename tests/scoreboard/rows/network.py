"""A job root on an S3 server behind a network that loses, delays, cuts and refuses."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.scoreboard.row import Round, Row, Tier
from tests.scoreboard.rows.killed_drivers import box_of, check
from tests.servers.faults import BUSY, KINDS, Faults, fault_proxy
from tests.servers.running import s3_server
from tests.support import root_files
from tests.support.job_fixture import AccountsJob

_RUNS = 4
_WRONG = {1, 2, 4}
"""Exit codes of a run that believes that something is damaged, or is a mistake of its own."""


def _play(round_: Round, share: float, kinds: Sequence[str]) -> tuple[int, list[int]]:
    faults = Faults(random.Random(round_.seed), share, kinds)
    with s3_server(round_.folder / "s3", "bucket") as variables:
        with fault_proxy(variables["AWS_ENDPOINT_URL"], faults) as address:
            variables = {**variables, "AWS_ENDPOINT_URL": address}
            root = round_.folder / "s3" / "data" / "bucket" / "job"
            with box_of(round_, root_folder=root, address="s3://bucket/job", variables=variables) as box:
                codes = _runs(box)
                # What is wrong is to be seen by who looks now, whatever the network does.
                faults.share = 0
                check(box, root_files.Chain(box.root))
    return faults.injected.total(), codes


def _runs(box: AccountsJob) -> list[int]:
    chain, codes = root_files.Chain(box.root), []
    for number in range(1, _RUNS + 1):
        box.deliver(20 * number)
        ended = box.start().wait(chain.look)
        assert ended.code not in _WRONG, str(ended)
        codes.append(ended.code)
    chain.check()
    return codes


def _play_faults(round_: Round) -> int:
    return _play(round_, random.Random(round_.seed).choice([0.02, 0.05, 0.1]), KINDS)[0]


def _play_busy(round_: Round) -> int:
    """Mostly as much as clients bear by trying again, now and then far more."""
    if round_.seed % 4 == 3:
        return _play(round_, 0.75, BUSY)[0]
    injected, codes = _play(round_, 0.25, BUSY)
    assert codes == [0] * _RUNS, f"runs did not get through: {codes}"
    return injected


ROWS = [
    Row(
        9,
        "network",
        "requests lost, late or without an answer; answers cut, slow, 408, 409, 429, 500, 503 (S3 server "
        "behind a proxy)",
        "as for killed-drivers; no run believes that something is damaged",
        _play_faults,
        {Tier.SLICE: 1, Tier.HALF_HOUR: 20, Tier.NIGHTLY: 300},
        plant="believed",
        plant_rounds=30,
    ),
    Row(
        10,
        "busy",
        "a quarter, at times three quarters, of all requests answered by 503 or 429",
        "as for network; with a quarter every run gets through",
        _play_busy,
        {Tier.SLICE: 0, Tier.HALF_HOUR: 4, Tier.NIGHTLY: 40},
        plant="impatient",
        plant_rounds=3,
    ),
]
