"""The job of ``accounts.py`` whose tables are topics.

Parameters: as there, and ``job.brokers``.
"""

from pathlib import Path

from stateflow import StreamExecutionEnvironment
from stateflow.connectors.kafka.sink import KafkaSink
from stateflow.testing.sources import ScriptedSource
from tests.support.jobs.accounts import Balances, Event, Movement, Total, Turnovers, _script

_OPTIONS = {"transaction.timeout.ms": "15000"}
"""A driver gives up after that time if no broker answers."""


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    env.configure(max_parallelism=128)
    folder, brokers = Path(env.parameter("folder")), env.parameter("brokers")
    source = ScriptedSource(Event, _script(folder), folder / "ledger.jsonl", slice_rows=10)
    movements = (
        env.from_source(source, uid="events")
        .key_by("account", order_by=("number",))
        .process(Balances(), output=Movement, uid="balances")
    )
    movements.sink_to(KafkaSink(brokers, topic="movements", key="account", options=_OPTIONS), uid="movements")
    totals = movements.key_by("shop", order_by=("number",)).process(Turnovers(), output=Total, uid="turnovers")
    totals.sink_to(KafkaSink(brokers, topic="totals", key="shop", options=_OPTIONS), uid="totals")
