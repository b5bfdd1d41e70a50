"""The kill in the second run: proves that it happened where it should, and that nothing of the batch was committed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flights_demo.airflow_home import launches_below
from flights_demo.job_root import Uncommitted, log_entries, uncommitted
from stateflow.checkpoint.documents import EntryKind, LogEntry
from stateflow_airflow import processes
from stateflow_airflow.launcher import Launch

KILLED_BATCH = 3
FAILPOINT = f"batch.reported:{KILLED_BATCH}"


class NotAsPromised(Exception):
    """The demo claims something that is not so."""


@dataclass(frozen=True)
class Kill:
    """What the first try left when it died."""

    driver: int
    exit_code: int | None
    checkpoint_id: int
    generation: int
    left_behind: Uncommitted


def look_for_kill(runs: Path, job_root: Path) -> Kill | None:
    """What a killed first try left; None while it has not died yet.

    The second try may have claimed the job meanwhile. Once it works, it deletes the log entries of the first one, so
    look before that: the second try begins some seconds after the first one's death, and starts Spark first.

    Raises NotAsPromised when it did not die from SIGKILL at the failpoint, or when something of the batch that it was
    in was committed.
    """
    marker = next(iter(runs.rglob("failpoint-reached")), None)
    launch = _first_launch(marker.parent) if marker else None
    if marker is None or launch is None or launch.process():
        return None
    entries = log_entries(job_root)
    claim = _killed_claim(entries)
    commits = [e for e in entries if e.generation == claim.generation and e.kind == EntryKind.COMMIT]
    last = commits[-1] if commits else claim
    kill = Kill(
        driver=int(marker.read_text()),
        exit_code=launch.exit_code(),
        checkpoint_id=last.seq,
        generation=claim.generation,
        left_behind=uncommitted(job_root, claim.generation, last.ordinal),
    )
    _check(kill, last, [e for e in entries if e.seq > last.seq])
    return kill


def _first_launch(folder: Path) -> Launch | None:
    return next(iter(launches_below(folder)), None)


def _killed_claim(entries: list[LogEntry]) -> LogEntry:
    """The CLAIM of the newest first try: the operator has its tries noted with their numbers."""
    for entry in reversed(entries):
        if entry.kind == EntryKind.CLAIM and entry.note.endswith("/1"):
            return entry
    raise NotAsPromised("the log does not know the try that was killed")


def _check(kill: Kill, last: LogEntry, after: list[LogEntry]) -> None:
    promises = {
        "the driver has ended": processes.look(kill.driver) is None,
        "SIGKILL ended it": kill.exit_code == -9,
        # The checkpoint of the batch before may still be on its way when a batch has ended.
        "it had committed batches before, and not its own": last.kind == EntryKind.COMMIT
        and last.ordinal < KILLED_BATCH,
        "its batch's files are there": kill.left_behind.files > 0,
        "only a newer run's CLAIM follows its last COMMIT": not after or _continues(last, after[0]),
    }
    broken = [promise for promise, kept in promises.items() if not kept]
    if broken:
        raise NotAsPromised(f"not so: {'; '.join(broken)}. Found: {kill}, then {after[:1] or 'nothing'}")


def _continues(last: LogEntry, following: LogEntry) -> bool:
    """Whether a newer run claimed the job with exactly this checkpoint: then no COMMIT was in between, nor can be."""
    claimed = following.checkpoint
    return (
        following.kind == EntryKind.CLAIM
        and following.seq == last.seq + 1
        and following.generation > last.generation
        and claimed is not None
        and claimed.id == last.seq
    )
