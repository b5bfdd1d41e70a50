"""Execution of a restore plan: exactly as planned, and at most once per request.

It claims the job, which fences every run, publishes the output that belongs to the target, copies a savepoint's files
into the job root, and then appends one CLAIM that adopts the target and names every table: the intent. Before the
intent, only a CLAIM was appended; after it, every start of the job completes what is missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

import msgspec

from stateflow import failpoints
from stateflow.api.sink import OtherCommit, SinkTable, Successor, TableChanges
from stateflow.checkpoint.history import flush_pending_records, write_action
from stateflow.checkpoint.log.checkpoint_log import CheckpointLog, Head
from stateflow.checkpoint.log.documents import (
    ActionRecord,
    LogEntry,
    PublishedOutput,
    RestoreFacts,
    Rewind,
    SinkIntent,
    SinkMode,
)
from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.transitions import Adoption
from stateflow.checkpoint.progress import forget_restored_tables, report_restored_table
from stateflow.checkpoint.restore.plan_document import GraphChanges, GraphPlan, RestorePlan, StateAction, is_outdated
from stateflow.checkpoint.restore.targets import Target, find_kept_checkpoint
from stateflow.checkpoint.savepoints.catalog import open_savepoint, savepoint_uri
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.checkpoint.savepoints.claimed_savepoints import announce_claim, take_over
from stateflow.errors import ConfigError, Fenced, ForeignRows, PlanOutdated, SinkDiverged, SinkRefused, StorageError
from stateflow.requesters import describe_requester
from stateflow.runtime.job import Job
from stateflow.runtime.publisher import BoundSink, Publisher
from stateflow.runtime.restore.graph_changes import ChangedGraph, GraphRequest
from stateflow.runtime.restore.planner import RestoreContext, check_target, output_to_publish, sink_intents
from stateflow.runtime.restore.state_import import StateLocation, import_state
from stateflow.storage import open_location


@dataclass(frozen=True)
class RestoreResult:
    """A completed restore.

    Attributes:
        head: the newest log entry.
        repeated: whether the restore was completed before this call, which then changed nothing.
    """

    head: Head
    repeated: bool = False


@dataclass(frozen=True)
class RestoreRequest:
    """The id of a restore, who requested it, and why; a request is executed at most once.

    Attributes:
        by: who executes or has approved it, as in `stateflow.requesters`.
        requested_by: who requested it, if `by` is another person, who has approved it.
        note: what the person entered who has approved it.
    """

    request_id: str
    by: str = ""
    reason: str = ""
    requested_by: str = ""
    note: str = ""


def execute_plan(job: Job, plan: RestorePlan, request: RestoreRequest) -> RestoreResult:
    """Executes a restore plan, or completes an earlier attempt of the same request; does nothing if that is completed.

    Raises:
        ConfigError: the plan was made for another job, or the job no longer fits.
        PlanOutdated: the job, its file and settings, its tables or the target have changed since the plan was made. No
            table and no state is changed then.
        Fenced: a newer run, or another execution of the same plan, claimed the job.
        DataError: as `planner.make_restore_plan`.
    """
    head = job.root.head()
    result = _complete_earlier_attempt(job, head, request)
    if result is not None:
        return result
    try:
        return RestoreResult(_execute(job, head, plan, request))
    except (Fenced, PlanOutdated):
        # Another process may have executed the same plan concurrently, and have completed it.
        result = _complete_earlier_attempt(job, job.root.head(), request)
        if result is None:
            raise
        return result


def _complete_earlier_attempt(job: Job, head: Head, request: RestoreRequest) -> RestoreResult | None:
    """Completes an earlier attempt of the request; returns None when none has appended its intent."""
    if request.request_id not in head.entry.requests:
        return None
    rewind = head.entry.rewind
    if rewind is None or rewind.restore is None or rewind.restore.request != request.request_id:
        return RestoreResult(head, repeated=True)
    return RestoreResult(complete_rewind(job.root, job.sinks, head))


def _execute(job: Job, head: Head, plan: RestorePlan, request: RestoreRequest) -> Head:
    root = job.root
    context = _check_plan(job, head, plan, request)
    savepoint = context.target.savepoint if plan.claim_mode is ClaimMode.CLAIM else None
    announced = announce_claim(root, head, savepoint) if savepoint else None
    note = _note(plan, request)
    failpoints.hit("restore.begin")
    completed_head = _complete_unfinished(job, head, plan)
    claimed = root.claim_on(completed_head, request.request_id, note, announced)
    if claimed is None:
        raise _overtaken(plan, root.head(), request)
    failpoints.hit("restore.claimed")
    # No later entry refers to the manifest that holds these records.
    if not head.entry.ended:
        flush_pending_records(root, head)
    adoption = _prepare_adoption(context.with_head(claimed), plan, request)
    facts = msgspec.structs.replace(_facts(context, plan, request), is_imported=adoption.checkpoint is None)
    adoption = dataclasses.replace(adoption, restore=facts)
    failpoints.hit("restore.imported")
    adopted = root.adopt(claimed, adoption, note)
    failpoints.hit("restore.intent")
    # What the new intent replaces.
    _record(root, completed_head.entry, {"replaced_by_seq": adopted.entry.seq})
    return complete_rewind(root, job.sinks, adopted, planned_now=True)


def _check_plan(job: Job, head: Head, plan: RestorePlan, request: RestoreRequest) -> RestoreContext:
    """Checks the whole plan before the CLAIM, which ends a run: a plan that cannot be executed must not end one."""
    check_planned_job(job, plan)
    check_not_outdated(plan, head, request.request_id)
    context = check_target(job, head, planned_target(job.root, head, plan), planned_graph(plan))
    check_planned_graph(context.graph, plan)
    sink_intents(context, plan.sinks)
    context.checked.check_file_hashes()
    return context


def _note(plan: RestorePlan, request: RestoreRequest) -> str:
    by = f" for {describe_requester(request.by)}" if request.by else ""
    reason = f": {request.reason}" if request.reason else ""
    return f"restore {plan.target_label}{by}{reason}"


def _complete_unfinished(job: Job, head: Head, plan: RestorePlan) -> Head:
    """Completes an earlier restore that was killed after its intent; returns the newest entry.

    A restore that a table blocks stays incomplete if the plan covers each of its tables: another writer has committed
    to the table, or the job has published to one that cannot be rewound, or to one whose old versions are gone.
    """
    try:
        return complete_rewind(job.root, job.sinks, head)
    except (ForeignRows, SinkRefused, SinkDiverged):
        rewind = head.entry.rewind
        planned = {change.uid for change in plan.sinks}
        if rewind is None or rewind.restore is None or not rewind.sinks.keys() <= planned:
            raise
        return head


def _overtaken(plan: RestorePlan, head: Head, request: RestoreRequest) -> Fenced | PlanOutdated:
    if head.entry.claimed_for != request.request_id:
        return outdated_plan(plan, head)
    # The other process is probably alive: to claim the job would only fence it in the middle of the same work.
    return Fenced(
        "another process is executing this plan",
        hint="wait until it ends; then repeat the command, which reports the restore as done, or completes it",
        request=request.request_id,
    )


def _prepare_adoption(context: RestoreContext, plan: RestorePlan, request: RestoreRequest) -> Adoption:
    """Publishes the output of the target, claims its savepoint if that is planned, and stores its state in the root."""
    root, target = context.job.root, context.target
    pending = output_to_publish(context, plan.sinks)
    Publisher(root, context.job.sinks).publish_pending(context.head, pending)
    sinks = sink_intents(context, plan.sinks)
    if target.ref is not None and not context.graph.is_changed:
        return dataclasses.replace(root.adoption(context.head, target.ref), sinks=sinks)
    savepoint = target.savepoint
    graph, generation, owned = context.graph, context.head.entry.generation, None
    if savepoint and plan.claim_mode is ClaimMode.CLAIM:
        # Before its files are copied: from here on no user's command deletes them.
        owned = take_over(root, savepoint, generation, request.by)
    location = StateLocation.of(savepoint, checked=True) if savepoint else None
    manifest = import_state(root, graph.shared, location, generation, graph.operators.rewrites)
    return Adoption(
        upto=context.last_published,
        manifest=manifest,
        sources=context.manifest.sources,
        savepoint=target.label if savepoint else "",
        sinks=sinks,
        claimed=owned,
        watermark=context.manifest.output_watermark,
    )


def _facts(context: RestoreContext, plan: RestorePlan, request: RestoreRequest) -> RestoreFacts:
    root = context.job.root
    return RestoreFacts(
        request=request.request_id,
        by=request.by or root.requester,
        requested_by=request.requested_by,
        reason=request.reason,
        note=request.note,
        label=plan.target_label,
        base=0 if context.from_other_job else plan.target_checkpoint_id,
        left=plan.checkpoint_id,
        undone=plan.dropped_checkpoint_ids,
        at=root.clock.now().isoformat(timespec="milliseconds"),
        bytes=sum(s.target_bytes for s in plan.states if s.action is not StateAction.DROPPED),
        rows_removed=_rows_removed(plan),
        of_job=f"{plan.parent_job} {plan.parent_job_uuid}" if plan.parent_job_uuid else "",
        savepoint_path=plan.savepoint_path or "" if context.from_other_job else "",
        is_claimed=plan.claim_mode is ClaimMode.CLAIM,
        sinks_left=[sink.uid for sink in plan.left],
    )


def _rows_removed(plan: RestorePlan) -> int | None:
    removed = [sink.rows_removed for sink in plan.sinks]
    return None if None in removed else sum(rows or 0 for rows in removed)


_OTHER_TARGET = "make a new plan, with another target"


def check_planned_job(job: Job, plan: RestorePlan) -> None:
    """Raises ConfigError for a plan of another job, PlanOutdated unless job file and settings are as in the plan."""
    uuid = job.root.job.job_uuid
    if plan.job_uuid != uuid:
        raise ConfigError(
            "the plan was made for another job",
            hint="check --job-root: it must be the one of the plan",
            planned_for=plan.job_uuid,
            this_job=uuid,
            root=job.root.storage.uri,
        )
    differs = _differences(job, plan)
    if differs:
        raise PlanOutdated(
            "the job file or its settings differ from the plan",
            hint="execute with the job file, --config and --set that the plan was made with, or make a new plan",
            differs=differs,
        )


def planned_graph(plan: RestorePlan) -> GraphRequest:
    """Returns the user's decisions about the graph in a plan."""
    graph = plan.graph
    at = datetime.fromisoformat(graph.positions_at or plan.made_at)
    return GraphRequest(GraphChanges(tuple(graph.maps), tuple(graph.sources)), frozenset(graph.drop), at)


def check_planned_graph(found: ChangedGraph, plan: RestorePlan) -> None:
    """Raises PlanOutdated unless the same decisions have the result that the plan shows."""
    planned = [(change.uid, change.target_offset, change.action, change.old) for change in plan.sources]
    now = [(change.uid, change.target_offset, change.action, change.old) for change in found.source_changes]
    if _outcome(found.plan) != _outcome(plan.graph) or now != planned:
        raise PlanOutdated(
            "states or source positions differ from the plan",
            hint="the job file, the plan, or the files of a source have changed: make a new plan",
            planned_sources=[each for each in planned if each not in now],
            sources=[each for each in now if each not in planned],
        )


def _outcome(graph: GraphPlan) -> tuple[object, ...]:
    return graph.moves, graph.dropped, graph.old_max_parallelism, graph.max_parallelism


def _differences(job: Job, plan: RestorePlan) -> list[str]:
    planned = {change.uid for change in plan.sinks}
    # The id of a planned table is compared when the table is opened.
    new = [uid for uid in job.sinks.keys() - planned if job.sinks[uid].sink.check(job.sinks[uid].context)]
    found = []
    if job.plan.parallelism != plan.parallelism:
        found.append(f"parallelism {job.plan.parallelism}, planned {plan.parallelism}")
    if sorted(job.plan.key_types) != plan.operators:
        found.append(f"operators {sorted(job.plan.key_types)}, planned {plan.operators}")
    found += [f"a table of {uid}, not planned" for uid in sorted(new)]
    return found + [f"no sink {uid}, planned" for uid in sorted(planned - job.sinks.keys())]


def check_not_outdated(plan: RestorePlan, head: Head, request: str) -> None:
    """Raises PlanOutdated when the job has progressed since the plan was made.

    Args:
        request: id of the restore request. A CLAIM of an earlier attempt of it changed nothing that the plan shows.
    """
    own = head.entry.claimed_for == request and head.checkpoint_id == plan.checkpoint_id
    if is_outdated(plan, head) and not own:
        raise outdated_plan(plan, head)


def outdated_plan(plan: RestorePlan, head: Head) -> PlanOutdated:
    """Returns the error for a job that has progressed since the plan was made."""
    return PlanOutdated(
        "the job has progressed since the plan was made",
        hint="make a new plan",
        planned_seq=plan.head_seq,
        newest_seq=head.entry.seq,
        checkpoint_id=head.checkpoint_id,
    )


def planned_target(root: JobRoot, head: Head, plan: RestorePlan) -> Target:
    """Returns the checkpoint or savepoint of the plan. Raises PlanOutdated when it no longer exists or has changed."""
    return _planned_savepoint(root, plan) if plan.savepoint_path else _planned_checkpoint(root, head, plan)


def _planned_savepoint(root: JobRoot, plan: RestorePlan) -> Target:
    storage = open_location(savepoint_uri(plan.savepoint_path or ""), root.storage.uri)
    try:
        stored = open_savepoint(storage)
    except ConfigError as e:
        raise PlanOutdated(
            "the savepoint of the plan no longer exists",
            hint="make a new plan, with another target",
            target=plan.target_label,
            savepoint=plan.savepoint_path,
        ) from e
    if stored.sha256 != plan.target_sha256:
        raise PlanOutdated(
            "the savepoint is not the one that the plan was made for",
            hint="make a new plan",
            savepoint=plan.savepoint_path,
        )
    document = stored.document
    return Target(document.checkpoint_id, document.made_at, document.job_uuid, document.manifest, savepoint=stored)


def _planned_checkpoint(root: JobRoot, head: Head, plan: RestorePlan) -> Target:
    number = plan.target_checkpoint_id
    if (number, plan.target_sha256) not in {(ref.id, ref.sha256) for ref in root.checkpoints.restorable(head)}:
        raise PlanOutdated("the checkpoint of the plan is no longer retained", hint=_OTHER_TARGET, checkpoint_id=number)
    return find_kept_checkpoint(root, head, number, _OTHER_TARGET)


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
        undone=[ref.id for ref in root.checkpoints.list_kept(head) if ref.id >= lost],
        at=root.clock.now().isoformat(timespec="milliseconds"),
        sinks_left=sorted(u for u, p in head.entry.published.items() if u not in intents and p.checkpoint_id > base.id),
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
        report_restored_table(root.storage, rewind.seq, uid)
    failpoints.hit("rewind.tables")
    _record(root, head.entry)
    failpoints.hit("rewind.recorded")
    head = root.finish_rewind(head, published)
    failpoints.hit("rewind.done")
    forget_restored_tables(root.storage, rewind.seq, published)
    return head


def _record(root: JobRoot, entry: LogEntry, more: Mapping[str, object] = MappingProxyType({})) -> None:
    """Writes the history record of the restore whose intent an entry has; of none if it has none.

    It is written before the log's entry that completes the rewind, so that a kill in between loses no record: the next
    start writes it again, under the same name.
    """
    rewind = entry.rewind
    if rewind is None or rewind.restore is None:
        return
    facts = rewind.restore
    parent_job, _, parent_job_uuid = facts.of_job.rpartition(" ")
    # A sink that the job does not have keeps its rows too, and may come back.
    kept = sorted({*facts.sinks_left} | {uid for uid, intent in rewind.sinks.items() if intent.mode is SinkMode.KEEP})
    now = root.clock.now()
    took = now - datetime.fromisoformat(facts.at)
    record = ActionRecord(
        seq=rewind.seq,
        kind="restore" if facts.request else "rewind",
        ended_at=now.isoformat(timespec="milliseconds"),
        by=facts.by,
        requested_by=facts.requested_by,
        reason=facts.reason,
        note=facts.note,
        duration_ms=round(took.total_seconds() * 1000, 1),
        size_bytes=facts.bytes,
        facts={
            "target_label": facts.label,
            "previous_checkpoint_id": facts.left,
            "request_id": facts.request,
            "restored_checkpoint_id": facts.base,
            "checkpoint_id": rewind.seq if facts.is_imported else facts.base,
            "undone_checkpoint_ids": facts.undone,
            "rows_removed": facts.rows_removed,
            "parent_job": parent_job or None,
            "parent_job_uuid": parent_job_uuid or None,
            "savepoint_path": facts.savepoint_path or None,
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
    if intent.to_version is None or intent.seen_version is None or intent.to_version == table.version:
        return None
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
        planned_version=intent.seen_version,
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
