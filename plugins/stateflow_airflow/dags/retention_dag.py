"""The DAG that takes periodic savepoints of a job and deletes old ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param, TriggerRule

from stateflow_airflow.dags.elements import RETRIES, new_dag, skip_unless
from stateflow_airflow.dags.job import Retention, StateflowJob
from stateflow_airflow.operators.retention import StateflowRetentionOperator
from stateflow_airflow.operators.savepoint import StateflowSavepointOperator

if TYPE_CHECKING:
    from airflow.sdk.definitions.dag import ScheduleArg

DOC = """
Takes a periodic savepoint of {name}, then deletes periodic savepoints beyond the limits and files that no checkpoint
references. May run concurrently with a run of the job. With *Preview*, it takes no savepoint and deletes nothing.
"""


def retention_dag(job: StateflowJob, application: str, schedule: ScheduleArg, retention: Retention) -> DAG:
    """Returns the DAG. `retention` has the defaults of its form."""
    params = _params(retention)
    with new_dag(job, "_retention", DOC.format(name=job.name), schedule=schedule, params=params) as dag:
        savepoint = StateflowSavepointOperator(
            task_id="savepoint",
            job_root=job.root,
            job=application,
            settings=job.settings,
            locations=job.locations,
            origin="periodic",
            outlets=[job.savepoint],
            pre_execute=skip_unless("preview", False),
            **RETRIES,
        )
        # Runs also if the savepoint failed: the reason may be a full disk.
        collect = StateflowRetentionOperator(
            task_id="collect",
            job_root=job.root,
            retain="{{ params.retain }}",
            savepoints="{{ params.savepoints }}",
            savepoints_max_age=retention.max_age,
            preview="{{ params.preview }}",
            trigger_rule=TriggerRule.ALL_DONE,
            **RETRIES,
        )
        # Fails the DAG run if either task failed.
        done = EmptyOperator(task_id="done", trigger_rule=TriggerRule.NONE_FAILED)
        savepoint >> collect >> done
        savepoint >> done
    return dag


def _params(retention: Retention) -> dict[str, Param]:
    return {
        "retain": Param(
            retention.checkpoints,
            type=["null", "integer"],
            minimum=1,
            title="Checkpoints to keep",
            description="By default, the setting of the job's last run.",
        ),
        "savepoints": Param(
            retention.savepoints,
            type=["null", "integer"],
            minimum=1,
            title="Periodic savepoints to keep",
            description="Leave empty to keep all.",
        ),
        "preview": Param(False, type="boolean", title="Preview", description="Only logs what would be deleted."),
    }
