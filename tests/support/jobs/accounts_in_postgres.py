"""The job of ``accounts.py`` whose tables are in PostgreSQL: movements are appended, and totals are upserted by shop.

Parameters: as there, and ``job.postgres``, how to connect, and ``job.schema``, of the tables.
"""

from datetime import timedelta
from pathlib import Path

from stateflow import StreamExecutionEnvironment
from stateflow.connectors.postgres.sink import PostgresSink
from stateflow.testing.sources import ScriptedSource
from tests.support.jobs.accounts import Balances, Event, Movement, Total, Turnovers, _script


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    env.configure(max_parallelism=128)
    folder, schema = Path(env.parameter("folder")), env.parameter("schema")
    conninfo = env.parameter("postgres")
    source = ScriptedSource(Event, _script(folder), folder / "ledger.jsonl", slice_rows=10)
    movements = (
        env.from_source(source, uid="events")
        .key_by("account", order_by=("number",))
        .process(Balances(), output=Movement, uid="balances")
    )
    movements.sink_to(PostgresSink(conninfo, f"{schema}.movements"), uid="movements")
    totals = movements.key_by("shop", order_by=("number",)).process(Turnovers(), output=Total, uid="turnovers")
    upserted = PostgresSink(conninfo, f"{schema}.totals", mode="upsert", keys="shop", undo=timedelta(days=1))
    totals.sink_to(upserted, uid="totals")
