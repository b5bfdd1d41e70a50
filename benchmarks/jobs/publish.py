"""Writes the rows of Parquet files to a Kafka topic, without state.

Parameters: ``job.brokers``, ``job.topic``, ``job.rows`` (folder of Parquet files; two are a batch).
"""

import msgspec

from stateflow import FileSource, KafkaSink, StreamExecutionEnvironment


class Reading(msgspec.Struct):
    """A small row: 50 bytes of JSON."""

    number: int
    sensor: str
    value: float


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    env.configure(source__max_files_per_batch=2)
    rows = env.from_source(FileSource(env.parameter("rows"), schema=Reading), uid="rows")
    rows.sink_to(KafkaSink(env.parameter("brokers"), topic=env.parameter("topic"), key="sensor"), uid="out")
