"""Rows of files appended to a Delta table that has a name in the catalog."""

from pathlib import Path

import msgspec

from stateflow import DeltaSink, FileSource, StreamExecutionEnvironment


class Item(msgspec.Struct):
    id: int


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    home = Path(env.parameter("home"))
    env.parameter("spark")
    items = env.from_source(FileSource(home / "in", format="json", schema=Item), uid="items")
    items.sink_to(DeltaSink(home / "table", register_as="default.items"), uid="table")
