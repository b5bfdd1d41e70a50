"""Two folders of files and a collection in one job, read by Spark."""

from pathlib import Path

import msgspec

from stateflow import FileSource, StreamExecutionEnvironment
from stateflow.api.streams.data_stream import DataStream
from stateflow.testing.sinks import FolderSink


class Row(msgspec.Struct):
    name: str
    number: int


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job; `swapped` changes the order of its sources, `twice` reads one folder by two sources."""
    home = Path(env.parameter("home"))

    def folder(uid: str, name: str) -> DataStream:
        return env.from_source(FileSource(home / name, schema=Row, format="json"), uid=uid)

    if env.parameter("swapped", "no") == "yes":
        second, first = folder("second", "b"), folder("first", "a")
    else:
        first, second = (folder("first", "a"), folder("second", "a" if env.parameter("twice", "no") == "yes" else "b"))
    listed = env.from_collection([Row("listed", 0), Row("listed", 1)], Row, uid="listed")
    streams = first.union(second, listed)
    streams.sink_to(FolderSink(home / "out"), uid="out")
    streams.key_by("name").reduce(added, uid="sum").sink_to(FolderSink(home / "sums"), uid="sums")


def added(before: Row, row: Row) -> Row:
    """A reduce function."""
    return Row(row.name, before.number + row.number)
