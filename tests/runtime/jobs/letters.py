"""A job with bad rows, on Spark or without. Parameters: ``job.home``, ``job.spark``."""

from collections import Counter
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


class Row(msgspec.Struct):
    key: str
    number: int


ROWS = [Row(f"k{n % 5}", n) for n in range(60)]
BAD = [n for n in range(60) if n % 7 == 0 or n % 11 == 10]


def expected() -> Counter[tuple[str, int]]:
    sums: Counter[str] = Counter()
    result: Counter[tuple[str, int]] = Counter()
    for row in ROWS:
        if row.number not in BAD:
            sums[row.key] += row.number
            result[row.key, sums[row.key]] += 1
    return result


class Tally(KeyedProcessFunction[Row, Row]):
    def open(self, ctx: RuntimeContext) -> None:
        self.sum = ctx.get_state(ValueStateDescriptor("sum", int))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        total = (self.sum.value() or 0) + row.number
        self.sum.update(total)
        yield Row(row.key, total)
        if row.number % 7 == 0:
            raise ValueError("seven")


def refuse_tens(row: Row) -> bool:
    if row.number % 11 == 10:
        raise ValueError("ten")
    return True


def build(env: StreamExecutionEnvironment) -> None:
    home = Path(env.parameter("home"))
    source = ScriptedSource(Row, ROWS, home / "ledger", slice_rows=20)
    if env.parameter("spark", "no") == "yes":
        from stateflow.connectors.python import PythonSource

        stream = env.from_source(PythonSource(source), uid="rows")
    else:
        stream = env.from_source(source, uid="rows")
    policy = DeadLetters(budget=20)
    kept = stream.filter(refuse_tens, on_error=policy)
    tally = kept.key_by("key", order_by=("number",)).process(Tally(), output=Row, uid="tally", on_error=policy)
    tally.sink_to(FolderSink(home / "out"), uid="out")
    letters = tally.get_dead_letters().union(kept.get_dead_letters())
    letters.sink_to(FolderSink(home / "letters"), uid="letters")
