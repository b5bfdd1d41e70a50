"""Verifies the kill of the second run: it happened at the failpoint, and nothing of the batch was committed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flights_demo.airflow_home import launches_below
from flights_demo.job_root import PendingCheckpoint, log_entries, uncommitted
from stateflow.checkpoint.log.documents import EntryKind, LogEntry
from stateflow_airflow import processes
from stateflow_airflow.launch import Launch

KILLED_BATCH = 3
FAILPOINT = f"batch.reported:{KILLED_BATCH}"


class DemoCheckFailed(Exception):
    """A claim of the demo does not hold.

    Attributes:
        broken: names of the claims about a kill that do not hold.
    """

    def __init__(self, message: str, broken: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.broken = broken


@dataclass(frozen=True)
class Kill:
    """State that the first try left when it was killed."""

    driver: int
    exit_code: int | None
    checkpoint_id: int
    generation: int
    left_behind: PendingCheckpoint


def look_for_kill(runs: Path, job_root: Path) -> Kill | None:
    """Returns what a killed first try left; None while it is running.

    The second try may have claimed the job already. Once it processes batches, it deletes the log entries of the first
    one, so call this before: the second try begins some seconds after the kill, and starts Spark first.

    Raises:
        DemoCheckFailed: SIGKILL at the failpoint was not the cause, or something of its batch was committed.
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
    """Returns the CLAIM of the newest first try; the operator stores the number of the try in the note."""
    for entry in reversed(entries):
        if entry.kind == EntryKind.CLAIM and entry.note.endswith("/1"):
            return entry
    raise DemoCheckFailed("the log has no CLAIM of the killed try")


def _check(kill: Kill, last: LogEntry, after: list[LogEntry]) -> None:
    # When a batch ends, the checkpoint of the batch before may not be committed yet.
    committed = last.kind == EntryKind.COMMIT and last.ordinal < KILLED_BATCH
    follows = not after or _continues(last, after[0])
    promises = {
        "ended": (processes.find(kill.driver) is None, "the driver has ended"),
        "killed": (kill.exit_code == -9, "SIGKILL ended it"),
        "committed": (committed, "it had committed batches before, and not its own"),
        "files": (kill.left_behind.files > 0, "the files of its batch exist"),
        "follows": (follows, "only a newer run's CLAIM follows its last COMMIT"),
    }
    broken = {name: text for name, (kept, text) in promises.items() if not kept}
    if broken:
        text = f"claims that do not hold: {'; '.join(broken.values())}. Found: {kill}, then {after[:1] or 'nothing'}"
        raise DemoCheckFailed(text, tuple(broken))


def _continues(last: LogEntry, following: LogEntry) -> bool:
    """Returns whether a newer run claimed the job with this checkpoint; then no COMMIT lies in between, or ever can."""
    claimed = following.checkpoint
    return (
        following.kind == EntryKind.CLAIM
        and following.seq == last.seq + 1
        and following.generation > last.generation
        and claimed is not None
        and claimed.id == last.seq
    )
