"""Days of aircraft and of carriers, each reported as soon as event time says that it is over.

A second job over the landing folder of `flights`: it has a job root and a position of its own, so either runs,
fails, and goes back in time without the other. Where `flights` answers row by row, this one waits: with timers, with
flights that came too late for their day in a table of their own, and with aircraft that are forgotten when they have
not flown for 30 days.

`STATEFLOW_HOME` and `spark_default` are those of `flights`: `tables/aircraft_days`, `tables/carrier_days` and
`tables/late_flights` get the output, `jobs/fleet` has the checkpoints.

The last day is open until a later flight arrives. When no more are to come, a trigger of `fleet_savepoint` with *Stop
the run with it* and *Drain* closes it.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from stateflow_airflow.family import Retention, StateflowJob, stateflow_dags
from stateflow_airflow.spark import SparkSubmit

HOME = os.environ.get("STATEFLOW_HOME", "/opt/stateflow")

stateflow_dags(
    job=StateflowJob(
        name="fleet",
        root=f"{HOME}/jobs/fleet",
        settings={
            "local_dir": f"{HOME}/local",
            "job.flights": f"{HOME}/landing",
            "job.tables": f"{HOME}/tables",
        },
        spark=SparkSubmit(
            conn_id="spark_default",
            conf={"spark.ui.enabled": "false", "spark.local.dir": f"{HOME}/local/spark"},
        ),
        run={"retries": 2, "retry_delay": timedelta(seconds=5)},
        description=__doc__,
    ),
    application=str(Path(__file__).parent / "jobs" / "fleet.py"),
    schedule=os.environ.get("STATEFLOW_FLEET_SCHEDULE") or None,
    savepoints=os.environ.get("STATEFLOW_RETENTION_SCHEDULE", "@daily") or None,
    retention=Retention(savepoints=7, max_age=timedelta(days=30)),
)
