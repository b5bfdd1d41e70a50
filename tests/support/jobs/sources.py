"""Sources of jobs: a script in the job's folder, or with ``job.spark=yes`` files, which Spark reads."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from stateflow import FileSource, StreamExecutionEnvironment, WatermarkStrategy
from stateflow.api.streams.data_stream import DataStream
from stateflow.testing.sources import ScriptedSource


def scripted(
    env: StreamExecutionEnvironment, row_class: type[Any], name: str, *, ledger: str = "ledger", files: str = "in"
) -> FileSource | ScriptedSource:
    """The rows of ``NAME.jsonl``, ``job.batch_rows`` in a batch; or of the files in a folder, or in ``job.input``."""
    folder = Path(env.parameter("folder"))
    if env.parameter("spark", "no") == "yes":
        return FileSource(env.parameter("input", str(folder / files)), schema=row_class, format="json")
    script = [msgspec.json.decode(line, type=row_class) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    batch_rows = int(env.parameter("batch_rows", "10"))
    return ScriptedSource(row_class, script, folder / f"{ledger}.jsonl", slice_rows=batch_rows)


def timed(
    env: StreamExecutionEnvironment, row_class: type[Any], name: str, bound: timedelta, **where: str
) -> DataStream:
    """The stream of `scripted` rows with the event time of their column ``at``."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_column("at")
    return env.from_source(scripted(env, row_class, name, **where), uid=name).assign_timestamps_and_watermarks(strategy)
