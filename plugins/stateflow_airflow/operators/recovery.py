"""Operators that plan and execute a restore, create a fork, and verify stored files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stateflow_airflow.operators.approvals.approval import ApprovalCheck, Decision
from stateflow_airflow.operators.base import DagStatus, JobOperator, JobRootOperator, dag_status, request_id, requester
from stateflow_airflow.operators.restore_plan import as_markdown, parse_plan
from stateflow_airflow.operators.template_values import (
    check_job_root,
    job_code,
    to_bool,
    to_claim_mode,
    to_lines,
    to_member,
    to_names,
    to_words,
)
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.checkpoint.restore.plan_document import RestorePlan

require_supported()


class StateflowRestorePlanOperator(JobOperator):
    """Plans a restore; changes nothing.

    **Returns** (XCom) ``plan`` for `StateflowRestoreOperator`, ``markdown`` for its approver, ``cautions`` and
    ``replay`` for the page of the approval, and ``dag``.

    The plan lists state that is matched, renamed, new or dropped, with its size now and at the target; the position of
    each source now and at the target, the files and rows that will be read again, and whether the source has them;
    each table's path, version and rows since the target; commits of other writers that the restore undoes; tables that
    stay unchanged; checkpoints that can no longer be restored afterwards. ``dag`` has ``paused`` and ``active_runs`` of
    `run_dag`; it is None without one.

    Args:
        job: absolute path of the job file. Templated.
        job_root: the job's root. Templated.
        target: ``latest``, a checkpoint's id, a savepoint's name or path, ``before:TIME`` or ``before:SOURCE=OFFSET``.
            Templated.
        sinks: ``restore`` restores tables as well, ``keep`` keeps their content. Templated.
        drop: uids of operators that are no longer in the job, whose state is dropped; a list, or a comma-separated
            text. Templated.
        from_other_job: whether the target may be a savepoint of another job. Templated.
        keep_tables: uids of sinks whose tables keep all rows while others are restored: sinks of the job, and sinks
            that are no longer in the job; as `drop`. Templated.
        maps: operators, states and sources that have other names in the job, each as ``OLD=NEW``; a list, or a text
            with commas. Templated.
        sources: positions of sources, each as ``UID=earliest``, ``latest``, ``keep``, ``timestamp:TIME`` or the
            position's JSON; a list, or one per line. Templated.
        claim_mode: ``no-claim`` leaves a savepoint to the user; with ``claim`` the job owns it, and deletes it once the
            restored state is no longer one of its retained checkpoints. Templated.
        settings: see `StateflowRunOperator`. Templated.
        run_dag: id of the DAG that runs the job; the plan then reports whether it is paused and has active runs.
        expected_plan: the `expected_plan` of a plan that a page has shown; ``markdown`` then says in which parts this
            plan differs from it. Templated.
    """

    template_fields: Sequence[str] = (
        "job",
        "job_root",
        "target",
        "sinks",
        "drop",
        "from_other_job",
        "keep_tables",
        "maps",
        "sources",
        "claim_mode",
        "settings",
        "expected_plan",
    )
    template_fields_renderers = {"settings": "json"}
    ui_color = "#fdf1cf"

    def __init__(
        self,
        *,
        job: str,
        job_root: str,
        target: str,
        sinks: str = "restore",
        drop: str | Sequence[str] = (),
        from_other_job: bool | str = False,
        keep_tables: str | Sequence[str] = (),
        maps: str | Sequence[str] = (),
        sources: str | Sequence[str] = (),
        claim_mode: str = "no-claim",
        settings: Mapping[str, object] | str | None = None,
        run_dag: str = "",
        expected_plan: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, job_root=job_root, settings=settings, **kwargs)
        self.run_dag = run_dag
        self.expected_plan = expected_plan
        self.target = target
        self.sinks = sinks
        self.drop = drop
        self.from_other_job = from_other_job
        self.keep_tables = keep_tables
        self.maps = maps
        self.sources = sources
        self.claim_mode = claim_mode

    def execute(self, context: Context) -> dict[str, object]:
        """Plans the restore and logs the plan."""
        from stateflow.checkpoint.log.documents import SinkMode
        from stateflow.checkpoint.restore.plan_document import GraphChanges, cautions, describe_replay
        from stateflow.operations import plan_restore
        from stateflow.outputs import to_object
        from stateflow.runtime.restore.planner import RestoreOptions

        options = RestoreOptions(
            to_member("sinks", self.sinks, SinkMode),
            to_names(self.drop),
            to_bool("from_other_job", self.from_other_job),
            to_names(self.keep_tables),
            GraphChanges(to_words(self.maps), to_lines(self.sources)),
            to_claim_mode(self.claim_mode),
        )
        with self.library():
            code = job_code(self.job, self.settings)
            plan = plan_restore(check_job_root(self.job_root), code, str(self.target).strip(), options)
            dag = dag_status(context, self.run_dag) if self.run_dag else None
            markdown = as_markdown(plan, _dag_notes(self.run_dag, dag) if dag else (), self.expected_plan)
        self.log.info("The plan:\n%s", markdown)
        # For the pages, which show the parts of a plan that its document does not have.
        told = {"cautions": [asdict(each) for each in cautions(plan)], "replay": describe_replay(plan)}
        return {"plan": to_object(plan), "markdown": markdown, "dag": dag, **told}


class StateflowRestoreOperator(JobOperator):
    """Executes the plan of a restore: exactly that plan, at most once in a DAG run.

    It claims the job, which fences an active run. Its task needs the job's pool, so that no run starts concurrently.
    The restore is refused with the error ``plan-outdated``, and no state or table is changed, if since the plan the job
    has a newer checkpoint, its file, settings or tables differ, or another writer has changed a table.

    If a try is killed, the next try or the next run of the job completes the restore. If the task is cleared later, it
    does not restore again: it returns ``repeated`` and logs a warning. Clearing the plan task creates a new restore
    request.

    **Returns** (XCom) ``job``, ``request_id``, ``target_label``, ``generation``, ``checkpoint_id`` and
    ``restored_checkpoint_id`` (both are ids of the restored state), ``offsets``, ``tables`` (version by the uid of the
    sink), ``label`` (the job's current checkpoint or savepoint, as text), and ``repeated``: whether the plan had been
    executed before, so that nothing was done now.

    Args:
        job: absolute path of the job file. Templated.
        job_root: the job's root. Templated.
        plan: the output of `StateflowRestorePlanOperator` (``plan.output``), its plan, or either as JSON. Templated.
        approval: the output of `StateflowApprovalOperator` (``approve.output``). Its user and note are recorded in the
            job's log. Anything but an approval of exactly this plan is refused, and without one a plan for a savepoint
            of another job, which it may also claim. Templated.
        self_approval: whether the user who triggered the DAG run may have approved.
        reason: recorded in the job's log. Templated.
        settings: see `StateflowRunOperator`. Templated.
    """

    template_fields: Sequence[str] = ("job", "job_root", "plan", "approval", "reason", "settings")
    template_fields_renderers = {"settings": "json", "plan": "json", "approval": "json"}
    ui_color = "#f9d6d5"

    def __init__(
        self,
        *,
        job: str,
        job_root: str,
        plan: object,
        approval: object = None,
        self_approval: bool = False,
        reason: str = "",
        settings: Mapping[str, object] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, job_root=job_root, settings=settings, **kwargs)
        self.plan = plan
        self.needs_approval = approval is not None
        self.approval = approval
        self.self_approval = self_approval
        self.reason = reason

    def execute(self, context: Context) -> dict[str, object]:
        """Restores the job, or completes the restore that an earlier try began."""
        from stateflow.operations import restore
        from stateflow.outputs import to_object
        from stateflow.runtime.restore.plan_execution import RestoreRequest

        plan = parse_plan(self.plan)
        decision = self._decision(context, plan)
        with self.library():
            request = RestoreRequest(
                request_id(context, plan.digest), decision.by, self.reason, decision.requested_by, decision.note
            )
            code = job_code(self.job, self.settings)
            done = restore(check_job_root(self.job_root), code, plan, request)
        if done.repeated:
            self.log.warning("This plan was executed before, so nothing was done; %s is at %s", done.job, done.label)
        else:
            self.log.info(
                "Restored %s to %s; requested by %s: %s", done.job, done.target_label, decision.by, self.reason
            )
        return to_object(done)

    def _decision(self, context: Context, plan: RestorePlan) -> Decision:
        """Returns who is responsible. Raises PermanentFailure if an approval is missing."""
        if not self.needs_approval and not plan.foreign:
            return Decision(requester(context))
        return ApprovalCheck(self.approval, self.self_approval).decision(plan.digest, context)


class StateflowForkOperator(JobRootOperator):
    """Creates a job with a new root and uuid, which starts with the state and positions of this one.

    A retry finds the fork of the earlier try, as long as the new job has not run.

    **Returns** (XCom) ``job``, ``job_uuid``, ``job_root``, ``target_label``, ``shadow`` and ``size_bytes``.

    Args:
        job_root: the job's root. Templated.
        target: see `StateflowRestorePlanOperator`. Templated.
        into: the new job's root; must be empty. Templated.
        shadow: whether the new job publishes to tables named ``…_shadow``. Templated.
        from_other_job: whether the target may be a savepoint of another job. Templated.
        reason: recorded in the new job's log. Templated.
    """

    template_fields: Sequence[str] = ("job_root", "target", "into", "shadow", "from_other_job", "reason")
    ui_color = "#d9e8fb"

    def __init__(
        self,
        *,
        job_root: str,
        target: str,
        into: str,
        shadow: bool | str = False,
        from_other_job: bool | str = False,
        reason: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.target = target
        self.into = into
        self.shadow = shadow
        self.from_other_job = from_other_job
        self.reason = reason

    def execute(self, context: Context) -> dict[str, object]:
        """Creates the fork."""
        from stateflow.operations import ForkRequest, fork
        from stateflow.outputs import to_object

        shadow, by = to_bool("shadow", self.shadow), requester(context)
        other = to_bool("from_other_job", self.from_other_job)
        request = ForkRequest(str(self.target).strip(), check_job_root(self.into), shadow, by, self.reason, other)
        with self.library():
            made = fork(check_job_root(self.job_root), request)
        self.log.info("Created %s, a fork of %s at %s", made.job_root, made.job, made.target_label)
        return to_object(made)


class StateflowVerifyOperator(JobRootOperator):
    """Reads every file of a savepoint, or of the newest checkpoint, and compares size and hash.

    The task fails if a file is missing or differs; the error names the file.

    **Returns** (XCom) ``job``, ``label``, ``checkpoint_id``, ``offsets``, ``files`` and ``size_bytes``.

    Args:
        job_root: the job's root. Templated.
        savepoint: name or path; empty for the newest checkpoint. Templated.
    """

    template_fields: Sequence[str] = ("job_root", "savepoint")
    ui_color = "#e8f6f3"

    def __init__(self, *, job_root: str, savepoint: str = "", **kwargs: Any) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.savepoint = savepoint

    def execute(self, context: Context) -> dict[str, object]:
        """Verifies all files."""
        from stateflow.operations import find, verify_head, verify_savepoint
        from stateflow.outputs import to_object

        with self.library():
            root = check_job_root(self.job_root)
            read = verify_savepoint(find(root, self.savepoint)) if self.savepoint else verify_head(root)
        self.log.info("Verified %s of %s: %d files, %d bytes", read.label, read.job, read.files, read.size_bytes)
        return to_object(read)


def _dag_notes(dag_id: str, dag: DagStatus) -> list[str]:
    paused = (
        f"DAG `{dag_id}` is paused: no scheduled run starts."
        if dag["paused"]
        else f"**DAG `{dag_id}` is not paused**: a run that starts in the meantime makes this plan outdated. Pause it."
    )
    if not dag["active_runs"]:
        return [paused, f"`{dag_id}` has no active run."]
    active = f"**A run of `{dag_id}` is active**: its next checkpoint makes this plan outdated."
    return [paused, f"{active} Wait for it to end, or stop it; then clear `plan`."]
