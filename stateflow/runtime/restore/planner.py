"""Planning of a restore to a checkpoint or savepoint; changes nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from msgspec.structs import replace

from stateflow.api.source import LocalSource, Source, local_position
from stateflow.checkpoint.history import external_savepoints
from stateflow.checkpoint.log.checkpoint_log import Head, is_ancestor
from stateflow.checkpoint.log.documents import NOT_BEGUN, Manifest, SinkMode, SourcePosition
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import state_bytes
from stateflow.checkpoint.restore.plan_document import (
    GraphChanges,
    RestorePlan,
    SavedCheckpoint,
    SourceAction,
    SourceChange,
    StateChange,
    is_run_open,
    replay_since,
    state_changes,
)
from stateflow.checkpoint.restore.targets import Target, resolve_target
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, list_savepoints, savepoint_at
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.checkpoint.savepoints.claimed_savepoints import check_claimable
from stateflow.errors import ConfigError, CorruptFile, MissingFile, StateflowError
from stateflow.runtime.job import Job
from stateflow.runtime.restore.context import RestoreContext, check_target
from stateflow.runtime.restore.graph_changes import GraphRequest
from stateflow.runtime.restore.sink_changes import plan_sink_changes, tables_without_sink

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RestoreOptions:
    """Decisions of the user about a restore.

    Attributes:
        sinks: whether tables are restored together with the state, or keep their content.
        drop: uids of operators that the job no longer has, whose state is dropped; ``UID.STATE`` for one state.
        from_other_job: whether the target may be a savepoint of another job.
        keep_tables: uids of sinks whose tables keep their content although others are restored: sinks of the job, and
            sinks that it no longer has.
        changes: new names in the job, and positions of sources.
        claim_mode: who owns a savepoint after the restore.
    """

    sinks: SinkMode = SinkMode.RESTORE
    drop: frozenset[str] = frozenset()
    from_other_job: bool = False
    keep_tables: frozenset[str] = frozenset()
    changes: GraphChanges = field(default_factory=GraphChanges)
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM


def make_restore_plan(job: Job, target_name: str, options: RestoreOptions) -> RestorePlan:
    """Returns the plan for restoring the job to a target; changes nothing.

    Args:
        target_name: a target that `checkpoint.restore.targets.resolve_target` accepts.

    Raises:
        ConfigError: the target does not exist, belongs to another job, or cannot be claimed; its state or sources do
            not fit the job.
        MissingFile, CorruptFile: the target is damaged.
        SinkDiverged: a table cannot be restored to the target.
        SinkRefused: the table of a sink cannot be rewound.
    """

    def plan(head: Head) -> RestorePlan:
        target = _resolve(job, head, target_name, options)
        context = check_target(job, head, target, GraphRequest(options.changes, options.drop, job.root.clock.now()))
        context.check_file_sizes()
        return _describe(context, target_name, options)

    return job.root.read_kept(plan)


def _describe(context: RestoreContext, target_name: str, options: RestoreOptions) -> RestorePlan:
    job, head, target = context.job, context.head, context.target
    root = job.root
    mode = SinkMode.KEEP if context.from_other_job else options.sinks
    left = tables_without_sink(context, mode, options.keep_tables)
    newest, dropped = _newest_manifest(root, head), _dropped_checkpoints(context)
    replay = None if context.from_other_job else replay_since(root, head, target.checkpoint_id)
    return RestorePlan(
        job=root.job.job,
        job_uuid=root.job.job_uuid,
        head=head.entry.seq,
        generation=head.entry.generation,
        ordinal=head.entry.ordinal,
        checkpoint_id=head.checkpoint_id,
        target=target_name,
        label=target.label,
        target_checkpoint=target.checkpoint_id,
        target_at=target.at,
        target_sha256=_sha256(target),
        savepoint=target.savepoint.uri if target.savepoint else "",
        savepoint_at=target.savepoint.document.made_at if target.savepoint else "",
        undone=not context.from_other_job and _is_undone(root, head, target.checkpoint_id),
        foreign=context.from_other_job,
        mode=mode,
        of_job=_owner(target) if context.from_other_job else "",
        claim_mode=options.claim_mode,
        parallelism=job.plan.parallelism,
        operators=sorted(job.plan.key_types),
        states=_state_changes(context, newest),
        sources=_source_changes(context, newest),
        sinks=plan_sink_changes(context, mode, options.keep_tables),
        left=left,
        dropped_checkpoints=dropped,
        saved=_saved(root, dropped),
        run_open=is_run_open(head),
        graph=context.graph.plan,
        rows_again=replay.rows if replay else None,
        checkpoints_after=replay.checkpoints if replay else None,
        made_at=root.clock.now().isoformat(timespec="seconds"),
        code=job.code,
        other_code=target.manifest.code_difference(job.code),
    )


def _is_undone(root: JobRoot, head: Head, checkpoint_id: int) -> bool:
    retained = {ref.id for ref in root.checkpoints.restorable(head)}
    return not is_ancestor(head, checkpoint_id, retained)


def _dropped_checkpoints(context: RestoreContext) -> list[int]:
    if context.from_other_job:
        return []
    restorable = context.job.root.checkpoints.restorable(context.head)
    return [ref.id for ref in restorable if ref.id > context.target.checkpoint_id]


def _owner(target: Target) -> str:
    name = target.savepoint.document.job if target.savepoint else ""
    return f"{name} {target.job_uuid}"


def _resolve(job: Job, head: Head, text: str, options: RestoreOptions) -> Target:
    """Returns the target. Raises ConfigError for another job's savepoint that is not allowed.

    Also for a target that is to be claimed and cannot be.
    """
    target = resolve_target(job.root, head, text)
    _check_owner(job, target, options)
    if options.claim_mode is ClaimMode.CLAIM:
        check_claimable(job.root, head, _savepoint_to_claim(target))
    return target


def _check_owner(job: Job, target: Target, options: RestoreOptions) -> None:
    if target.job_uuid == job.root.job.job_uuid:
        return
    if not options.from_other_job:
        raise ConfigError(
            "the savepoint belongs to another job",
            hint="to restore its state and source positions anyway, pass --from-other-job; tables then keep their "
            "content",
            savepoint=target.label,
            job_uuid=target.job_uuid,
            this_job=job.root.job.job_uuid,
        )


def _savepoint_to_claim(target: Target) -> StoredSavepoint:
    if target.savepoint is None:
        raise ConfigError(
            "only a savepoint can be claimed: the job owns its checkpoints already",
            hint="omit --claim-mode, or name a savepoint",
            target=target.label,
        )
    return target.savepoint


def _newest_manifest(root: JobRoot, head: Head) -> Manifest | None:
    """Returns the manifest of the newest checkpoint; None without a checkpoint.

    Also None when it is damaged: a restore is the remedy then, and its plan must not fail over the damage.
    """
    try:
        return root.checkpoints.manifest_at(head)
    except (MissingFile, CorruptFile) as e:
        if root.is_released(head, e):
            raise
        log.warning("the newest checkpoint is damaged: %s", e.sentence)
        return None


def _state_changes(context: RestoreContext, newest: Manifest | None) -> list[StateChange]:
    """Returns the changes of states, with their sizes in the newest checkpoint in bytes."""
    job, graph = context.job.plan, context.graph
    states = state_changes(graph.target, set(job.key_types), job.parallelism, graph.assignment)
    if newest is None:
        return states
    sizes = {o.uid: state_bytes([o]) for o in newest.operators}
    return [replace(change, bytes_now=sizes.get(change.uid, 0)) for change in states]


def _saved(root: JobRoot, dropped: list[int]) -> list[SavedCheckpoint]:
    """Returns the savepoints of the checkpoints that a restore drops.

    A savepoint in the job root is given by its name; one outside of it, known from the history and still readable, by
    its path.
    """
    if not dropped:
        return []
    documents = [stored.document for stored in list_savepoints(root.storage)]
    own = [
        SavedCheckpoint(checkpoint_id=d.checkpoint_id, savepoint=d.name)
        for d in documents
        if d.job_uuid == root.job.job_uuid and d.checkpoint_id in dropped
    ]
    return own + [
        SavedCheckpoint(checkpoint_id=record.seq, savepoint=record.facts["path"])
        for record in external_savepoints(root.storage, dropped)
        if _is_readable(record.facts["path"], root)
    ]


def _is_readable(savepoint: str, root: JobRoot) -> bool:
    try:
        savepoint_at(savepoint, root.storage.uri)
    except StateflowError as e:
        log.warning("the plan omits savepoint %s, because it cannot be read: %s", savepoint, e.sentence)
        return False
    return True


def _source_changes(context: RestoreContext, newest: Manifest | None) -> list[SourceChange]:
    current = {p.uid: p.offset for p in context.head.entry.sources}
    is_known = newest is not None or not context.head.entry.manifest
    target = context.target.manifest
    logs = _logs_since(context, newest) if is_known else None
    sources = {node.uid: node.source for node in context.job.plan.sources}
    positions = {position.uid: position for position in target.sources}
    changes = []
    for change in context.graph.source_changes:
        old = change.old or change.uid
        held, files = None, None
        if change.action is SourceAction.KEPT:
            held, files = _replayable(sources.get(change.uid), positions[old], target, logs)
        changes.append(replace(change, now=current.get(change.uid, current.get(old, "")), held=held, files=files))
    return changes


def _replayable(
    source: Source | LocalSource | None, position: SourcePosition, target: Manifest, logs: list[bytes] | None
) -> tuple[bool | None, int | None]:
    """Returns whether the source still holds its input since the position, and in how many files; None for unknown.

    Args:
        logs: see `_logs_since`.
    """
    if position.offset == NOT_BEGUN:
        return None, None
    if isinstance(source, Source) and logs is not None:
        return source.holds(position.offset, logs), source.files_since(position.offset, logs)
    if isinstance(source, LocalSource):
        offset = position.offset if target.spark is None else local_position(position.offset)
        return None if offset is None else source.holds(offset), None
    return None, None


def _logs_since(context: RestoreContext, newest: Manifest | None) -> list[bytes] | None:
    """Returns Spark's log entries of its file sources since the target; None when one of them is damaged."""
    root, head, target = context.job.root, context.head, context.target.manifest
    known = {f.path for f in target.spark.source_files} if target.spark else set()
    logs = [f for f in newest.spark.source_files if f.path not in known] if newest and newest.spark else []
    try:
        return [f.content or (root.storage.get(f.handle.key) if f.handle else b"") for f in logs]
    except (MissingFile, CorruptFile) as e:
        if root.is_released(head, e):
            raise
        log.warning("the newest checkpoint is damaged: %s", e.sentence)
        return None


def _sha256(target: Target) -> str:
    if target.savepoint is not None:
        return target.savepoint.sha256
    assert target.ref is not None
    return target.ref.sha256
