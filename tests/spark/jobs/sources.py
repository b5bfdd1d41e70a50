"""Any number of sources on Spark, all written to one table. Parameter ``job.sources``: ``UID:FOLDER`` with commas; the
folder ``listed`` is a collection of two rows.
"""

from pathlib import Path

import msgspec

from stateflow import FileSource, StreamExecutionEnvironment
from stateflow.api.streams.data_stream import DataStream
from stateflow.testing.sinks import FolderSink


class Row(msgspec.Struct):
    name: str
    number: int


def streams(env: StreamExecutionEnvironment) -> DataStream:
    """Returns the rows of all sources."""
    home = Path(env.parameter("home"))
    found = []
    for source in env.parameter("sources").split(","):
        uid, folder = source.split(":")
        if folder == "listed":
            found.append(env.from_collection([Row("listed", 1), Row("listed", 2)], Row, uid=uid))
        else:
            found.append(env.from_source(FileSource(home / folder, schema=Row, format="json"), uid=uid))
    return found[0].union(*found[1:]) if len(found) > 1 else found[0]


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    streams(env).sink_to(FolderSink(Path(env.parameter("home")) / "out"), uid="out")
