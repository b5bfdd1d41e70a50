"""Daily statistics per aircraft and per carrier, emitted when event time passes the end of the day.

A second job over the landing folder of `flights`. It has its own job root and source position, so each job runs, fails
and is restored independently. While `flights` emits a result per row, this job uses event-time timers, a side output
table for flights that arrive after the end of their day, and state that expires for aircraft without a flight in 30
days.

It uses `STATEFLOW_HOME` and `spark_default` as `flights` does. `tables/aircraft_days`, `tables/carrier_days` and
`tables/late_flights` receive the output, `jobs/fleet` has the checkpoints.

The last day stays open until a later flight arrives. To close it after the last flight, trigger `fleet_savepoint` with
*Stop the run* and *Drain*.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from stateflow_airflow.dags import Retention, StateflowJob, stateflow_dags
from stateflow_airflow.spark import SparkSubmit

HOME = os.environ.get("STATEFLOW_HOME", "/opt/stateflow")

stateflow_dags(
    job=StateflowJob(
        name="fleet",
        root=f"{HOME}/jobs/fleet",
        settings={"local_dir": f"{HOME}/local", "job.flights": f"{HOME}/landing", "job.tables": f"{HOME}/tables"},
        spark=SparkSubmit(
            conn_id="spark_default", conf={"spark.ui.enabled": "false", "spark.local.dir": f"{HOME}/local/spark"}
        ),
        run={"retries": 2, "retry_delay": timedelta(seconds=5)},
        # The Airflow of the demo has one user. With several, leave this out: another user then approves restores, stops
        # and deletions below the configured numbers.
        self_approval=True,
        description=__doc__,
    ),
    application=str(Path(__file__).parent / "jobs" / "fleet.py"),
    schedule=os.environ.get("STATEFLOW_FLEET_SCHEDULE") or None,
    savepoints=os.environ.get("STATEFLOW_RETENTION_SCHEDULE", "@daily") or None,
    retention=Retention(savepoints=7, max_age=timedelta(days=30)),
)
