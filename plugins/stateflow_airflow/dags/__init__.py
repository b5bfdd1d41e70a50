"""The DAGs of a job: run, savepoint, retention, recovery, and events of partitions.

In a DAG file::

    stateflow_dags(
        job=StateflowJob(name="flights", root="/data/jobs/flights"),
        application="/opt/jobs/flights.py",
        schedule="@hourly",
        savepoints="@daily",
        retention=Retention(savepoints=7),
    )

creates ``flights``, ``flights_savepoint``, ``flights_retention`` and ``flights_recovery``; with ``partition_events``,
``flights_partitions`` as well. They need no pool: if a run
and a restore overlap, the later one fences the earlier. To queue them instead, create a pool with one slot and name it:
``StateflowJob(pool="flights")``.

Airflow creates a new DAG paused. Unpause ``flights`` and ``flights_retention`` once. The other two have no schedule and
are created unpaused, so that a trigger starts them.
"""

from stateflow_airflow.dags.factory import stateflow_dags
from stateflow_airflow.dags.forms import failpoint
from stateflow_airflow.dags.job import StateflowJob
from stateflow_airflow.operators.partitions import PartitionEvents
from stateflow_airflow.operators.retention_limits import Retention, TableMaintenance

__all__ = ["PartitionEvents", "Retention", "StateflowJob", "TableMaintenance", "failpoint", "stateflow_dags"]
