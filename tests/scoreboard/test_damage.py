"""Damaged files: of a job root, and of a host's cache."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.recovery.damaged_job import Damage, DamagedJob, check_refused, cut, flip, make_damaged_job
from tests.recovery.host_copies import cached_files, retry, unshare
from tests.scoreboard.row import Round, Row
from tests.support import root_files
from tests.support.job_fixture import SLICE, AccountsJob
from tests.support.processes import unless_ended, wait_for

KINDS = ("FORMAT", "log entry", "manifest", "sst")
_EACH, _BLOCK = 8, 512
_TIMES, _ROWS = 2, 60
_BACKENDS: list[dict[str, object]] = [
    {"state__backend": "rocksdb", "rocksdb__compact_at_files": 3},
    {"state__backend": "filesystem", "state__inline_below_bytes": 1},
    {"state__backend": "rocksdb", "checkpoints__asynchronous": "yes"},
]
"""Those with files; the memory backend stores its state in the manifest."""


@Row(11, "torn-files", plays=(1, 10, 150), mutants=("no-hashes",))
def test_a_file_that_ends_too_early_is_named(round_: Round) -> int:
    """A file of a checkpoint is truncated: FORMAT, a log entry, a manifest or an SST file.

    The start fails with an error that names the file, and changes nothing.
    """
    return _damage_victim(round_, _cut_one)


@Row(12, "flipped-bits", plays=(1, 25, 1250), mutants=("no-hashes",))
def test_a_file_with_a_wrong_bit_is_named(round_: Round) -> int:
    """One bit of a file is flipped.

    As for torn-files.
    """
    return _damage_victim(round_, _flip_one)


@Row(13, "misplaced-files", plays=(1, 7, 250), mutants=("no-hashes",))
def test_a_file_that_is_not_in_its_place_is_named(round_: Round) -> int:
    """A file is missing, or was replaced by another file of this job or of another job.

    As for torn-files.
    """
    return _damage_victim(round_, _misplace_one)


def _damage_victim(round_: Round, damage: Callable[[DamagedJob, random.Random], Path]) -> int:
    damaged = make_damaged_job(round_.folder)
    try:
        for _ in range(_EACH):
            check_refused(damaged, damage(damaged, round_.rng))
            damaged.reset()
    finally:
        damaged.job.end_all()
    return _EACH


def _some_file(damaged: DamagedJob, rng: random.Random) -> Path:
    return rng.choice(damaged.files(rng.choice(KINDS)))


def _cut_one(damaged: DamagedJob, rng: random.Random) -> Path:
    path = _some_file(damaged, rng)
    data = path.read_bytes()
    blocks = rng.randrange(len(data) // _BLOCK + 1) * _BLOCK
    kept = rng.choice([0, len(data) - 1, min(blocks, len(data) - 1), rng.randrange(len(data))])
    path.write_bytes(data[:kept])
    return path


def _flip_one(damaged: DamagedJob, rng: random.Random) -> Path:
    path = _some_file(damaged, rng)
    flip(rng.random(), rng.randrange(8))(path)
    return path


def _misplace_one(damaged: DamagedJob, rng: random.Random) -> Path:
    kind = rng.choice(["manifest", "sst"])
    path = rng.choice(damaged.files(kind))
    how = rng.choice(["missing", "another job's", "a neighbour's"])
    if how == "missing":
        path.unlink()
    elif how == "another job's" or kind != "sst":
        path.write_bytes(damaged.files(kind, damaged.other.root)[0].read_bytes())
    else:
        others = [other for other in damaged.files(kind) if other.read_bytes() != path.read_bytes()]
        path.write_bytes(rng.choice(others).read_bytes())
    return path


@Row(13, "damaged-copies", plays=(0, 30, 300), mutants=("trusted-cache",))
def test_damaged_copies_change_no_result(round_: Round) -> int:
    """Files of a host's cache are emptied, zeroed, truncated, or get a flipped bit, between and during runs.

    A run or its retries succeed; then as for killed-drivers.
    """
    job = AccountsJob(round_.folder / "job", _BACKENDS[round_.seed % len(_BACKENDS)])
    job.deliver(_ROWS)
    try:
        job.finish()
        damaged = sum(_damage_around_a_run(job, round_.rng) for _ in range(_TIMES))
        job.check_results()
        job.check_clean()
    finally:
        job.end_all()
    return damaged


def _damage_around_a_run(job: AccountsJob, rng: random.Random) -> int:
    """Damages cached files before a run, and others in its middle; returns how many."""
    unshare(job)
    damaged = _damage_copies(job, rng)
    job.deliver_more(_ROWS)
    job.marker.unlink(missing_ok=True)
    run = job.start(f"batch.begin:{rng.randint(1, _ROWS // SLICE)}:stop")

    # A run that found the damage earlier has ended.
    def has_stopped_or_ended() -> bool:
        status = unless_ended(lambda: psutil.Process(run.pid).status(), "")
        return run.poll() is not None or status == psutil.STATUS_STOPPED

    wait_for(has_stopped_or_ended, lambda: f"a stop or the end of {run}")
    if run.poll() is None:
        damaged += _damage_copies(job, rng)
        run.resume()
    retry(job, run.wait())
    return damaged


def _damage_copies(job: AccountsJob, rng: random.Random) -> int:
    """Damages some cached files, also below an open store; never a stored object, nor one that waits for its upload,
    of which there is no other copy."""
    queued = [path for path in job.local.rglob("*") if path.is_file() and not {"cache", "work"} & {*path.parts}]
    others = {path.stat().st_ino for path in (*root_files.files_below(job.root).values(), *queued)}
    own = [p for p in cached_files(job) if p.stat().st_ino not in others and p.stat().st_size]
    chosen = rng.sample(own, rng.randint(min(1, len(own)), len(own)))
    for path in chosen:
        damages: list[Damage] = [
            cut(0),
            _zero_from(0),
            cut(rng.random()),
            _zero_from(rng.random()),
            flip(rng.random(), rng.randrange(8)),
        ]
        rng.choice(damages)(path)
    return len(chosen)


def _zero_from(share: float) -> Damage:
    def damage(path: Path) -> None:
        data = path.read_bytes()
        kept = int(len(data) * share)
        path.write_bytes(data[:kept] + bytes(len(data) - kept))

    return damage
