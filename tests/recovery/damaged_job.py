"""A job at rest that tests damage, the ways to damage a file, and the files that a host keeps of a job's state."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support import root_files
from tests.support.job_fixture import AccountsJob, JobFixture
from tests.support.processes import Ended
from tests.support.restores import everything

Damage = Callable[[Path], None]


def flip(at: float, bit: int = 4) -> Damage:
    """Turns one bit over; `at` is a share of the file."""

    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[min(len(data) - 1, int(len(data) * at))] ^= 1 << bit
        path.write_bytes(data)

    return damage


def cut(to: float) -> Damage:
    """Keeps a share of the file, and never all of it."""

    def damage(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: min(len(data) - 1, int(len(data) * to))])

    return damage


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


DAMAGES: dict[str, Damage] = {
    "a bit of the first byte": flip(0), "a bit in the middle": flip(0.5), "a bit of the last byte": flip(1),
    "the last byte missing": cut(1), "half": cut(0.5), "empty": cut(0), "a byte more": _append, "removed": Path.unlink,
}  # fmt: skip


@dataclass
class DamagedJob:
    """A job at rest, another one of the same name, and a copy of both."""

    job: AccountsJob
    other: AccountsJob
    copy: Path

    @property
    def root(self) -> Path:
        return self.job.root

    def files(self, kind: str, root: Path | None = None) -> list[Path]:
        """The files of a kind that the newest checkpoint needs: FORMAT, log entry, manifest or sst."""
        root = root or self.root
        newest = root_files.head(root)
        if kind == "FORMAT":
            return [root / "FORMAT"]
        if kind == "log entry":
            return [root_files.entry_path(root, newest.seq)]
        if kind == "manifest":
            return [root / newest.doc["manifest"]["key"]]
        assert kind == "sst"
        return [root / h["key"] for h in root_files.handles(root_files.read_manifest(root, newest.doc["manifest"]))]

    def reset(self) -> None:
        """Everything as it was."""
        for folder in (self.job.folder, self.other.folder):
            shutil.rmtree(folder)
            shutil.copytree(self.copy / folder.name, folder)

    def run(self, claims: bool = False) -> Ended:
        """A run after the damage, when there are new events; checks that it left everything as it was.

        Args:
            claims: whether it adds a CLAIM, which refers to what existed before, and the record of its failure.
        """
        before, asked, newest = everything(self.job), self.job.requested(), root_files.newest_seq(self.root)
        ended = self.job.run()
        after = everything(self.job)
        if claims:
            path = root_files.entry_path(self.root, newest + 1)
            assert root_files.read_entry(path).doc["kind"] == "claim"
            (failure,) = (self.root / "history").glob(f"{newest + 1:020d}-failure-*")
            del after[str(path)], after[str(failure)]
        assert (after, self.job.requested()) == (before, asked), str(ended)
        return ended


def make_damaged_job(folder: Path) -> DamagedJob:
    """The two jobs in a folder; the damaged one has events that it has not processed."""
    settings = {"checkpoints__retained": 3}
    damaged_job, other = AccountsJob(folder / "job", settings), AccountsJob(folder / "other", settings)
    damaged = DamagedJob(damaged_job, other, folder / "copy")
    for job, rows in ((damaged_job, 50), (other, 60)):
        job.run_to(rows)
        job.deliver(80)
        # A later run must find everything in the job root itself.
        shutil.rmtree(job.local)
        shutil.copytree(job.folder, damaged.copy / job.folder.name)
    return damaged


def check_refused(damaged: DamagedJob, path: Path, claims: bool = False) -> None:
    """A run is refused, names the file, and changes nothing. `claims`: as for `DamagedJob.run`."""
    ended = damaged.run(claims)
    assert ended.code == 4, str(ended)
    assert ended.error.code in ("corrupt-file", "missing-file", "data"), str(ended)
    assert str(path.relative_to(damaged.root)) in ended.error.facts.values(), str(ended)


# -- the files that a host keeps --------------------------------------------------------------------------------------

_TRIES = 4


def retry(job: AccountsJob, ended: Ended) -> Ended:
    """Runs again, as a scheduler does, while the error asks for it."""
    for _ in range(_TRIES):
        if ended.code == 0:
            break
        ended.check_error(5, "damaged-copy")
        ended = job.run()
    return ended.check()


def cached_files(job: JobFixture) -> list[Path]:
    """The copies in the caches of all subtasks."""
    return sorted(p for p in job.local.glob("*/*/*/cache/*") if not p.name.startswith(("incoming", "checked-")))


def unshare(job: JobFixture) -> None:
    """Makes the cached files copies: on one file system they are links to the stored objects."""
    for path in cached_files(job):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
