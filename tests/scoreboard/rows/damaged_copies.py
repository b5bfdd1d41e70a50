"""Files of a host's cache that are damaged, between runs and under a run."""

from __future__ import annotations

import random
from collections.abc import Callable

import psutil

from tests.recovery.host_copies import cached_files, retry, unshare
from tests.scoreboard.row import Round, Row, Tier
from tests.support import root_files
from tests.support.job_fixture import SLICE, AccountsJob
from tests.support.mutants import VARIABLE
from tests.support.processes import Running, wait_for

_TIMES = 2
_ROWS = 60
SETTINGS = [
    {"state__backend": "rocksdb", "rocksdb__compact_at_files": 3},
    {"state__backend": "filesystem", "state__inline_below_bytes": 1},
    {"state__backend": "rocksdb", "checkpoints__asynchronous": "yes"},
]
"""The backends that have files; the memory backend keeps its state in the manifest."""


def _play(round_: Round) -> int:
    dice = random.Random(round_.seed)
    box = AccountsJob(round_.folder / "job", SETTINGS[round_.seed % len(SETTINGS)], variables={VARIABLE: round_.plant})
    box.deliver(_ROWS)
    try:
        box.finish()
        damaged = sum(_damage_once(box, dice) for _ in range(_TIMES))
        box.check_results()
        box.check_clean()
    finally:
        box.end_all()
    return damaged


def _damage_once(box: AccountsJob, dice: random.Random) -> int:
    """Damages cached files before a run, and others in its middle; returns how many, when a run ended well."""
    unshare(box)
    damaged = damage_some(box, dice)
    box.deliver_more(_ROWS)
    box.marker.unlink(missing_ok=True)
    run = box.start(f"batch.begin:{dice.randint(1, _ROWS // SLICE)}:stop")
    # A run that found the damage earlier has ended.
    wait_for(lambda: run.poll() is not None or _is_stopped(run), lambda: f"a stop or the end of {run}")
    if run.poll() is None:
        damaged += damage_some(box, dice)
        run.resume()
    retry(box, run.wait())
    return damaged


def _is_stopped(run: Running) -> bool:
    return bool(psutil.Process(run.pid).status() == psutil.STATUS_STOPPED)


def damage_some(box: AccountsJob, dice: random.Random) -> int:
    """Damages some cached files where they are, also below an open store; never a stored object, nor one that is on its
    way, of which there is no other copy."""
    queued = [path for path in box.local.rglob("*") if path.is_file() and not {"cache", "work"} & {*path.parts}]
    others = {path.stat().st_ino for path in (*root_files.files_below(box.root).values(), *queued)}
    own = [p for p in cached_files(box) if p.stat().st_ino not in others and p.stat().st_size]
    chosen = dice.sample(own, dice.randint(min(1, len(own)), len(own)))
    for path in chosen:
        path.write_bytes(dice.choice(DAMAGES)(path.read_bytes(), dice))
    return len(chosen)


def _flipped(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [
    lambda data, dice: b"",
    lambda data, dice: bytes(len(data)),
    lambda data, dice: data[: dice.randrange(len(data))],
    lambda data, dice: data[: (at := dice.randrange(len(data)))] + bytes(len(data) - at),
    _flipped,
]
"""Emptied, zeroed, cut off, zeros from somewhere on, a bit flipped."""

ROWS = [
    Row(
        13,
        "damaged-copies",
        "files of a host's cache are emptied, zeroed, cut off, or have a bit flipped, between "
        "runs and in the middle of one",
        "a run or its retries end well; then as for killed-drivers",
        _play,
        {Tier.SLICE: 3, Tier.HALF_HOUR: 30, Tier.NIGHTLY: 300},
        plant="trusted-cache",
        plant_rounds=10,
    )
]
