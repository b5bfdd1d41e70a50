"""The DAG that restores a job to an earlier checkpoint or savepoint, after a user has approved the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from airflow.sdk import DAG, Param

from stateflow_airflow.dags.elements import (
    CREATED_UNPAUSED,
    RETRIES,
    approval,
    claim_mode,
    new_dag,
    optional_text,
    required_text,
    run_task,
    skip_unless,
)
from stateflow_airflow.dags.job import StateflowJob
from stateflow_airflow.operators.approvals.approval import StateflowApprovalOperator
from stateflow_airflow.operators.markdown import quoted
from stateflow_airflow.operators.recovery import (
    StateflowRestoreOperator,
    StateflowRestorePlanOperator,
    StateflowVerifyOperator,
)

DOC = """
Restores {name} to an earlier checkpoint or savepoint: state, source positions and tables together.

1. Pause the DAG `{name}`: a run that starts in the meantime makes the plan outdated, and the restore is refused.{stop}
2. Trigger this DAG with a target and a reason.
3. Read the plan: task `approve`, tab *Required Actions*. Another user approves or rejects it. A rejection changes
   nothing, skips the remaining tasks, and is recorded in the job's history with that user's name and note.
4. Unpause `{name}`.

You can clear a task that failed or was killed. Clearing `plan` creates a new plan for the same target and asks for
approval again. For another target, trigger this DAG again.
"""

_STOP = """
   Then stop its run: trigger `{name}_savepoint` with *Stop the run*."""

APPROVAL_BODY = """
{{ ti.xcom_pull(task_ids='plan')['markdown'] }}

**Reason**:

{{ params.reason | quoted }}

**After the restore**: {{ 'the job runs with this job file.' if params.run else 'the job does not run.' }}

On approval, exactly this plan is executed. If a run of the job has started since, nothing is changed.
"""


class _JobArguments(TypedDict):
    job: str
    job_root: str
    settings: Mapping[str, object]
    locations: str | Sequence[str]


def recovery_dag(job: StateflowJob, application: str) -> DAG:
    """Returns the DAG. It has no schedule."""
    params = {**_params(), **job.params}
    code: _JobArguments = {
        "job": application,
        "job_root": job.root,
        "settings": job.settings,
        "locations": job.locations,
    }
    doc = DOC.format(name=job.name, stop=_STOP.format(name=job.name) if job.is_continuous else "")
    with new_dag(
        job, "_recovery", doc, schedule=None, params=params, user_defined_filters={"quoted": quoted}, **CREATED_UNPAUSED
    ) as dag:
        plan = StateflowRestorePlanOperator(
            task_id="plan",
            target="{{ params.target }}",
            sinks="{{ params.sinks }}",
            drop="{{ params.drop or '' }}",
            from_other_job="{{ params.from_other_job }}",
            keep_tables="{{ params.keep_tables or '' }}",
            maps="{{ params.new_names or '' }}",
            sources="{{ params.source_positions or '' }}",
            claim_mode="{{ params.claim_mode }}",
            run_dag=job.name,
            **code,
            **RETRIES,
        )
        approve = StateflowApprovalOperator(
            task_id="approve",
            plan=plan.output,
            subject=f"Restore {job.name} to {{{{ ti.xcom_pull(task_ids='plan')['plan']['label'] }}}}?",
            body=APPROVAL_BODY,
            **approval(job),
        )
        restore = StateflowRestoreOperator(
            task_id="restore",
            plan=plan.output,
            approval=approve.output,
            self_approval=job.self_approval,
            reason="{{ params.reason }}",
            pool=job.pool,
            **code,
            **RETRIES,
        )
        verify = StateflowVerifyOperator(task_id="verify", job_root=job.root, locations=job.locations, **RETRIES)
        run = run_task(job, application, settings=job.single_run_settings, pre_execute=skip_unless("run", True))
        plan >> approve >> restore >> verify >> run
    return dag


def _params() -> dict[str, Param]:
    # No examples of targets: they would be part of the serialized DAG, so that each savepoint made a new DAG version.
    return {
        "target": required_text(
            "Restore target",
            "latest, a checkpoint's id, a savepoint's name or path, before:2026-01-31T03:00 (UTC),"
            " or before:SOURCE=OFFSET. `stateflow status` and `stateflow savepoint list` show them, and so does the"
            " error of the task plan for a target that does not exist.",
        ),
        "sinks": Param(
            "restore",
            type="string",
            enum=["restore", "keep"],
            values_display={"restore": "restore tables with the state", "keep": "keep the tables' current content"},
            title="Tables",
        ),
        "reason": required_text("Reason", "Stored in the job's log.", format="multiline"),
        "drop": optional_text("State to drop", "Comma-separated uids of operators removed from the job."),
        "keep_tables": optional_text(
            "Tables to keep",
            "Comma-separated uids of sinks, also of removed ones. Their tables keep all rows while others "
            "are restored.",
        ),
        "new_names": optional_text(
            "New names",
            "Comma-separated OLD=NEW: uids of operators and sources that were renamed, or states as UID.STATE.",
        ),
        "source_positions": Param(
            None,
            type=["null", "string"],
            format="multiline",
            title="Source positions",
            description="One per line: UID=earliest, latest, keep, timestamp:2026-01-31T03:00 or the position's JSON."
            " By default, positions are those of the target, and new sources begin at their start.",
        ),
        "from_other_job": Param(False, type="boolean", title="Allow a savepoint of another job"),
        "claim_mode": claim_mode(),
        "run": Param(False, type="boolean", title="Run the job after the restore"),
    }
