"""The files that a host keeps of a job's state, and runs that meet damaged ones."""

from __future__ import annotations

from pathlib import Path

from tests.support.job_fixture import AccountsJob, JobFixture
from tests.support.processes import Ended

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
