"""Going back to a checkpoint or savepoint: exactly as `proposing` has planned it.

Execution claims the job, which fences every run, publishes what belongs to the target, brings a savepoint's files into
the job root, and then appends one CLAIM that adopts the target and names every table: the intent. Before it nothing
has happened but a CLAIM; after it every start completes what is missing.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from stateflow import failpoints
from stateflow.checkpoint.documents import EntryRef, RestoreFacts, SinkIntent, SinkMode
from stateflow.checkpoint.entries import Adoption
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.proposal import Proposal, SinkChange, StateAction, is_outdated
from stateflow.checkpoint.stored_savepoints import savepoint_at
from stateflow.checkpoint.targets import Target, kept_checkpoint
from stateflow.checkpoint.untold import tell_history
from stateflow.errors import ConfigError, Fenced, ForeignRows, PlanOutdated
from stateflow.runtime.job import Job
from stateflow.runtime.planned import check_fits, check_planned_job, check_whole, look_up, without
from stateflow.runtime.publishing import Publisher, Selection
from stateflow.runtime.rewinding import complete_rewind, record_replaced
from stateflow.runtime.state_import import Place, import_state


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


def execute(job: Job, proposal: Proposal, order: RestoreOrder) -> Executed:
    """Carries out the plan, or completes it when the same request was begun before; done before, it does nothing.

    Raises:
        ConfigError: the plan was made for another job, or the job does not fit any more.
        PlanOutdated: the job, its file and settings, its tables or the target are not what the plan was made for. No
            table and no state is changed then.
        Fenced: a newer run, or another execution of the same plan, claimed the job meanwhile.
        DataError: see `proposing.propose`.
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
    _intents(job, head, proposal, target)
    _check_target(job, proposal, target)
    note = f"restore {proposal.label}" + (f" for {order.by}" if order.by else "") + (
        f": {order.reason}" if order.reason else "")  # fmt: skip
    failpoints.hit("restore.begin")
    before = _completed(job, head, proposal)
    claimed = root.claim_on(before, order.request, note)
    if claimed is None:
        raise _overtaken(proposal, root.head(), order)
    failpoints.hit("restore.claimed")
    # The manifest that it is in goes out of sight.
    if not head.entry.ended:
        tell_history(root, head)
    adoption = _adoption(job, claimed, target, proposal)
    adoption = dataclasses.replace(adoption, restore=_facts(root, proposal, order))
    failpoints.hit("restore.imported")
    adopted = root.adopt(claimed, adoption, note)
    failpoints.hit("restore.intent")
    if before.entry.rewind is not None:
        record_replaced(root, before.entry.rewind, adopted.entry.seq)
    return complete_rewind(root, job.sinks, adopted, planned_now=True)


def _completed(job: Job, head: Head, proposal: Proposal) -> Head:
    """After a restore that was killed after its intent: every table stands where the log says.

    One that another writer's commits stop is left as it is, if the plan says what happens to each of its tables.
    """
    try:
        return complete_rewind(job.root, job.sinks, head)
    except ForeignRows:
        rewind = head.entry.rewind
        planned = {change.uid for change in proposal.sinks}
        if rewind is None or rewind.restore is None or not rewind.sinks.keys() <= planned:
            raise
        return head


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
    rest = without(target.manifest, _dropped(proposal))
    check_fits(job, rest, target)
    check_whole(job.root, target, rest)


def _facts(root: JobRoot, proposal: Proposal, order: RestoreOrder) -> RestoreFacts:
    return RestoreFacts(
        request=order.request, by=order.by or root.writer, reason=order.reason, label=proposal.label,
        base=0 if proposal.foreign else proposal.target_checkpoint, left=proposal.checkpoint_id,
        undone=proposal.dropped_checkpoints, at=root.clock.now().isoformat(timespec="milliseconds"),
        bytes=sum(s.bytes for s in proposal.states if s.action is not StateAction.DROPPED),
        of_job=proposal.of_job, savepoint_path=proposal.savepoint if proposal.foreign else "",
    )  # fmt: skip


def _adoption(job: Job, head: Head, target: Target, proposal: Proposal) -> Adoption:
    publisher = Publisher(job.root, job.sinks)
    upto = head.checkpoint_id if proposal.foreign else target.checkpoint_id
    publisher.publish_pending(head, _due(proposal, upto))
    sinks = _intents(job, head, proposal, target)
    drop = _dropped(proposal)
    if target.ref is not None and not drop:
        return dataclasses.replace(job.root.adoption(head, target.ref), sinks=sinks)
    manifest = without(target.manifest, drop)
    place = (
        Place(target.savepoint.storage, target.savepoint.folder, checked=True) if target.savepoint else None
    )
    handle = import_state(job.root, manifest, place, head.entry.generation)
    savepoint = target.label if target.savepoint else ""
    return Adoption(upto=upto, manifest=handle, sources=manifest.sources, savepoint=savepoint, sinks=sinks)


def _due(proposal: Proposal, upto: int) -> Selection:
    """What is published before the tables go back: what belongs to the target; the rest is and comes again.

    A kept table gets all of it: a driver that sleeps before publishing could still bring it in afterwards, and what a
    table holds must not depend on whether it does.
    """
    kept_tables = {change.uid for change in proposal.sinks if change.mode is SinkMode.KEEP}
    return lambda pending: pending.checkpoint_id <= upto or pending.sink in kept_tables


def _intents(job: Job, head: Head, proposal: Proposal, target: Target) -> dict[str, SinkIntent]:
    return {change.uid: _intent(job, head, change, target) for change in proposal.sinks}


def _intent(job: Job, head: Head, change: SinkChange, target: Target) -> SinkIntent:
    # Looked up again: what was pending at the plan is published by now, and its version belongs to the target.
    back = look_up(job.sinks[change.uid], change, target.checkpoint_id, head.entry.rewind)
    if change.mode is SinkMode.KEEP:
        return SinkIntent(table_id=change.table_id, mode=change.mode)
    # Nothing to take back is a version too: a paused driver can still publish before the table has our token.
    then = back.from_version if back.to_version is None else back.to_version
    return SinkIntent(
        table_id=change.table_id, mode=change.mode, to_version=then, seen_version=back.from_version
    )


def _dropped(proposal: Proposal) -> frozenset[str]:
    return frozenset(c.uid for c in proposal.states if c.action is StateAction.DROPPED)


def _planned_target(root: JobRoot, head: Head, proposal: Proposal) -> Target:
    """The very target that was planned."""
    if proposal.savepoint:
        try:
            stored = savepoint_at(proposal.savepoint)
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
    if ref not in root.line(head):
        raise PlanOutdated("the checkpoint of the plan is not kept any more", hint="plan again, with another target",
                           checkpoint=ref.id)  # fmt: skip
    return kept_checkpoint(root, head, ref.id)


def _outdated(proposal: Proposal, head: Head) -> PlanOutdated:
    return PlanOutdated("the job has moved on since the plan was made", hint="plan again", planned_at=proposal.head,
                        newest=head.entry.seq, checkpoint=head.checkpoint_id)  # fmt: skip
