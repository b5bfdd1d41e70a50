"""Deletes what no checkpoint of the flights job needs any more.

It may run while the job runs, and needs no Spark. Trigger it with `preview` to see what it would delete.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG, Param

from stateflow_airflow.operators.retention import StateflowRetentionOperator

HOME = os.environ.get("STATEFLOW_HOME", "/opt/stateflow")

with DAG(
    dag_id="flights_retention",
    schedule=os.environ.get("STATEFLOW_RETENTION_SCHEDULE", "@daily") or None,
    catchup=False,
    max_active_runs=1,
    params={
        "retain": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Checkpoints to keep",
            description="Empty: as it is.",
        ),
        "preview": Param(False, type="boolean", title="Only say what would be deleted"),
    },
    doc_md=__doc__,
    tags=["stateflow"],
):
    StateflowRetentionOperator(
        task_id="collect",
        job_root=f"{HOME}/jobs/flights",
        retain="{{ params.retain }}",
        preview="{{ params.preview }}",
    )
