"""Restores: plan, execution, progress and rejection."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec.structs import replace

from stateflow.checkpoint.history import read_newest_job_file, write_action
from stateflow.checkpoint.log.documents import ActionRecord
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.restore.plan_document import RestorePlan, difference_of_texts
from stateflow.errors import ConfigError
from stateflow.launch import open_existing
from stateflow.lineage.reporter import report_restore
from stateflow.operations.job_root import JobCode, offsets_of, open_root
from stateflow.operations.status import restored_at, run_name
from stateflow.outputs import Offset, OptionalId, utc_text
from stateflow.runtime.restore.plan_execution import RestoreRequest, execute_plan
from stateflow.runtime.restore.planner import RestoreOptions, make_restore_plan


def plan_restore(job_root: str, code: JobCode, target: str, options: RestoreOptions) -> RestorePlan:
    """Returns the plan of a restore to `target`; changes nothing. See `runtime.restore.planner.make_restore_plan`."""
    changed_at = datetime.fromtimestamp(code.file.stat().st_mtime, UTC) if code.file.is_file() else None
    job = open_existing(code.file, job_root, code.layers)
    plan = make_restore_plan(job, target, options)
    return replace(
        plan,
        job_file=str(code.file.absolute()),
        job_file_changed_at=utc_text(changed_at) if changed_at else None,
        job_file_difference=_difference_of_job_file(job.root, code),
    )


def _difference_of_job_file(root: JobRoot, code: JobCode) -> str | None:
    """Returns how the job file differs from the newest run's whose text is stored; None if that is not known."""
    known = read_newest_job_file(root.storage)
    if known is None or not code.file.is_file():
        return None
    record, before = known
    run = run_name(record.number("run"), record.seq)
    names = f"{record.text('job_file')} of {run}", str(code.file.absolute())
    return difference_of_texts(before, code.file.read_bytes(), names)


def read_restored_tables(job_root: str, code: JobCode) -> dict[str, bool]:
    """Returns for a restore that is not completed whether each table is restored, by uid of its sink.

    Raises ConfigError when the job does not fit, or lacks a sink of the restore.
    """
    job = open_existing(code.file, job_root, code.layers)
    rewind = job.root.head().entry.rewind
    if rewind is None:
        return {}
    missing = sorted(rewind.sinks.keys() - job.sinks.keys())
    if missing:
        raise ConfigError(
            "the job file lacks sinks of the restore", hint="pass the job file that it was started with", sinks=missing
        )
    return {uid: job.sinks[uid].open_table().token == rewind.seq for uid in sorted(rewind.sinks)}


@dataclass(frozen=True)
class RestoreReport:
    """Result of a restore.

    Attributes:
        job: name of the job.
        request_id: id of the request.
        target_label: the checkpoint or savepoint that was restored.
        generation: sequence number of the newest CLAIM.
        checkpoint_id: the job's current checkpoint, which the restore has made; newer than the plan's after a repeated
            request. 0 before the first one.
        restored_checkpoint_id: if a restore has made that checkpoint, the id of the checkpoint that it restored; None
            otherwise, and for another job's.
        offsets: the position of each source, by uid.
        tables: versions of the sinks' tables by uid.
        label: label of the job's current checkpoint or savepoint.
        repeated: whether the restore was completed before this call, which then changed nothing.
    """

    job: str
    request_id: str
    target_label: str
    generation: int
    checkpoint_id: OptionalId
    restored_checkpoint_id: int | None
    offsets: dict[str, Offset]
    tables: dict[str, int]
    label: str
    repeated: bool = False


def restore(job_root: str, code: JobCode, plan: RestorePlan, request: RestoreRequest) -> RestoreReport:
    """Executes a plan, exactly and at most once per request. See `runtime.restore.plan_execution.execute_plan`."""
    job = open_existing(code.file, job_root, code.layers)
    root = job.root
    result = execute_plan(job, plan, request)
    head = result.head
    if not result.repeated:
        report_restore(job, head)
    tables = {uid: p.version for uid, p in head.entry.published.items() if uid in job.sinks}
    return RestoreReport(
        root.job.job,
        request.request_id,
        plan.target_label,
        head.entry.generation,
        head.checkpoint_id,
        restored_at(head, head.checkpoint_id),
        offsets_of(head.entry.sources),
        tables,
        head.checkpoint_label,
        result.repeated,
    )


@dataclass(frozen=True)
class Rejection:
    """A user's decision against a plan, or against another request.

    Attributes:
        request: id of the decision, with hexadecimal digits after its last hyphen; recorded once per id.
        by: the user, as in `stateflow.requesters`.
        at: ISO 8601 timestamp.
        seq: the job's newest log entry when the request was made.
        label: what was requested.
        note: what the user entered, or why there was no decision.
        requested_by: who requested it, as in `stateflow.requesters`; empty if it is the same user.
    """

    request: str
    by: str
    note: str
    at: str
    seq: int
    label: str
    requested_by: str = ""


def record_rejection(job_root: str, rejection: Rejection) -> None:
    """Adds a rejected request to the job's history; a repeated rejection adds nothing.

    A storage failure is only logged, as for every record of the history.
    """
    root = open_root(job_root)
    # The request's entry, not the newest one: a retry must write the same name after the job has progressed.
    write_action(
        root.storage,
        ActionRecord(
            seq=rejection.seq,
            kind="rejection",
            ended_at=rejection.at,
            by=rejection.by,
            requested_by=rejection.requested_by,
            note=rejection.note,
            facts={"requested": rejection.label, "request_id": rejection.request},
        ),
        rejection.request.rpartition("-")[2],
    )
