"""A running sum by rows or by columns over one state, followed by aggregates; with Spark or without."""

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from stateflow import (
    Context,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorState,
)
from stateflow.testing.sinks import FolderSink


class Pair(msgspec.Struct):
    key: int
    value: int


class Totals(msgspec.Struct):
    parity: int
    rows: int
    largest: int
    different: int


class Marked(msgspec.Struct):
    parity: int
    value: int


PAIRS = [Pair(n % 5, n * n) for n in range(24)]
EXACT = {"rows": ("count", "value"), "sum": ("sum", "value"), "mean": ("mean", "value"), "least": ("min", "value")}


class Exact(msgspec.Struct):
    """Aggregates that do not depend on the division of rows into batches."""

    parity: int
    rows: int
    sum: int
    mean: float
    least: int


class SumRows(KeyedProcessFunction[Pair, Pair]):
    """One row out for each row in."""

    def open(self, ctx: RuntimeContext) -> None:
        self.sum = ctx.get_state(ValueStateDescriptor("sum", int))

    def process_element(self, row: Pair, ctx: Context) -> tuple[Pair]:
        total = (self.sum.value() or 0) + row.value
        self.sum.update(total)
        return (Pair(row.key, total),)


class SumColumns(VectorizedKeyedFunction):
    """The same."""

    def open(self, ctx: RuntimeContext) -> None:
        self.sum = ctx.get_state(ValueStateDescriptor("sum", int))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        before = state.read(self.sum).fill_null(0).to_numpy()
        values = batch.column("value").to_numpy()
        running = np.cumsum(values)
        own = running + (before - running[state.starts] + values[state.starts])[state.key_of_row]
        state.write(self.sum, own[state.starts + state.counts - 1])
        return pa.RecordBatch.from_arrays([batch.column("key"), own], names=["key", "value"])


def marked(row: Pair) -> Marked:
    """A row function that follows the operator."""
    return Marked(row.key % 2, row.value)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    home = Path(env.parameter("home"))
    pairs = env.from_collection(PAIRS, Pair, uid="pairs")
    if env.parameter("spark") == "yes":
        # A Spark expression, which changes nothing, makes the job run on Spark.
        pairs = pairs.transform(lambda frame: frame)
    function = SumColumns() if env.parameter("columns") == "yes" else SumRows()
    sums = pairs.key_by("key").process(function, output=Pair, uid="sum")
    sums.sink_to(FolderSink(home / "sums"), uid="sums")
    totals = (
        sums.map(marked, output=Marked)
        .key_by("parity")
        .aggregate_columns(
            {"rows": ("count", "value"), "largest": ("max", "value"), "different": ("approx_distinct", "value")},
            output=Totals,
            uid="aggregates",
        )
    )
    totals.sink_to(FolderSink(home / "totals"), uid="totals")
    # Of the source's rows and of an operator's, in two phases.
    for uid, stream in (("given", pairs.map(marked, output=Marked)), ("made", sums.map(marked, output=Marked))):
        exact = stream.key_by("parity").aggregate_columns(EXACT, output=Exact, uid=uid)
        exact.sink_to(FolderSink(home / uid), uid=f"{uid}-out")
