"""The files that a host keeps of a job's state, and runs that meet damaged ones."""

from __future__ import annotations

from pathlib import Path

from tests.support.job_fixture import AccountsJob, JobFixture
from tests.support.processes import Ended

_TRIES = 4
_DAMAGED_COPY = 5


def retry(box: AccountsJob, ended: Ended) -> Ended:
    """Runs again, as a scheduler does, while the error asks for it."""
    for _ in range(_TRIES):
        if ended.code != _DAMAGED_COPY:
            break
        assert ended.error.code == "damaged-copy", str(ended)
        ended = box.run()
    assert ended.code == 0, str(ended)
    return ended


def cached_files(box: JobFixture) -> list[Path]:
    """What is in the caches of all subtasks."""
    return sorted(p for p in box.local.glob("*/*/*/cache/*") if not p.name.startswith("incoming"))


def unshare(box: JobFixture) -> None:
    """Makes the cached files copies: on one file system they are links to the stored objects."""
    for path in cached_files(box):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
