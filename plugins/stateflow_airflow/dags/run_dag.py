"""The DAG that runs a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import DAG, Param

from stateflow_airflow.dags.elements import new_dag, run_task
from stateflow_airflow.dags.job import StateflowJob
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
    """Returns the DAG; its form can override the setting ``run.drain`` with true."""
    doc = job.description or f"Runs {job.name} until it has processed all new input, from the newest checkpoint on."
    params = {"drain": DRAIN, **job.params, **job.run_params}
    default = to_text(job.settings.get("run.drain", False))
    drain = f"{{{{ 'true' if params.get('drain') is true else '{default}' }}}}"
    with new_dag(job, "", doc, schedule=schedule, params=params) as dag:
        run_task(job, application, settings={**job.settings, "run.drain": drain})
    return dag
