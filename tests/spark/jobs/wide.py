"""Every shape of edge in one job: a transform, fan-out, an operator behind an operator, a sink on an unkeyed stream."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stateflow import (
    Context,
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.connectors.python import PythonSource
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource

ROWS = 240


class Row(msgspec.Struct):
    number: int
    key: str
    group: int


class Seen(msgspec.Struct):
    key: str
    number: int
    count: int


class Pair(msgspec.Struct):
    group: int
    last: int
    keys: int


class CountPerKey(KeyedProcessFunction[Row, Seen]):
    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Seen]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield Seen(row.key, row.number, count)


class KeysPerGroup(KeyedProcessFunction[Row, Pair]):
    def open(self, ctx: RuntimeContext) -> None:
        self.keys = ctx.get_map_state(MapStateDescriptor("keys", str, int))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Pair]:
        self.keys.put(row.key, row.number)
        yield Pair(row.group, row.number, len(list(self.keys.keys())))


class CountPerCount(KeyedProcessFunction[Seen, Seen]):
    """Behind another operator: how many keys have come so far."""

    def open(self, ctx: RuntimeContext) -> None:
        self.reached = ctx.get_state(ValueStateDescriptor("reached", int))

    def process_element(self, row: Seen, ctx: Context) -> Iterator[Seen]:
        reached = (self.reached.value() or 0) + 1
        self.reached.update(reached)
        yield Seen(str(row.count), row.number, reached)


def rows() -> list[Row]:
    """The input: 17 keys in 5 groups."""
    return [Row(i, f"k{i * 7 % 17}", i % 5) for i in range(ROWS)]


def drop_every_third(frame: DataFrame) -> DataFrame:
    """A stateless Spark expression."""
    return frame.where(F.col("number") % 3 != 0)


def keep_even(frame: DataFrame) -> DataFrame:
    """A stateless Spark expression behind an operator."""
    return frame.where(F.col("number") % 2 == 0)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    home = Path(env.parameter("home"))
    source = PythonSource(ScriptedSource(Row, rows(), home / "ledger", slice_rows=60))
    stream = env.from_source(source, uid="rows")
    stream.sink_to(FolderSink(home / "raw"), uid="raw")
    kept = stream.transform(drop_every_third)
    seen = kept.key_by("key", order_by=("number",)).process(CountPerKey(), output=Seen, uid="per-key")
    seen.sink_to(FolderSink(home / "seen"), uid="seen")
    kept.key_by("group", order_by=("number",)).process(KeysPerGroup(), output=Pair, uid="per-group").sink_to(
        FolderSink(home / "pairs"), uid="pairs"
    )
    seen.transform(keep_even).key_by("count", order_by=("number",)).process(
        CountPerCount(), output=Seen, uid="per-count"
    ).sink_to(FolderSink(home / "counts"), uid="counts")
