"""The newest flight of each aircraft: a table with one row per aircraft, from a Kafka topic of flights.

Each run reads what the topic has at its start, and ends. After each checkpoint one commit replaces the rows of the
aircraft that flew. The other DAGs of the job are `aircraft_savepoint`, `aircraft_retention` and `aircraft_recovery`,
which sets the table, the state and the offsets back together.

It uses `STATEFLOW_HOME` and `spark_default` as `flights` does. The environment variable `STATEFLOW_KAFKA_BROKERS` has
the brokers (default `localhost:9092`). Spark downloads its JARs for Kafka, unless `STATEFLOW_KAFKA_JARS` has their
paths, separated by commas. `tables/aircraft` receives the output, `jobs/aircraft` has the checkpoints.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from stateflow_airflow.dags import Retention, StateflowJob, failpoint, stateflow_dags
from stateflow_airflow.spark import SparkSubmit

HOME = os.environ.get("STATEFLOW_HOME", "/opt/stateflow")
PACKAGE = {"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"}
JARS = {"spark.jars": path} if (path := os.environ.get("STATEFLOW_KAFKA_JARS")) else PACKAGE

FAILPOINT = failpoint(
    "publish.after:2",
    "kills the first try after its second commit to the table, before its checkpoint log records that.",
)

stateflow_dags(
    job=StateflowJob(
        name="aircraft",
        root=f"{HOME}/jobs/aircraft",
        settings={
            "source.max_rows_per_batch": 50_000,
            "local_dir": f"{HOME}/local",
            "job.brokers": os.environ.get("STATEFLOW_KAFKA_BROKERS", "localhost:9092"),
            "job.tables": f"{HOME}/tables",
        },
        spark=SparkSubmit(
            conn_id="spark_default",
            conf={"spark.ui.enabled": "false", "spark.local.dir": f"{HOME}/local/spark", **JARS},
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
    application=str(Path(__file__).parent / "jobs" / "aircraft.py"),
    schedule=os.environ.get("STATEFLOW_AIRCRAFT_SCHEDULE") or None,
    savepoints=os.environ.get("STATEFLOW_RETENTION_SCHEDULE", "@daily") or None,
    retention=Retention(savepoints=7, max_age=timedelta(days=30)),
)
