"""Rows, results and harnesses for tests of joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import msgspec

from stateflow import JoinContext, OutputTag, ProcessJoinFunction
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.testing import KeyedHarness, KeyedInput


class Left(msgspec.Struct, frozen=True):
    """A row of the left stream, with event time in milliseconds."""

    key: str | None
    at: int | None
    number: int = 0


class Right(msgspec.Struct, frozen=True):
    """A row of the right stream; another class than that of the left stream."""

    id: str | None
    at: int | None
    text: str = ""


class Pair(msgspec.Struct, frozen=True, order=True):
    key: str | None
    left: int | None
    right: int | None
    number: int | None = None
    text: str | None = None


LATE_LEFT, LATE_RIGHT = OutputTag("late-left", Left), OutputTag("late-right", Right)
Keyed = KeyedStream[DataStream]
Declare = Callable[[Keyed, Keyed], DataStream]


def unkeyed(keyed: Keyed) -> DataStream:
    """Returns the stream that `keyed` was made of, for joins that are declared with `where`."""
    return DataStream(keyed._graph, keyed._node)


class EmitPair(ProcessJoinFunction[Left, Right, Pair]):
    def process_element(self, left: Left, right: Right, ctx: JoinContext) -> Iterator[Pair]:
        assert ctx.get_current_key() == left.key == right.id
        assert (ctx.left_timestamp, ctx.right_timestamp) == (left.at, right.at)
        assert ctx.timestamp == max(ctx.left_timestamp, ctx.right_timestamp)
        yield pair_of(left, right)


def pair_of(left: Left, right: Right | None) -> Pair:
    return Pair(left.key, left.at, right.at if right else None, left.number, right.text if right else None)


def ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def harness(declare: Declare, bound: int | None = None, right_rows: type[Any] = Right, **settings: Any) -> KeyedHarness:
    """Returns a harness of a join; with an out-of-orderness, pushed rows advance the watermark."""
    out_of_orderness = None if bound is None else ms(bound)
    left = KeyedInput(Left, "key", event_time="at", out_of_orderness=out_of_orderness)
    right = KeyedInput(right_rows, "id", event_time="at", out_of_orderness=out_of_orderness)
    return KeyedHarness(declare, left, right, **settings)
