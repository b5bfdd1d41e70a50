"""Parquet, JSON and CSV files at an address in a bucket; corrupt files are skipped."""

from pathlib import Path

import msgspec

from stateflow import FileSource, StreamExecutionEnvironment
from stateflow.testing.sinks import FolderSink


class Row(msgspec.Struct):
    name: str
    number: int


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job, with one source for each of `formats`, and writes the rows and the sum of each name."""
    home, address = Path(env.parameter("home")), env.parameter("files")
    sources = [
        env.from_source(FileSource(f"{address}/{f}", schema=Row, format=f, on_corrupt_file="quarantine"), uid=f)
        for f in env.parameter("formats", "parquet json csv").split()
    ]
    rows = sources[0].union(*sources[1:]) if len(sources) > 1 else sources[0]
    rows.sink_to(FolderSink(home / "out"), uid="out")
    rows.key_by("name").reduce(added, uid="sum").sink_to(FolderSink(home / "sums"), uid="sums")


def added(before: Row, row: Row) -> Row:
    return Row(row.name, before.number + row.number)
