"""The plan of a restore, made without the job file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from stateflow.checkpoint.log.documents import SinkMode
from stateflow.checkpoint.restore.plan_document import (
    Caution,
    GraphChanges,
    RestorePlan,
    cautions,
    describe_replay,
    expected_plan_of,
)
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.errors import ConfigError
from stateflow.operations.restore_previews import (
    KnownHistory,
    PlanCheck,
    PreviewRequest,
    RestorePreview,
    preview_restore,
)
from stateflow.outputs import Inline, OptionalId, OptionalText
from stateflow.runtime.restore.planner import RestoreOptions
from stateflow.storage.locations import is_below
from stateflow.ui.answers import Answer, Freshness, Handler, freshness_of, state_of, value_of, version_of
from stateflow.ui.openapi import Endpoint, Parameter
from stateflow.ui.requests import FLAG, TEXT, Call, wrong_value
from stateflow.ui.roots import Calls, CatalogJob, Reading, Roots
from stateflow.ui.runs import has_start, history_of
from stateflow.ui.snapshots import Snapshot

_PLAN = (
    Parameter(
        "target",
        TEXT,
        "as the recovery DAG takes it: latest, an id, a name or path, or before:… (a time without an offset is in UTC)",
    ),
    Parameter("sinks", {"enum": ["restore", "keep"], "default": "restore"}, "whether tables are restored"),
    Parameter("keep_tables", TEXT, "uids of sinks whose tables stay, with commas"),
    Parameter("drop", TEXT, "uids of operators whose state is dropped, with commas"),
    Parameter("new_names", TEXT, "OLD=NEW for each name that has changed, with commas"),
    Parameter("source_positions", TEXT, "UID=POSITION, one a line"),
    Parameter("from_other_job", {**FLAG, "default": False}, "whether the savepoint may be another job's"),
    Parameter("claim_mode", {"enum": ["no-claim", "claim"], "default": "no-claim"}, "who then owns the savepoint"),
)


@dataclass(frozen=True)
class RestorePlanPage:
    """The plan of a restore, as far as it is known without the job file.

    Attributes:
        plan: the plan; None if the graph of no run is stored. Its `job_file`, `code_hash` and what only tables and
            sources tell are null.
        cautions: what to read before it is executed, the most severe first.
        replay: what happens to input and output since the target, in a few sentences; empty without a plan.
        replay_ms: about how long the next run takes to read the input since the target again: as long as the
            checkpoints since then took. None if that is not known.
        checks: the conditions of the restore.
        expected_plan: the parameter of the recovery DAG with which the plan that is made with the job file is compared
            with this one; empty without a plan.
        graph_known: whether the plan is made with the stored graph of a run.
        generation: generation of that run.
        freshness: how current this is.
    """

    plan: RestorePlan | None
    cautions: tuple[Caution, ...]
    replay: OptionalText
    replay_ms: float | None
    checks: tuple[PlanCheck, ...]
    expected_plan: OptionalText
    graph_known: bool
    generation: OptionalId
    freshness: Inline[Freshness]


def restore_plan_page(reading: Reading[Snapshot], preview: Reading[RestorePreview]) -> RestorePlanPage:
    """Returns the plan of a restore and the facts that a reader needs with it."""
    found = preview.value
    assert found is not None
    plan = found.plan
    return RestorePlanPage(
        plan=plan,
        cautions=tuple(cautions(plan)) if plan else (),
        replay=describe_replay(plan) if plan else "",
        replay_ms=found.replay_ms,
        checks=found.checks,
        expected_plan=expected_plan_of(plan) if plan else "",
        graph_known=plan is not None,
        generation=found.generation,
        freshness=freshness_of(reading.value, reading, preview),
    )


def _restore_options(call: Call) -> RestoreOptions:
    positions = call.query.get("source_positions", "").splitlines()
    return RestoreOptions(
        call.member("sinks", SinkMode, SinkMode.RESTORE),
        frozenset(call.words("drop")),
        bool(call.flag("from_other_job")),
        frozenset(call.words("keep_tables")),
        GraphChanges(call.words("new_names"), tuple(each.strip() for each in positions if each.strip())),
        call.member("claim_mode", ClaimMode, ClaimMode.NO_CLAIM),
    )


def _roots_above(path: str, jobs: Sequence[CatalogJob]) -> tuple[str, ...]:
    """Returns the job roots that have a savepoint's path, without those that the catalog refuses to open."""
    return tuple(each.job_root for each in jobs if is_below(path, each.job_root) and _opens(each))


def _opens(job: CatalogJob) -> bool:
    try:
        job.open_storage()
    except ConfigError:
        return False
    return True


def _version_of_plan(preview: RestorePreview) -> str:
    plan = preview.plan
    return repr((msgspec.structs.replace(plan, made_at="") if plan else None, preview.checks, preview.replay_ms))


RESTORE_ENDPOINTS = (
    Endpoint("jobs/{id}/restore-plan", "A plan of a restore, made without the job file", RestorePlanPage, _PLAN),
)


def _can_plan(snapshot: Snapshot) -> bool:
    """Returns whether the records were read that a plan follows from: the newest run's start, and all savepoints'."""
    position = snapshot.position
    return position is not None and snapshot.savepoints_known and has_start(snapshot, position.head.entry.generation)


class RestoreEndpoints:
    """Answers with plans of restores.

    Args:
        roots: follows the job roots.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._previews: Calls[RestorePreview] = Calls(roots, timedelta(seconds=10))

    def handlers(self) -> dict[str, Handler]:
        """Returns what answers each endpoint, by its path."""
        return {"jobs/{id}/restore-plan": self._restore_plan}

    async def _restore_plan(self, call: Call) -> Answer:
        job, options = call.job, _restore_options(call)
        target = call.query.get("target", "").strip()
        if not target:
            raise wrong_value("target", "latest, the id of a checkpoint, or the name or path of a savepoint")
        reading, snapshot, _ = await self._roots.read_position(job, _can_plan)
        root = snapshot.root
        # The server opens a path with its own rights, which are not the viewer's.
        jobs = sorted(call.jobs.values(), key=lambda each: each.job_root) if "/" in target else []

        def make() -> RestorePreview:
            found = self._roots.known(job)
            request = PreviewRequest(target, options, _roots_above(target, jobs))
            return preview_restore(root, request, history_of(found) if found else KnownHistory())

        asked = repr((target, options, [each.job_root for each in jobs]))
        preview = await self._previews.read((job.job_root, snapshot.version, asked), make)
        versions = [version_of(job, reading), state_of(preview), _version_of_plan(value_of(preview, job))]
        return Answer(versions, lambda: restore_plan_page(reading, preview))
