"""Disks that are full, fail, or lose what was not synced when power fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.recovery.failing_disks import LOST_POWER, VARIABLE, DiskPlan
from tests.scoreboard.disks import fill, small_disk
from tests.scoreboard.jobs import accounts_job, check_complete
from tests.scoreboard.row import Round, Row
from tests.support import root_files
from tests.support.job_fixture import AccountsJob

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
