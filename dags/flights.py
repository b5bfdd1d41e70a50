"""Running delays of 336,776 real flights, per aircraft and per carrier and origin.

Each run processes the files that arrived in the landing folder since the last run, one file per micro-batch, with a
checkpoint after each. A run that is killed continues from the last checkpoint. Every run continues where the previous
one ended, whatever its logical date, so clearing an old run or catching up never counts a flight twice.

The other DAGs of the job are `flights_savepoint` (manual), `flights_retention` (periodic savepoints and deletion) and
`flights_recovery` (restores an earlier checkpoint or savepoint).

The environment variable `STATEFLOW_HOME` of Airflow sets the base folder (default `/opt/stateflow`): `landing/` has the
files, `tables/delays` and `tables/routes` receive the output, `jobs/flights` has the checkpoints. The Airflow
connection `spark_default` selects the Spark master.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from stateflow_airflow.dags import Retention, StateflowJob, failpoint, stateflow_dags
from stateflow_airflow.spark import SparkSubmit

HOME = os.environ.get("STATEFLOW_HOME", "/opt/stateflow")

FAILPOINT = failpoint(
    "batch.reported:3", "kills the first try in its third micro-batch, after its work and before its commit."
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
                # Relative to the folder of a launch, so all tries of the task share this file.
                "STATEFLOW_FAILPOINT_ONCE": "../failpoint-reached",
            },
        ),
        run={"retries": 2, "retry_delay": timedelta(seconds=5)},
        run_params={"failpoint": FAILPOINT},
        # The Airflow of the demo has one user. With several, leave this out: another user then approves restores, stops
        # and deletions below the configured numbers.
        self_approval=True,
        description=__doc__,
    ),
    application=str(Path(__file__).parent / "jobs" / "flights.py"),
    schedule=os.environ.get("STATEFLOW_FLIGHTS_SCHEDULE") or None,
    savepoints=os.environ.get("STATEFLOW_RETENTION_SCHEDULE", "@daily") or None,
    retention=Retention(savepoints=7, max_age=timedelta(days=30)),
)
