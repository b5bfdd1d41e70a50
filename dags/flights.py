"""Running delays of 336,776 real flights, per aircraft and per carrier and origin.

Every run takes in the files that arrived in the landing folder since the last one, one file a micro-batch, and leaves
a checkpoint after each: a run that dies continues from the last of them. Whatever its logical date, a run starts
where the one before ended, so clearing an old run or catching up never counts a flight twice.

Beside it are `flights_savepoint` (by hand), `flights_retention` (periodic savepoints, and what is deleted) and
`flights_recovery` (goes back to a point in time).

`STATEFLOW_HOME` in the environment of Airflow says where everything lies (default `/opt/stateflow`):
`landing/` has the files, `tables/delays` and `tables/routes` get the output, `jobs/flights` has the checkpoints.
The Airflow connection `spark_default` says on which Spark it runs.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import Param

from stateflow_airflow.family import Retention, StateflowJob, stateflow_dags
from stateflow_airflow.spark import SparkSubmit

HOME = os.environ.get("STATEFLOW_HOME", "/opt/stateflow")

# No pattern: Airflow answers with the schema where a value does not match. The task checks the name.
FAILPOINT = Param(
    None,
    type=["null", "string"],
    title="Kill the driver at",
    description_md="To see a recovery: `batch.reported:3` kills the first try in its third micro-batch, after all"
    " of its work and before its commit. Without it, nothing is killed.",
    examples=["batch.begin:2", "batch.reported:3", "commit.manifest:3", "commit.after:3", "publish.after:3"],
)

stateflow_dags(
    job=StateflowJob(
        name="flights",
        root=f"{HOME}/jobs/flights",
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
                "STATEFLOW_FAILPOINT": "{{ params.get('failpoint') or '' }}",
                # Relative to the folder of one launch, so this file is one for all tries of the task.
                "STATEFLOW_FAILPOINT_ONCE": "../failpoint-reached",
            },
        ),
        run={"retries": 2, "retry_delay": timedelta(seconds=5)},
        run_params={"failpoint": FAILPOINT},
        description=__doc__,
    ),
    application=str(Path(__file__).parent / "jobs" / "flights.py"),
    schedule=os.environ.get("STATEFLOW_FLIGHTS_SCHEDULE") or None,
    savepoints=os.environ.get("STATEFLOW_RETENTION_SCHEDULE", "@daily") or None,
    retention=Retention(savepoints=7, max_age=timedelta(days=30)),
)
