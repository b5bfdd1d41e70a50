"""The plan for going back to a checkpoint or savepoint; making it changes nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from msgspec.structs import replace

from stateflow.api.source import LocalSource, Source
from stateflow.checkpoint.documents import NOT_BEGUN, Manifest, SinkMode
from stateflow.checkpoint.files import state_bytes
from stateflow.checkpoint.history import savepoints_elsewhere
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.proposal import (
    Proposal,
    SavedCheckpoint,
    SinkChange,
    SourceChange,
    StateChange,
    state_changes,
)
from stateflow.checkpoint.replay import is_run_open, rows_since
from stateflow.checkpoint.stored_savepoints import list_savepoints, savepoint_at
from stateflow.checkpoint.targets import Target, resolve_target
from stateflow.errors import ConfigError, CorruptFile, MissingFile, SinkDiverged, StateflowError
from stateflow.runtime.job import Job
from stateflow.runtime.planned import (
    check_fits,
    check_left,
    check_there,
    left_behind,
    table_checkpoint,
    without,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RestoreOptions:
    """What a person decides about a restore.

    Attributes:
        sinks: whether tables go back with the state, or keep their content.
        drop: uids of operators whose state is dropped because the job has none of them any more.
        foreign: whether the savepoint may be another job's.
        leave: uids of sinks that the job does not have, whose tables stay as they are.
    """

    sinks: SinkMode = SinkMode.RESTORE
    drop: frozenset[str] = frozenset()
    foreign: bool = False
    leave: frozenset[str] = frozenset()


def propose(job: Job, text: str, options: RestoreOptions) -> Proposal:
    """The plan for going back to the target that `text` names; changes nothing.

    Raises:
        ConfigError: no such target, another job's savepoint, state that no operator takes, sources that do not fit.
        MissingFile, CorruptFile: the target is damaged.
        SinkDiverged: a table cannot go back that far.
    """
    root = job.root
    head = root.head()
    target = resolve_target(root, head, text)
    foreign = target.job_uuid != root.job.job_uuid
    _check_foreign(job, target, foreign, options)
    manifest = target.manifest
    newest = _newest(root, head)
    states = state_changes(manifest, set(job.plan.key_types), job.plan.parallelism, options.drop)
    rest = without(manifest, options.drop)
    check_fits(job, rest, target)
    check_there(root, target, rest)
    mode = SinkMode.KEEP if foreign else options.sinks
    left = left_behind(job, head, target)
    check_left(left, mode, options.leave)
    dropped = [] if foreign else [r.id for r in root.line(head) if r.id > target.checkpoint_id]
    return Proposal(
        job=root.job.job, job_uuid=root.job.job_uuid, head=head.entry.seq, generation=head.entry.generation,
        ordinal=head.entry.ordinal, checkpoint_id=head.checkpoint_id, target=text, label=target.label,
        target_checkpoint=target.checkpoint_id, target_at=target.at, target_sha256=_sha256(target),
        savepoint=target.savepoint.uri if target.savepoint else "", foreign=foreign, mode=mode,
        of_job=_owner(target) if foreign else "",
        parallelism=job.plan.parallelism, operators=sorted(job.plan.key_types), states=_with_sizes(states, newest),
        sources=_source_changes(job, head, manifest, newest), sinks=_sink_changes(job, head, target, mode), left=left,
        dropped_checkpoints=dropped, saved=_saved(root, dropped), run_open=is_run_open(head),
        rows_again=None if foreign else rows_since(root, head, target.checkpoint_id),
        made_at=root.clock.now().isoformat(timespec="seconds"),
    )  # fmt: skip


def _owner(target: Target) -> str:
    name = target.savepoint.document.job if target.savepoint else ""
    return f"{name} {target.job_uuid}"


def _check_foreign(job: Job, target: Target, foreign: bool, options: RestoreOptions) -> None:
    if not foreign:
        return
    if not options.foreign:
        raise ConfigError("the savepoint belongs to another job", hint="to take its state and positions all the same, "
                          "say --foreign; tables keep their content then", savepoint=target.label,
                          job_uuid=target.job_uuid, this_job=job.root.job.job_uuid)  # fmt: skip
    assert target.savepoint is not None
    if target.savepoint.document.max_parallelism != job.root.job.max_parallelism:
        raise ConfigError("the savepoint was made with another max parallelism", hint="make a new job root with the "
                          "same one", found=target.savepoint.document.max_parallelism,
                          wanted=job.root.job.max_parallelism)  # fmt: skip


def _newest(root: JobRoot, head: Head) -> Manifest | None:
    """What the newest checkpoint consists of; None when there is none, or when it is damaged: going back is the way
    out then, and must not fail over it."""
    try:
        return root.manifest(head)
    except (MissingFile, CorruptFile) as e:
        log.warning("the newest checkpoint is damaged: %s", e.sentence)
        return None


def _with_sizes(states: list[StateChange], newest: Manifest | None) -> list[StateChange]:
    """The changes with the sizes that the states have now."""
    if newest is None:
        return states
    sizes = {o.uid: state_bytes([o]) for o in newest.operators}
    return [replace(change, bytes_now=sizes.get(change.uid, 0)) for change in states]


def _saved(root: JobRoot, dropped: list[int]) -> list[SavedCheckpoint]:
    """Savepoints of checkpoints that a restore drops: those of the job root by name, and by path those elsewhere that
    the history knows and that are still there."""
    if not dropped:
        return []
    documents = [stored.document for stored in list_savepoints(root.storage)]
    own = [SavedCheckpoint(checkpoint_id=d.checkpoint_id, savepoint=d.name) for d in documents
           if d.job_uuid == root.job.job_uuid and d.checkpoint_id in dropped]  # fmt: skip
    return own + [
        SavedCheckpoint(checkpoint_id=record.seq, savepoint=record.facts["path"])
        for record in savepoints_elsewhere(root.storage)
        if record.seq in dropped and _is_there(record.facts["path"])
    ]


def _is_there(savepoint: str) -> bool:
    try:
        savepoint_at(savepoint)
    except StateflowError:
        return False
    return True


def _source_changes(job: Job, head: Head, manifest: Manifest, newest: Manifest | None) -> list[SourceChange]:
    now = {p.uid: p.offset for p in head.entry.sources}
    contents = _read_since(job.root, newest, manifest) if newest or not head.entry.manifest else None
    sources = {node.uid: node.source for node in job.plan.sources}
    changes = []
    for position in manifest.sources:
        source = sources.get(position.uid)
        held, files = None, None
        if position.offset == NOT_BEGUN:
            pass
        elif isinstance(source, Source) and contents is not None:
            held = source.holds(position.offset, contents)
            files = source.files_since(position.offset, contents)
        elif isinstance(source, LocalSource) and manifest.spark is None:
            held = source.holds(position.offset)
        changes.append(SourceChange(
            uid=position.uid, now=now.get(position.uid, ""), then=position.offset, held=held, files=files
        ))  # fmt: skip
    return changes


def _read_since(root: JobRoot, newest: Manifest | None, manifest: Manifest) -> list[bytes] | None:
    """What Spark noted of the source since the target; None when that is damaged."""
    known = {f.path for f in manifest.spark.source_files} if manifest.spark else set()
    logs = [f for f in newest.spark.source_files if f.path not in known] if newest and newest.spark else []
    try:
        return [f.content or (root.storage.get(f.handle.key) if f.handle else b"") for f in logs]
    except (MissingFile, CorruptFile) as e:
        log.warning("the newest checkpoint is damaged: %s", e.sentence)
        return None


def _sink_changes(job: Job, head: Head, target: Target, mode: SinkMode) -> list[SinkChange]:
    known = head.entry.published
    changes = []
    for uid, sink in sorted(job.sinks.items()):
        table_id = sink.sink.check(sink.context)
        if table_id is None:
            if uid in known:
                raise SinkDiverged("the sink's table is gone", hint="restore it, or give the sink a new uid", sink=uid,
                                   table=sink.sink.location)  # fmt: skip
            continue
        if uid in known and known[uid].table_id != table_id:
            raise SinkDiverged("the sink's table is not the one that this job published to", hint="plan with the "
                               "settings of the job's runs; to go on in the table that is there, give the sink a new "
                               "uid", sink=uid, table=sink.sink.location, known=known[uid].table_id,
                               found=table_id)  # fmt: skip
        table = sink.open_table()
        if mode is SinkMode.KEEP:
            changes.append(SinkChange(uid=uid, mode=mode, table_id=table_id, table=sink.sink.location,
                                      now=table.version))  # fmt: skip
            continue
        checkpoint = table_checkpoint(head.entry.rewind, uid, table, target.checkpoint_id)
        back = table.plan_rewind(checkpoint)
        changes.append(SinkChange(
            uid=uid, mode=mode, table_id=table_id, table=sink.sink.location, now=back.from_version,
            then=back.to_version, rows_removed=back.rows_removed, rows_returned=back.rows_returned, others=back.others,
        ))  # fmt: skip
    _refuse_shared(changes)
    return changes


def _refuse_shared(changes: list[SinkChange]) -> None:
    """Each sink's table goes back as a whole: the second sink would bring back rows that the first took away."""
    tables: dict[str, list[str]] = {}
    for change in changes:
        if change.mode is SinkMode.RESTORE:
            tables.setdefault(change.table_id, []).append(change.uid)
    shared = sorted(uids for uids in tables.values() if len(uids) > 1)
    if shared:
        raise ConfigError("several sinks write into one table, which cannot go back for each of them", hint="say "
                          "--sinks keep, or give each sink a table of its own", sinks=shared)  # fmt: skip


def _sha256(target: Target) -> str:
    if target.savepoint is not None:
        return target.savepoint.sha256
    assert target.ref is not None
    return target.ref.sha256
