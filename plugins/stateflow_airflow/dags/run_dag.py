"""The DAG that runs a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow.sdk import DAG, Param

from stateflow_airflow.dags.elements import approval, claim_mode, new_dag, run_task
from stateflow_airflow.dags.job import StateflowJob
from stateflow_airflow.operators.claim_approval import StateflowClaimApprovalOperator
from stateflow_airflow.operators.template_values import to_text

if TYPE_CHECKING:
    from airflow.sdk.definitions.dag import ScheduleArg

DRAIN = Param(
    False,
    type="boolean",
    title="Last run: drain",
    description="Fires every event-time timer at the end of the run. Use it for the last run only: it closes every open"
    " session.",
)


def run_dag(job: StateflowJob, application: str, schedule: ScheduleArg) -> DAG:
    """Returns the DAG; its form can override the setting ``run.drain`` with true.

    For a job that begins with a savepoint, the form also offers the claim mode, unless the DAG file sets it.
    """
    doc = job.description or f"Runs {job.name} until it has processed all new input, from the newest checkpoint on."
    params = {"drain": DRAIN, **job.params, **job.run_params}
    default = to_text(job.settings.get("run.drain", False))
    drain = f"{{{{ 'true' if params.get('drain') is true else '{default}' }}}}"
    asks = "from_savepoint" in job.run and "claim_mode" not in job.run
    params = {**params, "claim_mode": claim_mode()} if asks else params
    deadline = list(job.deadlines) or None
    with new_dag(job, "", doc, schedule=schedule, params=params, deadline=deadline) as dag:
        settings = {**job.settings, "run.drain": drain}
        if asks:
            _run_after_approval(job, application, settings)
        else:
            run_task(job, application, settings=settings)
    return dag


def _run_after_approval(job: StateflowJob, application: str, settings: Mapping[str, object]) -> None:
    """Adds the task that runs the job, and the one that asks if a user wants the new job root to claim its savepoint.

    A scheduled run has the default, which needs no approval.
    """
    mode = "{{ params.get('claim_mode') or 'no-claim' }}"
    approve = StateflowClaimApprovalOperator(
        task_id="approve_claim",
        from_savepoint=job.run["from_savepoint"],
        claim_mode=mode,
        subject=f"Let {job.name} own, and later delete, the savepoint that it begins with?",
        **approval(job),
    )
    run = run_task(
        job, application, settings=settings, claim_mode=mode, approval=approve.output, self_approval=job.self_approval
    )
    approve >> run
