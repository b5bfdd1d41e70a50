"""Any number of sources on Spark, all written to one table. Parameter ``job.sources``: ``UID:FOLDER`` with commas; the
folder ``listed`` is a collection of two rows.
"""

from pathlib import Path

import msgspec

from stateflow import FileSource, StreamExecutionEnvironment
from stateflow.testing.sinks import FolderSink


class Row(msgspec.Struct):
    name: str
    number: int


def build(env: StreamExecutionEnvironment) -> None:
    home = Path(env.parameter("home"))
    found = []
    for source in env.parameter("sources").split(","):
        uid, folder = source.split(":")
        if folder == "listed":
            found.append(env.from_collection([Row("listed", 1), Row("listed", 2)], Row, uid=uid))
        else:
            found.append(env.from_source(FileSource(home / folder, schema=Row, format="json"), uid=uid))
    rows = found[0].union(*found[1:]) if len(found) > 1 else found[0]
    rows.sink_to(FolderSink(home / "out"), uid="out")
