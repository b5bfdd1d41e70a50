"""ORC files that Spark reads through Hadoop's S3 client, and a table that stateflow writes in the same bucket."""

import msgspec

from stateflow import DeltaSink, FileSource, StreamExecutionEnvironment


class Row(msgspec.Struct):
    name: str
    number: int


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job. With ``job.name``, Spark's catalog has the table under this name."""
    rows = env.from_source(FileSource("s3a://bucket/in", schema=Row, format="orc"), uid="rows")
    rows.sink_to(DeltaSink("s3://bucket/table", register_as=env.parameter("name", "")), uid="table")
