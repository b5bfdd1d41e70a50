"""Going back to a checkpoint or savepoint: a plan that changes nothing, then exactly that plan.

Execution claims the job, which fences every run, publishes what belongs to the target, brings a savepoint's files into
the job root, and then appends one CLAIM that adopts the target and names every table: the intent. Before it nothing
has happened but a CLAIM; after it every start completes what is missing.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.api.source import LocalSource, Source
from stateflow.checkpoint.documents import NOT_BEGUN, EntryRef, Manifest, RestoreFacts, SinkIntent, SinkMode
from stateflow.checkpoint.entries import Adoption
from stateflow.checkpoint.files import check_stored, files_of, write_manifest
from stateflow.checkpoint.jobroot import JobRoot, kept
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.proposal import (
    Proposal,
    SinkChange,
    SourceChange,
    StateAction,
    is_outdated,
    state_changes,
)
from stateflow.checkpoint.restore import Wanted, plan_restore
from stateflow.checkpoint.savepoint import open_savepoint, take_all, with_keys
from stateflow.checkpoint.targets import Target, resolve_target
from stateflow.errors import ConfigError, DataError, PlanOutdated, SinkDiverged
from stateflow.runtime.publishing import Publisher
from stateflow.runtime.rewinding import complete_rewind
from stateflow.runtime.run import Job
from stateflow.state.handles import FileHandle
from stateflow.storage import Storage, open_storage
from stateflow.storage.paths import data_folder


@dataclass(frozen=True)
class Place:
    """Where files are: a storage, and the prefix of their keys in it."""

    storage: Storage
    folder: str = ""


@dataclass(frozen=True)
class RestoreOptions:
    """What a person decides about a restore.

    Attributes:
        sinks: whether tables go back with the state, or keep their content.
        drop: uids of operators whose state is dropped because the job has none of them any more.
        foreign: whether the savepoint may be another job's.
    """

    sinks: SinkMode = SinkMode.RESTORE
    drop: frozenset[str] = frozenset()
    foreign: bool = False


@dataclass(frozen=True)
class RestoreOrder:
    """Who asks for a restore, and why; the same `request` is never carried out twice."""

    request: str
    by: str = ""
    reason: str = ""


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
    states = state_changes(manifest, set(job.plan.key_types), job.plan.parallelism, options.drop)
    _check_fits(job, _without(manifest, options.drop), target)
    return Proposal(
        job=root.job.job, job_uuid=root.job.job_uuid, head=head.entry.seq, generation=head.entry.generation,
        ordinal=head.entry.ordinal, checkpoint_id=head.checkpoint_id, target=text, label=target.label,
        target_checkpoint=target.checkpoint_id, target_at=target.at, target_sha256=_sha256(target),
        savepoint=target.savepoint.uri if target.savepoint else "", foreign=foreign, states=states,
        sources=_source_changes(job, head, manifest), sinks=_sink_changes(job, head, target, options, foreign),
        dropped_checkpoints=[] if foreign else [r.id for r in kept(head) if r.id > target.checkpoint_id],
        made_at=root.clock.now().isoformat(timespec="seconds"),
    )  # fmt: skip


def execute(job: Job, proposal: Proposal, order: RestoreOrder) -> Head:
    """Carries out the plan, or completes it when the same request was begun before; returns the newest entry.

    Raises:
        PlanOutdated: the job, or the target, is not any more what the plan was made for. Nothing is changed then.
        Fenced: a newer run claimed the job meanwhile. DataError: see `propose`.
    """
    root = job.root
    head = root.head()
    if order.request in head.entry.requests:
        return complete_rewind(root, job.sinks, head)
    # A CLAIM of this very request's earlier try has changed nothing that the plan saw.
    moved = is_outdated(proposal, head) and head.entry.claimed_for != order.request
    if proposal.job_uuid != root.job.job_uuid or moved:
        raise _outdated(proposal, head)
    target = _planned_target(root, proposal)
    note = f"restore {proposal.label}" + (f" for {order.by}" if order.by else "") + (
        f": {order.reason}" if order.reason else "")  # fmt: skip
    failpoints.hit("restore.begin")
    # A restore that was killed behind its intent is completed first, so that every table stands where the log says.
    claimed = root.claim_on(complete_rewind(root, job.sinks, head), order.request, note)
    if claimed is None:
        raise _outdated(proposal, root.head())
    failpoints.hit("restore.claimed")
    adoption = _adoption(job, claimed, target, proposal)
    adoption = dataclasses.replace(adoption, restore=_facts(root, proposal, order))
    failpoints.hit("restore.imported")
    adopted = root.adopt(claimed, adoption, note)
    failpoints.hit("restore.intent")
    return complete_rewind(root, job.sinks, adopted)


def _facts(root: JobRoot, proposal: Proposal, order: RestoreOrder) -> RestoreFacts:
    return RestoreFacts(
        request=order.request, by=order.by or root.writer, reason=order.reason, label=proposal.label,
        base=proposal.target_checkpoint, left=proposal.checkpoint_id, undone=proposal.dropped_checkpoints,
        at=root.clock.now().isoformat(timespec="milliseconds"),
    )  # fmt: skip


def _adoption(job: Job, head: Head, target: Target, proposal: Proposal) -> Adoption:
    publisher = Publisher(job.root, job.sinks)
    # What belongs to the target is published before the tables go back to it; the rest is dropped, and comes again.
    upto = head.checkpoint_id if proposal.foreign else target.checkpoint_id
    publisher.publish_pending(head, before=upto + 1)
    sinks = {change.uid: _intent(job, change, target) for change in proposal.sinks}
    drop = frozenset(c.uid for c in proposal.states if c.action is StateAction.DROPPED)
    if target.ref is not None and not drop:
        return dataclasses.replace(job.root.adoption(head, target.ref), sinks=sinks)
    manifest = _without(target.manifest, drop)
    place = Place(target.savepoint.storage, target.savepoint.folder) if target.savepoint else None
    handle = import_state(job.root, manifest, place, head.entry.generation)
    savepoint = target.label if target.savepoint else ""
    return Adoption(upto=upto, manifest=handle, sources=manifest.sources, savepoint=savepoint, sinks=sinks)


def import_state(root: JobRoot, manifest: Manifest, place: Place | None, generation: int) -> FileHandle:
    """Makes a manifest, and the files that it names, part of a job root; every file is verified.

    Args:
        place: where the files are; None when they are in this root already.
        generation: of the run that does it, which must not have committed yet.

    Raises MissingFile or CorruptFile naming a file.
    """
    ordinal = 1
    into = data_folder(generation, ordinal, f"restore{root.clock.new_id()[:12]}")
    if place is not None:
        names = {f.key: f"{into}{f.sha256}" for f in files_of(manifest)}
        take_all(place.storage, [(f"{place.folder}{key}", to) for key, to in names.items()], root.storage)
        manifest = with_keys(manifest, names)
        check_stored(root.storage, {f.key: f for f in files_of(manifest)}.values())
    manifest = replace(manifest, job_uuid=root.job.job_uuid, generation=generation, ordinal=ordinal)
    return write_manifest(root.storage, into, manifest)


def _intent(job: Job, change: SinkChange, target: Target) -> SinkIntent:
    # Looked up again: what was pending at the plan is published by now, and its version belongs to the target.
    then = None
    if change.mode is SinkMode.RESTORE:
        back = job.sinks[change.uid].open_table().plan_rewind(target.checkpoint_id)
        # Nothing to take back is a version too: a paused driver can still publish before the table has our token.
        then = back.from_version if back.to_version is None else back.to_version
    return SinkIntent(table_id=change.table_id, mode=change.mode, to_version=then)


def _planned_target(root: JobRoot, proposal: Proposal) -> Target:
    """The very target that was planned."""
    if proposal.savepoint:
        try:
            stored = open_savepoint(open_storage(proposal.savepoint))
        except ConfigError as e:
            raise PlanOutdated("the savepoint of the plan is gone", hint="plan again, with another target",
                               target=proposal.label, savepoint=proposal.savepoint) from e  # fmt: skip
        if stored.sha256 != proposal.target_sha256:
            raise PlanOutdated("the savepoint is not the one that the plan was made for", hint="plan again",
                               savepoint=proposal.savepoint)  # fmt: skip
        document = stored.document
        return Target(
            document.checkpoint_id, document.made_at, document.job_uuid, document.manifest, savepoint=stored
        )
    ref = EntryRef(id=proposal.target_checkpoint, sha256=proposal.target_sha256)
    entry = root.log.read_checkpoint(ref)
    if entry.manifest is None:
        raise DataError("a checkpoint's entry names no manifest", checkpoint=ref.id)
    return Target(ref.id, entry.at, entry.job_uuid, root.read_manifest(entry.manifest), ref=ref)


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


def _check_fits(job: Job, manifest: Manifest, target: Target) -> None:
    wanted = Wanted(job.plan.parallelism, job.root.job.max_parallelism, job.plan.key_types, job.sources)
    plan_restore(target.checkpoint_id, manifest, wanted)


def _source_changes(job: Job, head: Head, manifest: Manifest) -> list[SourceChange]:
    now = {p.uid: p.offset for p in head.entry.sources}
    newest = job.root.manifest(head)
    known = {f.path for f in manifest.spark.source_files} if manifest.spark else set()
    logs = [f for f in newest.spark.source_files if f.path not in known] if newest and newest.spark else []
    contents = [f.content or (job.root.storage.get(f.handle.key) if f.handle else b"") for f in logs]
    sources = {node.uid: node.source for node in job.plan.sources}
    changes = []
    for position in manifest.sources:
        source = sources.get(position.uid)
        held = None
        if position.offset == NOT_BEGUN:
            pass
        elif isinstance(source, Source):
            held = source.holds(position.offset, contents)
        elif isinstance(source, LocalSource) and manifest.spark is None:
            held = source.holds(position.offset)
        changes.append(
            SourceChange(uid=position.uid, now=now.get(position.uid, ""), then=position.offset, held=held)
        )
    return changes


def _sink_changes(
    job: Job, head: Head, target: Target, options: RestoreOptions, foreign: bool
) -> list[SinkChange]:
    known = head.entry.published
    mode = SinkMode.KEEP if foreign else options.sinks
    changes = []
    for uid, sink in sorted(job.sinks.items()):
        table_id = sink.sink.check(sink.context)
        if table_id is None:
            if uid in known:
                raise SinkDiverged(
                    "the sink's table is gone", hint="restore it, or give the sink a new uid", sink=uid
                )
            continue
        table = sink.open_table()
        if mode is SinkMode.KEEP:
            changes.append(SinkChange(uid=uid, mode=mode, table_id=table_id, now=table.version))
            continue
        back = table.plan_rewind(target.checkpoint_id)
        changes.append(SinkChange(
            uid=uid, mode=mode, table_id=table_id, now=back.from_version, then=back.to_version,
            rows_removed=back.rows_removed, rows_returned=back.rows_returned, others=back.others,
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


def _without(manifest: Manifest, drop: frozenset[str]) -> Manifest:
    return replace(manifest, operators=[o for o in manifest.operators if o.uid not in drop])


def _sha256(target: Target) -> str:
    if target.savepoint is not None:
        return target.savepoint.sha256
    assert target.ref is not None
    return target.ref.sha256


def _outdated(proposal: Proposal, head: Head) -> PlanOutdated:
    return PlanOutdated("the job has moved on since the plan was made", hint="plan again", planned_at=proposal.head,
                        newest=head.entry.seq, checkpoint=head.checkpoint_id)  # fmt: skip
