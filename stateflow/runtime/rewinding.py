"""Taking every table of a job back, as the log's intent says: completed by whoever starts next, however often."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from stateflow import failpoints
from stateflow.checkpoint.documents import PublishedOutput, RestoreFacts, Rewind, SinkIntent
from stateflow.checkpoint.history import ActionRecord, write_action
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import CheckpointLog, Head
from stateflow.errors import ConfigError, Fenced, SinkDiverged, StorageError
from stateflow.runtime.publishing import BoundSink, Publisher

_TRIES = 50


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
    return complete_rewind(root, sinks, adopted)


def complete_rewind(root: JobRoot, sinks: dict[str, BoundSink], head: Head) -> Head:
    """Does what the intent in `head` has left to do, and says so in the log; returns the newest entry.

    Raises:
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
    for uid, intent in sorted(rewind.sinks.items()):
        failpoints.hit("rewind.table")
        published[uid] = _take_back(sinks[uid], intent, rewind.seq, root.log)
    failpoints.hit("rewind.tables")
    _record(root, rewind)
    failpoints.hit("rewind.recorded")
    head = root.rewound(head, published)
    failpoints.hit("rewind.done")
    return head


def _record(root: JobRoot, rewind: Rewind) -> None:
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
               "of_job": done.of_job, "savepoint_path": done.savepoint_path},
    )  # fmt: skip
    write_action(root.storage, record, "intent")


def _take_back(sink: BoundSink, intent: SinkIntent, seq: int, log: CheckpointLog) -> PublishedOutput:
    for _ in range(_TRIES):
        table = sink.open_table()
        if table.table_id != intent.table_id:
            raise SinkDiverged("the sink's table is not the one that was to go back", hint="restore it", sink=sink.uid,
                               known=intent.table_id, found=table.table_id)  # fmt: skip
        version = table.version
        token = table.token or 0
        if token > seq:
            raise _ahead(sink.uid, token, log)
        if token < seq:
            # A paused driver may have published since the plan was made: the content of `to_version` is what counts,
            # not the way there.
            to_version = None if intent.to_version == version else intent.to_version
            done = table.rewind(to_version, seq)
            if done is None:
                continue
            version = done
        return PublishedOutput(table_id=intent.table_id, version=version, checkpoint_id=seq)
    raise StorageError("the sink's table changes too fast to take it back", sink=sink.uid, tries=_TRIES)


def _ahead(uid: str, token: int, log: CheckpointLog) -> Fenced | SinkDiverged:
    newest = log.read_head()
    if newest is not None and newest.entry.seq >= token:
        return Fenced(
            "a newer run published to the sink", hint="let the other run work", sink=uid, token=token
        )
    return SinkDiverged("the sink's table knows checkpoints that the log does not", hint="is the job root a copy, or "
                        "restored from one? go back in the sink too", sink=uid, token=token)  # fmt: skip
