"""A folder of Parquet files, one of JSON files that two sources read, and a collection; files may be corrupt."""

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
    """Declares the job; `corrupt` is the sources' policy on corrupt files, `swapped` reverses their order."""
    home, policy = Path(env.parameter("home")), cast(OnCorruptFile, env.parameter("corrupt", "quarantine"))
    sources = {"parquet": FileSource(home / PARQUET, schema=Row, on_corrupt_file=policy)}
    for uid in ("json", "json-again"):
        sources[uid] = FileSource(home / "json", schema=Row, format="json", on_corrupt_file=policy)
    uids = sorted(sources, reverse=env.parameter("swapped", "no") == "yes")
    first, *others = [env.from_source(sources[uid], uid=uid) for uid in uids]
    listed = env.from_collection([Row("listed", 0), Row("listed", 1)], Row, uid="listed")
    rows = first.union(*others, listed)
    rows.sink_to(FolderSink(home / "out"), uid="out")
    rows.key_by("name").reduce(added, uid="sum").sink_to(FolderSink(home / "sums"), uid="sums")


def added(before: Row, row: Row) -> Row:
    """A reduce function."""
    return Row(row.name, before.number + row.number)
