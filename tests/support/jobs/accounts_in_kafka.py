"""The job of ``accounts.py`` whose tables are topics.

Parameters: as there, and ``job.brokers``.
"""

from stateflow import StreamExecutionEnvironment
from stateflow.connectors.kafka.sink import KafkaSink
from tests.support.jobs.accounts import declare

_OPTIONS = {"transaction.timeout.ms": "15000"}
"""A driver gives up after that time if no broker answers."""
_KEYS = {"movements": "account", "totals": "shop"}


def build(env: StreamExecutionEnvironment) -> None:
    brokers = env.parameter("brokers")
    declare(env, lambda name: KafkaSink(brokers, topic=name, key=_KEYS[name], options=_OPTIONS))
