"""Named places where a test can make the process die, stop or fail; no-ops in production.

``STATEFLOW_FAILPOINT=name[:n[:action]]`` acts at the n-th time (default: first) that this process passes `name`.
Actions: ``kill`` (SIGKILL to the own process, the default), ``stop`` (SIGSTOP), ``error`` (raises InternalError).
With ``STATEFLOW_FAILPOINT_ONCE=<path>`` the point acts only if that file can be created, so that a process which is
started again with the same environment passes; the file then tells that the point was reached.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from difflib import get_close_matches

from stateflow.errors import ConfigError, InternalError

NAMES: dict[str, str] = {
    "claim.before": "before the CLAIM is written",
    "claim.after": "the CLAIM is written, nothing restored yet",
    "start.published": "pending output is published, nothing seeded yet",
    "start.seeded": "the Spark checkpoint location is seeded, the first batch not yet begun",
    "batch.begin": "source positions are captured, no task has run",
    "task.restored": "a task has its base state, no row processed",
    "task.fired": "a task has fired its due timers, if there are any, and processed no row of a source",
    "task.processed": "a task has processed its rows, nothing is written back",
    "task.snapshot": "a task has its local snapshot, nothing uploaded",
    "upload.queued": "what a snapshot adds is linked for the thread that stores it, and not stored",
    "upload.before": "beside the batches, an object is about to be stored",
    "upload.after": "beside the batches, an object is stored, and what it was made of still there",
    "task.uploaded": "a task has stored its files, or handed them over; its sink files are not closed",
    "task.sink-closed": "a task's sink files are complete, its report not sent",
    "batch.reported": "every subtask has reported, the manifest is not written",
    "commit.stored": "every file of a checkpoint is stored, the manifest is not written",
    "commit.manifest": "the manifest is written, the COMMIT is not",
    "log.created": "a log entry is written, the LIST after it not yet read",
    "commit.after": "the COMMIT is acknowledged, nothing published",
    "publish.before": "the token is read, the sink's commit not yet made",
    "publish.after": "one sink's output is published, nothing recorded",
    "batch.end": "everything of a batch is done",
    "savepoint.pinned": "a savepoint's checkpoint is pinned, nothing of the savepoint is there",
    "savepoint.started": "a savepoint's folder is taken, no file is in it",
    "savepoint.copied": "all files of a savepoint are there, its document is not",
    "savepoint.complete": "a savepoint is complete, its pin still there",
    "savepoint.given-up": "a savepoint that cannot be completed is marked as given up, its files still there",
    "savepoint.disposing": "a savepoint is to be deleted, and still complete",
    "savepoint.disposed": "a savepoint is deleted, its files are still there",
    "request.made": "what was asked of the run is done, the answer is not written",
    "restore.begin": "a restore's plan is checked, nothing is changed",
    "restore.claimed": "a restore has claimed the job, nothing is adopted",
    "restore.imported": "a restore's files are in the job root, its intent is not written",
    "restore.intent": "a restore's intent is written, no table has gone back",
    "rewind.table": "before one table goes back",
    "rewind.tables": "every table has gone back, the log does not say so",
    "rewind.recorded": "the history has a restore's record, the log does not say that it is done",
    "rewind.done": "the log says that every table has gone back",
    "fork.pinned": "a fork's checkpoint is pinned, nothing is in the new root",
    "fork.created": "the new job of a fork has its FORMAT, and nothing else",
    "fork.imported": "a fork's files are in the new root, its first entry is not",
    "fork.adopted": "a fork is complete, its pin still there",
    "begin.created": "a job root that begins with a savepoint has its FORMAT, and nothing else",
    "begin.imported": "the savepoint's files are in the new job root, its first entry is not",
    "begin.adopted": "a job root that begins with a savepoint has its first entry, and no run",
    "relocate.claimed": "the move of a source's folder has claimed the job, nothing is stored",
    "relocate.stored": "the manifest with the source's new paths is stored, no entry names it",
    "relocate.adopted": "the job goes on from the manifest with the source's new paths",
    "gc.listed": "garbage is known, nothing deleted",
    "gc.deleting": "some garbage is deleted",
    "run.end": "the last batch is done, the run has not returned",
}
"""Every failpoint and the moment that it names; tests iterate over it."""

_WANTED = re.compile(r"([a-z.-]+)(?::([1-9][0-9]*)?(?::(kill|stop|error))?)?")
_hits: Counter[str] = Counter()


def check(wanted: str) -> None:
    """Raises ConfigError unless `wanted` is a value for ``STATEFLOW_FAILPOINT``."""
    matched = _WANTED.fullmatch(wanted)
    if matched is None:
        raise ConfigError("this is not a failpoint", hint="give a name, or a name and a count, as batch.reported:3",
                          value=wanted)  # fmt: skip
    if matched[1] not in NAMES:
        similar = (
            ", ".join(get_close_matches(matched[1], NAMES, n=5))
            or "batch.begin, batch.reported, commit.after"
        )
        raise ConfigError("there is no such failpoint", hint=f"for example: {similar}", name=matched[1])


def hit(name: str) -> None:
    """Passes the failpoint `name`; acts only when the environment asks for it."""
    wanted = os.environ.get("STATEFLOW_FAILPOINT")
    if not wanted:
        return
    _act(name, wanted)


def _act(name: str, wanted: str) -> None:
    assert name in NAMES, f"failpoint {name} is not listed"
    check(wanted)
    target, _, rest = wanted.partition(":")
    count, _, action = rest.partition(":")
    if target != name:
        return
    _hits[name] += 1
    if _hits[name] != int(count or 1) or not _first_time():
        return
    if action == "error":
        raise InternalError("failpoint reached", name=name)
    os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)


def _first_time() -> bool:
    marker = os.environ.get("STATEFLOW_FAILPOINT_ONCE")
    if not marker:
        return True
    try:
        fd = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    os.write(fd, f"{os.getpid()}\n".encode())
    os.fsync(fd)
    os.close(fd)
    return True
