"""Disks that are full, fail, or lose what was not synced when power fails."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.recovery.failing_disks import LOST_POWER, VARIABLE, DiskPlan
from tests.scoreboard.row import Round, Row, Tier
from tests.scoreboard.rows.killed_drivers import box_of, check
from tests.support import root_files
from tests.support.job_fixture import AccountsJob
from tests.support.mutants import VARIABLE as PLANT

_TRIES = 5
_CLEAN = {0, 5}
"""Exit codes of a run that went through, or ended by an error that a retry may mend."""
_MEGABYTE = 1 << 20


def _play_power(round_: Round) -> int:
    return _play_faulty(round_, errors=0.0)


def _play_errors(round_: Round) -> int:
    return _play_faulty(round_, errors=random.Random(round_.seed).choice([0.01, 0.03, 0.1]))


def _play_faulty(round_: Round, errors: float) -> int:
    dice, injected = random.Random(round_.seed), 0
    with box_of(round_) as box:
        _lay_out(box)
        for number in range(_TRIES):
            box.deliver(30 * (number + 1))
            calls = -1 if errors else dice.randrange(250)
            plan = DiskPlan(_folders(box), str(box.folder / "image"), dice.randrange(1 << 30), calls, errors)
            box.variables = {PLANT: round_.plant, VARIABLE: plan.variable}
            ended = box.run()
            assert ended.code in _CLEAN | {LOST_POWER}, str(ended)
            injected += _lose_power(box)
        box.variables = {PLANT: round_.plant}
        check(box, root_files.Chain(box.root))
    return injected


def _lay_out(box: AccountsJob) -> None:
    for folder in _folders(box):
        Path(folder).mkdir(parents=True, mode=0o700)


def _folders(box: AccountsJob) -> tuple[str, ...]:
    return str(box.root), str(box.folder / "tables")


def _lose_power(box: AccountsJob) -> int:
    """Leaves what a power cut leaves; what was acknowledged must be there. Returns how many faults there were."""
    image = box.folder / "image"
    facts = json.loads((image / "facts.json").read_text())
    for number, folder in enumerate(_folders(box)):
        shutil.rmtree(folder)
        shutil.move(image / str(number), folder)
    shutil.rmtree(box.local, ignore_errors=True)
    newest = root_files.newest_seq(box.root) if (box.root / "log").is_dir() and any((box.root / "log").iterdir()) else 0
    assert newest >= max(facts["acked"], default=0), f"acknowledged {facts['acked']}, but the log ends at {newest}"
    if newest and facts["acked"]:
        root_files.check_hashes(box.root)
    return 1 + int(facts["failed"])


def _play_full(round_: Round) -> int:
    dice, full = random.Random(round_.seed), 0
    with _small_disk(round_.folder / "small") as small, box_of(round_, root_folder=small / "root") as box:
        # Tables too: what the harness looks for is a link to them.
        (small / "tables").mkdir()
        (box.folder / "tables").symlink_to(small / "tables")
        box.settings = {**box.settings, "local_dir": small / "local"}
        box.deliver(20)
        box.finish()
        for number in range(_TRIES):
            box.deliver(20 + 40 * (number + 1))
            _fill(small, leave=dice.choice([0, 4096, dice.randrange(400_000)]))
            before = root_files.head(box.root)
            ended = box.run()
            assert ended.code in _CLEAN, str(ended)
            full += ended.code != 0
            assert root_files.head(box.root).seq >= before.seq
            root_files.check_hashes(box.root)
            (small / "filler").unlink()
        check(box, root_files.Chain(box.root))
    return full


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """A file system of a few megabytes. Making one takes root."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={24 * _MEGABYTE},mode=700", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _fill(folder: Path, leave: int) -> None:
    space = os.statvfs(folder)
    with (folder / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, space.f_bavail * space.f_frsize - leave))


ROWS = [
    Row(
        16,
        "full-disk",
        "the disk of job root, tables and scratch space is full, or nearly",
        "the run ends by an error that a retry may mend, the checkpoint before is whole; then as for killed-drivers",
        _play_full,
        {Tier.SLICE: 1, Tier.HALF_HOUR: 5, Tier.NIGHTLY: 100},
        plant="check-then-write",
        plant_rounds=6,
    ),
    Row(
        17,
        "disk-errors",
        "write, link or fsync fail with EIO, and power fails behind it",
        "what was acknowledged is there and whole; then as for killed-drivers",
        _play_errors,
        {Tier.SLICE: 1, Tier.HALF_HOUR: 8, Tier.NIGHTLY: 200},
        plant="fsync-errors",
        plant_rounds=30,
    ),
    Row(
        18,
        "power-cuts",
        "power fails at any call: what was not synced is there, in part, or not at all",
        "as for disk-errors",
        _play_power,
        {Tier.SLICE: 2, Tier.HALF_HOUR: 25, Tier.NIGHTLY: 1000},
        plant="no-fsync",
        plant_rounds=10,
    ),
]
