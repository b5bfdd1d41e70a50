"""Rows of a topic and of a Delta table, copied to a folder."""

from pathlib import Path

import msgspec

from stateflow import DeltaSource, KafkaSource, StreamExecutionEnvironment
from stateflow.testing.sinks import FolderSink


class Order(msgspec.Struct):
    id: int
    name: str


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    home = Path(env.parameter("home"))
    env.parameter("spark")
    topic = KafkaSource(env.parameter("brokers"), schema=Order, topics=env.parameter("topics"), value="json")
    ordered = env.from_source(topic, uid="topic")
    ordered.union(env.from_source(DeltaSource(home / "table", schema=Order), uid="table")).sink_to(
        FolderSink(home / "copied"), uid="copied"
    )
