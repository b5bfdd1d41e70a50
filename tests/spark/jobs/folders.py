"""A folder of Parquet files and one of JSON files, which may be corrupt; or the JSON files twice, and a collection."""

from pathlib import Path
from typing import cast

import msgspec

from stateflow import FileSource, StreamExecutionEnvironment
from stateflow.api.input_files import OnCorruptFile
from stateflow.testing.sinks import FolderSink

PARQUET = "a b"


class Row(msgspec.Struct):
    name: str
    number: int


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job; `corrupt` is the policy on corrupt files, `swapped` reverses the order of the sources."""
    home, policy = Path(env.parameter("home")), cast(OnCorruptFile, env.parameter("corrupt", "quarantine"))
    formats = {"parquet": PARQUET, "json": "json"}
    sources = [
        env.from_source(FileSource(home / formats[f], schema=Row, format=f, on_corrupt_file=policy), uid=f)
        for f in sorted(formats, reverse=env.parameter("swapped", "no") == "yes")
    ]
    if policy == "fail":
        # A file cannot be skipped in a batch that also has rows of a collection.
        sources.append(env.from_source(FileSource(home / "json", schema=Row, format="json"), uid="json-again"))
        sources.append(env.from_collection([Row("listed", 0), Row("listed", 1)], Row, uid="listed"))
    rows = sources[0].union(*sources[1:])
    rows.sink_to(FolderSink(home / "out"), uid="out")
    rows.key_by("name").reduce(added, uid="sum").sink_to(FolderSink(home / "sums"), uid="sums")


def added(before: Row, row: Row) -> Row:
    return Row(row.name, before.number + row.number)
