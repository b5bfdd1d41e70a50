"""The job of ``accounts.py`` whose tables are Delta's, with totals upserted by shop, or folders of files.

Parameters: as there, and ``job.sink``, ``delta`` or ``files``.
"""

from pathlib import Path

from stateflow import DeltaSink, FileSink, StreamExecutionEnvironment
from tests.support.jobs.accounts import declare


def build(env: StreamExecutionEnvironment) -> None:
    tables = Path(env.parameter("folder")) / "tables"
    if env.parameter("sink") == "files":
        declare(env, lambda name: FileSink(tables / name))
        return
    sinks = {
        "movements": DeltaSink(tables / "movements"),
        "totals": DeltaSink(tables / "totals", mode="upsert", keys="shop"),
    }
    declare(env, sinks.__getitem__)
