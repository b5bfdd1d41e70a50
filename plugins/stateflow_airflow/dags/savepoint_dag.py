"""The DAG that takes a savepoint of a job, and stops it if requested."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Context, Param

from stateflow_airflow.dags.elements import CREATED_UNPAUSED, RETRIES, approval, new_dag, optional_text, skip_unless
from stateflow_airflow.dags.job import StateflowJob
from stateflow_airflow.failures import misconfigured
from stateflow_airflow.operators.approvals.command_approval import StateflowStopApprovalOperator
from stateflow_airflow.operators.markdown import quoted
from stateflow_airflow.operators.savepoint import StateflowSavepointOperator, StateflowStopOperator

DOC = """
Takes a savepoint of {name}: at the next barrier of an active run, otherwise from the newest checkpoint. It is kept
until a user deletes it. With *Stop the run*, the run ends with exactly that checkpoint.

Another user approves the stop: task `approve`, tab *Required Actions*. The approval counts for the newest run at that
time; once another run has started, clear `approve`.

With *Drain* as well, every event-time timer fires before the savepoint. If no run is active, the task runs the job only
to drain it and reads no input. Use *Drain* for the last run only: it closes every open session.
{pause}
*Format*: a canonical savepoint can be restored into each state backend, and read by other programs; it takes longer.
"""

_PAUSE = """
Before you stop the run, pause the DAG `{name}`: otherwise it would start the job again at once, so that the stop is
refused. Unpause it to start the job.
"""


def savepoint_dag(job: StateflowJob, application: str) -> DAG:
    """Returns the DAG. It has no schedule."""
    asked = {"name": "{{ params.name or '' }}", "reason": "{{ params.reason or '' }}", "origin": "{{ params.origin }}"}
    given: dict[str, Any] = {
        "job_root": job.root,
        "job": application,
        "settings": job.settings,
        "locations": job.locations,
        "outlets": [job.savepoint],
        "stored_as": "{{ '' if params.format == 'default' else params.format }}",
        **asked,
        **RETRIES,
    }
    run_dag = job.name if job.is_continuous else ""
    doc = DOC.format(name=job.name, pause=_PAUSE.format(name=job.name) if run_dag else "")
    options: dict[str, Any] = {"params": _params(), "user_defined_filters": {"quoted": quoted}}
    with new_dag(job, "_savepoint", doc, schedule=None, **options, **CREATED_UNPAUSED) as dag:
        StateflowSavepointOperator(task_id="savepoint", pre_execute=_skip_if_stopping, **given)
        approve = StateflowStopApprovalOperator(
            task_id="approve",
            subject=f"Stop {job.name}?",
            body="**Reason**:\n\n{{ (params.reason or '') | quoted }}",
            drain="{{ params.drain }}",
            run_dag=run_dag,
            pre_execute=skip_unless("stop", True),
            **asked,
            **approval(job),
        )
        stop = StateflowStopOperator(
            task_id="stop",
            drain="{{ params.drain }}",
            run_dag=run_dag,
            spark=job.spark,
            approval=approve.output,
            self_approval=job.self_approval,
            **given,
        )
        approve >> stop
    return dag


def _skip_if_stopping(context: Context) -> None:
    """Skips the savepoint task if the run is to stop. Raises PermanentFailure for a drain without a stop."""
    skip_unless("stop", False)(context)
    if context["params"].get("drain"):
        raise misconfigured(
            "Drain requires Stop the run", "trigger the DAG again with both, or with neither", drain=True, stop=False
        )


def _params() -> dict[str, Param]:
    return {
        "name": optional_text(
            "Name", "Letters, digits, dot, underscore and hyphen. By default, the origin and the time of the DAG run."
        ),
        "reason": optional_text("Reason", "Stored with the savepoint."),
        "origin": Param("manual", type="string", enum=["manual", "upgrade"], title="Origin"),
        "format": Param(
            "default",
            type="string",
            enum=["default", "native", "canonical"],
            title="Format",
            description="*Native* is as the state backend stored it, and fast. *Canonical* is independent of the state"
            " backend and its version. By default, savepoints are native, and those of a stop canonical.",
        ),
        "stop": Param(False, type="boolean", title="Stop the run"),
        "drain": Param(
            False,
            type="boolean",
            title="Drain",
            description="Requires *Stop the run*. Fires every event-time timer before the savepoint. Use it for the"
            " last run only: it closes every open session.",
        ),
    }
