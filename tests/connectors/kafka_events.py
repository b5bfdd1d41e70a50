"""A job that publishes scripted events to a topic, for runs without Spark."""

from __future__ import annotations

from pathlib import Path

from stateflow import StreamExecutionEnvironment
from stateflow.connectors.delta.sink import DeltaSink
from stateflow.connectors.kafka.sink import KafkaSink
from tests.connectors.staged_sqlite import Event, PassOn, scripted_events


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job; ``job.folder`` holds the events, ``job.topic`` and ``job.brokers`` name the topic.

    With ``job.copy``, a Delta table has the same rows.
    """
    events = env.from_source(scripted_events(Path(env.parameter("folder"))), uid="events")
    passed = events.key_by("account").process(PassOn(), output=Event, uid="accounts")
    passed.sink_to(KafkaSink(env.parameter("brokers"), topic=env.parameter("topic"), key="account"), uid="out")
    if env.parameter("copy", ""):
        passed.sink_to(DeltaSink(Path(env.parameter("folder")) / "tables" / "copy"), uid="copy")
