"""Failpoints: named steps where a test can make the process die, stop or fail. They do nothing in production.

``STATEFLOW_FAILPOINT=name[:n[:action]]`` triggers the action the n-th time (default: first) that this process passes
`name`. Actions: ``kill`` (SIGKILL to this process, the default), ``stop`` (SIGSTOP), ``error`` (raises InternalError).
With ``STATEFLOW_FAILPOINT_ONCE=<path>``, the action is triggered only if that file can be created. So a process that is
restarted with the same environment passes the failpoint, and the file shows that it was reached.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from difflib import get_close_matches

from stateflow.errors import ConfigError, InternalError

NAMES: dict[str, str] = {
    "claim.before": "before the CLAIM is written",
    "claim.after": "the CLAIM is written, nothing is restored",
    "start.published": "pending output is published, the Spark checkpoint location is not seeded",
    "start.seeded": "the Spark checkpoint location is seeded, the first batch has not begun",
    "files.planned": "the files of a batch in a bucket are in the source's log, Spark does not know that",
    "batch.begin": "source positions are captured, no task has run",
    "task.restored": "a task has its base state, no row is processed",
    "task.fired": "a task has fired its due timers, if any, and has processed no row of a source",
    "task.processed": "a task has processed its rows, nothing is written to the state",
    "task.snapshot": "a task has its local snapshot, nothing is uploaded",
    "upload.queued": "the new files of a snapshot are linked for the upload thread, and not stored",
    "upload.before": "the upload thread is about to store an object",
    "upload.after": "the upload thread has stored an object, its local file still exists",
    "task.uploaded": "a task has stored its files or queued them for upload; its sink files are not closed",
    "task.sink-closed": "a task's sink files are complete, its report is not sent",
    "batch.reported": "every subtask has reported, the manifest is not written",
    "commit.stored": "every file of a checkpoint is stored, the manifest is not written",
    "commit.manifest": "the manifest is written, the COMMIT is not",
    "log.created": "a log entry is written, the LIST after it is not read",
    "commit.after": "the COMMIT is acknowledged, nothing is published",
    "publish.before": "the token is read, the sink's commit is not made",
    "postgres.written": "a transaction of a PostgreSQL sink has compared the token and written rows, the token is old",
    "postgres.before-commit": "a transaction of a PostgreSQL sink has done all its work, it is not committed",
    "iceberg.before-commit": "data files and manifests of an Iceberg sink are written, the catalog has not the commit",
    "publish.after": "the output of one sink is published, nothing is recorded",
    "transaction.begun": "a sink has begun a transaction, nothing is written",
    "transaction.written": "all rows are written in a sink's transaction, the token is not",
    "transaction.token": "rows and token are written in a sink's transaction, it is not committed",
    "transaction.committed": "a sink's transaction is committed, its response is not processed",
    "batch.end": "all work of a batch is done",
    "savepoint.pinned": "the checkpoint of a savepoint is pinned, nothing of the savepoint is stored",
    "savepoint.started": "a savepoint's folder is created, no file is in it",
    "savepoint.share": "a worker has written a file of a canonical savepoint to local disk, it is not stored",
    "savepoint.copied": "all files of a savepoint are stored, its document is not",
    "write.stored": "all files of a savepoint that a writer makes are stored, its document is not",
    "write.complete": "a savepoint that a writer makes is complete, files of earlier attempts may still exist",
    "savepoint.rekeyed": "all files of a savepoint with another max parallelism are stored, its document is not",
    "savepoint.complete": "a savepoint is complete, its pin still exists",
    "savepoint.given-up": "an incomplete savepoint is marked as given up, its files still exist",
    "savepoint.claimed": "a savepoint's folder says that a job owns it, nothing of it is in the job root",
    "savepoint.released": "an unfinished claim is undone in the savepoint's folder, the log still names it",
    "savepoint.collected": "a claimed savepoint is deleted, the log still names it",
    "savepoint.disposing": "a savepoint is about to be deleted, and still complete",
    "savepoint.disposed": "a savepoint is deleted, its files still exist",
    "request.posted": "a newer run has requested the active one to end, and has not claimed the job",
    "request.made": "a request to the run is executed, the answer is not written",
    "restore.begin": "a restore's plan is checked, nothing is changed",
    "restore.claimed": "a restore has claimed the job, nothing is adopted",
    "restore.imported": "a restore's files are in the job root, its intent is not written",
    "restore.intent": "a restore's intent is written, no table is rewound",
    "rewind.table": "before a table is rewound",
    "rewind.tables": "every table is rewound, the log does not record it",
    "rewind.recorded": "the history has the restore's record, the log does not record its end",
    "rewind.done": "the log records that every table is rewound",
    "read.pinned": "a reader has pinned a checkpoint, and has read nothing",
    "read.entries": "a reader has entries of a copy of a subtask's files, and has decoded none",
    "diff.opened": "a comparison has opened data files that only one checkpoint has, and has read no entry",
    "diff.entries": "a comparison has entries of a copy of a subtask's files, and has compared none",
    "diff.compared": "a comparison has compared an operator, and has returned nothing",
    "read.finished": "a reader has read a checkpoint, its pin still exists",
    "read.unpinned": "a reader has removed its pin, and has not returned",
    "fork.pinned": "a fork's checkpoint is pinned, nothing is in the new root",
    "fork.created": "the new job of a fork has its FORMAT, and nothing else",
    "fork.imported": "a fork's files are in the new root, its first entry is not",
    "fork.adopted": "a fork is complete, its pin still exists",
    "begin.created": "a job root that begins with a savepoint has its FORMAT, and nothing else",
    "begin.imported": "the savepoint's files are in the new job root, its first entry is not",
    "begin.adopted": "a job root that begins with a savepoint has its first entry, and no run",
    "relocate.claimed": "a source relocation has claimed the job, nothing is stored",
    "relocate.stored": "the manifest with the source's new paths is stored, no entry names it",
    "relocate.adopted": "the job continues from the manifest with the source's new paths",
    "compaction.commit": "the files that combine others in a Delta table are durable, no version has them",
    "serve.fetching": "a state server has read a checkpoint's manifest, and opens the state of a subtask",
    "serve.opened": "a state server has opened a checkpoint, and still serves the one before",
    "serve.swapped": "a state server serves a new checkpoint, older ones are not released",
    "serve.renewed": "a state server has renewed its lease, its previous one still exists",
    "history.indexed": "an index of the history is stored, no log entry refers to it",
    "gc.recorded": "a retention is recorded, no checkpoint is released",
    "gc.listed": "garbage is listed, nothing is deleted",
    "gc.deleting": "some garbage is deleted",
    "run.end": "the last batch is done, the run has not returned",
}
"""Description of the step at each failpoint, by name; tests iterate over it."""

_SPECIFICATION = re.compile(r"([a-z.-]+)(?::([1-9][0-9]*)?(?::(kill|stop|error))?)?")
passed: Counter[str] = Counter()
"""Number of times that this process has passed the failpoint named by the environment."""


def check(specification: str) -> None:
    """Checks a value of ``STATEFLOW_FAILPOINT``.

    Raises:
        ConfigError: the value is malformed, or no failpoint has its name.
    """
    matched = _SPECIFICATION.fullmatch(specification)
    if matched is None:
        raise ConfigError(
            "invalid failpoint", hint="pass a name, or a name and a count such as batch.reported:3", value=specification
        )
    if matched[1] not in NAMES:
        similar = ", ".join(get_close_matches(matched[1], NAMES, n=5)) or "batch.begin, batch.reported, commit.after"
        raise ConfigError("unknown failpoint", hint=f"for example: {similar}", name=matched[1])


def hit(name: str) -> None:
    """Passes the failpoint `name`; triggers its action if the environment names it."""
    specification = os.environ.get("STATEFLOW_FAILPOINT")
    if not specification:
        return
    _trigger(name, specification)


def _trigger(name: str, specification: str) -> None:
    assert name in NAMES, f"failpoint {name} is not listed"
    check(specification)
    target, _, rest = specification.partition(":")
    count, _, action = rest.partition(":")
    if target != name:
        return
    passed[name] += 1
    if passed[name] != int(count or 1) or not _first_time():
        return
    if action == "error":
        raise InternalError("failpoint reached", name=name)
    # To this thread: a signal to the process may reach another one, and this one would continue meanwhile.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)


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
