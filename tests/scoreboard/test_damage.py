"""Damaged files: of a job root, and of a host's cache."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.recovery.damaged_job import (
    Damage,
    DamagedJob,
    cached_files,
    check_refused,
    cut,
    flip,
    make_damaged_job,
    retry,
    unshare,
)
from tests.recovery.failing_disks import LOST_POWER, VARIABLE, DiskPlan
from tests.scoreboard.jobs import accounts_job, check_complete, fill, small_disk
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
            cut(0), _zero_from(0), cut(rng.random()), _zero_from(rng.random()), flip(rng.random(), rng.randrange(8)),
        ]  # fmt: skip
        rng.choice(damages)(path)
    return len(chosen)


def _zero_from(share: float) -> Damage:
    def damage(path: Path) -> None:
        data = path.read_bytes()
        kept = int(len(data) * share)
        path.write_bytes(data[:kept] + bytes(len(data) - kept))

    return damage


# -- disks ------------------------------------------------------------------------------------------------------------

_TRIES = 5
_CLEAN = {0, 5}
"""Exit codes of a run that succeeded, or ended with an error that can be retried."""


@Row(16, "full-disk", plays=(1, 5, 100), mutants=("check-then-write",), within=6)
def test_a_full_disk_damages_nothing(round_: Round) -> int:
    """The disk of the job root, the tables and the local files is full or nearly full.

    The run ends with an error that can be retried, the previous checkpoint is complete; then as for killed-drivers.
    """
    full = 0
    with small_disk(round_.folder / "small") as small, accounts_job(round_, root_folder=small / "root") as job:
        # Tables too: the job finds a link to them.
        (small / "tables").mkdir()
        (job.folder / "tables").symlink_to(small / "tables")
        job.settings = {**job.settings, "local_dir": small / "local"}
        job.deliver(20)
        job.finish()
        for number in range(_TRIES):
            job.deliver(20 + 40 * (number + 1))
            filler = fill(small, leave=round_.rng.choice([0, 4096, round_.rng.randrange(400_000)]))
            before = root_files.head(job.root)
            ended = job.run()
            assert ended.code in _CLEAN, str(ended)
            full += ended.code != 0
            assert root_files.head(job.root).seq >= before.seq
            root_files.check_hashes(job.root)
            filler.unlink()
        check_complete(job, root_files.Chain(job.root))
    return full


@Row(17, "disk-errors", plays=(1, 8, 200), mutants=("fsync-errors",), within=30)
def test_disk_errors_lose_nothing_acknowledged(round_: Round) -> int:
    """Write, link or fsync fail with EIO, and power fails after it.

    Everything acknowledged is stored completely; then as for killed-drivers.
    """
    return _play_faulty(round_, errors=round_.rng.choice([0.01, 0.03, 0.1]))


@Row(18, "power-cuts", plays=(2, 25, 1000), mutants=("no-fsync",))
def test_power_cuts_lose_nothing_acknowledged(round_: Round) -> int:
    """Power fails at any call: each write that was not synced is stored wholly, partly, or not at all.

    As for disk-errors.
    """
    return _play_faulty(round_, errors=0.0)


def _play_faulty(round_: Round, errors: float) -> int:
    rng, injected = round_.rng, 0
    with accounts_job(round_) as job:
        folders = str(job.root), str(job.folder / "tables")
        for folder in folders:
            Path(folder).mkdir(parents=True, mode=0o700)
        for number in range(_TRIES):
            job.deliver(30 * (number + 1))
            calls = -1 if errors else rng.randrange(250)
            plan = DiskPlan(folders, str(job.folder / "image"), rng.randrange(1 << 30), calls, errors)
            job.variables = {VARIABLE: plan.variable}
            ended = job.run()
            assert ended.code in _CLEAN | {LOST_POWER}, str(ended)
            injected += _lose_power(job, folders)
        job.variables = {}
        check_complete(job, root_files.Chain(job.root))
    return injected


def _lose_power(job: AccountsJob, folders: tuple[str, ...]) -> int:
    """Leaves what a power cut leaves; what was acknowledged must be there. Returns how many faults there were."""
    image = job.folder / "image"
    facts = json.loads((image / "facts.json").read_text())
    for number, folder in enumerate(folders):
        shutil.rmtree(folder)
        shutil.move(image / str(number), folder)
    shutil.rmtree(job.local, ignore_errors=True)
    newest = root_files.newest_seq(job.root) if any((job.root / "log").glob("*")) else 0
    assert newest >= max(facts["acked"], default=0), f"acknowledged {facts['acked']}, but the log ends at {newest}"
    if newest and facts["acked"]:
        root_files.check_hashes(job.root)
    return 1 + int(facts["failed"])
