"""Taking every table of a job back, as the log's intent says: completed by whoever starts next, however often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

from stateflow import failpoints
from stateflow.api.sink import OtherCommit, SinkTable, TableChanges
from stateflow.checkpoint.documents import PublishedOutput, RestoreFacts, Rewind, SinkIntent
from stateflow.checkpoint.history import ActionRecord, write_action
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import CheckpointLog, Head
from stateflow.errors import ConfigError, Fenced, ForeignRows, SinkDiverged, StorageError
from stateflow.runtime.publishing import BoundSink, Publisher

_TRIES = 50
_FIRST = 3
"""As many commits and files of another writer are named in an error."""


def restore_order(publisher: Publisher, root: JobRoot, sinks: dict[str, BoundSink], head: Head) -> Head:
    """Publishes what a start finds pending; goes back to an older checkpoint when some of it is gone.

    Returns the newest entry. Raises MissingFile when it cannot go back; else as `complete_rewind`.
    """
    lost = publisher.lost_checkpoint(head)
    publisher.publish_pending(head, lambda p: lost is None or p.checkpoint_id < lost)
    if lost is None:
        publisher.check_standing(head)
        failpoints.hit("start.published")
        return head
    base, intents = publisher.way_back(head, lost)
    reason = f"output of checkpoint {lost} was deleted before it was published"
    facts = RestoreFacts(
        request="", by=root.writer, reason=reason, label=f"checkpoint {base.id}", base=base.id, left=head.checkpoint_id,
        undone=[ref.id for ref in root.kept(head) if ref.id >= lost],
        at=root.clock.now().isoformat(timespec="milliseconds"),
    )  # fmt: skip
    # With an intent, as when a person goes back: a fenced driver, or somebody who takes a savepoint, may still publish
    # what is dropped here into another sink, before its table has our token.
    adoption = replace(root.adoption(head, base), restore=facts, sinks=intents)
    adopted = root.adopt(head, adoption, reason)
    publisher.forget()
    return complete_rewind(root, sinks, adopted, planned_now=True)


def complete_rewind(
    root: JobRoot, sinks: dict[str, BoundSink], head: Head, planned_now: bool = False
) -> Head:
    """Does what the intent in `head` has left to do, and says so in the log; returns the newest entry.

    Args:
        planned_now: whether the caller has just appended the intent. A table with nothing of ours to take back then
            keeps what another writer commits at the same time.

    Raises:
        ForeignRows: another writer changed a table after the intent's plan.
        ConfigError: a sink that must go back is not in the job.
        Fenced: a newer run has claimed the job.
        SinkDiverged: a table is not the one that was to go back, or cannot go back any more.
    """
    rewind = head.entry.rewind
    if rewind is None:
        return head
    missing = sorted(rewind.sinks.keys() - sinks.keys())
    if missing:
        raise ConfigError("a sink was removed while its table has not gone back yet", hint="start the job once with "
                          "the sink, then remove it", sinks=missing)  # fmt: skip
    published = {}
    for uid in sorted(rewind.sinks):
        failpoints.hit("rewind.table")
        published[uid] = _take_back(sinks[uid], rewind, root.log, planned_now)
    failpoints.hit("rewind.tables")
    _record(root, rewind)
    failpoints.hit("rewind.recorded")
    head = root.rewound(head, published)
    failpoints.hit("rewind.done")
    return head


def record_replaced(root: JobRoot, rewind: Rewind, by: int) -> None:
    """Records in the history a restore that was not completed, because the plan of intent `by` replaces it."""
    _record(root, rewind, {"replaced_by": str(by)})


def _record(root: JobRoot, rewind: Rewind, more: Mapping[str, str] = MappingProxyType({})) -> None:
    """Before the log says that it is done, so that a kill in between loses no record: the next start writes it, under
    the same name."""
    done = rewind.restore
    if done is None:
        return
    now = root.clock.now()
    took = now - datetime.fromisoformat(done.at)
    record = ActionRecord(
        seq=rewind.seq, kind="restore" if done.request else "rewind", at=now.isoformat(timespec="milliseconds"),
        by=done.by, reason=done.reason,
        took_ms=round(took.total_seconds() * 1000, 1), bytes=done.bytes,
        facts={"to": done.label, "from_checkpoint": str(done.left), "request": done.request, "base": str(done.base),
               "undone": ", ".join(str(i) for i in done.undone),
               "of_job": done.of_job, "savepoint_path": done.savepoint_path, **more},
    )  # fmt: skip
    write_action(root.storage, record, "intent")


def _take_back(sink: BoundSink, rewind: Rewind, log: CheckpointLog, planned_now: bool) -> PublishedOutput:
    intent, seq = rewind.sinks[sink.uid], rewind.seq
    for _ in range(_TRIES):
        table = sink.open_table()
        if table.table_id != intent.table_id:
            raise SinkDiverged("the sink's table is not the one that was to go back", hint="put the table "
                               "of the plan back, then start again", sink=sink.uid, table=sink.location,
                               known=intent.table_id, found=table.table_id)  # fmt: skip
        version = table.version
        token = table.token or 0
        if token > seq:
            raise _ahead(sink, token, log)
        if token < seq:
            done = table.rewind(_version_to_restore(sink, table, rewind, planned_now), seq)
            if done is None:
                continue
            version = done
        return PublishedOutput(table_id=intent.table_id, version=version, checkpoint_id=seq)
    raise StorageError("the sink's table changes too fast to take it back", sink=sink.uid, tries=_TRIES)


def _version_to_restore(sink: BoundSink, table: SinkTable, rewind: Rewind, planned_now: bool) -> int | None:
    """The version whose content comes back; None when the content of the handle stays.

    A paused driver may have published since the plan was made: the content of `to_version` is what counts, not the way
    there. What another writer has committed since then was not part of the plan: the rewind on this very handle must
    not undo it.
    """
    intent = rewind.sinks[sink.uid]
    if intent.to_version is None or intent.to_version == table.version:
        return None
    seen = intent.to_version if intent.seen_version is None else intent.seen_version
    changes = table.changes_since(seen)
    unplanned = _unplanned(sink, rewind, changes)
    if not unplanned:
        return intent.to_version
    if planned_now and seen == intent.to_version and not changes.published:
        return None
    raise _foreign_rows(sink.uid, intent, changes, unplanned)


def _unplanned(sink: BoundSink, rewind: Rewind, changes: TableChanges) -> list[OtherCommit]:
    """Commits that are not of a sink of this job that goes back with the same table."""
    table_id = rewind.sinks[sink.uid].table_id
    ours = {f"{sink.context.job_uuid}/{uid}" for uid, i in rewind.sinks.items() if i.table_id == table_id}
    return [commit for commit in changes.others if not commit.applications & ours]


def _foreign_rows(
    uid: str, intent: SinkIntent, changes: TableChanges, unplanned: list[OtherCommit]
) -> ForeignRows:
    newest = unplanned[-1].version
    return ForeignRows(
        "another writer changed the sink's table after the restore was planned, and the restore would undo that",
        hint="pause the other writer; then either approve a plan that shows these commits (stateflow restore JOB "
        "--plan latest --out PLAN, read it, --execute PLAN): what it undoes can be read at "
        f"version {newest} of the table, and appended again; or keep all tables as they are (the same with --sinks "
        "keep): what was published after the checkpoint then comes a second time",
        sink=uid, table=changes.table, planned_at=intent.seen_version, back_to=intent.to_version,
        versions=[c.version for c in unplanned], commits=[c.text for c in unplanned[:_FIRST]],
        files=[path for c in unplanned for path in c.files][:_FIRST],
    )  # fmt: skip


def _ahead(sink: BoundSink, token: int, log: CheckpointLog) -> Fenced | SinkDiverged:
    newest = log.read_head()
    if newest is not None and newest.entry.seq >= token:
        return Fenced(
            "a newer run published to the sink", hint="let the other run work", sink=sink.uid, token=token
        )
    return SinkDiverged("the sink's table knows checkpoints that the log does not", hint="if the job root is a copy, "
                        "run the original; else restore the table to a version that the log knows", sink=sink.uid,
                        table=sink.location, token=token)  # fmt: skip
