"""Appends the rows of Parquet files to a Delta table, without state.

Parameters: ``job.rows`` (folder of Parquet files, each of which is a batch), ``job.table``.
"""

import msgspec

from stateflow import DeltaSink, FileSource, StreamExecutionEnvironment


class Row(msgspec.Struct):
    """A row of the table."""

    key: int
    value: float
    text: str


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    env.configure(source__max_files_per_batch=1)
    rows = env.from_source(FileSource(env.parameter("rows"), schema=Row), uid="rows")
    rows.sink_to(DeltaSink(env.parameter("table")), uid="table")
