"""A folder of Parquet files and one of JSON files, some of which may be corrupt."""

from pathlib import Path
from typing import cast

import msgspec

from stateflow import FileSource, StreamExecutionEnvironment
from stateflow.api.input_files import OnCorruptFile
from stateflow.testing.sinks import FolderSink


class Row(msgspec.Struct):
    name: str
    number: int


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job; `corrupt` is what both sources do about corrupt files."""
    home, policy = Path(env.parameter("home")), cast(OnCorruptFile, env.parameter("corrupt", "quarantine"))
    first = FileSource(home / "a b", schema=Row, on_corrupt_file=policy)
    second = FileSource(home / "json", schema=Row, format="json", on_corrupt_file=policy)
    streams = env.from_source(first, uid="parquet").union(env.from_source(second, uid="json"))
    streams.sink_to(FolderSink(home / "out"), uid="out")
    streams.key_by("name").reduce(added, uid="sum").sink_to(FolderSink(home / "sums"), uid="sums")


def added(before: Row, row: Row) -> Row:
    """A reduce function."""
    return Row(row.name, before.number + row.number)
