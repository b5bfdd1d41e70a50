"""A job with rows whose keys are too large, on Spark or without. Parameters: ``job.home``, ``job.spark``,
``job.letters``."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from stateflow import (
    Context,
    DeadLetters,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource

HUGE = "k" * (30 << 20)


class Row(msgspec.Struct):
    """A number."""

    key: str
    number: int


ROWS = [Row("a", 1), Row("b", 2), Row(HUGE, 3), Row("a", 4), Row(HUGE, 5), Row("b", 6), Row("a", 7)]
SUMS = [("a", 1), ("a", 5), ("a", 12), ("b", 2), ("b", 8)]


class Tally(KeyedProcessFunction[Row, Row]):
    """Adds up the numbers of a key."""

    def open(self, ctx: RuntimeContext) -> None:
        self.sum = ctx.get_state(ValueStateDescriptor("sum", int))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        total = (self.sum.value() or 0) + row.number
        self.sum.update(total)
        yield Row(row.key, total)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    home = Path(env.parameter("home"))
    source = ScriptedSource(Row, ROWS, home / "ledger", slice_rows=4)
    if env.parameter("spark", "no") == "yes":
        from stateflow.connectors.python import PythonSource

        rows = env.from_source(PythonSource(source), uid="rows")
    else:
        rows = env.from_source(source, uid="rows")
    keyed = rows.key_by("key", order_by=("number",))
    if env.parameter("letters", "yes") == "no":
        keyed.process(Tally(), output=Row, uid="tally").sink_to(FolderSink(home / "out"), uid="out")
        return
    tally = keyed.process(Tally(), output=Row, uid="tally", on_error=DeadLetters(budget=9))
    tally.sink_to(FolderSink(home / "out"), uid="out")
    tally.get_dead_letters().sink_to(FolderSink(home / "letters"), uid="letters")
