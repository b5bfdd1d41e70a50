"""Running delays of 336,776 real flights, per aircraft and per carrier and origin.

Every run takes in the files that arrived in the landing folder since the last one, one file a micro-batch, and leaves
a checkpoint after each: a run that dies continues from the last of them. Whatever its logical date, a run starts
where the one before ended, so clearing an old run or catching up never counts a flight twice.

`STATEFLOW_HOME` in the environment of Airflow says where everything lies (default `/opt/stateflow`):
`landing/` has the files, `tables/delays` and `tables/routes` get the output, `jobs/flights` has the checkpoints.
The Airflow connection `spark_default` says on which Spark it runs.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Asset, Param

from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.spark import SparkSubmit

HOME = os.environ.get("STATEFLOW_HOME", "/opt/stateflow")

FAILPOINT = Param(
    "",
    type="string",
    pattern=r"^([a-z]+\.[a-z-]+(:\d+)?)?$",
    title="Kill the driver at",
    description_md="To see a recovery: `batch.reported:3` kills the first try in its third micro-batch, after all"
    " of its work and before its commit. Empty for none.",
)

with DAG(
    dag_id="flights",
    schedule=os.environ.get("STATEFLOW_FLIGHTS_SCHEDULE") or None,
    catchup=False,
    # A second run at the same time would fence the first: safe, but wasteful.
    max_active_runs=1,
    params={"failpoint": FAILPOINT},
    doc_md=__doc__,
    tags=["stateflow"],
):
    StateflowRunOperator(
        task_id="run",
        job=str(Path(__file__).parent / "jobs" / "flights.py"),
        job_root=f"{HOME}/jobs/flights",
        settings={
            "source.max_files_per_batch": 1,
            "local_dir": f"{HOME}/local",
            "job.flights": f"{HOME}/landing",
            "job.tables": f"{HOME}/tables",
        },
        spark=SparkSubmit(
            conn_id="spark_default",
            conf={"spark.ui.enabled": "false", "spark.local.dir": f"{HOME}/local/spark"},
            env_vars={
                "STATEFLOW_FAILPOINT": "{{ params.failpoint }}",
                # Relative to the folder of one launch, so this file is one for all tries of the task.
                "STATEFLOW_FAILPOINT_ONCE": "../failpoint-reached",
            },
        ),
        retries=2,
        retry_delay=timedelta(seconds=5),
        outlets=[Asset(name="flights.checkpoint", uri="stateflow://flights/checkpoint")],
    )
