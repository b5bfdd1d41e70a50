"""Checkpoints of a job: on-demand checkpoints, descriptions and history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from stateflow.checkpoint.history import (
    Integrity,
    check_history,
    read_checked_history,
    read_pending_records,
    read_records,
)
from stateflow.checkpoint.job_requests import RequestClient, RequestTimeouts
from stateflow.checkpoint.log.checkpoint_log import is_ancestor
from stateflow.checkpoint.log.documents import CheckpointRecord, Origin, Record, Request, RequestKind, sort_records
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import state_bytes
from stateflow.checkpoint.restore.targets import find_kept_checkpoint
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, HistoryChanged
from stateflow.operations.job_root import now, offsets_of, open_root
from stateflow.storage import Storage, open_storage
from stateflow.storage.paths import FORMAT


@dataclass(frozen=True)
class CheckpointRequest:
    """Parameters of an on-demand checkpoint.

    Attributes:
        request_id: a repeated request with the same id gets the same answer; generated when empty.
        full: whether all state is stored again, so that the checkpoint shares no file with an earlier one.
        acknowledge_timeout: time limit for a run to confirm the request, initially and on each re-check.
        timeout: time limit for the run's answer.
    """

    by: str = ""
    reason: str = ""
    request_id: str = ""
    full: bool = False
    acknowledge_timeout: timedelta = RequestTimeouts.acknowledge
    timeout: timedelta = RequestTimeouts.answer


def trigger_checkpoint(job_root: str, request: CheckpointRequest) -> int:
    """Makes the run's next barrier a checkpoint, regardless of the interval; returns the checkpoint's id.

    Raises:
        ConfigError: no run is active; the newest checkpoint then has everything that was processed.
        RequestTimeout: the run did not reach a barrier in time.
    """
    root = open_root(job_root)
    head = root.head()
    answer = None
    if not head.entry.ended:
        checkpoint_request = Request(
            id=request.request_id or root.clock.new_id(),
            kind=RequestKind.CHECKPOINT,
            savepoint="",
            origin=Origin.MANUAL,
            by=request.by or root.requester,
            reason=request.reason,
            full=request.full,
            at=now(root),
        )
        client = RequestClient(root, RequestTimeouts(request.acknowledge_timeout, request.timeout))
        answer = client.wait(client.submit(checkpoint_request))
    if answer is None:
        raise ConfigError(
            "no run of the job is active, or none confirmed the request",
            hint="without a run, the newest checkpoint has everything that was processed; if a run is active, wait "
            "longer: --acknowledge-timeout",
            root=root.storage.uri,
            checkpoint=head.checkpoint_id,
        )
    return answer.checkpoint_id


@dataclass(frozen=True)
class OperatorDescription:
    """Description of an operator's state in a checkpoint.

    Attributes:
        subtasks, files, bytes: number of subtasks and files, and the size of the state.
        states: names of the keyed states.
    """

    uid: str
    subtasks: int
    files: int
    bytes: int
    states: tuple[str, ...]


@dataclass(frozen=True)
class CheckpointDescription:
    """Description of a checkpoint.

    Attributes:
        committed_at: ISO 8601 timestamp.
        offsets: source offsets by uid.
    """

    checkpoint_id: int
    generation: int
    ordinal: int
    committed_at: str
    offsets: dict[str, str]
    operators: tuple[OperatorDescription, ...]


def describe_checkpoint(job_root: str, checkpoint_id: int) -> CheckpointDescription:
    """Returns the description of a retained or pinned checkpoint.

    Raises:
        ConfigError: the checkpoint does not exist, or no longer exists.
        MissingFile, CorruptFile: the checkpoint is damaged.
    """
    root = open_root(job_root)
    hint = "stateflow checkpoints list shows the existing ones"
    target = root.read_kept(lambda head: find_kept_checkpoint(root, head, checkpoint_id, hint))
    manifest = target.manifest
    return CheckpointDescription(
        checkpoint_id,
        manifest.generation,
        manifest.ordinal,
        target.at,
        offsets_of(manifest.sources),
        tuple(
            OperatorDescription(o.uid, len(o.subtasks), len(o.files), state_bytes([o]), tuple(s.name for s in o.states))
            for o in manifest.operators
        ),
    )


def history(job_root: str, newest: int = 1000) -> list[CheckpointRecord]:
    """Returns the records of the newest checkpoints, including aborted ones, oldest first; none without a job."""
    storage = open_storage(job_root)
    return read_records(storage, newest, _pending_records(storage))


@dataclass(frozen=True)
class Timeline:
    """Records of a job's history, compared with the index in its log.

    Attributes:
        records: records of checkpoints and actions, oldest first.
        integrity: for each record whether it is as it was recorded.
        changed: the error that names changed and deleted objects of the whole history; None if there are none.
    """

    records: list[Record]
    integrity: list[Integrity]
    changed: HistoryChanged | None


def timeline(job_root: str, newest: int = 1000) -> Timeline:
    """Returns the newest records of checkpoints and actions. Raises ConfigError without a job."""
    root = open_root(job_root)
    check = check_history(root)
    found = {id(r): (r, i) for r, i in read_checked_history(root.storage, _pending_records(root.storage), check)}
    ordered = sort_records(record for record, _ in found.values())[-newest:]
    return Timeline(ordered, [found[id(record)][1] for record in ordered], check.error())


def verify_history(job_root: str) -> int:
    """Compares the whole history with the index in the log; returns the number of objects that are as recorded.

    Raises HistoryChanged when objects were changed or deleted.
    """
    check = check_history(open_root(job_root))
    if error := check.error():
        raise error
    return len(check.verified)


def undone(job_root: str, records: Iterable[CheckpointRecord]) -> frozenset[int]:
    """Returns the ids of the recorded checkpoints that a restore has undone."""
    root = open_root(job_root)
    head = root.head()
    retained = {ref.id for ref in root.checkpoints.restorable(head)}
    return frozenset(r.checkpoint_id for r in records if not is_ancestor(head, r.checkpoint_id, retained))


def _pending_records(storage: Storage) -> list[CheckpointRecord]:
    """Returns the records that only the newest manifest has."""
    if storage.size(FORMAT) is None:
        return []
    root = JobRoot.open(storage, SystemClock())
    if root.log.read_head() is None:
        return []
    return root.read_kept(lambda head: read_pending_records(root, head))
