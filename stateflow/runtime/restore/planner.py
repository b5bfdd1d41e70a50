"""Planning of a restore to a checkpoint or savepoint: the checked target, and the changes of the sinks' tables."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from stateflow.api.sink import SinkRewind, SinkTable
from stateflow.api.source import LocalSource, Source, local_position
from stateflow.checkpoint.history import external_savepoints
from stateflow.checkpoint.log.checkpoint_log import Head, is_ancestor
from stateflow.checkpoint.log.documents import (
    NOT_BEGUN,
    Manifest,
    PendingOutput,
    Rewind,
    SinkIntent,
    SinkMode,
    SourcePosition,
)
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_hashes, check_sizes, files_of, state_bytes
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.checkpoint.restore.plan_document import (
    GraphChanges,
    Replay,
    RestorePlan,
    SavedCheckpoint,
    SinkChange,
    SinkKind,
    SinkLeft,
    SourceAction,
    SourceChange,
    StateChange,
    is_restore_open,
    is_run_open,
    replay_since,
    state_changes,
)
from stateflow.checkpoint.restore.state_assignment import assign_state
from stateflow.checkpoint.restore.targets import UNLIMITED, Target, TargetLimits, resolve_target
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, list_savepoints, savepoint_at
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.checkpoint.savepoints.claimed_savepoints import check_claim_of_job
from stateflow.clock import parse_timestamp
from stateflow.errors import ConfigError, CorruptFile, MissingFile, PlanOutdated, SinkDiverged, StateflowError
from stateflow.outputs import offset_value, utc_text
from stateflow.runtime.job import Job
from stateflow.runtime.publisher import BoundSink, OutputFilter
from stateflow.runtime.restore.graph_changes import ChangedGraph, DeclaredGraph, GraphRequest, change_graph
from stateflow.runtime.restore.state_import import StateLocation
from stateflow.state.backends.factory import check_snapshot
from stateflow.state.handles import FileHandle
from stateflow.state.operator_content import check_parts
from stateflow.storage import Storage

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
        target = choose_target(job.root, head, target_name, options)
        # The plan has the time in milliseconds, and its execution must find the same positions.
        now = parse_timestamp(utc_text(job.root.clock.now()))
        context = check_target(job, head, target, GraphRequest(options.changes, options.drop, now))
        context.checked.check_file_sizes()
        found = describe_plan(context.checked, target_name, options, _JobFacts(context, options))
        difference = target.manifest.code_difference(job.code) or None
        return msgspec.structs.replace(found, code_hash=job.code or None, code_difference=difference)

    return job.root.read_kept(plan)


class PlanFacts(Protocol):
    """What a plan needs beside the target: read from tables and the whole history, or known without them."""

    def plan_sinks(self, mode: SinkMode) -> list[SinkChange]:
        """Returns the change of each table of the job's sinks, by uid; raises as `plan_sink_changes`."""

    def count_replay(self) -> Replay | None:
        """Returns what the job has done since the target, as `plan_document.count_replay` does."""

    def find_saved(self, dropped: list[int]) -> list[SavedCheckpoint]:
        """Returns the savepoints of the checkpoints that a restore drops."""


@dataclass(frozen=True)
class _JobFacts:
    """Facts that are read from the tables of a job's sinks, and from its job root."""

    context: RestoreContext
    options: RestoreOptions

    def plan_sinks(self, mode: SinkMode) -> list[SinkChange]:
        return plan_sink_changes(self.context, mode, self.options.keep_tables)

    def count_replay(self) -> Replay | None:
        checked = self.context.checked
        return replay_since(checked.root, checked.head, checked.target.checkpoint_id)

    def find_saved(self, dropped: list[int]) -> list[SavedCheckpoint]:
        return _saved(self.context.checked.root, dropped)


def describe_plan(checked: CheckedTarget, target_name: str, options: RestoreOptions, facts: PlanFacts) -> RestorePlan:
    """Returns the plan for a target that fits the job, without what only the job's code tells.

    Raises:
        ConfigError: a table to keep does not exist, or must be named.
        SinkDiverged, SinkRefused: as `plan_sink_changes`.
    """
    root, graph, head, target = checked.root, checked.declared, checked.head, checked.target
    mode = SinkMode.KEEP if checked.from_other_job else options.sinks
    left = tables_without_sink(checked, mode, options.keep_tables)
    newest, dropped = _newest_manifest(root, head), _dropped_checkpoints(checked)
    replay = None if checked.from_other_job else facts.count_replay()
    sinks = facts.plan_sinks(mode)
    if replay is not None:
        sinks = [msgspec.structs.replace(s, rows_written_since=replay.rows_written(s.uid)) for s in sinks]
    return RestorePlan(
        job=root.job.job,
        job_uuid=root.job.job_uuid,
        head_seq=head.entry.seq,
        generation=head.entry.generation,
        ordinal=head.entry.ordinal,
        checkpoint_id=head.checkpoint_id,
        target=target_name,
        target_label=target.label,
        target_checkpoint_id=target.checkpoint_id,
        target_committed_at=utc_text(parse_timestamp(target.at)),
        target_sha256=_sha256(target),
        savepoint_path=target.savepoint.uri if target.savepoint else None,
        savepoint_made_at=utc_text(parse_timestamp(target.savepoint.document.made_at)) if target.savepoint else None,
        undone=not checked.from_other_job and _is_undone(root, head, target.checkpoint_id),
        foreign=checked.from_other_job,
        mode=mode,
        parent_job=_parent_job(target) if checked.from_other_job else None,
        parent_job_uuid=target.job_uuid if checked.from_other_job else None,
        claim_mode=options.claim_mode,
        parallelism=graph.parallelism,
        operators=sorted(graph.key_types),
        states=_state_changes(checked, newest),
        sources=_source_changes(checked, newest),
        sinks=sinks,
        left=left,
        dropped_checkpoint_ids=dropped,
        saved=facts.find_saved(dropped) if dropped else [],
        run_open=is_run_open(head),
        restore_open=is_restore_open(head),
        graph=checked.graph.plan,
        rows_again=replay.rows if replay and replay.is_again else None,
        checkpoints_after=replay.checkpoints if replay and replay.is_again else None,
        made_at=utc_text(root.clock.now()),
    )


def _is_undone(root: JobRoot, head: Head, checkpoint_id: int) -> bool:
    retained = {ref.id for ref in root.checkpoints.restorable(head)}
    return not is_ancestor(head, checkpoint_id, retained)


def _dropped_checkpoints(checked: CheckedTarget) -> list[int]:
    if checked.from_other_job:
        return []
    restorable = checked.root.checkpoints.restorable(checked.head)
    return [ref.id for ref in restorable if ref.id > checked.target.checkpoint_id]


def _parent_job(target: Target) -> str | None:
    return target.savepoint.document.job if target.savepoint else None


def choose_target(
    root: JobRoot, head: Head, text: str, options: RestoreOptions, limits: TargetLimits = UNLIMITED
) -> Target:
    """Returns the target of a plan.

    Args:
        root: the job root.
        head: its newest entry.
        text: a target that `resolve_target` accepts.
        options: the user's decisions.
        limits: what is opened and searched.

    Raises:
        ConfigError: it does not exist, or is another job's savepoint that is not allowed, or is to be claimed and
            cannot be.
        MissingFile, CorruptFile: the target is damaged.
    """
    target = resolve_target(root, head, text, limits)
    _check_owner(root, target, options)
    if options.claim_mode is ClaimMode.CLAIM:
        check_claim_of_job(root, head, _savepoint_to_claim(target))
    return target


def _check_owner(root: JobRoot, target: Target, options: RestoreOptions) -> None:
    if target.job_uuid == root.job.job_uuid:
        return
    if not options.from_other_job:
        raise ConfigError(
            "the savepoint belongs to another job",
            hint="to restore its state and source positions anyway, pass --from-other-job; tables then keep their "
            "content",
            savepoint=target.label,
            job_uuid=target.job_uuid,
            this_job=root.job.job_uuid,
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


def _state_changes(checked: CheckedTarget, newest: Manifest | None) -> list[StateChange]:
    """Returns the changes of states, with their sizes in the newest checkpoint in bytes."""
    job, graph = checked.declared, checked.graph
    states = state_changes(graph.target, set(job.key_types), job.parallelism, graph.assignment)
    if newest is None:
        return states
    sizes = {o.uid: state_bytes([o]) for o in newest.operators}
    return [msgspec.structs.replace(change, current_bytes=sizes.get(change.uid, 0)) for change in states]


def _saved(root: JobRoot, dropped: list[int]) -> list[SavedCheckpoint]:
    """Returns the savepoints of the checkpoints that a restore drops.

    A savepoint in the job root is given by its name; one outside of it, known from the history and still readable, by
    its path.
    """
    documents = [stored.document for stored in list_savepoints(root.storage)]
    own = [
        SavedCheckpoint(checkpoint_id=d.checkpoint_id, savepoint=d.name)
        for d in documents
        if d.job_uuid == root.job.job_uuid and d.checkpoint_id in dropped
    ]
    return own + [
        SavedCheckpoint(checkpoint_id=record.seq, savepoint=record.text("path"))
        for record in external_savepoints(root.storage, dropped)
        if _is_readable(record.text("path"), root)
    ]


def _is_readable(savepoint: str, root: JobRoot) -> bool:
    try:
        savepoint_at(savepoint, root.storage.uri)
    except StateflowError as e:
        log.warning("the plan omits savepoint %s, because it cannot be read: %s", savepoint, e.sentence)
        return False
    return True


def _source_changes(checked: CheckedTarget, newest: Manifest | None) -> list[SourceChange]:
    current = {p.uid: p.offset for p in checked.head.entry.sources}
    is_known = newest is not None or not checked.head.entry.manifest
    target, sources = checked.target.manifest, checked.declared.source_objects
    logs = _logs_since(checked, newest) if is_known and sources else None
    positions = {position.uid: position for position in target.sources}
    changes = []
    for change in checked.graph.source_changes:
        old = change.old or change.uid
        available, files = None, None
        if change.action is SourceAction.KEPT:
            available, files = _replayable(sources.get(change.uid), positions[old], target, logs)
        offset = offset_value(current.get(change.uid, current.get(old, "")))
        changes.append(msgspec.structs.replace(change, current_offset=offset, available=available, files=files))
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


def _logs_since(checked: CheckedTarget, newest: Manifest | None) -> list[bytes] | None:
    """Returns Spark's log entries of its file sources since the target; None when one of them is damaged."""
    root, head, target = checked.root, checked.head, checked.target.manifest
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


@dataclass(frozen=True)
class CheckedTarget:
    """A target that fits a job, as far as the job's graph is known; made by `check_graph`.

    Attributes:
        root: the job root.
        declared: the graph of the job.
        head: the log entry that the restore starts from.
        target: the target.
        graph: the target as the job continues from it.
    """

    root: JobRoot
    declared: DeclaredGraph
    head: Head
    target: Target
    graph: ChangedGraph

    @property
    def from_other_job(self) -> bool:
        """Whether the target is a savepoint of another job."""
        return self.target.job_uuid != self.root.job.job_uuid

    def check_file_sizes(self) -> None:
        """Raises MissingFile or CorruptFile unless every file of the manifest is stored with its size."""
        check_state_files(self.graph.read, location_of(self.root, self.target))
        check_sizes(*self.files())

    def check_file_hashes(self) -> None:
        """Raises MissingFile or CorruptFile unless every file of the manifest has its SHA-256; reads all files."""
        check_state_files(self.graph.read, location_of(self.root, self.target))
        check_hashes(*self.files())

    def files(self) -> tuple[Storage, list[FileHandle]]:
        """Returns the files that the restore reads, with their keys in a storage."""
        files, savepoint = files_of(self.graph.read), self.target.savepoint
        if savepoint is None:
            return self.root.storage, files
        unique = {f.key: f for f in files}.values()
        return savepoint.storage, [msgspec.structs.replace(f, key=f"{savepoint.folder}{f.key}") for f in unique]


@dataclass(frozen=True)
class RestoreContext:
    """A restore of a job whose code is loaded, to a target that fits it; made by `check_target`.

    Attributes:
        job: the job.
        checked: the target.
    """

    job: Job
    checked: CheckedTarget

    @property
    def head(self) -> Head:
        """The log entry that the restore starts from."""
        return self.checked.head

    @property
    def target(self) -> Target:
        """The target."""
        return self.checked.target

    @property
    def graph(self) -> ChangedGraph:
        """The target as the job continues from it."""
        return self.checked.graph

    @property
    def manifest(self) -> Manifest:
        """State and source positions that the job continues from."""
        return self.graph.manifest

    @property
    def location(self) -> StateLocation:
        """Where the files of the target are."""
        return location_of(self.job.root, self.target)

    @property
    def from_other_job(self) -> bool:
        """Whether the target is a savepoint of another job."""
        return self.checked.from_other_job

    @property
    def last_published(self) -> int:
        """Id of the newest checkpoint whose output the tables keep."""
        return self.head.checkpoint_id if self.from_other_job else self.target.checkpoint_id

    def with_head(self, head: Head) -> RestoreContext:
        """Returns the same restore, continued from another log entry."""
        return replace(self, checked=replace(self.checked, head=head))

    def plan_rewind(self, uid: str, table: SinkTable) -> SinkRewind:
        """Returns the effect of restoring the sink's table to the target; changes nothing.

        Raises as `SinkTable.plan_rewind` does.
        """
        return table.plan_rewind(_table_checkpoint(self.head.entry.rewind, uid, table, self.target.checkpoint_id))


def check_state_files(manifest: Manifest, location: StateLocation) -> None:
    """Checks what a manifest contains, as a run does: the files of stores, and operator state.

    Raises:
        MissingFile, CorruptFile: it is damaged.
    """
    for operator in manifest.operators:
        for state in operator.subtasks:
            check_snapshot(state)
        check_parts(location.storage, location.operator(operator).parts)


def check_target(job: Job, head: Head, target: Target, request: GraphRequest) -> RestoreContext:
    """Checks that the job can continue from the target.

    Args:
        request: the user's decisions about state and sources of the target that the job does not have.

    Raises:
        ConfigError: state or source positions do not fit the job; IncompatibleState says which state.
        MissingFile, CorruptFile: a file of operator state that is divided is missing or damaged.
    """
    root, wanted = job.root, job.wanted
    declared = DeclaredGraph.of(job.plan, job.sources, root.job.max_parallelism, states=wanted.states, sinks=job.sinks)
    return RestoreContext(job, check_graph(root, declared, head, target, request))


def check_graph(
    root: JobRoot, declared: DeclaredGraph, head: Head, target: Target, request: GraphRequest
) -> CheckedTarget:
    """Checks that a job with this graph can continue from the target; arguments and errors as `check_target`."""
    graph = change_graph(target.manifest, location_of(root, target), declared, request)
    # With the key groups of a savepoint that an import gives fewer of them.
    groups = target.savepoint.document.max_parallelism if target.savepoint else 0
    assign_state(target.checkpoint_id, graph.manifest, declared.wanted(max(groups, declared.max_parallelism)))
    return CheckedTarget(root, declared, head, target, graph)


def location_of(root: JobRoot, target: Target) -> StateLocation:
    """Returns where the files of a target are."""
    if target.savepoint is None:
        return StateLocation(root.storage)
    return StateLocation.of(target.savepoint)


def _table_checkpoint(rewind: Rewind | None, uid: str, table: SinkTable, checkpoint_id: int) -> int:
    """Returns the checkpoint whose output determines the version of a table at `checkpoint_id`.

    It differs from `checkpoint_id` for the target of an earlier restore that is not completed. A table that this
    restore has already rewound holds that target under the token of the restore; any other has older tokens only.
    """
    intent = rewind.sinks.get(uid) if rewind else None
    if rewind is None or rewind.restore is None or intent is None or intent.mode is SinkMode.KEEP:
        return checkpoint_id
    base = rewind.restore.base
    if checkpoint_id != base and checkpoint_id < rewind.seq:
        return checkpoint_id
    return rewind.seq if (table.token or 0) >= rewind.seq else base


def plan_sink_changes(context: RestoreContext, mode: SinkMode, keep_tables: Set[str]) -> list[SinkChange]:
    """Returns the change of each existing table of the job's sinks, by uid.

    Args:
        mode: whether tables are restored, or keep their content.
        keep_tables: uids of the sinks whose tables keep their content with any mode.

    Raises:
        SinkDiverged: a table was removed or replaced, or cannot be restored to the target.
        SinkRefused: the table of a sink cannot be rewound.
        ConfigError: several sinks write into one table, which cannot be restored for one of them.
    """
    changes = []
    for uid, sink in sorted(context.job.sinks.items()):
        table_id = _table_id(context, sink)
        if table_id is not None:
            mode_of_sink = SinkMode.KEEP if uid in keep_tables else mode
            changes.append(_sink_change(context, sink, table_id, mode_of_sink))
    check_not_shared(changes)
    return changes


def _table_id(context: RestoreContext, sink: BoundSink) -> str | None:
    """Returns the id of the sink's table; None before its first output. Raises SinkDiverged for another table."""
    known = context.head.entry.published.get(sink.uid)
    table_id = sink.sink.check(sink.context)
    if table_id is None and known is not None:
        raise SinkDiverged(
            "the sink's table no longer exists",
            hint="restore it, or give the sink a new uid",
            sink=sink.uid,
            table=sink.location,
        )
    if known is not None and known.table_id != table_id:
        raise SinkDiverged(
            "the sink's table is not the one that this job published to",
            hint="plan with the settings of the job's runs; to continue with the existing table, give the sink a new "
            "uid",
            sink=sink.uid,
            table=sink.location,
            known=known.table_id,
            found=table_id,
        )
    return table_id


def _sink_change(context: RestoreContext, sink: BoundSink, table_id: str, mode: SinkMode) -> SinkChange:
    table = sink.open_table()
    rewind = None if mode is SinkMode.KEEP else context.plan_rewind(sink.uid, table)
    change = SinkChange(
        uid=sink.uid,
        kind=SinkKind.of(type(sink.sink).__name__),
        mode=mode,
        table_id=table_id,
        table=sink.location or None,
        current_version=rewind.from_version if rewind else table.version,
    )
    if rewind is None:
        return change
    return msgspec.structs.replace(
        change,
        target_version=rewind.to_version,
        rows_removed=rewind.rows_removed,
        rows_returned=rewind.rows_returned,
        others=tuple(other.text for other in rewind.others),
    )


def check_not_shared(changes: list[SinkChange]) -> None:
    """Raises ConfigError when a table that is restored belongs to several sinks.

    A second rewind would return rows that the first removed, and a rewind for one sink would remove rows of another
    one that are to be kept.
    """
    tables: dict[str, list[SinkChange]] = {}
    for change in changes:
        tables.setdefault(change.table_id, []).append(change)
    shared = sorted(
        [change.uid for change in sharing]
        for sharing in tables.values()
        if len(sharing) > 1 and any(change.mode is SinkMode.RESTORE for change in sharing)
    )
    if shared:
        raise ConfigError(
            "several sinks write into one table, which cannot be restored for each of them",
            hint="keep the table for all of them: --keep-table UID for each, or --sinks keep; or give each sink its "
            "own table",
            sinks=shared,
        )


def tables_without_sink(checked: CheckedTarget, mode: SinkMode, keep_tables: frozenset[str]) -> list[SinkLeft]:
    """Returns the tables with output after the target whose sink the job lacks; a restore cannot change them.

    Args:
        keep_tables: uids of the sinks whose tables the user agrees to keep; all of them with mode *keep*. Those of
            the job's sinks have no effect here; see `plan_sink_changes`.

    Raises:
        ConfigError: `keep_tables` lacks such a table, or has the uid of no sink; or output of the target itself is not
            published yet, which only its sink can do.
    """
    head, upto, sinks = checked.head, checked.target.checkpoint_id, checked.declared.sinks
    known = {uid: p for uid, p in head.entry.published.items() if uid not in sinks}
    newest = {uid: p.checkpoint_id for uid, p in known.items()} | _pending_without_sink(checked)
    tables = [
        SinkLeft(uid=uid, table_id=known[uid].table_id if uid in known else "", checkpoint_id=checkpoint_id)
        for uid, checkpoint_id in sorted(newest.items())
        if checkpoint_id > upto
    ]
    _check_kept_tables({table.uid for table in tables}, mode, keep_tables - sinks)
    return tables


def _pending_without_sink(checked: CheckedTarget) -> dict[str, int]:
    """Returns the newest checkpoint with pending output of each sink that the job lacks, by uid."""
    pending = [p for p in pending_of(checked.head) if p.sink not in checked.declared.sinks]
    of_target = sorted({p.sink for p in pending if p.checkpoint_id <= checked.target.checkpoint_id})
    if of_target:
        raise ConfigError(
            "a sink was removed before its output was published",
            hint="plan with the version of the job that has the sink",
            sinks=of_target,
        )
    return {p.sink: p.checkpoint_id for p in pending}


def _check_kept_tables(uids: set[str], mode: SinkMode, keep_tables: frozenset[str]) -> None:
    unknown = sorted(keep_tables - uids)
    if unknown:
        raise ConfigError(
            "a table to keep belongs neither to a sink of the job, nor to a removed sink with output after the target",
            hint=f"name sinks of the job, or removed ones with such output: {sorted(uids) or 'there are none'}",
            uids=unknown,
        )
    unnamed = sorted(uids - keep_tables)
    if unnamed and mode is SinkMode.RESTORE:
        raise ConfigError(
            "tables cannot be restored, because the job does not have their sinks",
            hint="plan with the version of the job that has them; or pass --keep-table UID to keep a table: a version "
            "that has the sink again writes its rows a second time",
            sinks=unnamed,
        )


def plan_sink_rewind(context: RestoreContext, change: SinkChange) -> SinkRewind:
    """Returns the current effect of a planned change; for a kept table, only the version of the handle.

    Raises PlanOutdated when the table is another one, or when the restore would undo commits of other writers that the
    plan does not show.
    """
    table = context.job.sinks[change.uid].open_table()
    if table.table_id != change.table_id:
        raise PlanOutdated(
            "the sink's table is not the one of the plan",
            hint="make a new plan",
            sink=change.uid,
            planned=change.table_id,
            found=table.table_id,
        )
    if change.mode is SinkMode.KEEP:
        return SinkRewind(table.version, None, 0, 0, ())
    rewind = context.plan_rewind(change.uid, table)
    unseen = [other.text for other in rewind.others if other.text not in change.others]
    if unseen:
        raise PlanOutdated(
            "other writers committed to a table after the plan was made, and the restore would undo that",
            hint="make a new plan, and read what it would undo",
            sink=change.uid,
            unseen=unseen,
        )
    return rewind


def output_to_publish(context: RestoreContext, changes: Sequence[SinkChange]) -> OutputFilter:
    """Returns a filter for the pending output that is published before tables are rewound: that of the target.

    The rest is dropped, and is produced again. A kept table gets all of its output: a paused driver could still publish
    it afterwards, and the content of a table must not depend on whether it does.
    """
    upto = context.last_published
    kept_tables = {change.uid for change in changes if change.mode is SinkMode.KEEP}

    def is_published(pending: PendingOutput) -> bool:
        return pending.checkpoint_id <= upto or pending.sink in kept_tables

    return is_published


def sink_intents(context: RestoreContext, changes: Sequence[SinkChange]) -> dict[str, SinkIntent]:
    """Returns the intent for each planned change, by uid, from the tables' current versions.

    Raises as `plan_sink_rewind` does.
    """
    return {change.uid: _intent(context, change) for change in changes}


def _intent(context: RestoreContext, change: SinkChange) -> SinkIntent:
    # The plan's version may be out of date: output that was pending then is published now, and belongs to the target.
    rewind = plan_sink_rewind(context, change)
    if change.mode is SinkMode.KEEP:
        return SinkIntent(table_id=change.table_id, mode=change.mode, seen_version=None)
    # With nothing to rewind, the version is still recorded: a paused driver can still publish before the table has
    # the token of this restore.
    version = rewind.from_version if rewind.to_version is None else rewind.to_version
    return SinkIntent(table_id=change.table_id, mode=change.mode, to_version=version, seen_version=rewind.from_version)
