"""The job of ``accounts.py`` with other tables.

Parameters: as there, but ``job.tables`` is the address of tables elsewhere; and ``job.sink``: ``delta`` with totals
that are upserted by shop; ``files``; ``iceberg``, in the catalog of the folder ``job.lake``; ``kafka``, topics of
``job.brokers``; ``postgres``, in ``job.schema`` of the server ``job.postgres``, with totals that are upserted by shop.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from stateflow import StreamExecutionEnvironment
from stateflow.api.sink import Sink
from tests.support.jobs.accounts import declare


def build(env: StreamExecutionEnvironment) -> None:
    declare(env, lambda name: _sink(env, name))


def _sink(env: StreamExecutionEnvironment, name: str) -> Sink:
    tables, is_total = env.parameter("tables", f"{env.parameter('folder')}/tables"), name == "totals"
    table = f"{tables}/{name}"
    match env.parameter("sink"):
        case "delta":
            from stateflow import DeltaSink

            return DeltaSink(table, mode="upsert", keys="shop") if is_total else DeltaSink(table)
        case "files":
            from stateflow import FileSink

            return FileSink(table)
        case "iceberg":
            from stateflow import IcebergSink
            from tests.support.staged_tables import iceberg_properties

            catalog, partitions = iceberg_properties(Path(env.parameter("lake"))), "bucket(2, shop)" if is_total else ()
            return IcebergSink(f"db.{name}", catalog="tests", properties=catalog, partition_by=partitions)
        case "kafka":
            from stateflow import KafkaSink

            # A driver gives up after that time if no broker answers.
            options = {"transaction.timeout.ms": "15000"}
            key = "shop" if is_total else "account"
            return KafkaSink(env.parameter("brokers"), topic=name, key=key, options=options)
        case _:
            from stateflow import PostgresSink

            conninfo, target = env.parameter("postgres"), f"{env.parameter('schema')}.{name}"
            if not is_total:
                return PostgresSink(conninfo, target)
            return PostgresSink(conninfo, target, mode="upsert", keys="shop", undo=timedelta(days=1))
