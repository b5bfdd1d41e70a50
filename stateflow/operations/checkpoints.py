"""Checkpoints of a job: on-demand checkpoints, descriptions and history."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from stateflow.checkpoint.history import (
    RUN_START,
    Integrity,
    check_history,
    read_checked_history,
    read_pending_records,
    read_points,
    read_records,
)
from stateflow.checkpoint.job_requests import RequestClient, RequestTimeouts
from stateflow.checkpoint.log.checkpoint_log import Head, lineage_of
from stateflow.checkpoint.log.documents import (
    COMPLETED,
    SAVEPOINT_RECORD,
    ActionRecord,
    CheckpointRecord,
    Manifest,
    OperatorMetrics,
    Origin,
    Record,
    Request,
    RequestKind,
    is_position,
    seq_of,
    sort_records,
    total_of,
)
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import state_bytes
from stateflow.checkpoint.restore.targets import find_kept_checkpoint
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, HistoryChanged
from stateflow.operations.job_root import now, offsets_of, open_root
from stateflow.operations.status import restored_at
from stateflow.outputs import Inline, Offset, OptionalId, OptionalText, Timestamp
from stateflow.state.handles import SubtaskState
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
            checkpoint_id=head.checkpoint_id,
        )
    return answer.checkpoint_id


@dataclass(frozen=True)
class CheckpointEntry:
    """A checkpoint in the history of its job, completed or aborted.

    Attributes:
        kind: ``checkpoint``.
        checkpoint_id: its id; 0 for an aborted checkpoint.
        previous_checkpoint_id: for an aborted checkpoint, the id of the checkpoint before it; 0 otherwise.
        undone: whether a restore has undone it; None for an aborted checkpoint.
        retained: whether the job keeps it, so that it can be restored.
        integrity: whether the record is as it was recorded; None where that was not checked.
        record: its statistics.
    """

    kind: Literal["checkpoint"]
    checkpoint_id: OptionalId
    previous_checkpoint_id: OptionalId
    undone: bool | None
    retained: bool
    integrity: Integrity | None
    record: Inline[CheckpointRecord]


@dataclass(frozen=True)
class ActionEntry:
    """An action in the history of a job.

    Attributes:
        kind: kind of the action.
        checkpoint_id: the id of the point that it made. A restore of a checkpoint that the job still keeps makes that
            checkpoint the newest one again; a restore of a savepoint or of a changed graph makes a checkpoint with an
            id of its own, as does the first entry of a fork. For a savepoint and a stop, the id of the checkpoint that
            it is about. 0 for other actions.
        restored_checkpoint_id: for a restore, the id of the checkpoint that it restored, whose state its point has; 0
            otherwise, and for another job's checkpoint.
        undone: for a point, whether a later restore has undone it; None otherwise.
        retained: for a point, whether the job keeps it, so that it can be restored; None otherwise.
        integrity: whether the record is as it was recorded; None where that was not checked.
        record: what is recorded of it.
    """

    kind: str
    checkpoint_id: OptionalId
    restored_checkpoint_id: OptionalId
    undone: bool | None
    retained: bool | None
    integrity: Integrity | None
    record: Inline[ActionRecord]


Entry = CheckpointEntry | ActionEntry


class Entries:
    """Makes entries of records, as of one log entry.

    Args:
        root: the job root.
        head: its newest log entry.

    Attributes:
        refs: the retained and pinned checkpoints, by id.

    Raises MissingFile if a newer entry has released the list of retained checkpoints.
    """

    def __init__(self, root: JobRoot, head: Head) -> None:
        self._restorable = {ref.id for ref in root.checkpoints.restorable(head)}
        self.refs = {ref.id: ref for ref in root.checkpoints.list_kept(head)}
        self._lineage = lineage_of(head)[::-1]

    def is_undone(self, checkpoint_id: int) -> bool:
        """Returns whether a restore has undone a point."""
        # The ranges have no common numbers.
        at = bisect_right(self._lineage, checkpoint_id, key=lambda part: part.start)
        is_ancestor = at > 0 and checkpoint_id in self._lineage[at - 1]
        return not is_ancestor and checkpoint_id not in self._restorable

    def is_retained(self, record: Record) -> bool:
        """Returns whether the job keeps the point of a record."""
        return _point_of(record) in self.refs

    def of(self, record: Record, integrity: Integrity | None = None) -> Entry:
        """Returns the entry of a record."""
        seq = seq_of(record)
        undone, kept = self.is_undone(seq), self.is_retained(record)
        if isinstance(record, CheckpointRecord):
            if record.status == COMPLETED:
                return CheckpointEntry("checkpoint", seq, 0, undone, kept, integrity, record)
            return CheckpointEntry("checkpoint", 0, seq, None, False, integrity, record)
        if is_position(record):
            base = record.number("restored_checkpoint_id") or 0
            return ActionEntry(record.kind, _point_of(record), base, undone, kept, integrity, record)
        about = seq if record.kind in (SAVEPOINT_RECORD, "stop") else 0
        return ActionEntry(record.kind, about, 0, None, None, integrity, record)


def _point_of(record: Record) -> int:
    """Returns the id of the point of a record: of a restore, that of the checkpoint that it has made the newest."""
    point = None if isinstance(record, CheckpointRecord) else record.number("checkpoint_id")
    return point or seq_of(record)


@dataclass(frozen=True)
class OperatorDescription:
    """Description of an operator's state in a checkpoint or savepoint.

    Attributes:
        uid: uid of the operator.
        subtasks: number of subtasks that have state.
        files: number of files.
        size_bytes: size of the state.
        live_bytes: about the size of the keyed state without entries that were overwritten or deleted, which files
            have until a compaction; None if it is not known.
        states: names of the keyed states.
        operator_states: names of the list states and broadcast states.
    """

    uid: str
    subtasks: int
    files: int
    size_bytes: int
    live_bytes: int | None
    states: tuple[str, ...]
    operator_states: tuple[str, ...]


@dataclass(frozen=True)
class CheckpointDescription:
    """Description of a checkpoint.

    Attributes:
        checkpoint_id: its id.
        restored_checkpoint_id: if a restore has made it, the id of the checkpoint that it restored, which has the same
            state; None otherwise, and for another job's.
        generation: generation of the run that made it.
        ordinal: number of its barrier in that generation.
        committed_at: when it was committed.
        code_hash: hash of the job's code that made it; empty if it is not known.
        offsets: the position of each source, by uid.
        operators: the operators with their state.
    """

    checkpoint_id: int
    restored_checkpoint_id: int | None
    generation: int
    ordinal: int
    committed_at: Timestamp
    code_hash: OptionalText
    offsets: dict[str, Offset]
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
    return describe_manifest(root.head(), checkpoint_id, target.manifest, target.at)


def describe_manifest(head: Head, checkpoint_id: int, manifest: Manifest, committed_at: str) -> CheckpointDescription:
    """Returns the description of a checkpoint.

    Args:
        head: the newest log entry.
        checkpoint_id: id of the checkpoint.
        manifest: its manifest.
        committed_at: when it was committed.
    """
    return CheckpointDescription(
        checkpoint_id,
        restored_at(head, checkpoint_id),
        manifest.generation,
        manifest.ordinal,
        committed_at,
        manifest.code,
        offsets_of(manifest.sources),
        operators_of(manifest),
    )


def operators_of(manifest: Manifest) -> tuple[OperatorDescription, ...]:
    """Returns the description of each operator's state."""
    return tuple(
        OperatorDescription(
            o.uid,
            len(o.subtasks),
            len(o.files),
            state_bytes([o]),
            live_bytes_of(o.subtasks),
            tuple(s.name for s in o.states),
            tuple(s.name for s in o.operator_states),
        )
        for o in manifest.operators
    )


def live_bytes_of(parts: Iterable[OperatorMetrics | SubtaskState]) -> int | None:
    """Returns the live size of keyed state; None without any part, and if the size of one is not known."""
    sizes = [each.live_bytes for each in parts]
    return total_of(sizes) if sizes else None


def list_points(job_root: str, newest: int = 1000) -> list[Entry]:
    """Returns the newest points of a job, oldest first: checkpoints, also aborted ones, and restores.

    Raises ConfigError without a job.
    """
    root = open_root(job_root)

    def read(head: Head) -> list[Entry]:
        entries = Entries(root, head)
        return [entries.of(record) for record in read_points(root.storage, newest, read_pending_records(root, head))]

    return root.read_kept(read)


def history(job_root: str, newest: int = 1000) -> list[CheckpointRecord]:
    """Returns the records of the newest checkpoints, including aborted ones, oldest first; none without a job."""
    storage = open_storage(job_root)
    return read_records(storage, newest, _pending_records(storage))


@dataclass(frozen=True)
class Timeline:
    """Records of a job's history, compared with the index in its log.

    Attributes:
        entries: checkpoints and actions, oldest first.
        changed: the error that names changed and deleted objects of the whole history; None if there are none.
    """

    entries: list[Entry]
    changed: HistoryChanged | None


def timeline(job_root: str, newest: int = 1000, *, with_runs: bool = True) -> Timeline:
    """Returns the newest records of checkpoints and actions.

    Args:
        job_root: the job root.
        newest: the largest number of records.
        with_runs: whether with the records of the starts of runs.

    Raises:
        ConfigError: the folder is not a job root.
    """
    root = open_root(job_root)
    check = check_history(root)
    found = {id(r): (r, i) for r, i in read_checked_history(root.storage, _pending_records(root.storage), check)}
    wanted = (r for r, _ in found.values() if with_runs or not isinstance(r, ActionRecord) or r.kind != RUN_START)
    ordered = sort_records(wanted)[-newest:]
    entries = root.read_kept(lambda head: Entries(root, head))
    return Timeline([entries.of(record, found[id(record)][1]) for record in ordered], check.error())


def verify_history(job_root: str) -> int:
    """Compares the whole history with the index in the log; returns the number of objects that are as recorded.

    Raises HistoryChanged when objects were changed or deleted.
    """
    check = check_history(open_root(job_root))
    if error := check.error():
        raise error
    return len(check.verified)


def _pending_records(storage: Storage) -> list[CheckpointRecord]:
    """Returns the records that only the newest manifest has."""
    if storage.size(FORMAT) is None:
        return []
    root = JobRoot.open(storage, SystemClock())
    if root.log.read_head() is None:
        return []
    return root.read_kept(lambda head: read_pending_records(root, head))
