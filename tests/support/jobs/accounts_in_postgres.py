"""The job of ``accounts.py`` whose tables are in PostgreSQL: movements are appended, and totals are upserted by shop.

Parameters: as there, and ``job.postgres``, how to connect, and ``job.schema``, of the tables.
"""

from datetime import timedelta

from stateflow import StreamExecutionEnvironment
from stateflow.connectors.postgres.sink import PostgresSink
from tests.support.jobs.accounts import declare


def build(env: StreamExecutionEnvironment) -> None:
    schema, conninfo = env.parameter("schema"), env.parameter("postgres")
    sinks = {
        "movements": PostgresSink(conninfo, f"{schema}.movements"),
        "totals": PostgresSink(conninfo, f"{schema}.totals", mode="upsert", keys="shop", undo=timedelta(days=1)),
    }
    declare(env, sinks.__getitem__)
