"""A query of Nexmark as a job.

Parameters: ``job.query`` (name of a module of `queries`), ``job.events`` (a folder of the generator),
``job.side_input`` (the CSV file of q13), ``job.table`` (folder of the result; without it rows are counted and dropped).
"""

from __future__ import annotations

from importlib import import_module

from benchmarks.nexmark.tables import FileTables
from stateflow import DeltaSink, FileSink, StreamExecutionEnvironment


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    module = import_module(f"benchmarks.nexmark.queries.{env.parameter('query')}")
    result = module.query(FileTables(env, env.parameter("events"), env.parameter("side_input", "")))
    table = env.parameter("table", "")
    if partition_by := getattr(module, "PARTITION_BY", ()):
        result.sink_to(FileSink(table, partition_by=partition_by), uid="result")
    elif table:
        keys = getattr(module, "KEYS", ())
        result.sink_to(DeltaSink(table, mode="upsert" if keys else "append", keys=keys), uid="result")
    else:
        result.print(limit=0, uid="result")
