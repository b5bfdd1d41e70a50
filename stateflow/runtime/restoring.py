"""Going back to a checkpoint or savepoint: a plan that changes nothing, then exactly that plan.

Execution claims the job, which fences every run, publishes what belongs to the target, brings a savepoint's files into
the job root, and then appends one CLAIM that adopts the target and names every table: the intent. Before it nothing
has happened but a CLAIM; after it every start completes what is missing.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.api.source import LocalSource, Source
from stateflow.checkpoint.documents import NOT_BEGUN, EntryRef, Manifest, RestoreFacts, SinkIntent, SinkMode
from stateflow.checkpoint.entries import Adoption
from stateflow.checkpoint.files import check_stored, files_of, write_manifest
from stateflow.checkpoint.jobroot import JobRoot, line
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.proposal import (
    Proposal,
    SinkChange,
    SourceChange,
    StateAction,
    is_outdated,
    state_changes,
)
from stateflow.checkpoint.restore import plan_restore
from stateflow.checkpoint.savepoint import open_savepoint, take_all, with_keys
from stateflow.checkpoint.targets import Target, resolve_target
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    Fenced,
    MissingFile,
    PlanOutdated,
    SinkDiverged,
)
from stateflow.runtime.job import Job
from stateflow.runtime.planned import (
    check_left,
    check_planned_job,
    check_there,
    check_whole,
    left_behind,
    look_up,
)
from stateflow.runtime.publishing import Publisher, Selection
from stateflow.runtime.rewinding import complete_rewind
from stateflow.state.handles import FileHandle
from stateflow.storage import Storage, open_storage
from stateflow.storage.paths import data_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where files are: a storage, and the prefix of their keys in it.

    Attributes:
        checked: whether they were read and compared with their hashes just now.
    """

    storage: Storage
    folder: str = ""
    checked: bool = False


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


@dataclass(frozen=True)
class Executed:
    """A restore that is done.

    Attributes:
        repeated: whether it was done before this call, which has changed nothing then.
    """

    head: Head
    repeated: bool = False


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
    rest = _without(manifest, options.drop)
    _check_fits(job, rest, target)
    check_there(root, target, rest)
    mode = SinkMode.KEEP if foreign else options.sinks
    left = left_behind(job, head, target)
    check_left(left, mode, options.leave)
    return Proposal(
        job=root.job.job, job_uuid=root.job.job_uuid, head=head.entry.seq, generation=head.entry.generation,
        ordinal=head.entry.ordinal, checkpoint_id=head.checkpoint_id, target=text, label=target.label,
        target_checkpoint=target.checkpoint_id, target_at=target.at, target_sha256=_sha256(target),
        savepoint=target.savepoint.uri if target.savepoint else "", foreign=foreign, mode=mode,
        parallelism=job.plan.parallelism, operators=sorted(job.plan.key_types), states=states,
        sources=_source_changes(job, head, manifest), sinks=_sink_changes(job, head, target, mode), left=left,
        dropped_checkpoints=[] if foreign else [r.id for r in line(head) if r.id > target.checkpoint_id],
        made_at=root.clock.now().isoformat(timespec="seconds"),
    )  # fmt: skip


def execute(job: Job, proposal: Proposal, order: RestoreOrder) -> Executed:
    """Carries out the plan, or completes it when the same request was begun before; done before, it does nothing.

    Raises:
        ConfigError: the plan was made for another job, or the job does not fit any more.
        PlanOutdated: the job, its file and settings, its tables or the target are not what the plan was made for. No
            table and no state is changed then.
        Fenced: a newer run, or another execution of the same plan, claimed the job meanwhile. DataError: see `propose`.
    """
    head = job.root.head()
    done = _done_before(job, head, order)
    if done is not None:
        return done
    try:
        return Executed(_carry_out(job, head, proposal, order))
    except (Fenced, PlanOutdated):
        # Somebody else carried out the same plan at the same time, and was quicker: it is done.
        done = _done_before(job, job.root.head(), order)
        if done is None:
            raise
        return done


def _done_before(job: Job, head: Head, order: RestoreOrder) -> Executed | None:
    """What an earlier try did, after completing what it left; None when no try got as far as its intent."""
    if order.request not in head.entry.requests:
        return None
    rewind = head.entry.rewind
    if rewind is None or rewind.restore is None or rewind.restore.request != order.request:
        return Executed(head, repeated=True)
    return Executed(complete_rewind(job.root, job.sinks, head))


def _carry_out(job: Job, head: Head, proposal: Proposal, order: RestoreOrder) -> Head:
    root = job.root
    check_planned_job(job, proposal)
    _check_not_moved(proposal, head, order)
    target = _planned_target(root, head, proposal)
    # All of it is looked at before the CLAIM, which ends a run: a plan that cannot be carried out must not do that.
    _intents(job, proposal, target)
    _check_target(job, proposal, target)
    note = f"restore {proposal.label}" + (f" for {order.by}" if order.by else "") + (
        f": {order.reason}" if order.reason else "")  # fmt: skip
    failpoints.hit("restore.begin")
    # A restore that was killed behind its intent is completed first, so that every table stands where the log says.
    claimed = root.claim_on(complete_rewind(root, job.sinks, head), order.request, note)
    if claimed is None:
        raise _overtaken(proposal, root.head(), order)
    failpoints.hit("restore.claimed")
    adoption = _adoption(job, claimed, target, proposal)
    adoption = dataclasses.replace(adoption, restore=_facts(root, proposal, order))
    failpoints.hit("restore.imported")
    adopted = root.adopt(claimed, adoption, note)
    failpoints.hit("restore.intent")
    return complete_rewind(root, job.sinks, adopted)


def _check_not_moved(proposal: Proposal, head: Head, order: RestoreOrder) -> None:
    # A CLAIM of this very request's earlier try has changed nothing that the plan saw.
    own = head.entry.claimed_for == order.request and head.checkpoint_id == proposal.checkpoint_id
    if is_outdated(proposal, head) and not own:
        raise _outdated(proposal, head)


def _overtaken(proposal: Proposal, head: Head, order: RestoreOrder) -> Fenced | PlanOutdated:
    if head.entry.claimed_for != order.request:
        return _outdated(proposal, head)
    # It lives, or did a moment ago: to claim the job from it would only fence it in the middle of the same work.
    return Fenced("this very plan is being carried out by somebody else", hint="look at how that ends; the same "
                  "command again says that it is done, or completes it", request=order.request)  # fmt: skip


def _check_target(job: Job, proposal: Proposal, target: Target) -> None:
    rest = _without(target.manifest, _dropped(proposal))
    _check_fits(job, rest, target)
    check_whole(job.root, target, rest)


def _facts(root: JobRoot, proposal: Proposal, order: RestoreOrder) -> RestoreFacts:
    return RestoreFacts(
        request=order.request, by=order.by or root.writer, reason=order.reason, label=proposal.label,
        base=0 if proposal.foreign else proposal.target_checkpoint, left=proposal.checkpoint_id,
        undone=proposal.dropped_checkpoints, at=root.clock.now().isoformat(timespec="milliseconds"),
        bytes=sum(s.bytes for s in proposal.states if s.action is not StateAction.DROPPED),
    )  # fmt: skip


def _adoption(job: Job, head: Head, target: Target, proposal: Proposal) -> Adoption:
    publisher = Publisher(job.root, job.sinks)
    upto = head.checkpoint_id if proposal.foreign else target.checkpoint_id
    publisher.publish_pending(head, _due(proposal, upto))
    sinks = _intents(job, proposal, target)
    drop = _dropped(proposal)
    if target.ref is not None and not drop:
        return dataclasses.replace(job.root.adoption(head, target.ref), sinks=sinks)
    manifest = _without(target.manifest, drop)
    place = (
        Place(target.savepoint.storage, target.savepoint.folder, checked=True) if target.savepoint else None
    )
    handle = import_state(job.root, manifest, place, head.entry.generation)
    savepoint = target.label if target.savepoint else ""
    return Adoption(upto=upto, manifest=handle, sources=manifest.sources, savepoint=savepoint, sinks=sinks)


def _due(proposal: Proposal, upto: int) -> Selection:
    """What is published before the tables go back: what belongs to the target; the rest is dropped, and comes again.

    A kept table gets all of it: a driver that sleeps before publishing could still bring it in afterwards, and what a
    table holds must not depend on whether it does.
    """
    kept_tables = {change.uid for change in proposal.sinks if change.mode is SinkMode.KEEP}
    return lambda pending: pending.checkpoint_id <= upto or pending.sink in kept_tables


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
        unique = {f.key: f for f in files_of(manifest)}.values()
        linked = {to for key, to in names.items() if place.checked and _is_link(place, key, root, to)}
        check_stored(root.storage, [f for f in unique if f.key not in linked])
    manifest = replace(manifest, job_uuid=root.job.job_uuid, generation=generation, ordinal=ordinal)
    return write_manifest(root.storage, into, manifest)


def _is_link(place: Place, key: str, root: JobRoot, to: str) -> bool:
    """Whether what came into the root is the very file that was checked at its place: nothing can differ then."""
    there, here = place.storage.local_path(f"{place.folder}{key}"), root.storage.local_path(to)
    return here is not None and there is not None and there.is_file() and here.samefile(there)


def _intents(job: Job, proposal: Proposal, target: Target) -> dict[str, SinkIntent]:
    return {change.uid: _intent(job, change, target) for change in proposal.sinks}


def _intent(job: Job, change: SinkChange, target: Target) -> SinkIntent:
    # Looked up again: what was pending at the plan is published by now, and its version belongs to the target.
    then = None
    back = look_up(job.sinks[change.uid], change, target.checkpoint_id)
    if change.mode is SinkMode.RESTORE:
        # Nothing to take back is a version too: a paused driver can still publish before the table has our token.
        then = back.from_version if back.to_version is None else back.to_version
    return SinkIntent(table_id=change.table_id, mode=change.mode, to_version=then)


def _dropped(proposal: Proposal) -> frozenset[str]:
    return frozenset(c.uid for c in proposal.states if c.action is StateAction.DROPPED)


def _planned_target(root: JobRoot, head: Head, proposal: Proposal) -> Target:
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
    if ref not in line(head):
        raise PlanOutdated("the checkpoint of the plan is not kept any more", hint="plan again, with another target",
                           checkpoint=ref.id)  # fmt: skip
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
    plan_restore(target.checkpoint_id, manifest, job.wanted)


def _source_changes(job: Job, head: Head, manifest: Manifest) -> list[SourceChange]:
    now = {p.uid: p.offset for p in head.entry.sources}
    contents = _read_since(job.root, head, manifest)
    sources = {node.uid: node.source for node in job.plan.sources}
    changes = []
    for position in manifest.sources:
        source = sources.get(position.uid)
        held = None
        if position.offset == NOT_BEGUN:
            pass
        elif isinstance(source, Source) and contents is not None:
            held = source.holds(position.offset, contents)
        elif isinstance(source, LocalSource) and manifest.spark is None:
            held = source.holds(position.offset)
        changes.append(
            SourceChange(uid=position.uid, now=now.get(position.uid, ""), then=position.offset, held=held)
        )
    return changes


def _read_since(root: JobRoot, head: Head, manifest: Manifest) -> list[bytes] | None:
    """What Spark noted of the source since the target; None when the newest checkpoint is damaged: going back is the
    way out then, and must not fail over it."""
    known = {f.path for f in manifest.spark.source_files} if manifest.spark else set()
    try:
        newest = root.manifest(head)
        logs = (
            [f for f in newest.spark.source_files if f.path not in known] if newest and newest.spark else []
        )
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
                raise SinkDiverged(
                    "the sink's table is gone", hint="restore it, or give the sink a new uid", sink=uid
                )
            continue
        if uid in known and known[uid].table_id != table_id:
            raise SinkDiverged("the sink's table is not the one that this job published to", hint="plan with the "
                               "settings of the job's runs", sink=uid, known=known[uid].table_id,
                               found=table_id)  # fmt: skip
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
