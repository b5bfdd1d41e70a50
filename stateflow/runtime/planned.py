"""What planning a restore and carrying it out both ask: whether job, tables and target are what it was planned for, and
fit, and what a plan would leave behind."""

from __future__ import annotations

from msgspec.structs import replace

from stateflow.api.sink import SinkRewind, SinkTable
from stateflow.checkpoint.documents import Manifest, Rewind, SinkMode
from stateflow.checkpoint.entries import pending_of
from stateflow.checkpoint.files import check_sizes, check_stored, files_of
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.proposal import Proposal, SinkChange, SinkLeft
from stateflow.checkpoint.restore import plan_restore
from stateflow.checkpoint.targets import Target
from stateflow.errors import ConfigError, PlanOutdated
from stateflow.runtime.job import Job
from stateflow.runtime.publishing import BoundSink
from stateflow.state.handles import FileHandle
from stateflow.storage import Storage


def check_planned_job(job: Job, proposal: Proposal) -> None:
    """Raises ConfigError for another job's plan, PlanOutdated unless job file and settings are those of the plan."""
    uuid = job.root.job.job_uuid
    if proposal.job_uuid != uuid:
        raise ConfigError("the plan was made for another job", hint="check --job-root: it must be the one of the plan",
                          planned_for=proposal.job_uuid, this_job=uuid, root=job.root.storage.uri)  # fmt: skip
    differs = _differences(job, proposal)
    if differs:
        raise PlanOutdated("the job file or its settings are not those of the plan", hint="execute with the job file, "
                           "--config and --set that the plan was made with, or plan again",
                           differs=differs)  # fmt: skip


def _differences(job: Job, proposal: Proposal) -> list[str]:
    planned = {change.uid for change in proposal.sinks}
    # A planned table's id is compared when it is looked up.
    new = [uid for uid in job.sinks.keys() - planned if job.sinks[uid].sink.check(job.sinks[uid].context)]
    found = []
    if job.plan.parallelism != proposal.parallelism:
        found.append(f"parallelism {job.plan.parallelism}, planned {proposal.parallelism}")
    if sorted(job.plan.key_types) != proposal.operators:
        found.append(f"operators {sorted(job.plan.key_types)}, planned {proposal.operators}")
    found += [f"a table of {uid}, not planned" for uid in sorted(new)]
    return found + [f"no sink {uid}, planned" for uid in sorted(planned - job.sinks.keys())]


def table_checkpoint(rewind: Rewind | None, uid: str, table: SinkTable, checkpoint_id: int) -> int:
    """The checkpoint whose output determines to which version a table goes back for `checkpoint_id`.

    It is another one for the target of an earlier restore that is not completed. A table that has gone back for it
    holds that target with the token of the restore; one that has yet to go back has older tokens only.
    """
    intent = rewind.sinks.get(uid) if rewind else None
    if rewind is None or rewind.restore is None or intent is None or intent.mode is SinkMode.KEEP:
        return checkpoint_id
    base = rewind.restore.base
    if checkpoint_id != base and checkpoint_id < rewind.seq:
        return checkpoint_id
    return rewind.seq if (table.token or 0) >= rewind.seq else base


def look_up(sink: BoundSink, change: SinkChange, checkpoint_id: int, rewind: Rewind | None) -> SinkRewind:
    """What going back in the planned table means now; also for one that is kept, whose version is the handle's.

    Args:
        rewind: an earlier restore that is not completed.

    Raises PlanOutdated when it is not that table, or when more of what others wrote would be undone than was planned.
    """
    table = sink.open_table()
    if table.table_id != change.table_id:
        raise PlanOutdated("the sink's table is not the one of the plan", hint="plan again", sink=change.uid,
                           planned=change.table_id, found=table.table_id)  # fmt: skip
    if change.mode is SinkMode.KEEP:
        return SinkRewind(table.version, None, 0, 0, ())
    back = table.plan_rewind(table_checkpoint(rewind, change.uid, table, checkpoint_id))
    unseen = [other for other in back.others if other not in change.others]
    if unseen:
        raise PlanOutdated("others have written to a table since the plan was made, and that would be undone",
                           hint="plan again, and read what would be undone", sink=change.uid,
                           unseen=unseen)  # fmt: skip
    return back


def left_behind(job: Job, head: Head, target: Target) -> list[SinkLeft]:
    """Tables with output behind the target whose sink the job does not have: they cannot go back.

    Raises ConfigError when output that belongs to the target is not published yet: only the sink can do that.
    """
    known = {uid: p for uid, p in head.entry.published.items() if uid not in job.sinks}
    pending = [p for p in pending_of(head) if p.sink not in job.sinks]
    owed = sorted({p.sink for p in pending if p.checkpoint_id <= target.checkpoint_id})
    if owed:
        raise ConfigError("a sink was removed while output for it is not published", hint="plan with the version of "
                          "the job that has the sink", sinks=owed)  # fmt: skip
    newest = {uid: p.checkpoint_id for uid, p in known.items()}
    newest |= {p.sink: p.checkpoint_id for p in pending}
    return [
        SinkLeft(uid=uid, table_id=known[uid].table_id if uid in known else "", checkpoint_id=checkpoint_id)
        for uid, checkpoint_id in sorted(newest.items())
        if checkpoint_id > target.checkpoint_id
    ]


def check_left(left: list[SinkLeft], mode: SinkMode, leave: frozenset[str]) -> None:
    """Raises ConfigError unless each table that would be left behind is named, or all tables keep their content."""
    uids = {sink.uid for sink in left}
    unknown = sorted(leave - uids)
    if unknown:
        raise ConfigError("there is no table to leave under this uid", hint="only tables of sinks that the job does "
                          f"not have can be left: {sorted(uids)}", uids=unknown)  # fmt: skip
    unnamed = sorted(uids - leave)
    if unnamed and mode is SinkMode.RESTORE:
        raise ConfigError("tables would be left behind, because the job does not have their sinks", hint="plan with "
                          "the version of the job that has them; or name each table that is to keep its rows, which a "
                          "later version would write a second time: --leave UID", sinks=unnamed)  # fmt: skip


def check_there(root: JobRoot, target: Target, manifest: Manifest) -> None:
    """Raises MissingFile or CorruptFile unless every file of `manifest`, of the target, is there with its size."""
    check_sizes(*_stored(root, target, manifest))


def check_whole(root: JobRoot, target: Target, manifest: Manifest) -> None:
    """As `check_there`; reads and hashes every file."""
    check_stored(*_stored(root, target, manifest))


def _stored(root: JobRoot, target: Target, manifest: Manifest) -> tuple[Storage, list[FileHandle]]:
    if target.savepoint is None:
        return root.storage, files_of(manifest)
    unique = {f.key: f for f in files_of(manifest)}.values()
    folder = target.savepoint.folder
    return target.savepoint.storage, [replace(f, key=f"{folder}{f.key}") for f in unique]


def check_fits(job: Job, manifest: Manifest, target: Target) -> None:
    """Raises ConfigError, or an error below it, unless the job can go on from this manifest of the target."""
    plan_restore(target.checkpoint_id, manifest, job.wanted)


def without(manifest: Manifest, drop: frozenset[str]) -> Manifest:
    """The manifest without the state of some operators."""
    return replace(manifest, operators=[o for o in manifest.operators if o.uid not in drop])
