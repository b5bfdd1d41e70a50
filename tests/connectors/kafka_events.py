"""A job that publishes scripted events to a topic, for runs without Spark."""

from __future__ import annotations

from pathlib import Path

from stateflow import StreamExecutionEnvironment
from stateflow.connectors.kafka.sink import KafkaSink
from stateflow.testing.sinks import FolderSink
from tests.connectors.staged_sqlite import Event, PassOn, scripted_events


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job; ``job.folder`` holds the events, ``job.topic`` and ``job.brokers`` name the topic.

    With ``job.copy``, a table has the same rows.
    """
    events = env.from_source(scripted_events(Path(env.parameter("folder"))), uid="events")
    passed = events.key_by("account").process(PassOn(), output=Event, uid="accounts")
    passed.sink_to(KafkaSink(env.parameter("brokers"), topic=env.parameter("topic"), key="account"), uid="out")
    if env.parameter("copy", ""):
        passed.sink_to(FolderSink(Path(env.parameter("folder")) / "tables" / "copy"), uid="copy")
