"""Going back to a point in time, in two steps; forks; and reading everything that is stored once more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stateflow_airflow.failures import PermanentFailure, misconfigured
from stateflow_airflow.operators.base import JobOperator, JobRootOperator
from stateflow_airflow.plans import as_markdown, as_proposal
from stateflow_airflow.results import with_offsets
from stateflow_airflow.task_requests import (
    as_names,
    as_truth,
    asker,
    check_root,
    job_code,
    request_id,
    told_as_failures,
)
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

require_supported()

APPROVE = "Approve"


class StateflowRestorePlanOperator(JobOperator):
    """Says what going back to a point in time would mean; changes nothing.

    **Returns** (XCom) ``plan``, for `StateflowRestoreOperator`, ``markdown``, the same for people, and ``dag``. The
    plan has the state that is matched, new and dropped, with its size now and then; each source's position now and
    then, the files and rows that are read again, and whether the source still holds them; each table's path, version
    and rows since then; commits by others that are undone with them; tables that are left as they are; checkpoints
    that cannot be gone back to any more. ``dag`` has ``paused`` and ``active_runs`` of `run_dag`; it is None without
    one.

    Args:
        job: absolute path of the job file. Templated.
        job_root: the job's root. Templated.
        target: ``latest``, a checkpoint's id, a savepoint's name or path, ``before:TIME`` or ``before:SOURCE=OFFSET``.
            Templated.
        sinks: ``restore`` takes tables back as well, ``keep`` leaves their content. Templated.
        drop: uids of operators whose state is dropped because the job has none of them any more: a list, or a text
            with commas. Templated.
        foreign: whether the savepoint may be another job's. Templated.
        leave: uids of sinks that the job does not have, whose tables keep what came since: as `drop`. Templated.
        settings: as in `StateflowRunOperator`. Templated.
        run_dag: id of the DAG that runs the job, of which the plan says whether it is paused and whether it runs.
    """

    template_fields: Sequence[str] = (
        "job",
        "job_root",
        "target",
        "sinks",
        "drop",
        "foreign",
        "leave",
        "settings",
    )
    template_fields_renderers = {"settings": "json"}
    ui_color = "#fdf1cf"

    def __init__(  # noqa: PLR0913 - an operator takes what a task needs, by name
        self,
        *,
        job: str,
        job_root: str,
        target: str,
        sinks: str = "restore",
        drop: str | Sequence[str] = (),
        foreign: bool | str = False,
        leave: str | Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        run_dag: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, job_root=job_root, settings=settings, **kwargs)
        self.run_dag = run_dag
        self.target = target
        self.sinks = sinks
        self.drop = drop
        self.foreign = foreign
        self.leave = leave

    def execute(self, context: Context) -> dict[str, Any]:
        """Plans; the log shows the plan."""
        import msgspec

        from stateflow.checkpoint.documents import SinkMode
        from stateflow.recovery import plan_restore
        from stateflow.runtime.proposing import RestoreOptions

        if self.sinks not in list(SinkMode):
            raise misconfigured(f"sinks={self.sinks!r} is neither restore nor keep", "give one of them")
        foreign = as_truth("foreign", self.foreign)
        options = RestoreOptions(SinkMode(self.sinks), as_names(self.drop), foreign, as_names(self.leave))
        with told_as_failures():
            code = job_code(self.job, self.settings)
            proposal = plan_restore(check_root(self.job_root), code, str(self.target).strip(), options)
        plan = json.loads(msgspec.json.encode(proposal))
        dag = _run_dag(context, self.run_dag) if self.run_dag else None
        markdown = as_markdown(proposal, _dag_notes(self.run_dag, dag) if dag else ())
        self.log.info("The plan:\n%s", markdown)
        return {"plan": plan, "markdown": markdown, "dag": dag}


class StateflowRestoreOperator(JobOperator):
    """Carries a restore's plan out: exactly that one, once in a DAG run, or not at all.

    It claims the job, which ends a run that still works, and needs the job's pool so that none begins beside it. When
    the job has moved on since it was planned, its file, settings or tables are others, or somebody else has written to
    a table, it is refused with the error ``plan-outdated``, and no state or table is changed. A try that was killed is
    completed by the next one, or by the next start of the job. Clearing the task later never goes back a second time:
    it returns ``repeated``, and warns. A plan that was made anew, by clearing the task that plans, is another wish.

    **Returns** (XCom) ``job``, ``request``, ``label``, ``generation``, ``checkpoint_id``, ``offsets``, ``tables``
    (uid of the sink: version), ``stands_at`` in words, and ``repeated``: whether it was carried out before, and nothing
    was done now.

    Args:
        job: absolute path of the job file. Templated.
        job_root: the job's root. Templated.
        plan: what `StateflowRestorePlanOperator` returned (``plan.output``), its plan, or that as JSON. Templated.
        approval: what Airflow's ApprovalOperator returned (``approve.output``): then the log has its user as the one
            who did it, and a note that was entered there. Anything but an approval is refused. Templated.
        by: who does it, without an approval; empty for who triggered the DAG run. Templated.
        reason: why; kept in the log. Templated.
        settings: as in `StateflowRunOperator`. Templated.
    """

    template_fields: Sequence[str] = ("job", "job_root", "plan", "approval", "by", "reason", "settings")
    template_fields_renderers = {"settings": "json", "plan": "json", "approval": "json"}
    ui_color = "#f9d6d5"

    def __init__(  # noqa: PLR0913 - an operator takes what a task needs, by name
        self,
        *,
        job: str,
        job_root: str,
        plan: Any,
        approval: Any = None,
        by: str = "",
        reason: str = "",
        settings: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, job_root=job_root, settings=settings, **kwargs)
        self.plan = plan
        self.needs_approval = approval is not None
        self.approval = approval
        self.by = by
        self.reason = reason

    def execute(self, context: Context) -> dict[str, Any]:
        """Goes back, or completes what an earlier try began."""
        from stateflow.recovery import restore
        from stateflow.runtime.restoring import RestoreOrder

        by, reason = self.by or asker(context), self.reason
        if self.needs_approval:
            by, reason = _approved(self.approval, asker(context), reason)
        with told_as_failures():
            proposal = as_proposal(self.plan)
            order = RestoreOrder(request_id(context, proposal.digest), by, reason)
            code = job_code(self.job, self.settings)
            done = restore(check_root(self.job_root), code, proposal, order)
        if done.repeated:
            self.log.warning("This plan was carried out before, and nothing was done now; %s stands at %s", done.job,
                             done.stands_at)  # fmt: skip
        else:
            self.log.info("%s is back at %s; for %s: %s", done.job, done.label, by, reason)
        return with_offsets(asdict(done))


class StateflowForkOperator(JobRootOperator):
    """Makes a new job, with a root and a uuid of its own, that begins with this one's state and positions.

    A try after this one finds the fork made, as long as no run has begun there.

    **Returns** (XCom) ``job``, ``job_uuid``, ``root``, ``label``, ``shadow`` and ``bytes``.

    Args:
        job_root: the job's root. Templated.
        target: as in `StateflowRestorePlanOperator`. Templated.
        into: the new job's root; it must be empty. Templated.
        shadow: every run of the new job publishes to tables named ``…_shadow``. Templated.
        foreign: whether the target may be another job's savepoint. Templated.
        by: who; empty for who triggered the DAG run. Templated.
        reason: why. Templated.
    """

    template_fields: Sequence[str] = ("job_root", "target", "into", "shadow", "foreign", "by", "reason")
    ui_color = "#d9e8fb"

    def __init__(  # noqa: PLR0913 - an operator takes what a task needs, by name
        self,
        *,
        job_root: str,
        target: str,
        into: str,
        shadow: bool | str = False,
        foreign: bool | str = False,
        by: str = "",
        reason: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.target = target
        self.into = into
        self.shadow = shadow
        self.foreign = foreign
        self.by = by
        self.reason = reason

    def execute(self, context: Context) -> dict[str, Any]:
        """Forks."""
        from stateflow.recovery import ForkAsk, fork

        shadow, by = as_truth("shadow", self.shadow), self.by or asker(context)
        foreign = as_truth("foreign", self.foreign)
        ask = ForkAsk(str(self.target).strip(), check_root(self.into), shadow, by, self.reason, foreign)
        with told_as_failures():
            made = fork(check_root(self.job_root), ask)
        self.log.info("%s is a fork of %s at %s", made.root, made.job, made.label)
        return asdict(made)


class StateflowVerifyOperator(JobRootOperator):
    """Reads every file of a savepoint, or of the state that the next run begins with, and compares size and hash.

    A file that is missing or differs fails the task, with its name.

    **Returns** (XCom) ``job``, ``what``, ``checkpoint_id``, ``offsets``, ``files`` and ``bytes``.

    Args:
        job_root: the job's root. Templated.
        savepoint: name or path; empty for the job's own newest state. Templated.
    """

    template_fields: Sequence[str] = ("job_root", "savepoint")
    ui_color = "#e8f6f3"

    def __init__(self, *, job_root: str, savepoint: str = "", **kwargs: Any) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.savepoint = savepoint

    def execute(self, context: Context) -> dict[str, Any]:
        """Reads it all."""
        from stateflow.ops import verify_head, verify_savepoint
        from stateflow.recovery import find

        with told_as_failures():
            root = check_root(self.job_root)
            read = verify_savepoint(find(root, self.savepoint)) if self.savepoint else verify_head(root)
        self.log.info("%s of %s: %d files, %d bytes, all as recorded", read.what, read.job, read.files,
                      read.bytes)  # fmt: skip
        return with_offsets(asdict(read))


def _run_dag(context: Context, dag_id: str) -> dict[str, Any]:
    """Whether a DAG is paused, and how many of its runs work or wait, now."""
    ti = context["ti"]
    return {
        "paused": ti.get_dag(dag_id).is_paused,
        "active_runs": ti.get_dr_count(dag_id, states=["running", "queued"]),
    }


def _dag_notes(dag_id: str, dag: Mapping[str, Any]) -> list[str]:
    paused = (
        f"DAG `{dag_id}` is paused: no scheduled run of it begins."
        if dag["paused"]
        else f"**DAG `{dag_id}` is not paused**: a run that begins meanwhile makes this plan outdated. Pause it."
    )
    if not dag["active_runs"]:
        return [paused, f"No run of `{dag_id}` is active."]
    active = f"**A run of `{dag_id}` is active**: its next checkpoint makes this plan outdated."
    return [paused, f"{active} Wait for its end, or stop it; then clear `plan`."]


def _approved(approval: Any, asked_by: str, reason: str) -> tuple[str, str]:
    """Who approved, and why. Raises PermanentFailure unless a person did."""
    answer = approval if isinstance(approval, Mapping) else {}
    user = answer.get("responded_by_user") or {}
    name = user.get("name") or user.get("id") if isinstance(user, Mapping) else ""
    if list(answer.get("chosen_options") or ()) != [APPROVE] or not name:
        raise PermanentFailure(
            "not-approved",
            "nobody approved this plan, and nothing was changed",
            "clear the task that plans: the plan is made, and asked about, once more",
        )
    note = str((answer.get("params_input") or {}).get("note") or "").strip()
    told = [
        reason,
        f"approval: {note}" if note else "",
        f"asked for by {asked_by}" if asked_by != name else "",
    ]
    return str(name), "; ".join(part for part in told if part)
