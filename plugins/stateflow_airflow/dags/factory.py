"""Creates all DAGs of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stateflow_airflow.dags.job import StateflowJob
from stateflow_airflow.dags.recovery_dag import recovery_dag
from stateflow_airflow.dags.retention_dag import retention_dag
from stateflow_airflow.dags.run_dag import run_dag
from stateflow_airflow.dags.savepoint_dag import savepoint_dag
from stateflow_airflow.operators.retention_limits import Retention

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from airflow.sdk.definitions.dag import ScheduleArg


def stateflow_dags(
    job: StateflowJob,
    application: str,
    schedule: ScheduleArg = None,
    savepoints: ScheduleArg = "@daily",
    retention: Retention | None = None,
) -> list[DAG]:
    """Creates the DAGs of a job; Airflow finds them in the file that calls this.

    Args:
        job: the job.
        application: absolute path of the job file.
        schedule: schedule of runs; None for manual runs only, or for a continuous job.
        savepoints: schedule of periodic savepoints, and of the retention after each; None for manual runs only.
        retention: limits of the retention DAG; by default seven periodic savepoints.

    Raises:
        PermanentFailure: a continuous job has a schedule.
    """
    return [
        run_dag(job, application, schedule),
        savepoint_dag(job, application),
        retention_dag(job, application, savepoints, retention or Retention()),
        recovery_dag(job, application),
    ]
