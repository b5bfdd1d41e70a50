"""The DAG that takes periodic savepoints of a job, deletes old ones, and maintains the tables of its sinks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param, TriggerRule

from stateflow_airflow.dags.elements import RETRIES, approval, new_dag, skip_unless
from stateflow_airflow.dags.job import StateflowJob
from stateflow_airflow.operators.approvals.command_approval import StateflowRetentionApprovalOperator
from stateflow_airflow.operators.retention import StateflowRetentionOperator, StateflowTablesOperator
from stateflow_airflow.operators.retention_limits import Retention, TableMaintenance
from stateflow_airflow.operators.savepoint import StateflowSavepointOperator

if TYPE_CHECKING:
    from airflow.sdk.definitions.dag import ScheduleArg

ORIGIN = "{{ 'manual' if dag_run.triggering_user_name else 'periodic' }}"
"""Origin of the savepoint. A user who triggers the DAG many times would otherwise replace all older periodic ones."""

DOC = """
Takes a periodic savepoint of {name}, then deletes periodic savepoints beyond the limits and files that no checkpoint
references. May run concurrently with a run of the job. With *Preview*, it takes no savepoint and deletes nothing. If a
user triggers it, the savepoint is a manual one, which displaces no periodic one and is kept until a user deletes it.

Numbers in the form that delete what the configured numbers keep need the approval of another user: task `approve`, tab
*Required Actions*. The approval counts for the checkpoints and savepoints that the question lists. When others would be
deleted as well, because the job has made more, clear `approve`. If nothing needs an approval, that task asks nothing.
"""

DOC_OF_TABLES = """
Then the task `tables` combines small files of the job's Delta tables, and deletes files that were removed from a table
some time ago and that no kept checkpoint or savepoint needs.
"""


def retention_dag(job: StateflowJob, application: str, schedule: ScheduleArg, retention: Retention) -> DAG:
    """Returns the DAG. `retention` has the defaults of its form."""
    params = _params(retention, job.tables)
    doc = DOC.format(name=job.name) + (DOC_OF_TABLES if job.tables else "")
    with new_dag(job, "_retention", doc, schedule=schedule, params=params) as dag:
        savepoint = StateflowSavepointOperator(
            task_id="savepoint",
            job_root=job.root,
            job=application,
            settings=job.settings,
            locations=job.locations,
            origin=ORIGIN,
            outlets=[job.savepoint],
            pre_execute=skip_unless("preview", False),
            **RETRIES,
        )
        limits: dict[str, Any] = {
            "retain": "{{ params.retain }}",
            "savepoints": "{{ params.savepoints }}",
            "savepoints_max_age": retention.max_age,
            "configured": configured(job, retention),
        }
        # Runs also if the savepoint failed: the reason may be a full disk.
        approve = StateflowRetentionApprovalOperator(
            task_id="approve",
            subject=f"Delete checkpoints or savepoints of {job.name} that its configuration keeps?",
            pre_execute=skip_unless("preview", False),
            trigger_rule=TriggerRule.ALL_DONE,
            **limits,
            **approval(job),
        )
        # Runs also if the question was skipped, for a preview; without a necessary approval, it deletes nothing.
        collect = StateflowRetentionOperator(
            task_id="collect",
            job_root=job.root,
            locations=job.locations,
            preview="{{ params.preview }}",
            approval=approve.output,
            self_approval=job.self_approval,
            trigger_rule=TriggerRule.NONE_FAILED,
            **limits,
            **RETRIES,
        )
        # Fails the DAG run if either task failed.
        done = EmptyOperator(task_id="done", trigger_rule=TriggerRule.NONE_FAILED)
        savepoint >> approve >> collect >> done
        savepoint >> done
        if job.tables:
            collect >> _tables_task(job, application, job.tables) >> done
    return dag


def _tables_task(job: StateflowJob, application: str, tables: TableMaintenance) -> StateflowTablesOperator:
    """Returns the task that follows the retention: what that deletes no longer holds files of the tables."""
    return StateflowTablesOperator(
        task_id="tables",
        job=application,
        job_root=job.root,
        settings=job.settings,
        locations=job.locations,
        older_than=tables.older_than,
        tables=tables.sinks,
        optimize=tables.optimize,
        preview="{{ params.preview }}",
        pre_execute=skip_unless("tables", True),
        **RETRIES,
    )


def configured(job: StateflowJob, retention: Retention) -> Retention:
    """Returns the limits that the form can only extend without an approval."""
    setting = job.settings.get("checkpoints.retained")
    number = int(setting) if isinstance(setting, int | str) and str(setting).isdecimal() else None
    return retention if retention.checkpoints else replace(retention, checkpoints=number)


# No `minimum`: Airflow's form changes a smaller number to the minimum without a word, and 1 keeps the least of all. The
# tasks refuse such a number.
def _params(retention: Retention, tables: TableMaintenance | None) -> dict[str, Param]:
    maintain = Param(
        True,
        type="boolean",
        title="Maintain tables",
        description="Combines small files of the job's Delta tables, and deletes files that nothing needs.",
    )
    return {
        "retain": Param(
            retention.checkpoints,
            type=["null", "integer"],
            title="Checkpoints to keep",
            description="1 or more. By default, the setting of the job's last run.",
        ),
        "savepoints": Param(
            retention.savepoints,
            type=["null", "integer"],
            title="Periodic savepoints to keep",
            description="1 or more. Leave empty to keep all.",
        ),
        **({"tables": maintain} if tables else {}),
        "preview": Param(False, type="boolean", title="Preview", description="Only logs what would be deleted."),
    }
