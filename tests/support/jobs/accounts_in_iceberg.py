"""The job of ``accounts.py`` whose tables are Iceberg's, in a catalog in SQLite.

Parameters: as there, and ``job.lake``, the folder of the catalog.
"""

from pathlib import Path

from stateflow import IcebergSink, StreamExecutionEnvironment
from stateflow.testing.sources import ScriptedSource
from tests.support import iceberg_tables
from tests.support.jobs.accounts import Balances, Event, Movement, Total, Turnovers, _script


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    env.configure(max_parallelism=128)
    folder = Path(env.parameter("folder"))
    catalog = iceberg_tables.properties(Path(env.parameter("lake")))
    source = ScriptedSource(Event, _script(folder), folder / "ledger.jsonl", slice_rows=10)
    movements = (
        env.from_source(source, uid="events")
        .key_by("account", order_by=("number",))
        .process(Balances(), output=Movement, uid="balances")
    )
    movements.sink_to(IcebergSink("db.movements", catalog="tests", properties=catalog), uid="movements")
    totals = movements.key_by("shop", order_by=("number",)).process(Turnovers(), output=Total, uid="turnovers")
    bucketed = IcebergSink("db.totals", catalog="tests", properties=catalog, partition_by="bucket(2, shop)")
    totals.sink_to(bucketed, uid="totals")
