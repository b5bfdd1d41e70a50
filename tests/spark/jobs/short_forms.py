"""The short forms on keyed streams, over a collection, with Spark or without."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from stateflow import (
    RichFilterFunction,
    RichFlatMapFunction,
    RichMapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.testing.sinks import FolderSink


class Pair(msgspec.Struct):
    key: int
    value: int


class Text(msgspec.Struct):
    key: int
    text: str


PAIRS = [Pair(1, 3), Pair(2, 10), Pair(1, 5), Pair(1, 7), Pair(2, 30), Pair(1, 4), Pair(1, 2)]


class CountWindowAverage(RichFlatMapFunction[Pair, Pair]):
    """The average of every two values of a key, as in Flink's documentation."""

    def open(self, ctx: RuntimeContext) -> None:
        self.sum = ctx.get_state(ValueStateDescriptor("average", tuple[int, int]))

    def flat_map(self, row: Pair) -> Iterator[Pair]:
        count, total = self.sum.value() or (0, 0)
        count, total = count + 1, total + row.value
        self.sum.update((count, total))
        if count >= 2:
            yield Pair(row.key, total // count)
            self.sum.clear()


class Number(RichMapFunction[Pair, Text]):
    """Numbers the rows of a key."""

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def map(self, row: Pair) -> Text:
        self.count.update((self.count.value() or 0) + 1)
        return Text(row.key, f"{self.count.value()}: {row.value}")


class Growing(RichFilterFunction[Pair]):
    """Keeps the rows with a value above all earlier ones."""

    def open(self, ctx: RuntimeContext) -> None:
        self.most = ctx.get_state(ValueStateDescriptor("most", int))

    def filter(self, row: Pair) -> bool:
        before = self.most.value() or 0
        self.most.update(max(before, row.value))
        return row.value > before


class Mean:
    """An aggregate function: an accumulator of key, count and sum."""

    def create_accumulator(self) -> tuple[int, int, int]:
        return 0, 0, 0

    def add(self, value: Pair, accumulator: tuple[int, int, int]) -> tuple[int, int, int]:
        return value.key, accumulator[1] + 1, accumulator[2] + value.value

    def get_result(self, accumulator: tuple[int, int, int]) -> Text:
        return Text(accumulator[0], f"{accumulator[2]}/{accumulator[1]}")


def summed(before: Pair, row: Pair) -> Pair:
    """A reduce function."""
    return Pair(row.key, before.value + row.value)


def before_it(row: Pair, last: int | None) -> tuple[Text, int]:
    """A map: each row with the one before it."""
    return Text(row.key, f"{last} {row.value}"), row.value


def doubled(row: Pair, count: int | None) -> tuple[list[Pair], int | None]:
    """A flat map: every second row of a key, twice."""
    return ([row, row], None) if count else ([], 1)


def every_second(row: Pair, seen: bool | None) -> tuple[bool, bool | None]:
    """A filter that clears its state with each row that it keeps."""
    return (True, None) if seen else (False, True)


def refuse_seven(row: Pair) -> Pair:
    """A map that raises for one of the rows."""
    if row.value == 7:
        raise ValueError("seven is not welcome")
    return row


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    home = Path(env.parameter("home"))
    pairs = env.from_collection(PAIRS, Pair, uid="pairs")
    if env.parameter("spark") == "yes":
        # A Spark expression, which changes nothing, makes the job run on Spark.
        pairs = pairs.transform(lambda frame: frame)
    if env.parameter("fails", "no") == "yes":
        pairs = pairs.map(refuse_seven)
    keyed = pairs.key_by("key")
    keyed.flat_map(CountWindowAverage(), uid="average").filter(lambda row: row.key == 1).print()
    for uid, stream in {
        "map": keyed.map(Number(), output=Text, uid="number"),
        "filter": keyed.filter(Growing(), uid="growing"),
        "reduce": keyed.reduce(summed, uid="sum"),
        "aggregate": keyed.aggregate(Mean(), accumulator=tuple[int, int, int], output=Text, uid="mean"),
        "map_with_state": keyed.map_with_state(before_it, state=int, output=Text, uid="before"),
        "flat_map_with_state": keyed.flat_map_with_state(doubled, state=int, output=Pair, uid="doubled"),
        "filter_with_state": keyed.filter_with_state(every_second, state=bool, uid="second"),
    }.items():
        stream.sink_to(FolderSink(home / uid), uid=uid)
