"""The job that continues an aggregation of Structured Streaming over a topic."""

from pathlib import Path

from stateflow import KafkaSource, StreamExecutionEnvironment
from stateflow.testing.sinks import FolderSink
from tests.spark.jobs.imported import Count, Counts, Order


def source(brokers: str, topic: str) -> KafkaSource:
    """Returns the source of the query."""
    return KafkaSource(brokers, schema=Order, topics=topic)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job in the folder `home`."""
    orders = env.from_source(source(env.parameter("brokers"), env.parameter("topic")), uid="orders")
    counts = orders.key_by("shop").process(Counts(), output=Count, uid="counts")
    counts.sink_to(FolderSink(Path(env.parameter("home")) / "counts"), uid="out")
