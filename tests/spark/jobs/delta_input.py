"""Rows or changes of a Delta table, of another source of Spark or of one in Python, copied to a folder."""

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from stateflow import DeltaSource, SparkSource, StreamExecutionEnvironment
from stateflow.api.schema import RowSchema
from stateflow.api.source import LocalSource, Slice
from stateflow.config.settings import SourceSettings
from stateflow.testing.sinks import FolderSink


class Item(msgspec.Struct):
    id: int
    name: str | None


class Change(msgspec.Struct):
    id: int
    name: str | None
    change: str
    version: int


class Tick(msgspec.Struct):
    value: int


class Numbers(LocalSource):
    """Reads the lines of a file; it has no way to read rows again other than `read`."""

    schema = RowSchema.of(Tick)
    needs_spark = True

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def description(self) -> str:
        return f"Numbers[{self.file}]"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        start = int(position or "0")
        lines = self.file.read_text().splitlines()[start:][: limits.max_rows_per_batch]
        return Slice([Tick(int(line)) for line in lines], str(start + len(lines))) if lines else None


def _start(text: str) -> Any:
    if text.isdecimal():
        return int(text)
    return datetime.fromisoformat(text) if text[0].isdigit() else text


def build(env: StreamExecutionEnvironment) -> None:
    home = Path(env.parameter("home"))
    env.parameter("spark")
    kind, start = env.parameter("kind", "rows"), _start(env.parameter("start", "earliest"))
    items = env.parameter("items", str(home / "items"))
    source: DeltaSource | SparkSource | Numbers
    if kind == "numbers":
        source = Numbers(home / "numbers")
    elif kind == "rate":
        options = {"rowsPerBatch": "10", "numPartitions": "2", "advanceMillisPerBatch": "1000"}
        source = SparkSource("rate-micro-batch", schema=Tick, options=options, name="ticks", ends_by_itself=False)
    elif kind == "changes":
        metadata = {"change": "change", "version": "version"}
        source = DeltaSource(items, schema=Change, changes=True, start=start, metadata=metadata)
    else:
        skip = env.parameter("skip", "no") == "yes"
        source = DeltaSource(items, schema=Item, start=start, skip_changes=skip)
    env.from_source(source, uid="items").sink_to(FolderSink(home / "copied"), uid="copied")
