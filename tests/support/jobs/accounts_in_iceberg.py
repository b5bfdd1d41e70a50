"""The job of ``accounts.py`` whose tables are Iceberg's, in a catalog in SQLite.

Parameters: as there, and ``job.lake``, the folder of the catalog.
"""

from pathlib import Path

from stateflow import IcebergSink, StreamExecutionEnvironment
from tests.support import iceberg_tables
from tests.support.jobs.accounts import declare


def build(env: StreamExecutionEnvironment) -> None:
    catalog = iceberg_tables.properties(Path(env.parameter("lake")))
    partitions = {"movements": (), "totals": "bucket(2, shop)"}
    declare(
        env, lambda name: IcebergSink(f"db.{name}", catalog="tests", properties=catalog, partition_by=partitions[name])
    )
