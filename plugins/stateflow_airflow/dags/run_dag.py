"""The DAG that runs a job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow.sdk import DAG, Param

from stateflow_airflow.dags.elements import approval, claim_mode, new_dag, run_task
from stateflow_airflow.dags.job import StateflowJob
from stateflow_airflow.failures import misconfigured
from stateflow_airflow.operators.approvals.claim_approval import StateflowClaimApprovalOperator
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


_FAILED_RUNS = 10
"""DAG runs of a continuous job that fail in a row, without one that succeeds, before Airflow pauses the DAG. The next
one follows within seconds, also after an error that only a user can fix."""


_FIRST_INTERVAL = datetime(2020, 1, 1, tzinfo=UTC)
"""Begin of the data interval of a continuous DAG's first DAG run, which ends when that is created.

Without a start date, Airflow gives the first DAG run an empty interval. The second one would begin at the end of that,
and so have the logical date of the first one; Airflow then creates none at all, and logs `run already exists`.
"""


def run_dag(job: StateflowJob, application: str, schedule: ScheduleArg) -> DAG:
    """Returns the DAG; its form can override the setting ``run.drain`` with true, unless the job is continuous.

    For a job that begins with a savepoint, the form also offers the claim mode, unless the DAG file sets it.

    Raises:
        PermanentFailure: a continuous job has a schedule, or another job is to be renewed.
    """
    if job.renew_after is not None and not job.is_continuous:
        raise misconfigured(
            f"the runs of {job.name!r} end by themselves and cannot be renewed",
            "omit renew_after, or set the mode to continuous",
            renew_after=str(job.renew_after),
        )
    params = {**({} if job.is_continuous else {"drain": DRAIN}), **job.params, **job.run_params}
    asks = "from_savepoint" in job.run and "claim_mode" not in job.run
    params = {**params, "claim_mode": claim_mode()} if asks else params
    timing = _continuous_timing(job, schedule) if job.is_continuous else {"schedule": schedule}
    deadline = list(job.deadlines) or None
    with new_dag(job, "", job.description or _doc(job), params=params, deadline=deadline, **timing) as dag:
        settings = dict(job.run_settings) if job.is_continuous else _with_drain(job)
        if asks:
            _run_after_approval(job, application, settings)
        else:
            run_task(job, application, settings=settings, renew_after=job.renew_after)
    return dag


def _continuous_timing(job: StateflowJob, schedule: ScheduleArg) -> dict[str, object]:
    if schedule is not None:
        raise misconfigured(
            f"the continuous job {job.name!r} has a schedule",
            "omit the schedule: Airflow starts the next run when one has ended",
            schedule=str(schedule),
        )
    timing: dict[str, object] = {"schedule": "@continuous", "start_date": _FIRST_INTERVAL}
    return {**timing, "max_consecutive_failed_dag_runs": _FAILED_RUNS}


def _doc(job: StateflowJob) -> str:
    if job.is_continuous:
        return (
            f"Keeps {job.name} running, from the newest checkpoint on. To stop it, pause this DAG, then trigger "
            f"`{job.name}_savepoint` with *Stop the run*; or pause this DAG, then mark the task as failed, which ends "
            "the run with a checkpoint. To start it, unpause this DAG."
        )
    return f"Runs {job.name} until it has processed all new input, from the newest checkpoint on."


def _with_drain(job: StateflowJob) -> dict[str, object]:
    default = to_text(job.settings.get("run.drain", False))
    return {**job.settings, "run.drain": f"{{{{ 'true' if params.get('drain') is true else '{default}' }}}}"}


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
        job,
        application,
        settings=settings,
        renew_after=job.renew_after,
        claim_mode=mode,
        approval=approve.output,
        self_approval=job.self_approval,
    )
    approve >> run
