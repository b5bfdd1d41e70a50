"""Checks that a restore plan still applies: to the same job, log entry and target as when it was made."""

from __future__ import annotations

from datetime import datetime

from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import EntryRef
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.restore.graph_plan import GraphChanges, GraphPlan
from stateflow.checkpoint.restore.plan_document import RestorePlan, StateAction, is_outdated
from stateflow.checkpoint.restore.targets import Target, kept_checkpoint
from stateflow.checkpoint.savepoints.catalog import open_savepoint, savepoint_uri
from stateflow.errors import ConfigError, PlanOutdated
from stateflow.runtime.job.job import Job
from stateflow.runtime.restore.graph_changes import ChangedGraph, GraphRequest
from stateflow.storage import open_location

_OTHER_TARGET = "make a new plan, with another target"


def check_planned_job(job: Job, plan: RestorePlan) -> None:
    """Raises ConfigError for a plan of another job, PlanOutdated unless job file and settings are those of the plan."""
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
            "the job file or its settings are not those of the plan",
            hint="execute with the job file, --config and --set that the plan was made with, or make a new plan",
            differs=differs,
        )


def planned_graph(plan: RestorePlan) -> GraphRequest:
    """Returns what the user has decided about the graph in a plan."""
    graph = plan.graph
    # Plans of older versions have only the result.
    drop = graph.drop or [change.uid for change in plan.states if change.action is StateAction.DROPPED]
    at = datetime.fromisoformat(graph.at or plan.made_at)
    return GraphRequest(GraphChanges(tuple(graph.maps), tuple(graph.sources)), frozenset(drop), at)


def check_planned_graph(found: ChangedGraph, plan: RestorePlan) -> None:
    """Raises PlanOutdated unless the same decisions have the result that the plan shows."""
    planned = [(change.uid, change.then, change.action, change.old) for change in plan.sources]
    now = [(change.uid, change.then, change.action, change.old) for change in found.source_changes]
    if _outcome(found.plan) != _outcome(plan.graph) or now != planned:
        raise PlanOutdated(
            "states or source positions are not those of the plan",
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
        planned_at=plan.head,
        newest=head.entry.seq,
        checkpoint=head.checkpoint_id,
    )


def planned_target(root: JobRoot, head: Head, plan: RestorePlan) -> Target:
    """Returns the checkpoint or savepoint of the plan. Raises PlanOutdated when it no longer exists or has changed."""
    return _planned_savepoint(root, plan) if plan.savepoint else _planned_checkpoint(root, head, plan)


def _planned_savepoint(root: JobRoot, plan: RestorePlan) -> Target:
    storage = open_location(savepoint_uri(plan.savepoint), root.storage.uri)
    try:
        stored = open_savepoint(storage)
    except ConfigError as e:
        raise PlanOutdated(
            "the savepoint of the plan no longer exists",
            hint="make a new plan, with another target",
            target=plan.label,
            savepoint=plan.savepoint,
        ) from e
    if stored.sha256 != plan.target_sha256:
        raise PlanOutdated(
            "the savepoint is not the one that the plan was made for", hint="make a new plan", savepoint=plan.savepoint
        )
    document = stored.document
    return Target(document.checkpoint_id, document.made_at, document.job_uuid, document.manifest, savepoint=stored)


def _planned_checkpoint(root: JobRoot, head: Head, plan: RestorePlan) -> Target:
    ref = EntryRef(id=plan.target_checkpoint, sha256=plan.target_sha256)
    if ref not in root.checkpoints.restorable(head):
        raise PlanOutdated("the checkpoint of the plan is no longer retained", hint=_OTHER_TARGET, checkpoint=ref.id)
    return kept_checkpoint(root, head, ref.id, _OTHER_TARGET)
