"""Rewind of a job's tables to the versions of the log's intent; repeatable, and completed by the next start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

from stateflow import failpoints
from stateflow.api.sink import OtherCommit, SinkTable, Successor, TableChanges
from stateflow.checkpoint.history import write_action
from stateflow.checkpoint.log.checkpoint_log import CheckpointLog, Head
from stateflow.checkpoint.log.documents import ActionRecord, PublishedOutput, RestoreFacts, Rewind, SinkIntent, SinkMode
from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.errors import ConfigError, Fenced, ForeignRows, SinkDiverged, StorageError
from stateflow.runtime.publisher import BoundSink, Publisher

_MAX_ATTEMPTS = 50
_MAX_NAMED = 3
"""The number of commits and files of another writer that an error names."""


def recover_pending_output(
    publisher: Publisher, root: JobRoot, sinks: dict[str, BoundSink], head: Head, guard: FenceGuard
) -> Head:
    """Publishes the pending output that a start finds; rewinds to an older checkpoint if some of it was deleted.

    Returns the newest log entry. Raises MissingFile when no older checkpoint is retained; otherwise as
    `complete_rewind`.

    Args:
        publisher: publishes the run's output.
        root: the job root.
        sinks: the job's sinks, by uid.
        head: the run's newest log entry.
        guard: the run's fence guard; it follows the CLAIM of a rewind.
    """
    lost = publisher.oldest_lost_checkpoint(head)
    publisher.publish_pending(head, lambda p: lost is None or p.checkpoint_id < lost)
    if lost is None:
        publisher.check_tables(head)
        failpoints.hit("start.published")
        return head
    base, intents = publisher.plan_rewind(head, lost)
    reason = f"output of checkpoint {lost} was deleted before it was published"
    facts = RestoreFacts(
        request="",
        by=root.requester,
        reason=reason,
        label=f"checkpoint {base.id}",
        base=base.id,
        left=head.checkpoint_id,
        undone=[ref.id for ref in root.checkpoints.kept(head) if ref.id >= lost],
        at=root.clock.now().isoformat(timespec="milliseconds"),
    )
    # With an intent, as for a restore: a fenced driver, or a process that takes a savepoint, may still publish output
    # that is dropped here into another sink, before its table has the token of this rewind.
    adoption = replace(root.adoption(head, base), restore=facts, sinks=intents)
    adopted = root.adopt(head, adoption, reason)
    guard.follow(adopted)
    publisher.reset()
    return complete_rewind(root, sinks, adopted, planned_now=True)


def complete_rewind(root: JobRoot, sinks: dict[str, BoundSink], head: Head, planned_now: bool = False) -> Head:
    """Completes the intent of `head`, and records in the log that it is completed; returns the newest entry.

    Args:
        sinks: the job's sinks, by uid.
        planned_now: whether the caller has just appended the intent. A table with nothing to rewind then keeps what
            another writer commits concurrently.

    Raises:
        ForeignRows: another writer changed a table after the intent was planned.
        ConfigError: the job lacks a sink of the intent.
        Fenced: a newer run has claimed the job.
        SinkDiverged: a table is not the one of the intent, or can no longer be restored to its version.
    """
    rewind = head.entry.rewind
    if rewind is None:
        return head
    missing = sorted(rewind.sinks.keys() - sinks.keys())
    if missing:
        raise ConfigError(
            "a sink was removed before its table was restored",
            hint="start the job once with the sink, then remove it",
            sinks=missing,
        )
    published = {}
    for uid in sorted(rewind.sinks):
        failpoints.hit("rewind.table")
        published[uid] = _rewind_table(sinks[uid], rewind, root, planned_now)
    failpoints.hit("rewind.tables")
    _record(root, rewind)
    failpoints.hit("rewind.recorded")
    head = root.finish_rewind(head, published)
    failpoints.hit("rewind.done")
    return head


def record_replaced(root: JobRoot, rewind: Rewind, by: int) -> None:
    """Adds a restore to the history that was not completed, because the intent of entry `by` replaces it.

    Args:
        by: sequence number of the CLAIM with the newer intent.
    """
    _record(root, rewind, {"replaced_by": str(by)})


def _record(root: JobRoot, rewind: Rewind, more: Mapping[str, str] = MappingProxyType({})) -> None:
    """Writes the history record of a rewind.

    It is written before the log's entry that completes the rewind, so that a kill in between loses no record: the next
    start writes it again, under the same name.
    """
    facts = rewind.restore
    if facts is None:
        return
    kept = ", ".join(sorted(uid for uid, intent in rewind.sinks.items() if intent.mode is SinkMode.KEEP))
    now = root.clock.now()
    took = now - datetime.fromisoformat(facts.at)
    record = ActionRecord(
        seq=rewind.seq,
        kind="restore" if facts.request else "rewind",
        at=now.isoformat(timespec="milliseconds"),
        by=facts.by,
        reason=facts.reason,
        took_ms=round(took.total_seconds() * 1000, 1),
        bytes=facts.bytes,
        facts={
            "to": facts.label,
            "from_checkpoint": str(facts.left),
            "request": facts.request,
            "base": str(facts.base),
            "undone": ", ".join(str(i) for i in facts.undone),
            "of_job": facts.of_job,
            "savepoint_path": facts.savepoint_path,
            **({"claim_mode": ClaimMode.CLAIM.value} if facts.is_claimed else {}),
            **({"kept_tables": kept} if kept else {}),
            **more,
        },
    )
    write_action(root.storage, record, "intent")


def _rewind_table(sink: BoundSink, rewind: Rewind, root: JobRoot, planned_now: bool) -> PublishedOutput:
    intent, seq = rewind.sinks[sink.uid], rewind.seq
    for _ in range(_MAX_ATTEMPTS):
        table = sink.open_table()
        if table.table_id != intent.table_id:
            raise SinkDiverged(
                "the sink's table is not the one of the restore",
                hint="put the table of the plan back, then start the job again",
                sink=sink.uid,
                table=sink.location,
                known=intent.table_id,
                found=table.table_id,
            )
        version = table.version
        token = table.token or 0
        if token > seq:
            raise _newer_token(sink, token, root.log)
        if token < seq:
            if intent.takes_over:
                # After the handle was made: with any later commit, it is not the newest one.
                by = Successor(sink.context.application, root.storage.uri, seq if intent.is_checked else -1)
                rewound = table.take_over(seq, _former_tokens(sink, intent), by)
            else:
                rewound = table.rewind(_version_to_restore(sink, table, rewind, planned_now), seq)
            if rewound is None:
                continue
            version = rewound
        return PublishedOutput(table_id=intent.table_id, version=version, checkpoint_id=seq)
    raise StorageError("the sink's table changes too fast to rewind it", sink=sink.uid, tries=_MAX_ATTEMPTS)


def _former_tokens(sink: BoundSink, intent: SinkIntent) -> dict[str, int]:
    """Returns the tokens of the applications from which a table is taken over.

    Raises SinkDiverged if one has published since the take-over was planned, or another job root has taken over.
    """
    found: dict[str, int] = {}
    for application, planned in intent.takes_over.items():
        job_uuid, _, uid = application.partition("/")
        table = sink.sink.open_table(replace(sink.context, job_uuid=job_uuid, uid=uid))
        found[application] = table.token or 0
        successor = table.successor.application if table.successor else ""
        is_known = successor in ("", sink.context.application) or successor in intent.takes_over
        if not is_known or (planned is not None and found[application] != planned):
            raise SinkDiverged(
                "a table was written after the start from a savepoint was planned, before it was taken over",
                hint="this job root has processed nothing: delete it, end the other job, and start again from a newer "
                "savepoint of it; or continue in the table as it is: --tables keep",
                sink=sink.uid,
                table=sink.location,
                by_job=(successor if not is_known else application).partition("/")[0],
                token=found[application],
                planned=planned,
            )
    return found


def _version_to_restore(sink: BoundSink, table: SinkTable, rewind: Rewind, planned_now: bool) -> int | None:
    """Returns the version whose content is restored; None when the content of the handle stays.

    A paused driver may have published since the plan was made: the content of `to_version` decides, not the difference
    to it. Commits of another writer since then were not part of the plan: the rewind through this handle must not undo
    them.
    """
    intent = rewind.sinks[sink.uid]
    if intent.to_version is None or intent.to_version == table.version:
        return None
    assert intent.seen_version is not None
    changes = table.changes_since(intent.seen_version)
    unplanned = _unplanned_commits(sink, rewind, changes)
    if not unplanned:
        return intent.to_version
    if planned_now and intent.seen_version == intent.to_version and not changes.published:
        return None
    raise _foreign_rows(sink.uid, intent, changes, unplanned)


def _unplanned_commits(sink: BoundSink, rewind: Rewind, changes: TableChanges) -> list[OtherCommit]:
    """Returns the commits of other writers: not those of this job's sinks that are restored with the same table."""
    table_id = rewind.sinks[sink.uid].table_id
    ours = {f"{sink.context.job_uuid}/{uid}" for uid, i in rewind.sinks.items() if i.table_id == table_id}
    return [commit for commit in changes.others if not commit.applications & ours]


def _foreign_rows(uid: str, intent: SinkIntent, changes: TableChanges, unplanned: list[OtherCommit]) -> ForeignRows:
    newest = unplanned[-1].version
    return ForeignRows(
        "another writer changed the sink's table after the restore was planned, and the restore would undo that",
        hint="pause the other writer. To undo its commits, make a new plan (stateflow restore JOB --plan latest --out "
        f"PLAN), review it and execute it; the undone rows stay readable at version {newest} of the table. To keep "
        f"them, plan with --keep-table {uid}; output published after the checkpoint is then duplicated",
        sink=uid,
        table=changes.table,
        planned_at=intent.seen_version,
        back_to=intent.to_version,
        versions=[c.version for c in unplanned],
        commits=[c.text for c in unplanned[:_MAX_NAMED]],
        files=[path for c in unplanned for path in c.files][:_MAX_NAMED],
    )


def _newer_token(sink: BoundSink, token: int, log: CheckpointLog) -> Fenced | SinkDiverged:
    newest = log.read_head()
    if newest is not None and newest.entry.seq >= token:
        return Fenced(
            "a newer run published to the sink", hint="let the newer run continue", sink=sink.uid, token=token
        )
    return SinkDiverged(
        "the sink's table has a checkpoint that the log does not have",
        hint="if the job root is a copy, run the original; otherwise restore the table to a version that the log has",
        sink=sink.uid,
        table=sink.location,
        token=token,
    )
